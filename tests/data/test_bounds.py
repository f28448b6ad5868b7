"""Statistics through masks: columns with public bounds, whatever their units are."""

from __future__ import annotations

import numpy as np
import pytest

import consortium as co
from consortium.data.bounds import RECORDS
from consortium.drive.statistics import masked_statistics_plan
from consortium.errors import ImpossiblePlanError, InsufficientParticipantsError, SiteDataError

NAMES = ("age", "pressure", "platelets")
BOUNDS = co.ColumnBounds(np.array([0.0, 50.0, 0.0]), np.array([120.0, 250.0, 1e6]), 500)


def made(count: int, missing: float = 0.0) -> list[co.SimulatedSite]:
    rng = np.random.default_rng(count)
    sites = []
    for at in range(count):
        records = 20 + 30 * at
        features = rng.normal([60.0 + at, 130.0, 2.5e5], [10.0, 15.0, 5e4], (records, 3))
        features[1:][rng.random((records - 1, 3)) < missing] = np.nan
        sites.append(co.SimulatedSite(f"site-{at}", features))
    return sites


@pytest.mark.parametrize(("count", "missing"), [(3, 0.0), (8, 0.0), (8, 0.3)])
def test_masked_statistics_are_those_of_the_pooled_records(count: int, missing: float) -> None:
    """Up to the steps of the grid: a column's numbers are off by a few millionths of its bounds."""
    sites = made(count, missing)
    found = co.federated_statistics(sites, lambda site: site.data, NAMES, bounds=BOUNDS)
    pooled = np.concatenate([site.data for site in sites])
    width = BOUNDS.high - BOUNDS.low
    assert found.records == len(pooled)
    assert (np.abs(found.mean - np.nanmean(pooled, axis=0)) < 2e-5 * width).all()
    np.testing.assert_allclose(found.std, np.nanstd(pooled, axis=0), rtol=1e-3)


def test_no_site_reaches_the_clip() -> None:
    """At the bounds, with as many records as there can be."""
    longest = BOUNDS.scaled_moments(np.tile(BOUNDS.high, (500, 1)))
    assert np.linalg.norm(np.concatenate(list(longest.values()))) == pytest.approx(BOUNDS.longest)
    assert masked_statistics_plan(BOUNDS, 5).strategy.clip == BOUNDS.longest


def test_values_and_records_beyond_the_bounds_count_as_the_bounds() -> None:
    beyond = np.array([[200.0, 1e9, -5.0]] * 900)
    at_bounds = np.array([[120.0, 250.0, 0.0]] * 500)
    there, here = (BOUNDS.scaled_moments(features) for features in (beyond, at_bounds))
    assert all((there[name] == here[name]).all() for name in here)


def test_the_plan_is_one_of_masked_sums() -> None:
    plan = masked_statistics_plan(BOUNDS, 9)
    plan.check()
    assert plan.is_masked and (plan.federation.quorum, plan.selection.target) == (6, 9)
    assert masked_statistics_plan(BOUNDS, 3).federation.quorum == 3
    with pytest.raises(ImpossiblePlanError, match="fewer than 3"):
        masked_statistics_plan(BOUNDS, 3, quorum=2)


def test_sites_without_a_value_leave_too_few() -> None:
    sites = made(3)
    sites[1].data[:, 0] = np.nan
    with pytest.raises(InsufficientParticipantsError):
        co.federated_statistics(sites, lambda site: site.data, NAMES, bounds=BOUNDS)


@pytest.mark.parametrize(
    ("low", "high", "records"),
    [
        ([], [], 10),
        ([0.0], [1.0, 2.0], 10),
        ([[0.0]], [[1.0]], 10),
        ([1.0], [1.0], 10),
        ([0.0], [np.inf], 10),
        ([np.nan], [1.0], 10),
        ([0.0], [1.0], 0),
    ],
)
def test_bounds_that_bound_nothing_are_refused(low: list, high: list, records: int) -> None:
    with pytest.raises(SiteDataError):
        co.ColumnBounds(np.array(low), np.array(high), records)


def test_features_and_sums_of_another_form_are_refused() -> None:
    with pytest.raises(SiteDataError, match="of 3 columns"):
        BOUNDS.scaled_moments(np.zeros((5, 2)))
    with pytest.raises(SiteDataError, match="not the moments"):
        BOUNDS.statistics(NAMES, {RECORDS: np.ones(1)}, 3)
    with pytest.raises(SiteDataError, match="not the moments"):
        BOUNDS.statistics(NAMES, BOUNDS.start(), 3)

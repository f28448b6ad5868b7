"""Federated statistics: combined over sites they are those of the pooled records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.data import Statistics, local_moments
from consortium.errors import SiteDataError

NAMES = ("a", "b", "c")


def combined(
    sites: list[np.ndarray], centre: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], int]:
    """The records-weighted mean of the sites' moments: what a federation computes."""
    records = [len(site) for site in sites]
    moments = [local_moments(site, centre) for site in sites]
    return {
        key: np.average([each[key] for each in moments], axis=0, weights=records)
        for key in moments[0]
    }, sum(records)


def made(sizes: list[int], offset: float, missing: float, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    sites = [rng.normal(offset, [1.0, 5.0, 0.2], (size, 3)) for size in sizes]
    for site in sites:
        site[1:][rng.random((len(site) - 1, 3)) < missing] = np.nan
    return sites


def assert_pooled(statistics: Statistics, sites: list[np.ndarray], rtol: float) -> None:
    pooled = np.concatenate(sites)
    np.testing.assert_allclose(statistics.mean, np.nanmean(pooled, axis=0), rtol=rtol)
    np.testing.assert_allclose(statistics.std, np.nanstd(pooled, axis=0), rtol=rtol)


@given(st.lists(st.integers(4, 60), min_size=1, max_size=6), st.integers(0, 99))
def test_sites_combined_equal_the_pooled_records(sizes: list[int], seed: int) -> None:
    sites = made(sizes, offset=1.0, missing=0.0, seed=seed)
    assert_pooled(Statistics.of(NAMES, *combined(sites)), sites, rtol=1e-12)


@given(st.lists(st.integers(8, 60), min_size=1, max_size=6), st.integers(0, 99))
def test_it_holds_with_missing_values_too(sizes: list[int], seed: int) -> None:
    sites = made(sizes, offset=1.0, missing=0.3, seed=seed)
    assert_pooled(Statistics.of(NAMES, *combined(sites)), sites, rtol=1e-12)


def test_a_common_centre_keeps_small_spread_beside_a_large_mean() -> None:
    sites = made([50, 80, 20], offset=1e6, missing=0.1, seed=0)
    centre = np.full(3, 1e6)
    statistics = Statistics.of(NAMES, *combined(sites, centre), centre=centre)
    assert_pooled(statistics, sites, rtol=1e-12)


def test_without_a_centre_that_spread_is_lost() -> None:
    sites = made([50, 80, 20], offset=1e6, missing=0.1, seed=0)
    statistics = Statistics.of(NAMES, *combined(sites))
    with pytest.raises(AssertionError):
        assert_pooled(statistics, sites, rtol=1e-6)


def test_present_is_the_share_of_records_with_a_value() -> None:
    moments = local_moments(np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan], [0.0, 8.0]]))
    assert moments["present"].tolist() == [0.75, 0.25]


def test_apply_standardises_and_keeps_what_is_missing() -> None:
    statistics = Statistics(("a", "b"), np.array([1.0, 7.0]), np.array([2.0, 0.0]), 5)
    scaled = statistics.apply(np.array([[5.0, 7.0], [np.nan, 8.0]]))
    np.testing.assert_array_equal(scaled, np.array([[2.0, 0.0], [np.nan, 1.0]], np.float32))


def test_saved_statistics_come_back_exactly(tmp_path: Path) -> None:
    statistics = Statistics(("ä", "b"), np.array([1 / 3, 1e-300]), np.array([2.0, 0.0]), 7)
    statistics.save(tmp_path / "deep" / "s.json")
    loaded = Statistics.load(tmp_path / "deep" / "s.json")
    assert (loaded.columns, loaded.records) == (statistics.columns, 7)
    assert (loaded.mean == statistics.mean).all() and (loaded.std == statistics.std).all()


def test_equal_statistics_have_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Statistics(("a",), np.array([1.0]), np.array([2.0]), 7).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


GOOD = {
    "columns": ["a"],
    "format": "consortium/statistics/v1",
    "mean": [1.0],
    "records": 7,
    "std": [2.0],
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        json.dumps({**GOOD, "format": "consortium/statistics/v2"}),
        json.dumps({**GOOD, "more": 1}),
        json.dumps({**GOOD, "mean": [1.0, 2.0]}),
        json.dumps({**GOOD, "mean": 1.0}),
        json.dumps({**GOOD, "mean": ["1.0"]}),
        json.dumps({**GOOD, "mean": [10**400]}),
        json.dumps({**GOOD, "mean": [float("nan")]}),
        json.dumps({**GOOD, "std": [-1.0]}),
        json.dumps({**GOOD, "records": 0}),
        json.dumps({**GOOD, "records": True}),
        json.dumps({**GOOD, "columns": [1]}),
        json.dumps({**GOOD, "columns": [], "mean": [], "std": []}),
    ],
)
def test_a_file_that_save_would_not_write_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SiteDataError):
        Statistics.load(path)


def test_the_form_that_those_files_break_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8")
    assert Statistics.load(path).records == 7


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(SiteDataError, match="too large"):
        Statistics.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiteDataError, match=r"s\.json cannot be read"):
        Statistics.load(tmp_path / "s.json")


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    statistics = Statistics(("a",), np.array([1.0]), np.array([2.0]), 7)
    with pytest.raises(SiteDataError, match="cannot be written"):
        statistics.save(tmp_path / "file" / "s.json")


def test_a_column_that_nobody_has_is_refused() -> None:
    moments = local_moments(np.array([[1.0, np.nan]]))
    with pytest.raises(SiteDataError, match="value of b"):
        Statistics.of(("a", "b"), moments, 1)


def test_moments_of_another_kind_are_refused() -> None:
    with pytest.raises(SiteDataError, match="mean, present, square"):
        Statistics.of(("a",), {"mean": np.array([1.0])}, 1)


def test_moments_of_nothing_are_refused() -> None:
    with pytest.raises(SiteDataError, match="not empty"):
        local_moments(np.zeros((0, 3)))


def test_features_of_another_width_are_refused() -> None:
    statistics = Statistics(("a",), np.array([1.0]), np.array([2.0]), 7)
    with pytest.raises(SiteDataError, match="of 1 columns"):
        statistics.apply(np.zeros((3, 2)))

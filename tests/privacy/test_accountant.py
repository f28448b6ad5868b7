"""The accountant: what it adds up, what it rounds and in which direction, what it refuses."""

from __future__ import annotations

import logging
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consortium.core.account_facts import Cost
from consortium.errors import InvalidInputError
from consortium.privacy import accountant
from consortium.privacy.accountant import (
    MAX_KINDS,
    epsilon,
    is_closed,
    merged,
    pld_epsilon,
    rdp_epsilon,
)
from consortium.privacy.gaussian import epsilon_of, mu_of

DELTA = 1e-5
COSTS = st.builds(
    Cost,
    st.floats(1e-3, 1e6),
    st.integers(1, 10_000),
    st.one_of(st.just(1.0), st.floats(1e-6, 1.0)),
)


def mu_as_if_all_were_picked(costs: list[Cost]) -> float:
    return mu_of(cost.sigma / math.sqrt(cost.releases) for cost in costs)


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    assert epsilon([], DELTA) == pld_epsilon([], DELTA) == 0.0
    assert epsilon([Cost(1e-4, 1, 1.0)], DELTA) == math.inf
    assert epsilon([Cost(1e-4, 1, 0.5)], DELTA) == math.inf
    assert epsilon([Cost(1e-4, 1, 0.5), Cost(1e-4, 1, 1.0), Cost(5.0, 1, 1.0)], DELTA) == math.inf
    assert epsilon([Cost(1e9, 10, 0.5)], DELTA) == 0.0


@pytest.mark.parametrize(
    ("cost", "delta"),
    [
        (Cost(0.0, 1, 1.0), DELTA),
        (Cost(math.nan, 1, 1.0), DELTA),
        (Cost(math.inf, 1, 1.0), DELTA),
        (Cost(1.0, 0, 1.0), DELTA),
        (Cost(1.0, 1, 0.0), DELTA),
        (Cost(1.0, 1, 1.01), DELTA),
        (Cost(1.0, 1, 1.0), 0.0),
        (Cost(1.0, 1, 1.0), 1.0),
        (Cost(1.0, 1, 1.0), math.nan),
    ],
)
def test_costs_and_delta_that_cannot_be_are_refused(cost: Cost, delta: float) -> None:
    with pytest.raises(InvalidInputError):
        epsilon([cost], delta)


def test_the_order_and_the_cut_of_costs_do_not_matter() -> None:
    costs = [Cost(1.1, 100, 0.01), Cost(7.0, 3, 1.0), Cost(2.0, 50, 0.1), Cost(9.0, 1, 1.0)]
    cut = [*costs[1:], Cost(1.1, 60, 0.01), Cost(1.1, 40, 0.01)]
    random.Random(1).shuffle(cut)
    assert merged(cut, DELTA) == merged(costs, DELTA)
    assert epsilon(cut, DELTA) == epsilon(costs, DELTA)


def test_releases_without_sampling_become_one_exactly() -> None:
    costs = [Cost(7.0, 3, 1.0), Cost(9.0, 1, 1.0), Cost(50.0, 30, 1.0)]
    one = merged(costs, DELTA)
    assert [(cost.releases, cost.rate) for cost in one] == [(1, 1.0)]
    assert is_closed(one)
    wanted = epsilon_of(mu_as_if_all_were_picked(costs), DELTA)
    assert epsilon(costs, DELTA) == pytest.approx(wanted, rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(COSTS, max_size=60))
def test_merging_is_never_cheaper_and_is_done_once(costs: list[Cost]) -> None:
    """Less noise and a higher rate for as many releases: by how much each is worse can be seen."""
    kinds = merged(costs, DELTA)
    assert len(kinds) <= MAX_KINDS
    assert merged(kinds, DELTA) == kinds
    assert mu_as_if_all_were_picked(list(kinds)) >= mu_as_if_all_were_picked(costs) * (1 - 1e-12)
    assert max((c.rate for c in kinds), default=0) >= max((c.rate for c in costs), default=0)
    sampled = [cost for cost in costs if cost.rate < 1]
    picked = sum(cost.releases * cost.rate for cost in kinds)
    if any(cost.rate < 1 for cost in kinds):
        assert picked >= sum(cost.releases * cost.rate for cost in sampled) * (1 - 1e-12)


def test_each_kind_is_rounded_to_the_expensive_side() -> None:
    for digits in (1, 2, 3):
        for cost in (Cost(1.23456, 5, 0.0123456), Cost(1.1, 1, 0.01), Cost(9.99999, 2, 0.999999)):
            worse = accountant._worse(cost, digits)
            assert worse.sigma <= cost.sigma and worse.rate >= cost.rate
            assert worse.releases == cost.releases
    assert accountant._worse(Cost(1.1, 1, 0.01), 2) == Cost(1.1, 1, 0.01)
    plain = Cost(1.23456, 1, 1.0)
    assert accountant._worse(plain, 1) == plain  # it needs no rounding
    assert accountant._worse(Cost(1.0, 1, 0.999), 1) == Cost(1.0, 1, 1.0)


@pytest.mark.parametrize(
    ("count", "spread"),
    [(40, 1e-3), (40, 1e-2), (40, 0.3), (4000, 4.0)],
)
def test_many_kinds_cost_at_least_what_the_best_of_them_would(count: int, spread: float) -> None:
    rng = random.Random(2)
    costs = [Cost(5.0 * math.exp(rng.uniform(0, spread)), 1, 0.1) for _ in range(count)]
    costs += [Cost(900.0, 1, rng.uniform(0.001, 0.999)) for _ in range(20)]
    kinds = merged(costs, DELTA)
    assert len(kinds) <= MAX_KINDS
    if count == 40:
        least = epsilon([Cost(5.0 * math.exp(spread), count, 0.1)], DELTA, grid=1e-3)
        found = epsilon(costs, DELTA, grid=1e-3)
        assert least <= found <= 1.5 * epsilon([Cost(4.0, count + 20, 0.1)], DELTA, grid=1e-3)


def test_many_kinds_are_priced_on_a_coarser_grid_which_is_hardly_dearer() -> None:
    costs = [Cost(2.0 + number / 10, 10, 0.05) for number in range(7)]
    found = epsilon(costs, DELTA)
    assert found == epsilon(costs, DELTA, grid=1e-3)
    assert pld_epsilon(costs, DELTA) < found == pytest.approx(pld_epsilon(costs, DELTA), rel=1e-3)


def test_kinds_without_end_count_as_if_everybody_had_been_picked() -> None:
    costs = [
        Cost(10.0**power * digit, 1, 10.0**-rate)
        for power in range(-2, 4)
        for digit in (1.0, 2.0, 3.0)
        for rate in (1, 2, 3, 4)
    ]
    assert [cost.rate for cost in merged(costs, DELTA)] == [1.0]
    wanted = epsilon_of(mu_as_if_all_were_picked(costs), DELTA)
    assert epsilon(costs, DELTA) == pytest.approx(wanted, rel=1e-12)


def test_where_distributions_do_not_reach_the_other_bounds_hold() -> None:
    few, many = [Cost(0.2, 1, 0.5)], [Cost(50.0, 400_000, 0.001)]
    assert pld_epsilon(few, DELTA) == pld_epsilon(many, DELTA) == math.inf
    assert pld_epsilon([Cost(1.0, 10, 0.1)], 1e-13) == math.inf
    for costs in (few, many):
        bound = min(rdp_epsilon(costs, DELTA), epsilon_of(mu_as_if_all_were_picked(costs), DELTA))
        assert epsilon(costs, DELTA) == bound
    huge = [Cost(0.3, 100, 0.9)]
    assert epsilon(huge, DELTA) > 64


def test_very_many_releases_that_tell_nothing_are_priced_by_rdp() -> None:
    """The grid rounds every release up; at some point that is more than RDP."""
    costs = [Cost(200.0, 200_000, 0.001)]
    assert epsilon(costs, DELTA) == rdp_epsilon(costs, DELTA) < pld_epsilon(costs, DELTA)


def test_warnings_of_orders_that_do_not_converge_are_kept_quiet_and_the_level_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("absl").setLevel(logging.WARNING)
    rdp_epsilon([Cost(0.05, 10, 0.3)], DELTA)
    assert not caplog.records
    assert logging.getLogger("absl").level == logging.WARNING


@settings(max_examples=15, deadline=None)
@given(st.lists(COSTS, min_size=1, max_size=2), st.sampled_from([1e-9, 1e-5, 0.1]))
def test_whatever_is_asked_there_is_an_answer_and_more_releases_cost_no_less(
    costs: list[Cost], delta: float
) -> None:
    found = epsilon(costs, delta, grid=1e-2)
    assert 0 <= found <= epsilon_of(mu_as_if_all_were_picked(costs), delta) * (1 + 1e-9)
    assert epsilon([*costs, costs[0]], delta, grid=1e-2) >= found * (1 - 1e-9)

"""The least noise, the most rounds: what is answered fits, and the next does not."""

from __future__ import annotations

import math

import pytest

from consortium.core.account_facts import Cost
from consortium.errors import ImpossiblePlanError
from consortium.privacy import calibrate
from consortium.privacy.accountant import epsilon
from consortium.privacy.calibrate import MOST_ROUNDS, rounds_for, sigma_for

DELTA = 1e-5
SIDE = Cost(70.0, 1, 1.0)


def one_less(sigma: float) -> float:
    """The next smaller number of six digits."""
    power = math.floor(math.log10(sigma)) - 5
    return float(f"{round(sigma / 10**power) - 1}e{power}")


@pytest.mark.parametrize(
    ("budget", "steps", "sigma"),
    [(0.5, 100, 1.1426), (0.5, 500, 1.7906), (3.5, 700, 0.7339), (3.5, 3500, 0.9948)],
)
def test_noise_of_the_preset(budget: float, steps: int, sigma: float) -> None:
    found = sigma_for(budget, DELTA, steps, 0.01)
    assert found == pytest.approx(sigma, abs=6e-5)  # the reference has four digits
    if steps == 500:
        assert epsilon([Cost(found, steps, 0.01)], DELTA) <= budget
        assert epsilon([Cost(one_less(found), steps, 0.01)], DELTA) > budget


@pytest.mark.parametrize(
    ("budget", "releases", "sigma"),
    [
        (0.5, 1, 7.031826676),
        (3.5, 7, 3.21348563179),
        (15, 30, 1.98226005730),
        (15, 1, 0.361909516),
        (0.0, 1, 39894.3),  # ε = 0: all of it is δ
        (1e5, 1, 0.00225749),
    ],
)
def test_noise_without_sampling(budget: float, releases: int, sigma: float) -> None:
    found = sigma_for(budget, DELTA, releases, 1.0)
    assert found == pytest.approx(sigma, rel=1e-5)
    assert epsilon([Cost(found, releases, 1.0)], DELTA) <= budget
    assert epsilon([Cost(one_less(found), releases, 1.0)], DELTA) > budget


def test_what_is_released_beside_takes_its_part() -> None:
    alone = sigma_for(0.5, DELTA, 1, 1.0)
    found = sigma_for(0.5, DELTA, 1, 1.0, [SIDE])
    assert 1 / found**2 + 1 / SIDE.sigma**2 == pytest.approx(1 / alone**2, rel=1e-5)
    sampled = sigma_for(0.5, DELTA, 500, 0.01, [SIDE])
    assert sampled > 1.7906
    assert epsilon([Cost(sampled, 500, 0.01), SIDE], DELTA) <= 0.5


def test_a_larger_budget_never_asks_for_more_noise() -> None:
    budgets = [0.3, 0.5, 0.500001, 1.0, 8.0, 100.0]
    found = [sigma_for(budget, DELTA, 20, 1.0) for budget in budgets]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("costs", "rounds"),
    [
        ([Cost(7.031826676, 1, 1.0)], 33),
        ([Cost(1.1, 1, 1.0)], 0),
        ([Cost(1.7906, 500, 0.01), Cost(50.0, 1, 1.0)], 35),
        ([Cost(1e6, 1, 1.0)], MOST_ROUNDS),
        ([], MOST_ROUNDS),
    ],
)
def test_rounds_that_a_week_of_three_and_a_half_pays_for(costs: list[Cost], rounds: int) -> None:
    found = rounds_for(costs, 3.5, DELTA)
    assert found == rounds
    if 0 < found < MOST_ROUNDS:
        assert epsilon(costs * found, DELTA) <= 3.5 < epsilon(costs * (found + 1), DELTA)


def test_no_budget_pays_for_no_round() -> None:
    assert rounds_for([Cost(7.0, 1, 1.0)], 0.0, DELTA) == 0


def test_just_below_a_million_rounds_are_found_too() -> None:
    sigma = sigma_for(3.5, DELTA, 600_000, 1.0)
    assert rounds_for([Cost(sigma, 1, 1.0)], 3.5, DELTA) == pytest.approx(600_000, rel=1e-4)


def test_a_rough_grid_that_is_cheaper_than_the_fine_one_misleads_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prices whose rough form is wrong, in either direction, and jumps."""
    for error in (0.5, 0.999, 1.001, 2.0):

        def price(
            costs: list[Cost], delta: float, *, grid: float = 1e-4, error: float = error
        ) -> float:
            spent = sum(cost.releases / cost.sigma for cost in costs)
            return (spent if spent < 3 else spent + 5) * (error if grid > 5e-4 else 1)

        monkeypatch.setattr(calibrate, "epsilon", price)
        assert sigma_for(2.5, DELTA, 10, 0.5) == 4.0
        assert sigma_for(4.0, DELTA, 10, 0.5) == 3.33334
        assert rounds_for([Cost(1.0, 1, 0.5)], 102.0, DELTA) == 97


@pytest.mark.parametrize(
    ("budget", "delta", "releases", "rate"),
    [
        (-1.0, DELTA, 1, 1.0),
        (math.inf, DELTA, 1, 1.0),
        (math.nan, DELTA, 1, 1.0),
        (0.5, 0.0, 1, 1.0),
        (0.5, 1.0, 1, 1.0),
        (0.5, DELTA, 0, 1.0),
        (0.5, DELTA, 1, 0.0),
        (0.5, DELTA, 1, 1.1),
        (0.0, 1e-300, 1, 1.0),
    ],
)
def test_what_cannot_be_is_refused(budget: float, delta: float, releases: int, rate: float) -> None:
    with pytest.raises(ImpossiblePlanError):
        sigma_for(budget, delta, releases, rate)


def test_a_budget_that_is_spent_beside_is_refused() -> None:
    with pytest.raises(ImpossiblePlanError):
        sigma_for(0.5, DELTA, 1, 1.0, [Cost(2.0, 1, 1.0)])
    with pytest.raises(ImpossiblePlanError):
        rounds_for([SIDE], -1.0, DELTA)

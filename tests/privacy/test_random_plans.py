"""What the ledger says of random plans lies between bounds of others.

Below: Opacus' privacy loss random variables (Gopi, Lee & Wutschitz 2021), which bound ε from
both sides and share no code with dp-accounting. Above: Opacus' RDP. Plans are those of a fixed
seed, so nothing fails by chance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant

from consortium.core.account_facts import Cost
from consortium.privacy.accountant import epsilon, rdp_epsilon

Plan = tuple[list[Cost], float]
Accountant = Callable[[Sequence[Cost], float], float]

ERROR = 0.02  # of the lower bound
MOST = 6.0  # ε of a plan: beyond, a single one takes seconds
SLACK = 1e-3
QUICK, SOAK = 20, 200  # plans


@cache
def plan_of(seed: int) -> Plan:
    """One to three kinds of noise, sampled, and sometimes one that is not. The first plans, which
    every run of the tests looks at, have two at most."""
    most = 2 if seed < QUICK else 3
    rng = np.random.default_rng([6, seed])

    def between(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    while True:
        delta = between(1e-7, 1e-4)
        costs = [
            Cost(between(0.7, 8.0), math.ceil(between(1, 3000)), between(0.001, 0.3))
            for _ in range(rng.integers(1, most + 1))
        ]
        if rng.random() < 0.3:
            costs.append(Cost(between(3.0, 30.0), math.ceil(between(1, 10)), 1.0))
        if rdp_epsilon(costs, delta) < MOST:
            return costs, delta


@cache
def bounds_of(seed: int) -> tuple[float, float]:
    """Of a plan's ε."""
    costs, delta = plan_of(seed)
    low, up = prv_bounds(costs, delta)
    assert low < up
    return low, min(opacus_rdp(costs, delta), rdp_epsilon(costs, delta)) + SLACK


def prv_bounds(costs: Sequence[Cost], delta: float) -> tuple[float, float]:
    accountant = PRVAccountant()
    accountant.history = [(cost.sigma, cost.rate, cost.releases) for cost in costs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scipy, where a density is zero
        parts = accountant._get_dprv(eps_error=ERROR, delta_error=delta / 1000)
        low, _, up = parts.compute_epsilon(delta, delta / 1000, ERROR)
    return float(low), float(up)


def opacus_rdp(costs: Sequence[Cost], delta: float) -> float:
    accountant = RDPAccountant()
    accountant.history = [(cost.sigma, cost.rate, cost.releases) for cost in costs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the best order is the largest or the smallest
        return float(accountant.get_epsilon(delta))


def is_between(accountant: Accountant, seed: int) -> bool:
    low, up = bounds_of(seed)
    return low <= accountant(*plan_of(seed)) <= up


@pytest.mark.parametrize("seed", range(QUICK))
def test_the_ledger_is_above_a_lower_bound_and_below_rdp(seed: int) -> None:
    assert is_between(epsilon, seed), plan_of(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, QUICK + SOAK))
def test_the_ledger_is_above_a_lower_bound_and_below_rdp_of_many_plans(seed: int) -> None:
    assert is_between(epsilon, seed), plan_of(seed)


def gdp(costs: Sequence[Cost], delta: float) -> float:
    """Planted: the central limit theorem, which promises nothing (Bu et al. 2020)."""
    from consortium.privacy.gaussian import epsilon_of

    each = [cost.rate**2 * cost.releases * math.expm1(1 / cost.sigma**2) for cost in costs]
    return epsilon_of(math.sqrt(math.fsum(each)), delta)


def summed(costs: Sequence[Cost], delta: float) -> float:
    """Planted: the ε of every kind, added up."""
    return sum(epsilon([cost], delta) for cost in costs)


@pytest.mark.parametrize(
    "planted",
    [
        gdp,
        summed,
        lambda costs, delta: epsilon(costs[:1], delta),
        lambda costs, delta: epsilon(
            [Cost(c.sigma * 1.05, c.releases, c.rate) for c in costs], delta
        ),
        lambda costs, delta: epsilon(costs, delta * 3),
    ],
)
def test_a_planted_accountant_is_caught(planted: Accountant) -> None:
    assert not all(is_between(planted, seed) for seed in range(QUICK))

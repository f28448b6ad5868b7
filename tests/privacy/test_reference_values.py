"""Every reference value of the ground truth: the closed form to 1e-6, distributions to 1e-3.

They were computed with mpmath in 30 digits, and with two accountants that share no code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from consortium.core.account_facts import Cost
from consortium.privacy.accountant import epsilon, name_for, pld_epsilon, rdp_epsilon
from consortium.privacy.gaussian import delta_of, epsilon_of, mu_of, sigma_for

DELTA = 1e-5
EXACT, CLOSE = 1e-6, 1e-3
SIGMA = 7.031826676  # one release of ε = 0.5


@dataclass(frozen=True)
class OneRelease:
    epsilon: float
    classical: float
    analytic: float
    truly: float  # ε of the classical noise
    digits: float = 1e-5  # of which the reference has so many


ONE_RELEASE = (
    OneRelease(0.1, 48.44805263, 30.74956613, 0.060704),
    OneRelease(0.5, 9.689610525, 7.031826676, 0.352572),
    OneRelease(1, 4.844805263, 3.730631635, 0.750977),
    OneRelease(3.5, 1.384230075, 1.214583403, 3.015658),
    OneRelease(15, 0.322987018, 0.361909516, 17.37, digits=3e-4),
)


@pytest.mark.parametrize("row", ONE_RELEASE, ids=lambda row: str(row.epsilon))
def test_noise_of_one_release(row: OneRelease) -> None:
    assert sigma_for(row.epsilon, DELTA) == pytest.approx(row.analytic, rel=EXACT)
    assert epsilon([Cost(row.analytic, 1, 1.0)], DELTA) == pytest.approx(row.epsilon, rel=EXACT)
    assert delta_of(1 / row.analytic, row.epsilon) == pytest.approx(DELTA, rel=1e-5)
    classical = math.sqrt(2 * math.log(1.25 / DELTA)) / row.epsilon
    assert classical == pytest.approx(row.classical, rel=2e-9)
    assert epsilon([Cost(classical, 1, 1.0)], DELTA) == pytest.approx(row.truly, rel=row.digits)


@pytest.mark.parametrize(
    ("rounds", "by_rdp", "exact"),
    [
        (1, 0.549070, 0.500000),
        (7, 1.583119, 1.453080),
        (30, 3.556760, 3.285320),
        (365, 15.690718, 14.680001),
    ],
)
def test_rounds_at_half_an_epsilon(rounds: int, by_rdp: float, exact: float) -> None:
    costs = [Cost(SIGMA, rounds, 1.0)]
    assert name_for(costs) == "closed form"
    assert epsilon(costs, DELTA) == pytest.approx(exact, rel=EXACT)
    assert epsilon([Cost(SIGMA, 1, 1.0)] * rounds, DELTA) == pytest.approx(exact, rel=EXACT)
    assert rdp_epsilon(costs, DELTA) == pytest.approx(by_rdp, rel=EXACT)


def test_noise_for_rounds_that_cost_so_much_together() -> None:
    assert sigma_for(3.5, DELTA, 7) == pytest.approx(3.21348563179, rel=1e-9)
    assert sigma_for(15, DELTA, 30) == pytest.approx(1.98226005730, rel=1e-9)
    assert epsilon([Cost(1.1, 1, 1.0)], DELTA) == pytest.approx(3.92, abs=0.005)


@dataclass(frozen=True)
class Sampled:
    sigma: float
    rate: float
    steps: int
    rdp: float  # of dp-accounting's orders
    pld: float
    low: float
    up: float


SAMPLED = (
    Sampled(1.1, 0.01, 100, 0.956091, 0.549765, 0.539707, 0.559834),
    Sampled(1.1, 0.01, 1000, 1.711770, 1.515370, 1.505258, 1.525473),
    Sampled(1.1, 0.01, 10000, 5.632011, 5.192620, 5.182305, 5.202865),
    Sampled(1.0, 0.01, 1000, 2.101367, 1.828244, 1.818108, 1.838372),
    Sampled(0.8, 0.05, 200, 8.743239, 7.702170, 7.691652, 7.712688),
    Sampled(2.0, 0.1, 1000, 8.946957, 8.279293, 8.268880, 8.289703),
)


@pytest.mark.parametrize("row", SAMPLED, ids=lambda row: f"{row.sigma}-{row.rate}-{row.steps}")
def test_sampled_noise(row: Sampled) -> None:
    costs = [Cost(row.sigma, row.steps, row.rate)]
    assert rdp_epsilon(costs, DELTA) == pytest.approx(row.rdp, rel=EXACT)
    found = epsilon(costs, DELTA)
    assert found == pytest.approx(row.pld, rel=EXACT)
    assert row.low < found < row.up
    assert "PLD" in name_for(costs)
    rough = pld_epsilon(costs, DELTA, grid=1e-3)
    assert found <= rough == pytest.approx(found, rel=CLOSE)


def test_a_hundred_releases_without_sampling_agree_in_all_three_ways() -> None:
    costs = [Cost(4.0, 100, 1.0)]
    assert epsilon(costs, DELTA) == pytest.approx(13.206712, rel=EXACT)
    assert pld_epsilon(costs, DELTA, grid=1e-3) == pytest.approx(13.206712, rel=CLOSE)
    assert pld_epsilon(costs, DELTA, grid=1e-3) > epsilon(costs, DELTA)
    assert rdp_epsilon(costs, DELTA) == pytest.approx(14.132226, rel=EXACT)


@pytest.mark.parametrize(("rounds", "together"), [(7, 1.4037), (30, 3.1335)])
def test_rounds_of_five_hundred_steps(rounds: int, together: float) -> None:
    found = epsilon([Cost(1.7906, 500, 0.01)] * rounds, DELTA)
    assert found == pytest.approx(together, rel=CLOSE)


@pytest.mark.parametrize(
    ("what", "mu_factor", "truly"),
    [
        ("8 tensors", math.sqrt(8), 1.565),
        ("62 tensors", math.sqrt(62), 4.99),
        ("a weight of .4 among 10", 4.0, 2.30),
        ("replace-one", 2.0, 1.067),
    ],
)
def test_what_mistakes_of_sensitivity_come_to(what: str, mu_factor: float, truly: float) -> None:
    assert epsilon_of(mu_factor / SIGMA, DELTA) == pytest.approx(truly, rel=2e-3), what


def test_a_year_of_weeks_that_reset() -> None:
    assert epsilon_of(mu_of([1.214583403] * 52), DELTA) == pytest.approx(42.2, rel=2e-3)


def test_local_noise_at_half_an_epsilon() -> None:
    """In units of the clip: any other row is up to twice as far."""
    assert 2 * sigma_for(0.5, DELTA) == pytest.approx(14.064, rel=1e-4)

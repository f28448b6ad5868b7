"""The closed form, against reference values that were computed with 30 digits."""

from __future__ import annotations

import math

import pytest

from consortium.privacy.gaussian import delta_of, epsilon_of, mu_for, mu_of, sigma_for

DELTA = 1e-5
EXACT = 1e-6


@pytest.mark.parametrize(
    ("epsilon", "sigma"),
    [
        (0.1, 30.74956613),
        (0.5, 7.031826676),
        (1, 3.730631635),
        (3.5, 1.214583403),
        (15, 0.361909516),
    ],
)
def test_noise_for_one_release(epsilon: float, sigma: float) -> None:
    assert sigma_for(epsilon, DELTA) == pytest.approx(sigma, rel=EXACT)
    assert epsilon_of(1 / sigma, DELTA) == pytest.approx(epsilon, rel=EXACT)
    assert delta_of(1 / sigma, epsilon) == pytest.approx(DELTA, rel=1e-5)


@pytest.mark.parametrize(
    ("classical", "truly"),
    [
        (48.44805263, 0.060704),
        (9.689610525, 0.352572),
        (4.844805263, 0.750977),
        (1.384230075, 3.015658),
        (0.322987018, 17.37),
    ],
)
def test_what_the_textbooks_noise_is_worth(classical: float, truly: float) -> None:
    tolerance = 1e-5 if truly < 17 else 3e-4  # as many digits as the reference has
    assert epsilon_of(1 / classical, DELTA) == pytest.approx(truly, rel=tolerance)


@pytest.mark.parametrize(
    ("rounds", "epsilon"), [(1, 0.5), (7, 1.453080), (30, 3.285320), (365, 14.680001)]
)
def test_releases_compose(rounds: int, epsilon: float) -> None:
    sigma = sigma_for(0.5, DELTA)
    assert epsilon_of(mu_of([sigma] * rounds), DELTA) == pytest.approx(epsilon, rel=EXACT)


def test_noise_for_rounds_that_cost_so_much_together() -> None:
    assert sigma_for(3.5, DELTA, 7) == pytest.approx(3.21348563179, rel=1e-9)
    assert sigma_for(15, DELTA, 30) == pytest.approx(1.98226005730, rel=1e-9)
    assert epsilon_of(mu_of([4.0] * 100), DELTA) == pytest.approx(13.206712, rel=EXACT)
    assert epsilon_of(mu_of([1.1]), DELTA) == pytest.approx(3.92, rel=1e-3)
    weekly, sigma = mu_for(3.5, DELTA), sigma_for(0.5, DELTA)
    assert math.floor((weekly * sigma) ** 2) == 33  # rounds that a week of 3.5 pays for
    assert epsilon_of(mu_of([sigma_for(3.5, DELTA)] * 52), DELTA) == pytest.approx(42.2, rel=2e-3)


def test_the_ends_of_the_range() -> None:
    assert epsilon_of(0.0, DELTA) == 0.0 == delta_of(0.0, 0.0)
    assert epsilon_of(1e-6, DELTA) == 0.0  # hardly anything is told at all
    assert delta_of(1.0, 2000.0) == 0.0
    for mu, delta in ((40.0, 1e-5), (200.0, 1e-5), (0.01, 1e-12), (1.0, 1e-200)):
        epsilon = epsilon_of(mu, delta)
        assert delta_of(mu, epsilon) <= delta < delta_of(mu, epsilon * (1 - 1e-9))
    assert sigma_for(1e-7, 1e-300) == math.inf
    assert mu_for(1e-7, 1e-300) == 0.0

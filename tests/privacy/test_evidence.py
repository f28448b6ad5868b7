"""What guesses prove, against scipy and against mechanisms whose ε is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from consortium.privacy.evidence import Guesses, most_rate
from consortium.privacy.gaussian import epsilon_of, sigma_for

DELTA = 1e-5


@pytest.mark.parametrize("doubt", [0.5, 0.025, 1e-9])
@pytest.mark.parametrize(
    ("hits", "tries"),
    [(0, 1), (0, 100), (1, 100), (50, 100), (99, 100), (3, 100_000), (41_000, 100_000)],
)
def test_rates_are_those_of_clopper_and_pearson(hits: int, tries: int, doubt: float) -> None:
    wanted = stats.beta.ppf(1 - doubt, hits + 1, tries - hits)
    assert most_rate(hits, tries, doubt) == pytest.approx(wanted, rel=1e-7)


def test_what_always_hits_may_always_hit() -> None:
    assert most_rate(7, 7, 0.05) == most_rate(0, 0, 0.05) == 1.0
    assert most_rate(9, 10, 1e-30) == 1.0  # so little doubt leaves no other answer


def test_a_bound_is_too_low_no_more_often_than_it_says() -> None:
    """Exactly, over all counts that can come: no chance is involved."""
    tries, doubt = 60, 0.1
    bounds = np.array([most_rate(hits, tries, doubt) for hits in range(tries + 1)])
    for rate in np.linspace(0.01, 0.99, 50):
        chances = stats.binom.pmf(np.arange(tries + 1), tries, rate)
        assert chances[bounds < rate].sum() <= doubt


def test_guessing_like_a_coin_proves_nothing() -> None:
    assert Guesses(1000, 500, 500).epsilon(DELTA, 0.05) == 0.0
    assert Guesses(1000, 990, 990).epsilon(DELTA, 0.05) == 0.0
    assert Guesses(0, 0, 0).epsilon(DELTA, 0.05) == 0.0


def test_guessing_without_fault_proves_more_the_more_was_guessed() -> None:
    proven = [Guesses(tries, 0, 0).epsilon(DELTA, 0.05) for tries in (10, 100, 1000, 10**6)]
    assert proven == sorted(proven) and proven[0] > 0 and proven[-1] > 40


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_the_best_guesser_proves_nearly_all_and_never_more(epsilon: float) -> None:
    """With the counts that are expected: the midpoint between two normal distributions."""
    mu, tries = 1 / sigma_for(epsilon, DELTA), 10**6
    wrong = round(tries * stats.norm.sf(mu / 2))
    proven = Guesses(tries, wrong, wrong).epsilon(DELTA, 0.05)
    assert 0.95 * epsilon < proven < epsilon
    assert Guesses(tries, wrong, wrong).epsilon(DELTA, 1e-9) < proven


def test_a_true_claim_is_refuted_no_more_often_than_is_doubted() -> None:
    """Of 500 audits of a fixed seed with a doubt of 0.05, 25 may be wrong; more than 43 would be
    once in 4,000 seeds."""
    rng, mu, tries = np.random.default_rng(5), 0.7, 300
    alarms = rng.binomial(tries, stats.norm.sf(mu / 2), 500)
    misses = rng.binomial(tries, stats.norm.sf(mu / 2), 500)
    truly = epsilon_of(mu, DELTA)
    wrong = sum(
        Guesses(tries, int(one), int(two)).epsilon(DELTA, 0.05) > truly
        for one, two in zip(alarms, misses, strict=True)
    )
    assert wrong <= 43

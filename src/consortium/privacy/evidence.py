"""What guesses prove about ε: bounds on rates that were counted, and on what they imply.

A guesser says which of two worlds it sees. How often it is wrong in each bounds what the
mechanism hides: under μ-GDP no guesser has Φ⁻¹(1 - false alarms) - Φ⁻¹(misses) above μ (Dong, Roth
& Su 2019), so counted errors give a lower bound on μ, and through it on ε (Nasr et al. 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from consortium.privacy.gaussian import epsilon_of

_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Guesses:
    """`tries` guesses in each world, and how many of them were wrong. What is guessed, and how
    often, must have been fixed before these worlds were looked at."""

    tries: int
    false_alarms: int
    misses: int

    def epsilon(self, delta: float, doubt: float) -> float:
        """A lower bound on ε at this δ; it is too high with a probability of at most `doubt`,
        for a mechanism whose claim is one of Gaussian noise."""
        normal = NormalDist()
        alarms = most_rate(self.false_alarms, self.tries, doubt / 2)
        misses = most_rate(self.misses, self.tries, doubt / 2)
        if alarms + misses >= 1:
            return 0.0  # no better than a coin
        return epsilon_of(-normal.inv_cdf(alarms) - normal.inv_cdf(misses), delta)


def most_rate(hits: int, tries: int, doubt: float) -> float:
    """The highest rate under which so few hits have a probability of `doubt` (Clopper & Pearson
    1934, one-sided). It is below the true rate with at most that probability."""
    if hits >= tries:
        return 1.0
    low, high = hits / tries, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(hits, tries, middle) > doubt else (low, middle)
    return high


def _at_most(hits: int, tries: int, rate: float) -> float:
    """P(Binomial(tries, rate) <= hits), for a rate from hits / tries on. So the terms fall from
    the last to the first, and those that are 20 deviations away are left out: less than 1e-80."""
    if rate >= 1.0:
        return 0.0
    count = min(hits, math.ceil(20 * math.sqrt(tries)))
    below = np.arange(hits, hits - count, -1, dtype=np.float64)  # each is a step down
    steps = np.log(below) - np.log(tries - below + 1) + math.log1p(-rate) - math.log(rate)
    last = (
        math.lgamma(tries + 1)
        - math.lgamma(hits + 1)
        - math.lgamma(tries - hits + 1)
        + hits * math.log(rate)
        + (tries - hits) * math.log1p(-rate)
    )
    terms = np.exp(last + np.concatenate([[0.0], np.cumsum(steps)]))
    return float(terms.sum())

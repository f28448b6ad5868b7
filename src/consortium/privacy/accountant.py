"""What releases cost together: ε at one δ, never less than it truly is.

Adjacency is add/remove: one record (or site) more or less. Without sampling, the closed form is
exact. With it there are three upper bounds, and the lowest counts: privacy loss distributions
(PLD; Sommer, Meiser & Mohammadi 2019, rounded upwards on a grid), Rényi divergences (RDP;
Mironov, Talwar & Zhang 2019), both by dp-accounting, and the closed form as if everybody had
been picked each time. PLD is the lowest, but for very many releases that tell next to nothing
each: there the grid is too coarse for it.

dp-accounting takes 80 MB and some seconds: it is imported where it is used.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from functools import lru_cache
from typing import Any

from consortium.core.account_facts import Cost
from consortium.errors import InvalidInputError
from consortium.privacy.gaussian import epsilon_of, mu_of

GRID = 1e-4  # of privacy losses
MAX_KINDS = 16  # of noise that are told apart; each takes up to a second
_FEW, _COARSE = 6, 1e-3  # more kinds than these take too long, and memory, on a finer grid

_LEAST_SIGMA = 1e-3  # with less noise, one release costs half a million or more
# Outside of these PLD takes too much memory and time; few budgets are there, so RDP will do.
_PLD_EPSILON, _PLD_RELEASES, _PLD_SIGMA = 64.0, 300_000, 0.25
# Rounding errors of dp-accounting, at least twenty times as large as they were seen. Those of
# PLD's Fourier transforms are errors of δ: uncorrected, ε is too low from δ = 1e-9 on.
_PLD_ERROR, _PLD_ERROR_EACH = 1e-13, 1e-16
_RDP_ERROR_EACH = 1e-14


def epsilon(costs: Sequence[Cost], delta: float, *, grid: float = GRID) -> float:
    """ε of all these together; zero for none, infinite where there is hardly any noise.

    A coarser grid is quicker, and its ε is larger. Refuses costs and δ that cannot be.
    """
    kinds = merged(costs, delta)
    bound = _unsampled(kinds, delta)
    if is_closed(kinds) or _is_bare(kinds) or bound == 0:
        return bound
    bound = min(bound, rdp_epsilon(kinds, delta))
    if bound > _PLD_EPSILON:
        return bound
    grid = grid if len(kinds) <= _FEW else max(grid, _COARSE)
    return min(bound, pld_epsilon(kinds, delta, grid=grid))


def is_closed(costs: Sequence[Cost]) -> bool:
    """Whether the closed form prices them exactly, because nothing is sampled."""
    return all(cost.rate == 1 for cost in costs)


def name_for(costs: Sequence[Cost]) -> str:
    """How `epsilon` prices these, in words."""
    if is_closed(costs):
        return "closed form"
    return "the least of PLD (dp-accounting, grid 1e-4 or 1e-3), RDP and the closed form"


def merged(costs: Sequence[Cost], delta: float) -> tuple[Cost, ...]:
    """The same spending in few parts, in an order that does not depend on theirs.

    What is not sampled becomes one release, exactly. Where there are more than `MAX_KINDS`,
    similar ones count as the worst that they could be: less noise, a higher rate.
    """
    if not 0 < delta < 1 or not all(cost.is_sound() for cost in costs):
        raise InvalidInputError("a cost is noise, releases and a rate; delta lies between 0 and 1")
    kinds = _counted(costs)
    for digits in (3, 2, 1):
        if len(kinds) <= MAX_KINDS:
            return kinds
        kinds = _counted([_worse(cost, digits) for cost in costs])
    if len(kinds) <= MAX_KINDS:
        return kinds
    return _counted([replace(cost, rate=1.0) for cost in costs])


def rdp_epsilon(costs: Sequence[Cost], delta: float) -> float:
    """ε by Rényi divergences of dp-accounting's orders: quick, and larger than by PLD."""
    import dp_accounting  # type: ignore[import-untyped]  # heavy, and has no types
    from dp_accounting import rdp

    kinds, accountant = merged(costs, delta), rdp.RdpAccountant()
    with _Quiet():
        for cost in kinds:
            noise = dp_accounting.GaussianDpEvent(cost.sigma)
            accountant.compose(dp_accounting.PoissonSampledDpEvent(cost.rate, noise), cost.releases)
        bound = float(accountant.get_epsilon(delta))
    return bound + _RDP_ERROR_EACH * sum(cost.releases for cost in kinds)


def pld_epsilon(costs: Sequence[Cost], delta: float, *, grid: float = GRID) -> float:
    """ε by privacy loss distributions; infinite where δ is too small for them, there are too
    many releases or one has too little noise."""
    kinds = merged(costs, delta)
    releases = sum(cost.releases for cost in kinds)
    error = _PLD_ERROR + _PLD_ERROR_EACH * releases
    has_little = any(cost.sigma < _PLD_SIGMA for cost in kinds)
    if not kinds or has_little or releases > _PLD_RELEASES or error > delta / 10:
        return math.inf if kinds else 0.0
    parts = [_losses(cost.sigma, cost.rate, grid).self_compose(cost.releases) for cost in kinds]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    return float(whole.get_epsilon_for_delta(delta - error))


@lru_cache(maxsize=2 * MAX_KINDS)  # the three windows of an account hold the same kinds of noise
def _losses(sigma: float, rate: float, grid: float) -> Any:
    """The distribution of the privacy loss of one release."""
    from dp_accounting.pld import (  # type: ignore[import-untyped]  # heavy, and has no types
        privacy_loss_distribution,
    )

    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        sampling_prob=rate,
        value_discretization_interval=grid,
        pessimistic_estimate=True,
    )


def _unsampled(kinds: Sequence[Cost], delta: float) -> float:
    """ε if everybody had been picked each time. Sampling mixes what is told with what would be
    told without one record: it can be done afterwards, so it never tells more."""
    if _is_bare(kinds):
        return math.inf
    return epsilon_of(mu_of(cost.sigma / math.sqrt(cost.releases) for cost in kinds), delta)


def _is_bare(kinds: Sequence[Cost]) -> bool:
    return any(cost.sigma < _LEAST_SIGMA for cost in kinds)


def _counted(costs: Sequence[Cost]) -> tuple[Cost, ...]:
    """Equal ones together."""
    releases: Counter[tuple[float, float]] = Counter()
    for cost in costs:
        releases[cost.sigma, cost.rate] += cost.releases
    kinds = [Cost(sigma, count, rate) for (sigma, rate), count in sorted(releases.items())]
    plain = [cost for cost in kinds if cost.rate == 1]
    if len(plain) > 1 and not _is_bare(plain):
        mu = mu_of(cost.sigma / math.sqrt(cost.releases) for cost in plain)
        plain = [Cost(1 / mu, 1, 1.0)]
    return (*plain, *(cost for cost in kinds if cost.rate < 1))


def _worse(cost: Cost, digits: int) -> Cost:
    """One that is at least as expensive, and equal to others like it. What is not sampled stays:
    it becomes one release anyway."""
    if cost.rate == 1:
        return cost
    down, up = Context(digits, ROUND_FLOOR), Context(digits, ROUND_CEILING)
    # By the shortest text of a number: 0.01 stays, although its float is a little larger.
    sigma = float(down.create_decimal(repr(float(cost.sigma))))
    return Cost(sigma, cost.releases, float(up.create_decimal(repr(float(cost.rate)))))


class _Quiet:
    """dp-accounting names each order for which a series did not converge; it leaves them out."""

    def __enter__(self) -> None:
        self._level = logging.getLogger("absl").level
        logging.getLogger("absl").setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("absl").setLevel(self._level)

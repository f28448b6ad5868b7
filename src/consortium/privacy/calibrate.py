"""How much noise a budget asks for, and how many rounds it pays for.

Answers are whole numbers, of rounds or of a noise multiplier's sixth digit, and the very last ones
that fit by `accountant.epsilon`: the next does not. So equal questions have equal answers on every
machine, and a larger budget never asks for more noise.

Prices are looked at on a rough grid first. It overcharges by a little, so the answer there is
near the right one, and only a few prices of the fine grid, which take ten times as long, are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from consortium.core.account_facts import Cost
from consortium.errors import ImpossiblePlanError
from consortium.privacy.accountant import GRID, epsilon, is_closed

MOST_ROUNDS = 1_000_000
_ROUGH = 1e-3
_DECADE = 900_000  # numbers of six digits between a power of ten and the next
_LEAST, _MOST = -3, 9  # powers of ten that a noise multiplier lies between
_FAR = 50.0  # more than this over or under tells nothing but the side

_ENOUGH = 1e-4  # of the logarithm of ε, on the rough grid
_PATIENCE = 3  # looks that do not halve what is left

# By how much a whole number is beyond the budget, on a grid; what is not above zero fits.
Excess = Callable[[int, float], float]


def sigma_for(
    budget: float, delta: float, releases: int, rate: float, beside: Sequence[Cost] = ()
) -> float:
    """The least noise multiplier, of six digits, with which so many releases cost no more than
    ε = `budget`, together with what else is released beside them.

    >>> sigma_for(0.5, 1e-5, 1, 1.0)
    7.03183
    """
    _check(budget, delta)
    most = Cost(_sigma(_MOST * _DECADE), releases, rate)
    if not most.is_sound():
        raise ImpossiblePlanError(
            "there is no noise for such releases",
            hint="releases are 1 or more, and a sampling rate is above 0 and at most 1",
        )
    if epsilon([most, *beside], delta) > budget:
        raise ImpossiblePlanError(
            "no noise is enough for this privacy budget",
            hint="a larger epsilon, a larger delta, fewer rounds, or more noise on the rest",
        )

    def excess(index: int, grid: float) -> float:
        one = Cost(_sigma(index), releases, rate)
        return _over(epsilon([one, *beside], delta, grid=grid), budget)

    end = _LEAST * _DECADE - 1  # infinitely expensive, whatever the budget is
    is_rough = not is_closed([most, *beside])
    return _sigma(_last_that_fits(excess, _MOST * _DECADE, end, is_rough=is_rough))


def rounds_for(costs: Sequence[Cost], budget: float, delta: float) -> int:
    """How many rounds, each of all these costs, ε = `budget` pays for; at most a million."""
    _check(budget, delta)

    def excess(rounds: int, grid: float) -> float:
        spent = [replace(one, releases=one.releases * rounds) for one in costs] if rounds else []
        return _over(epsilon(spent, delta, grid=grid), budget)

    end = 1
    for grid in (_ROUGH, GRID):  # what is too much on the rough grid need not be
        while end <= MOST_ROUNDS and excess(end, grid) <= 0:
            end *= 2
    if end > MOST_ROUNDS and excess(MOST_ROUNDS, GRID) <= 0:
        return MOST_ROUNDS
    return _last_that_fits(excess, 0, end, is_rough=not is_closed(costs))


def _check(budget: float, delta: float) -> None:
    if not 0 <= budget < math.inf or not 0 < delta < 1:
        raise ImpossiblePlanError(
            "a privacy budget is a number from zero on, and delta lies between 0 and 1"
        )


def _sigma(index: int) -> float:
    """The noise multiplier of this number: 0 is 1, 1 is 1.00001, and so on in both directions."""
    power, digits = divmod(index, _DECADE)
    return float(f"{digits + _DECADE // 9}e{power - 5}")


def _over(spent: float, budget: float) -> float:
    """How far ε is above the budget, on a logarithmic scale."""
    if spent <= budget:
        return max(-_FAR, math.log(spent / budget)) if spent > 0 else -_FAR
    return min(_FAR, math.log(spent / budget)) if budget > 0 else _FAR


def _last_that_fits(excess: Excess, fits: int, fails: int, *, is_rough: bool) -> int:
    """The number that fits, and whose neighbour towards `fails` does not."""
    search = _Search(fits, fails, (fits + fails) // 2)
    if is_rough:
        near = search.run(lambda at: excess(at, _ROUGH), enough=_ENOUGH)
        search = _Search(fits, fails, near.at, near.slope)
    return search.run(lambda at: excess(at, GRID)).fits


@dataclass(slots=True)
class _Search:
    """Between one that fits and one that does not. The next to be looked at is where the line
    through the last two crosses zero, or, when that leads nowhere, the middle."""

    fits: int
    fails: int
    at: int
    slope: float = 0.0  # of what is over; zero: not known

    def run(self, over: Callable[[int], float], enough: float = 0.0) -> _Search:
        """Until the two are neighbours, or one is so near."""
        last, found, slow = self.at, _FAR, 0
        while (width := abs(self.fails - self.fits)) > 1:
            inside = sorted((self.fits, self.fails))
            self.at = min(max(self.at, inside[0] + 1), inside[1] - 1)
            before, found = found, over(self.at)
            if found <= 0:
                self.fits = self.at
            else:
                self.fails = self.at
            if abs(found) < enough:
                break
            if max(abs(before), abs(found)) < _FAR and self.at != last:
                self.slope = (found - before) / (self.at - last)
            last = self.at
            slow = 0 if abs(self.fails - self.fits) <= width / 2 else slow + 1
            self.at = self._next(found, is_slow=slow > _PATIENCE)
        return self

    def _next(self, found: float, *, is_slow: bool) -> int:
        if is_slow or abs(found) >= _FAR or self.slope * (self.fails - self.fits) <= 0:
            return (self.fits + self.fails) // 2
        return self.at - round(found / self.slope)

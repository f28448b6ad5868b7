"""Noise on a grid: at a site that trusts nobody, and on the sum that a coordinator releases.

What is protected is rounded to a grid and only whole steps of it are added up, so that nothing
depends on how floating-point numbers round, and no low bit tells anything (Mironov 2012;
Casacuberta et al. 2022). Why the noise is enough, with C the clip and g the grid's step:

1. A row, times its weight of at most one, is rounded towards zero. No number of it grows, so the
   row is at most C long, as it was before. No rounding is left to be counted.
2. Sums of multiples of g, g a power of two, are exact in float64 up to 2**53 g, in any order. So
   one site moves the sum by at most C: it has a row there or it has none. A site that releases
   its own row and could have had another moves it by at most 2C.
3. Discrete Gaussian noise of σ' steps on such a vector is what randomised rounding makes of
   continuous Gaussian noise of √(σ'² - 4) steps, up to a factor of 1 ± 2e-34 for each number
   (Micciancio & Regev 2007, Peikert 2010: two steps are above the smoothing parameter of the
   whole numbers for 2 exp(-8π²) = 1.1e-34). So with σ'² = (σC / g)² + 4 the release is at least
   as private as Gaussian noise of σC, for every ε and δ, and composes like it. The 4 are 2**-58
   of the variance.
4. What is done to the noised whole numbers later, division and casts included, tells no more.

The norms and products of step 1 are floating-point numbers themselves: the noise is larger by one
part in 2**40, which is more than they can be off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.core.account_facts import Cost
from consortium.errors import ImpossiblePlanError, InternalError, MagnitudeError
from consortium.privacy.noise import Noise
from consortium.update.clip import ClipByNorm
from consortium.update.stage import Bound, Domain, Rows

Sums = npt.NDArray[np.float64]

_GRID_BITS = 30  # the noise is 2**30 to 2**31 steps: 1,000 sites round off 2**-21 of it
SMOOTH = 2.0  # steps: what the discrete noise has on top, as deviations add up
MARGIN = 1.0 + 2.0**-40
_EXACT = 2.0**53
_LEAST_SIGMA = 2.0**-16  # below, rows are too many steps long; and it would protect nobody


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of `step`, a power of two; and the discrete noise for them, in steps."""

    step: float
    sigma: float

    def rounded(self, values: npt.NDArray[Any], weight: Any) -> Sums:
        """Weighed numbers, rounded towards zero."""
        products: Sums = np.multiply(values, weight, dtype=np.float64)
        products /= self.step
        np.trunc(products, out=products)
        products *= self.step
        return products

    def noised(self, values: Sums, noise: Noise) -> Sums:
        """Numbers of the grid with noise on each of them. Refuses others."""
        whole = values / self.step
        if not (np.abs(whole) <= _EXACT).all() or (np.trunc(whole) != whole).any():
            raise InternalError("noise comes on whole steps: round every row first")
        whole += noise.discrete(whole.size, self.sigma).reshape(whole.shape)
        whole *= self.step
        return whole


def grid_for(sigma: float, sensitivity: float) -> Grid:
    """The grid for noise of `sigma` times the sensitivity."""
    deviation = sigma * sensitivity
    if not _LEAST_SIGMA <= sigma <= 1 / _LEAST_SIGMA or not 1e-30 < deviation < 1e30:
        raise ImpossiblePlanError("noise and clip are numbers above zero, within reason")
    step = math.ldexp(1.0, math.frexp(deviation)[1] - 1 - _GRID_BITS)
    return Grid(step, math.hypot(deviation / step * MARGIN, SMOOTH))


@dataclass(frozen=True, slots=True)
class LocalNoise:
    """Noise on each row by itself, before it leaves: nobody else is trusted.

    Somebody who sees the row must not tell it from any other that the site could have sent: the
    sensitivity is 2C, and the noise is `sigma` times that. Weights are multiplied in and leave
    as one, like the number of samples, because they are as private as the row. The clip is
    applied here once more, whatever stands before.
    """

    sigma: float
    clip: float
    noise: Noise
    takes: Domain = Domain.REAL
    gives: Domain = Domain.REAL

    def __post_init__(self) -> None:
        grid_for(self.sigma, 2 * self.clip)

    def apply(self, rows: Rows) -> Rows:
        grid = grid_for(self.sigma, 2 * self.clip)
        inside = _inside(rows, self.clip, grid)
        noised = grid.noised(inside.values, self.noise).astype(rows.values.dtype)
        return Rows(noised, np.ones_like(rows.samples), inside.weights)

    def bound(self, bound: Bound) -> Bound:
        """Nothing bounds a noised row. Refuses to come before the clip."""
        _check_bound(bound, self.clip)
        return Bound(norm=None, weight=1.0)

    def cost(self) -> Cost:
        """Of one row; adjacent is any other row of the same site."""
        return Cost(self.sigma, 1, 1.0)


@dataclass(frozen=True, slots=True)
class CentralNoise:
    """Noise on the sum of a round's rows: sites trust the coordinator, and nobody who gets to see
    the model. Adjacent are rounds with and without one site.

    The sum is divided by `denominator`, which is public and fixed: the number of sites that came,
    or what they weigh, would be one more thing that a site moves. When few come, the mean is
    short, not less private.
    """

    sigma: float
    clip: float
    denominator: float
    noise: Noise

    def __post_init__(self) -> None:
        if not 0 < self.denominator < math.inf:
            raise ImpossiblePlanError("a sum is divided by a number above zero")
        grid_for(self.sigma, self.clip)

    @property
    def grid(self) -> Grid:
        return grid_for(self.sigma, self.clip)

    def check(self, bound: Bound) -> None:
        """Refuses a chain after which one site can move the sum by more than the clip."""
        _check_bound(bound, self.clip)

    def rows(self, rows: Rows) -> Rows:
        """Rows as they go into the sum: clipped, weighed and on the grid, with weights of one."""
        return _inside(rows, self.clip, self.grid)

    def columns(self, values: npt.NDArray[Any], weight: float) -> Sums:
        """The same for some columns of one row, of a norm within the clip: whoever reads a row
        in parts has measured it before."""
        _check_weights(np.array(weight))
        return self.grid.rounded(values, weight)

    def release(self, total: Sums, count: int) -> Sums:
        """The noised mean of the sum of `count` rows, or of some of its columns. Two calls are
        two releases, and cost twice."""
        if count * self.clip > _EXACT * self.grid.step:
            raise ImpossiblePlanError("so many sites cannot be summed exactly")
        released = self.grid.noised(total, self.noise)
        released /= self.denominator
        return released

    def cost(self) -> Cost:
        """Of one release; adjacent is a round without one of the sites."""
        return Cost(self.sigma, 1, 1.0)


def _inside(rows: Rows, clip: float, grid: Grid) -> Rows:
    _check_weights(rows.weights)
    clipped = ClipByNorm(clip).apply(rows)
    values = grid.rounded(clipped.values, rows.weights[:, None])
    return Rows(values, rows.samples, np.ones_like(rows.weights))


def _check_weights(weights: npt.NDArray[np.float64]) -> None:
    if not ((weights >= 0) & (weights <= 1)).all():
        raise MagnitudeError("under noise, no update weighs more than one")


def _check_bound(bound: Bound, clip: float) -> None:
    if bound.sensitivity is None:
        raise ImpossiblePlanError(
            "noise needs to know how much one site can move the sum, and nothing limits it",
            hint='clip before the noise, and weigh "uniform" or "capped"',
        )
    if bound.sensitivity > clip:
        raise ImpossiblePlanError(
            "one site can move the sum by more than the noise is made for",
            hint="give the noise the clip of the stage before it",
        )

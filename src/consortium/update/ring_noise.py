"""Noise under masks: every site adds a share of it, and nobody sees less than all of them.

What is protected is one site's update (that, or zeros in its place), from everybody who sees sums
of at least `honest` sites whose shares are not known to him: from the coordinator, too. Why the
noise is enough, with S the most levels that a row is long, whatever chance did in rounding it
(`Ring.longest`):

1. The rows of the others, and what is known of the shares of those who collude, are the same with
   and without the site's update. So it moves the sum by at most S, in L2, and weighs nothing
   else: the number behind the values, which would tell what it weighs, is left at zero, and the
   sum is divided by a number that the plan fixes.
2. The shares of the honest, h of them with s levels each, add up to discrete Gaussian noise of √h s
   levels, up to a factor that `discrete_sum` says is none.
3. Such noise hides a shift of S as Gaussian noise of σS does, for h s² = (σS)² + 4 levels: step 3
   in `update.noise`.
4. More shares than h, sums modulo 2**32 and all that is done with them later tell no more.

A site that is not there adds no share: the fewest that are ever summed, less those who collude, are
what s is made for. Noise for the cohort that was planned would be too little when some drop out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from consortium.errors import ImpossiblePlanError
from consortium.privacy.discrete_gaussian import most_of
from consortium.privacy.discrete_sum import check_shares
from consortium.privacy.noise import Noise
from consortium.update.noise import MARGIN, SMOOTH
from consortium.update.ring import U32, Ring


@dataclass(frozen=True, slots=True)
class NoiseShare:
    """Discrete Gaussian noise of `sigma` levels, that each site adds to each of its values."""

    sigma: float

    @property
    def most(self) -> int:
        """No level is moved by more."""
        return most_of(self.sigma)

    def added(self, row: U32, size: int, noise: Noise) -> U32:
        """A row of `size` values with noise on them, and nothing behind them."""
        drawn = noise.discrete(size, self.sigma)
        out = np.zeros_like(row)
        # A negative number stands for itself modulo 2**32.
        np.add(row[:size], drawn.astype(np.int32).view(np.uint32), out=out[:size])
        return out


def share_for(ring: Ring, size: int, sigma: float, honest: int) -> NoiseShare:
    """The share with which so many honest sites have noise of `sigma` times the sensitivity of
    `size` values."""
    if honest < 1:
        raise ImpossiblePlanError("nobody is left whose noise could hide anything")
    share = sum_deviation(ring, size, sigma) / math.sqrt(honest)
    check_shares(share, honest, size)
    return NoiseShare(share)


def sum_deviation(ring: Ring, size: int, sigma: float) -> float:
    """In levels: discrete noise on a sum that hides one row as Gaussian noise of `sigma` times
    the sensitivity does."""
    return math.hypot(sigma * ring.longest(size) * MARGIN, SMOOTH)

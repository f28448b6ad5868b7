"""Sums of discrete Gaussian numbers: nearly discrete Gaussian themselves.

Of n independent numbers with σ each, the sum has nearly the distribution of one with √n σ: no
whole number is more or less likely by more than a factor of e^τ,

    τ = 10 Σ exp(-2π²σ² k / (k + 1)),  k from 1 to n - 1

(Kairouz, Liu & Steinke 2021, theorem 1, for σ of one half or more). Each term is at most
exp(-π²σ²): from σ = 4 on, τ is below 1e-67 n. So noise that many make together is as good as noise
of one, up to a factor of e^(τd) for d numbers, which is one to far more digits than a
floating-point number has; `check_shares` refuses noise of which that is not true.
"""

from __future__ import annotations

import math

from consortium.errors import ImpossiblePlanError

LEAST_SHARE = 4.0  # whole numbers: of the σ that one of them adds
_NOTHING = 2.0**-100


def sum_gap(sigma: float, count: int) -> float:
    """A bound on τ: how far the logarithm of a chance can be off, for one number."""
    return 10.0 * max(0, count - 1) * math.exp(-((math.pi * sigma) ** 2))


def check_shares(sigma: float, count: int, size: int) -> None:
    """Refuse shares that are too small to be added up to noise of the same kind."""
    if not sigma >= LEAST_SHARE or size * sum_gap(sigma, count) > _NOTHING:
        raise ImpossiblePlanError(
            f"noise of {sigma:.3g} levels a site is too coarse to be added up",
            hint="more bits in [security], or a smaller epsilon",
        )

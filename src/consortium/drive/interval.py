"""The mean of a few runs, and how far it may be off: Student's t.

The interval assumes that the values are independent draws from a bell-shaped distribution,
as runs with different seeds nearly are. Two or three runs give a wide one, rightly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and half the width of its 95 % interval; None where one value is all there is."""

    count: int
    mean: float
    half_width: float | None

    @property
    def low(self) -> float:
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half_width or 0.0)


def interval(values: Sequence[float]) -> Interval:
    """The mean of at least one value, with its interval.

    >>> interval([0.80, 0.82, 0.84])
    Interval(count=3, mean=0.82, half_width=0.04968275...)
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(1, mean, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Interval(count, mean, t_quantile(count - 1) * math.sqrt(variance / count))


@lru_cache(maxsize=256)
def t_quantile(freedom: int) -> float:
    """How many standard errors to either side hold 95 % of Student's distribution."""
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _held(middle, freedom) < CONFIDENCE else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _held(angle: float, freedom: int) -> float:
    """The probability between -t and t, where t = sqrt(freedom) tan(angle): Abramowitz and
    Stegun, 26.7.3 and 26.7.4, a finite sum for whole degrees of freedom."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for at in range(2 if is_odd else 1, freedom, 2):
        total += term
        term *= cosine * cosine * at / (at + 1)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total

"""Real numbers as whole ones modulo 2**32, and their sums back: what masks go on.

A number is a level of a grid, rounded up or down by chance so that the mean is the number
itself. A level has so few bits that the sum over the whole cohort cannot wrap. Grids are powers
of two, so that levels times a step are exact. Behind the values stand the weight, which they
are multiplied with, and the metrics, each on a grid of its own: the finest that the cohort leaves
room for, because no noise comes on them.

Rounding makes a row longer. `rounded_norm` says by how much at most, and a row that came out
longer is rounded again (conditional rounding: Kairouz, Liu & Steinke 2021, algorithm 1), so the
bound holds always and not only almost: noise that is added on the grid is measured by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.errors import DimensionError, FormatError, ImpossiblePlanError, MagnitudeError
from consortium.privacy.keystream import Words
from consortium.update.clip import norms

Doubles = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]

RING_BITS = 32
_HALF = 1 << (RING_BITS - 1)
_AT_ONCE = 1 << 15  # numbers: what is computed of them stays in a core's cache
# The share of draws that may be too long. Larger: a tighter bound, more draws (section 4 there).
BETA = math.exp(-0.5)


@dataclass(frozen=True, slots=True)
class RingSums:
    """Sums over the sites of a round: of weighted values (d,), of weights, of each metric."""

    values: Doubles
    weight: float
    metrics: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """How all sites of a cohort write their rows. `bits` are those of one level, with its sign.

    Values are at most `clip` long and weights at most one. `metrics` are the largest magnitudes
    that metrics can have; larger ones are cut. `spare` is the most that a site adds to a level
    afterwards, as noise.
    """

    clip: float
    cohort: int
    bits: int
    metrics: tuple[float, ...] = ()
    beta: float = BETA
    spare: int = 0

    def __post_init__(self) -> None:
        if self.cohort < 1 or not 2 <= self.bits <= RING_BITS:
            raise ImpossiblePlanError(f"a level has 2 to {RING_BITS} bits, a cohort a site or more")
        if self.cohort * (self.most + self.spare) >= _HALF:
            raise ImpossiblePlanError(
                f"the sum of {self.cohort} sites can wrap with {self.bits} bits a number",
                hint=f"take at most {bits_for(self.cohort)} bits, and fewer where noise is added",
            )
        if not all(1e-30 < bound < 1e30 for bound in (self.clip, *self.metrics)):
            raise ImpossiblePlanError("clip and metrics have bounds above zero, within reason")
        if not 0.0 < self.beta < 1.0:
            raise ImpossiblePlanError("the share of draws that are too long is below one")

    @property
    def most(self) -> int:
        """The largest level."""
        return (1 << (self.bits - 1)) - 1

    @property
    def finest(self) -> int:
        """The largest level of a metric: as many fit as there are sites, and no noise."""
        return (1 << (bits_for(self.cohort) - 1)) - 1

    @property
    def step(self) -> float:
        """Between two levels of a value."""
        return _step(self.clip, self.most)

    @property
    def extra(self) -> int:
        """How many numbers stand behind the values."""
        return 1 + len(self.metrics)

    @property
    def metric_steps(self) -> tuple[float, ...]:
        """Between two levels of each metric."""
        return tuple(_step(bound, self.finest) for bound in self.metrics)

    def sensitivity(self, size: int) -> float:
        """How much one site can move the sum of `size` values, by being there or not (L2). What
        stands behind the values is not in it."""
        return self.step * self.longest(size)

    def longest(self, size: int) -> float:
        """The same in levels."""
        return rounded_norm(self.clip / self.step, size, self.beta)

    def encode(
        self, values: npt.NDArray[Any], weight: float, metrics: Sequence[float], words: Words
    ) -> U32:
        """A row (d + extra,) of finite values (d,) that are at most `clip` long."""
        if values.ndim != 1 or len(metrics) != len(self.metrics):
            raise DimensionError("a row has other numbers than the ring")
        if not np.isfinite([weight, *metrics]).all() or not np.isfinite(values).all():
            raise FormatError("an update has numbers that are not finite")
        if not 0.0 <= weight <= 1.0 or norms(values[None])[0] > self.clip:
            raise MagnitudeError("an update weighs at most one and is at most as long as the clip")
        row = np.empty(len(values) + self.extra, np.int32)
        limit = self.longest(len(values)) ** 2
        while _round(values, weight / self.step, self.most, words, row[: len(values)]) > limit:
            pass
        for at, (value, grid) in enumerate(zip((weight, *metrics), self._behind, strict=True)):
            bound, most = grid
            cut = np.clip([value], -bound, bound)
            _round(cut, 1.0 / _step(bound, most), most, words, row[len(values) + at :][:1])
        return row.view(np.uint32)

    @property
    def _behind(self) -> tuple[tuple[float, int], ...]:
        """Of every number behind the values its bound and its largest level."""
        return (1.0, self.most), *((bound, self.finest) for bound in self.metrics)

    def decode(self, total: U32) -> RingSums:
        """The sums that a sum of rows stands for."""
        if total.dtype != np.uint32 or total.ndim != 1 or len(total) < self.extra:
            raise DimensionError("a sum has other numbers than the ring")
        numbers = self.columns(total, 0, len(total))
        weight, *rest = numbers[-self.extra :].tolist()
        return RingSums(numbers[: -self.extra], weight, tuple(rest))

    def columns(self, levels: U32, lo: int, size: int) -> Doubles:
        """The numbers that some levels stand for, those from column `lo` on of a row or a sum of
        `size` columns. Exact: steps are powers of two."""
        numbers: Doubles = np.multiply(levels.view(np.int32), self.step, dtype=np.float64)
        first = size - self.extra
        for at, (bound, most) in enumerate(self._behind, first - lo):
            if 0 <= at < len(numbers):
                numbers[at] = int(levels[at].view(np.int32)) * _step(bound, most)
        return numbers


def _step(bound: float, most: int) -> float:
    """The least power of two of which the bound is at most `most` steps."""
    exponent = math.frexp(bound / most)[1]
    step = math.ldexp(1.0, exponent - 1)
    return step if bound <= step * most else 2.0 * step


def _round(
    values: npt.NDArray[Any], factor: float, most: int, words: Words, out: npt.NDArray[np.int32]
) -> int:
    """Levels of values times a factor, up or down by chance; gives their squared length."""
    squares = 0
    for at in range(0, len(values), _AT_ONCE):
        wanted: Doubles = np.multiply(values[at : at + _AT_ONCE], factor, dtype=np.float64)
        count = len(wanted)
        levels = np.floor(wanted)
        wanted -= levels
        wanted *= 2.0**32
        # 32 bits decide: the mean is off by 2**-32 of a step.
        levels += words((count + 1) // 2).view(np.uint32)[:count] < wanted
        # A product that rounding has put above the bound stands for the bound.
        np.clip(levels, -most, most, out=levels)
        out[at : at + count] = levels
        whole = out[at : at + count].astype(np.int64)
        squares += int(whole @ whole)
    return squares


def bits_for(cohort: int) -> int:
    """The most bits of a level of which so many fit into the ring.

    >>> [bits_for(cohort) for cohort in (3, 100, 1000)]
    [30, 25, 22]
    """
    return (_HALF // cohort).bit_length()


def rounded_norm(clip: float, size: int, beta: float = BETA) -> float:
    """How long, in steps, a row of at most `clip` steps can be after conditional rounding.

    Kairouz, Liu & Steinke 2021, theorem 1 with γ = 1: the square is the smaller one of
    c² + d/4 + √(2 ln(1/β)) (c + √d/2), which a draw exceeds with a chance of at most β, and
    (c + √d)², which none exceeds.
    """
    root = math.sqrt(size)
    likely = clip * clip + size / 4 + math.sqrt(2 * math.log(1 / beta)) * (clip + root / 2)
    return min(math.sqrt(likely), clip + root)

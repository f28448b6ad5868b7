"""The discrete Gaussian distribution: whole numbers x with probability ∝ exp(-x² / 2σ²).

Canonne, Kamath & Steinke 2020: noise on a grid protects as Gaussian noise does, and has no low
bits that could tell anything. Drawn by rejection, from whole numbers and exact decisions:

* The half line is cut into bins of 2**s whole numbers, 8 to 16 bins a σ, up to 13.5 σ. A bin is
  drawn with the weight of its first number; 192 bits and a table of exact shares decide.
* A number of the bin is drawn evenly, from s bits.
* It is kept with probability exp(-(x² - first²) / 2σ²), 19 times of 20. Floating-point numbers
  decide where they can; what is too near to call is decided with 128 more bits and 80 digits.
* A sign is drawn. Minus zero is drawn again: zero would come twice as often.

One number is in total variation within 2**-130 of the distribution: 2**-135 is beyond 13.5 σ,
and the shares and decisions are rounded at 2**-154 or below. σ is the floating-point number as
it is. It does not take constant time: somebody who can time single draws learns from it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from consortium.errors import ImpossiblePlanError
from consortium.privacy.keystream import U64, Words

I64 = npt.NDArray[np.int64]

MOST_SIGMA = 2.0**40
_TAIL = 13.5  # in σ
_BINS = 8  # a σ, at least
_EXACT = Context(prec=80)  # 265 bits
_SHARE_BITS = 192
_MORE_BITS = 128  # for what 64 bits do not decide
_GUIDE_BITS = 16
_AT_ONCE = 1 << 14
# Sixteen times what a floating-point exp(-y), y < 2, and a fraction of 53 bits can be off.
_SLACK = 2.0**-46


@lru_cache(maxsize=16)
def discrete_gaussian(sigma: float) -> DiscreteGaussian:
    """The sampler of this σ. Making its table takes some milliseconds."""
    return DiscreteGaussian(sigma)


class DiscreteGaussian:
    """Draws for one σ. It holds no randomness."""

    __slots__ = ("_cuts", "_guide", "_shift", "_twice_square")

    def __init__(self, sigma: float) -> None:
        if not 0.0 < sigma <= MOST_SIGMA:
            raise ImpossiblePlanError("discrete noise needs a sigma above zero, of at most 2**40")
        self._twice_square = _EXACT.multiply(2, _EXACT.power(Decimal(sigma), 2))
        self._shift, bins = _bins_of(sigma)
        self._cuts = self._shares(bins)
        self._guide = _guide(self._cuts)

    def draw(self, count: int, words: Words) -> I64:
        """So many numbers, independent of one another."""
        out, have = np.empty(count, np.int64), 0
        while have < count:
            wanted = count - have
            kept = self._proposed(min(_AT_ONCE, wanted + wanted // 16 + 8), words)
            taken = min(len(kept), wanted)
            out[have : have + taken] = kept[:taken]
            have += taken
        return out

    def _shares(self, bins: int) -> list[int]:
        """Where each bin begins, in parts of 2**192."""
        weights = [self._chance(0, at << self._shift) for at in range(bins)]
        sums, total = [Decimal(0)], Decimal(0)
        for weight in weights:
            total = _EXACT.add(total, weight)
            sums.append(total)
        return [_parts(_EXACT.divide(one, total), _SHARE_BITS) for one in sums[:-1]]

    def _chance(self, first: int, x: int) -> Decimal:
        """exp(-(x² - first²) / 2σ²)."""
        exponent = _EXACT.divide(Decimal((first - x) * (first + x)), self._twice_square)
        return _EXACT.exp(exponent)

    def _proposed(self, count: int, words: Words) -> I64:
        """What is kept of so many proposals."""
        bins, rest = self._bins(words(count), words), words(count)
        first = bins << self._shift
        offset = (rest & np.uint64((1 << self._shift) - 1)).view(np.int64)
        is_minus = (rest >> np.uint64(self._shift) & np.uint64(1)).astype(np.bool_)
        x = first + offset
        is_kept = ~(is_minus & (x == 0))
        if self._shift:
            is_kept &= self._is_kept(first, offset, rest >> np.uint64(self._shift + 1), words)
        np.negative(x, out=x, where=is_minus)
        kept: I64 = x[is_kept]
        return kept

    def _bins(self, drawn: U64, words: Words) -> I64:
        """The bin of each word. Words in whose 16 bits a bin begins get 128 bits more."""
        bins = self._guide[(drawn >> np.uint64(64 - _GUIDE_BITS)).view(np.int64)]
        for at in np.flatnonzero(bins < 0).tolist():
            place = _extended(int(drawn[at]), words)
            bins[at] = bisect_right(self._cuts, place) - 1
        return bins

    def _is_kept(self, first: I64, offset: I64, rest: U64, words: Words) -> npt.NDArray[np.bool_]:
        """Whether `rest`, a fraction of 63 - s bits, is below the chance of its number."""
        bits = 63 - self._shift
        wide = offset.astype(np.float64)
        exponent = wide * (2.0 * first + wide)
        exponent *= -1.0 / float(self._twice_square)
        lead = np.exp(exponent, out=exponent)
        lead -= rest.view(np.int64) * 2.0**-bits
        is_kept: npt.NDArray[np.bool_] = lead > 0.0
        for at in np.flatnonzero(np.abs(lead) <= 2.0**-bits + _SLACK).tolist():
            chance = self._chance(int(first[at]), int(first[at] + offset[at]))
            is_kept[at] = _extended(int(rest[at]), words) < _parts(chance, bits + _MORE_BITS)
        return is_kept


def most_of(sigma: float) -> int:
    """No number that is drawn for this σ has a larger magnitude.

    >>> most_of(1.0), most_of(1000.0)
    (14, 13567)
    """
    shift, bins = _bins_of(sigma)
    return (bins << shift) - 1


def _bins_of(sigma: float) -> tuple[int, int]:
    """(s, how many bins of 2**s numbers there are)."""
    shift = math.floor(math.log2(max(1.0, sigma / _BINS)))
    return shift, math.ceil(_TAIL * sigma / 2**shift) + 1


def _guide(cuts: list[int]) -> I64:
    """The bin of every 16 first bits, or -1 where one of the bins begins among them."""
    cells = [cut >> (_SHARE_BITS - _GUIDE_BITS) for cut in cuts]
    guide = np.repeat(np.arange(len(cuts)), np.diff([*cells, 1 << _GUIDE_BITS]))
    guide[[cell for cell in cells[1:] if cell < len(guide)]] = -1
    return guide


def _extended(word: int, words: Words) -> int:
    """The word, with 128 more bits behind it."""
    high, low = words(2)
    return word << _MORE_BITS | int(high) << 64 | int(low)


def _parts(fraction: Decimal, bits: int) -> int:
    """How many whole parts of 2**bits a fraction is."""
    return int(_EXACT.multiply(fraction, 1 << bits))

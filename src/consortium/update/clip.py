"""One L2 clip over the whole update: the bound on what a single site can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.errors import FormatError
from consortium.update.stage import Block, Bound, Domain, Rows, Weights

_LEAF = 1 << 16

Part = Callable[[int, int], npt.NDArray[Any]]  # the columns lo:hi of one row


def norms(values: Block) -> Weights:
    """The L2 norm of each row of a block (n, d), (n,)."""
    return np.array([norm(_parts_of(row), len(row)) for row in values], np.float64)


def _parts_of(row: npt.NDArray[Any]) -> Part:
    return lambda lo, hi: row[lo:hi]


def norm(part: Part, size: int) -> float:
    """The L2 norm of a row of `size` columns, which are asked for once, in order and a part at
    a time. It is infinite when its square is larger than any number.

    A norm is written down in facts, so there is one sum of squares: in float64, halved where
    NumPy's pairwise summation halves, down to parts of at most 65,536 columns, which NumPy
    adds up. How a row is stored or cut cannot be seen in the result.
    """
    return math.sqrt(_sum_of_squares(part, 0, size))


def _sum_of_squares(part: Part, lo: int, hi: int) -> float:
    if hi - lo <= _LEAF:
        wide = part(lo, hi).astype(np.float64)
        with np.errstate(over="ignore"):
            return float(np.sum(np.multiply(wide, wide, out=wide)))
    half = (hi - lo) // 2
    middle = lo + half - half % 8
    return _sum_of_squares(part, lo, middle) + _sum_of_squares(part, middle, hi)


@dataclass(frozen=True, slots=True)
class ClipByNorm:
    """Scales every row down to at most `norm`; shorter rows stay as they are.

    The factor is C / max(norm, C): with `min(1, C / norm)` a row of NaN would pass. Rows
    that are not finite are refused. Casting back to float32 can round up past C, so the
    result is checked again and shrunk by one part in a million where it did.
    """

    norm: float
    takes: Domain = Domain.REAL
    gives: Domain = Domain.REAL

    def apply(self, rows: Rows) -> Rows:
        if not np.isfinite(rows.values).all():
            raise FormatError("an update has numbers that are not finite")
        lengths = norms(rows.values)
        clipped = _scaled(rows, self.norm / np.maximum(lengths, self.norm))
        is_over = norms(clipped.values) > self.norm
        if is_over.any():
            clipped = _scaled(clipped, np.where(is_over, 1 - 1e-6, 1.0))
        return clipped

    def bound(self, bound: Bound) -> Bound:
        return replace(bound, norm=self.norm)


def _scaled(rows: Rows, factors: Weights) -> Rows:
    return replace(rows, values=rows.values * factors[:, None].astype(rows.values.dtype))

"""The weighted mean as a stream: memory does not grow with the number of sites.

Floating-point addition depends on order, so the order is fixed: a site's *rank* is its
place among the round's invitations, ranks are cut into blocks of `BLOCK`, a block is
summed rank after rank, and block sums are added in ascending order. A worker may sum a
whole block anywhere; the result has the same bits as one loop over all sites, after a
crash, on a replica and in simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.errors import InternalError

BLOCK = 64
_AT_ONCE = 1 << 18  # numbers that are multiplied at once
Total = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Partial:
    """Σ wᵢΔᵢ and Σ wᵢ over the ranks of one block."""

    block: int
    total: Total
    weight: float


class BlockSum:
    """Sums one block rank after rank, as rows come."""

    def __init__(self) -> None:
        self._total: Total | None = None
        self._weight = 0.0
        self._last = -1

    def add(self, ranks: Sequence[int], rows: npt.NDArray[Any], weights: Sequence[float]) -> None:
        """The next rows of the block, (n, d). Ranks ascend and belong to one block."""
        for rank in ranks:
            last = self._last
            if rank <= last or (last >= 0 and rank // BLOCK != last // BLOCK):
                raise InternalError("ranks of a block are ascending and belong together")
            self._last = rank
        for weight in weights:
            self._weight += weight
        is_first, columns = self._total is None, rows.shape[1]
        total = np.empty(columns) if self._total is None else self._total
        scale = np.array(weights, np.float64)[:, None]
        # Some columns at a time: few enough to stay in the cache while all rows are added.
        step = max(1, min(columns, _AT_ONCE // (len(rows) + 1)))
        products = np.empty((len(rows) + 1, step))
        for at in range(0, columns, step):
            part = products[:, : min(step, columns - at)]
            part[1:] = rows[:, at : at + step]  # faster than to multiply and to widen at once
            part[1:] *= scale
            if not is_first:
                part[0] = total[at : at + step]
            # NumPy adds whole rows up one after the other: these are the sums of a loop.
            np.add.reduce(part[1:] if is_first else part, axis=0, out=total[at : at + step])
        self._total = total

    def finish(self) -> Partial:
        if self._total is None:
            raise InternalError("a block has at least one row")
        return Partial(self._last // BLOCK, self._total, self._weight)

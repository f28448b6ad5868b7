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

BLOCK = 50  # people ask for 100 or 1,000 sites: of small models, fifty of them train together
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

    def add(
        self,
        ranks: Sequence[int],
        rows: npt.NDArray[Any],
        weights: Sequence[float],
        total: Total | None = None,
    ) -> None:
        """The next rows of the block, (n, d). Ranks ascend and belong to one block. `total` is
        their `sum_of`, if somebody has made it: it is of use for a block's first rows."""
        for rank in ranks:
            last = self._last
            if rank <= last or (last >= 0 and rank // BLOCK != last // BLOCK):
                raise InternalError("ranks of a block are ascending and belong together")
            self._last = rank
        for weight in weights:
            self._weight += weight
        if self._total is None and total is not None:
            self._total = total.copy()
        else:
            self._total = sum_of(rows, weights, self._total)

    def finish(self) -> Partial:
        if self._total is None:
            raise InternalError("a block has at least one row")
        return Partial(self._last // BLOCK, self._total, self._weight)


def sum_of(
    rows: npt.NDArray[Any],
    weights: Sequence[float],
    before: Total | None = None,
    out: Total | None = None,
) -> Total:
    """Σ wᵢxᵢ of rows (n, d), one after the other, behind what was summed `before`. It is written
    to `out`, else to `before`."""
    columns = rows.shape[1]
    if out is None:
        out = np.empty(columns) if before is None else before
    scale = np.array(weights, np.float64)[:, None]
    # Some columns at a time: few enough to stay in the cache while all rows are added.
    step = max(1, min(columns, _AT_ONCE // (len(rows) + 1)))
    products = np.empty((len(rows) + 1, step))
    for at in range(0, columns, step):
        part = products[:, : min(step, columns - at)]
        part[1:] = rows[:, at : at + step]  # faster than to multiply and to widen at once
        part[1:] *= scale
        if before is not None:
            part[0] = before[at : at + step]
        # NumPy adds whole rows up one after the other: these are the sums of a loop.
        np.add.reduce(part[1:] if before is None else part, axis=0, out=out[at : at + step])
    return out

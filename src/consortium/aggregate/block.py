"""The weighted mean as a stream: memory does not grow with the number of sites.

Floating-point addition depends on order, so the order is fixed: a site's *rank* is its
place among the round's invitations, ranks are cut into blocks of `BLOCK`, a block is
summed rank after rank, and block sums are added in ascending order. A worker may sum a
whole block anywhere; the result has the same bits as one loop over all sites, after a
crash, on a replica and in simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consortium.errors import InternalError
from consortium.model import Vector

BLOCK = 64
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

    def add(self, rank: int, vector: Vector, weight: float) -> None:
        """The next row of the block. Ranks ascend and belong to one block."""
        last = self._last
        if rank <= last or (last >= 0 and rank // BLOCK != last // BLOCK):
            raise InternalError("ranks of a block are ascending and belong together")
        product = np.multiply(vector, weight, dtype=np.float64)
        self._total = product if self._total is None else np.add(self._total, product, out=product)
        self._weight += weight
        self._last = rank

    def finish(self) -> Partial:
        if self._total is None:
            raise InternalError("a block has at least one row")
        return Partial(self._last // BLOCK, self._total, self._weight)

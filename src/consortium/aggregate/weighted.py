"""The weighted mean as a stream: memory does not grow with the number of sites.

Floating-point addition depends on order, so the order is fixed: a site's *rank* is its
place among the round's invitations, ranks are cut into blocks of `BLOCK`, a block is
summed rank after rank, and block sums are added in ascending order. A worker may sum a
whole block anywhere; the result has the same bits as one loop over all sites, after a
crash, on a replica and in simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from consortium.errors import InsufficientParticipantsError, InternalError
from consortium.model import Vector

BLOCK = 64
Total = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Partial:
    """Σ wᵢΔᵢ and Σ wᵢ over the ranks of one block."""

    block: int
    total: Total
    weight: float


def joined(left: Partial, right: Partial) -> Partial:
    """Two partial sums of one block. Real and simulated sites can share a block."""
    return Partial(left.block, left.total + right.total, left.weight + right.weight)


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


def sum_block(rows: Iterable[tuple[int, Vector, float]]) -> Partial:
    """The partial sum of (rank, vector, weight) in ascending rank within one block."""
    block = BlockSum()
    for rank, vector, weight in rows:
        block.add(rank, vector, weight)
    return block.finish()


class WeightedMean:
    """Adds block sums in ascending order; `linear`, so it may run on masked sums too.

    >>> mean = WeightedMean()
    >>> mean.merge(sum_block([(0, np.array([1.0]), 1000.0), (1, np.array([0.0]), 800.0)]))
    >>> round(float(mean.finish()[0]), 3)
    0.556
    """

    linear = True

    def __init__(self) -> None:
        self._total: Total | None = None
        self._weight = 0.0
        self._last_block = -1

    def merge(self, partial: Partial) -> None:
        """Add the next block. Blocks come in ascending order, each once."""
        if partial.block <= self._last_block:
            raise InternalError("blocks are merged once each, in ascending order")
        if self._total is None:
            self._total = partial.total.copy()
        else:
            self._total += partial.total
        self._weight += partial.weight
        self._last_block = partial.block

    def finish(self) -> Total:
        """Σ wᵢΔᵢ / Σ wᵢ."""
        if self._total is None or self._weight <= 0.0:
            raise InsufficientParticipantsError("there is nothing to average")
        return self._total / self._weight


def blocks(rows: Iterable[tuple[int, Vector, float]]) -> Iterable[Partial]:
    """Cut a stream of (rank, vector, weight) into block sums as it passes."""
    for _, group in groupby(rows, key=lambda row: row[0] // BLOCK):
        yield sum_block(group)


def step(base: Vector, mean: Total, lr: float) -> Vector:
    """The new model: base + lr · mean, rounded once to the model's own type."""
    moved = base.astype(np.float64) + lr * mean
    return moved if base.dtype == np.float64 else moved.astype(np.float32)

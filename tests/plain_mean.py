"""The weighted mean as a plain stream of blocks: what the fast rule is tested against."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import numpy as np

from consortium.aggregate.block import BLOCK, BlockSum, Partial, Total
from consortium.errors import InsufficientParticipantsError, InternalError
from consortium.model import Vector


def joined(left: Partial, right: Partial) -> Partial:
    """Two partial sums of one block. Real and simulated sites can share a block."""
    return Partial(left.block, left.total + right.total, left.weight + right.weight)


def sum_block(rows: Iterable[tuple[int, Vector, float]]) -> Partial:
    """The partial sum of (rank, vector, weight) in ascending rank within one block."""
    block = BlockSum()
    for rank, vector, weight in rows:
        block.add([rank], np.asarray(vector)[None, :], [weight])
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

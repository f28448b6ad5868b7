"""Rows before they are masked, and sums after the masks are gone: what masks leave as it was.

Masks cancel exactly, so a simulation leaves them out: its rows are the levels that a real site
would mask, as the numbers that they stand for. Levels times a power of two, and sums of them, are
exact in float64: a simulated sum has the bits of the unmasked one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import Row, Source
from consortium.drive.rng import stream
from consortium.errors import DimensionError, InternalError
from consortium.plan.values import Plan
from consortium.privacy.keystream import U64
from consortium.tasks import Site
from consortium.update.ring import U32, Ring
from consortium.update.ring_noise import NoiseShare
from consortium.update.stage import Rows

Block = npt.NDArray[np.float64]  # (n, d + extra)
Told = tuple[Site, Sequence[float]]  # a site, and the scores that it sends behind its weight

_FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Levels as the numbers that they stand for: a row that is decoded where it is read."""

    ring: Ring
    levels: Row  # of uint32
    dtype: np.dtype[Any] = field(default=_FLOAT64, init=False)

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, columns: slice, /) -> npt.NDArray[np.float64]:
        lo, hi, _ = columns.indices(len(self))
        return self.ring.columns(self.levels[lo:hi], lo, len(self))


def sum_source(ring: Ring, total: U32, count: int) -> Source:
    """An unmasked sum of `count` rows, as the masked mean combines it: weighed values, and what
    they weigh together behind them."""
    if total.dtype != np.uint32 or total.ndim != 1 or len(total) < ring.extra:
        raise DimensionError("a sum has other numbers than the ring")
    return Source(0, Decoded(ring, total), float(count), is_sum=True)


def decoded(ring: Ring, rows: Sequence[Source]) -> list[Source]:
    """Single rows as they lie in files, and sums of blocks, which are decoded already."""
    return [row if row.is_sum else replace(row, values=Decoded(ring, row.values)) for row in rows]


def on_ring(
    plan: Plan, ring: Ring, share: NoiseShare | None, sent: Rows, told: Sequence[Told]
) -> tuple[Block, list[bytes | None]]:
    """What these sites mask: rows of (n, d) that are clipped and weighed, as numbers and as the
    bytes of their files. A real site masks the bytes; a simulated one leaves them as they are."""
    most = plan.strategy.weighing().most
    assert most is not None, "the plan was checked"
    if ring.metrics and plan.has_noised_scores:
        raise InternalError("scores must not leave without their noise")
    values = np.empty((len(told), sent.values.shape[1] + ring.extra))
    packed = list[bytes | None]()
    for at, (site, scores) in enumerate(told):
        weight = float(sent.weights[at]) / most
        row = ring.encode(sent.values[at], weight, scores, _Rounding(site))
        if share is not None:
            row = _noised(share, row, sent.values.shape[1], site)
        values[at] = ring.columns(row, 0, len(row))
        packed.append(row.tobytes())
    return values, packed


def _noised(share: NoiseShare, row: U32, size: int, site: Site) -> U32:
    if site.noise is None:
        raise InternalError("an update must not leave without its noise")
    noised = share.added(row, size, site.noise)
    # What a site weighs is left out. Scores are there only on records that the plan says are
    # public: nothing is promised of them.
    noised[size + 1 :] = row[size + 1 :]
    return noised


class _Rounding:
    """Words that decide which way numbers are rounded. They protect nobody, and what protects
    holds for all of them: a site draws them from the seed of its own that it keeps, so that a
    round that is done again rounds alike."""

    __slots__ = ("_rng",)

    def __init__(self, site: Site) -> None:
        self._rng = stream(site.own_seed, "rounding", site.round)

    def __call__(self, count: int) -> U64:
        return self._rng.integers(1 << 64, size=count, dtype=np.uint64)

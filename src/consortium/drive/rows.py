"""The rows of a round as the rules of aggregation see them, read from the blob store.

Every blob is compared with its digest once. What is small then stays in memory; of what is
large, columns are read again as they are needed, so that memory depends neither on the
number of sites nor on their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from consortium.aggregate.columns import Source, in_turn
from consortium.aggregate.staleness import Scaled
from consortium.core.ids import Digest
from consortium.model import Form, load_update
from consortium.store.ports import Blobs
from consortium.stored import open_update

_KEPT_BYTES = 4 << 20  # of all rows together: below, they are simply kept


def open_rows(
    blobs: Blobs,
    form: Form,
    updates: Sequence[tuple[int, Digest]],
    partials: Sequence[tuple[int, float, Digest]],
) -> list[Source]:
    """One source a row in the order of ranks: single updates, and sums that blocks of
    simulated sites made."""
    summed = Form(form.vectors, np.dtype(np.float64))
    rows_bytes = form.size_bytes * len(updates)
    is_small = rows_bytes + summed.size * summed.dtype.itemsize * len(partials) <= _KEPT_BYTES
    if not is_small:
        named = [digest for _, digest in updates] + [digest for _, _, digest in partials]
        in_turn(named, blobs.check)
    sources = [_source(blobs, form, rank, digest, is_small) for rank, digest in updates]
    for rank, weight, digest in partials:
        one = _source(blobs, summed, rank, digest, is_small)
        sources.append(Source(rank, one.values, weight, is_sum=True))
    return sorted(sources, key=lambda source: source.rank)


def discounted(rows: list[Source], factors: Sequence[float]) -> list[Source]:
    """Single rows in the order of ranks, each scaled by its factor."""
    return [
        row if factor == 1.0 else replace(row, values=Scaled(row.values, factor))
        for row, factor in zip(rows, factors, strict=True)
    ]


def _source(blobs: Blobs, form: Form, rank: int, digest: Digest, is_small: bool) -> Source:
    if is_small:
        update = load_update(blobs.get(digest), form)
        return Source(rank, update.row, update.weight)
    stored = open_update(blobs, form, digest)
    return Source(rank, stored.row, stored.weight)

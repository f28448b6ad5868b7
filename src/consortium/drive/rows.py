"""The rows of a round as the rules of aggregation see them, read from the blob store.

Every blob is read once and checked against its digest. What is small then stays in memory;
of what is large, columns are read again as they are needed, so that memory depends neither
on the number of sites nor, beyond one update, on their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import Source
from consortium.core.ids import Digest
from consortium.model import Form, load_update
from consortium.store.ports import Blobs

_KEPT_BYTES = 256 << 20  # of all rows together: below, they are simply kept


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row that lies in a blob: slices of it are read when they are asked for."""

    blobs: Blobs
    digest: Digest
    start: int
    size: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, columns: slice) -> npt.NDArray[Any]:
        lo, hi, _ = columns.indices(self.size)
        width = self.dtype.itemsize
        data = self.blobs.get(self.digest, self.start + lo * width, (hi - lo) * width)
        return np.frombuffer(data, self.dtype)


def open_rows(
    blobs: Blobs,
    form: Form,
    updates: Sequence[tuple[int, Digest]],
    partials: Sequence[tuple[int, float, Digest]],
) -> list[Source]:
    """One source a row in the order of ranks: single updates, and sums that blocks of
    simulated sites made."""
    summed = Form(form.vectors, np.dtype(np.float64))
    is_small = form.size * form.dtype.itemsize * (len(updates) + 2 * len(partials)) <= _KEPT_BYTES
    sources = [_source(blobs, form, rank, digest, is_small) for rank, digest in updates]
    for rank, weight, digest in partials:
        one = _source(blobs, summed, rank, digest, is_small)
        sources.append(Source(rank, one.values, weight, is_sum=True))
    return sorted(sources, key=lambda source: source.rank)


def _source(blobs: Blobs, form: Form, rank: int, digest: Digest, is_small: bool) -> Source:
    data = blobs.get(digest)
    update = load_update(data, form)
    if is_small:
        return Source(rank, update.row, update.weight)
    start = len(data) - form.size * form.dtype.itemsize
    return Source(rank, StoredRow(blobs, digest, start, form.size, form.dtype), update.weight)

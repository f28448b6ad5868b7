"""Models and updates that stay in the blob store: read and written by columns.

A coordinator handles models that are large beside its memory. What is opened here holds a
header and no numbers: slices of the flat vector are read when they are asked for. What is
written goes column by column to its place in the file. Files and numbers are exactly those of
`consortium.model`, which is for models that fit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import CHUNK, cut
from consortium.core.ids import Digest
from consortium.errors import CorruptBlobError, ModelFileError
from consortium.model import Form, Layout, packed_row, read_model_header, read_update_header
from consortium.packing.row import PackedRow
from consortium.store.ports import Blobs, BlobWriter
from consortium.tensors import DTYPES, TensorSpec, header_bytes, write_header

_HEAD_BYTES = 4096  # enough for most headers: a longer one is read again


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring tensors of one type: columns lo:hi lie `at` bytes behind the header."""

    lo: int
    hi: int
    at: int
    dtype: np.dtype[Any]

    def byte(self, column: int) -> int:
        return self.at + (column - self.lo) * self.dtype.itemsize


@lru_cache(maxsize=64)  # a model's are asked for several times a round
def _runs_of(specs: tuple[TensorSpec, ...]) -> tuple[_Run, ...]:
    runs: list[_Run] = []
    lo = at = 0
    for spec in specs:
        dtype = DTYPES[spec.dtype]
        if runs and runs[-1].dtype == dtype:
            first = runs.pop()
            runs.append(_Run(first.lo, lo + spec.size, first.at, dtype))
        else:
            runs.append(_Run(lo, lo + spec.size, at, dtype))
        lo, at = lo + spec.size, at + spec.size_bytes
    return tuple(runs)


def _pieces(runs: Sequence[_Run], lo: int, hi: int) -> Iterator[tuple[_Run, int, int]]:
    """(run, first column, end) of every run that has some of the columns lo:hi."""
    at = bisect_right(runs, lo, key=lambda run: run.hi)
    while at < len(runs) and runs[at].lo < hi:
        yield runs[at], max(lo, runs[at].lo), min(hi, runs[at].hi)
        at += 1


# ---- reading ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A flat vector in a blob; a `Row` for the rules of aggregation. A slice is as wide as
    the widest tensor: see `Layout.dtype`."""

    blobs: Blobs
    digest: Digest
    start: int  # of the numbers, in bytes
    runs: tuple[_Run, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.runs[-1].hi if self.runs else 0

    def __getitem__(self, columns: slice, /) -> npt.NDArray[Any]:
        lo, hi, _ = columns.indices(len(self))
        pieces = list(_pieces(self.runs, lo, hi))
        if len(pieces) == 1 and pieces[0][0].dtype == self.dtype:
            return self._read(*pieces[0])
        values = np.empty(max(hi - lo, 0), self.dtype)
        for run, first, end in pieces:
            values[first - lo : end - lo] = self._read(run, first, end)
        return values

    def _read(self, run: _Run, first: int, end: int) -> npt.NDArray[Any]:
        size_bytes = (end - first) * run.dtype.itemsize
        start = self.start + run.byte(first)
        return np.frombuffer(_whole(self.blobs, self.digest, start, size_bytes), run.dtype)


def _whole(blobs: Blobs, digest: Digest, start: int, size_bytes: int) -> bytes:
    data = blobs.get(digest, start, size_bytes)
    if len(data) != size_bytes:
        raise CorruptBlobError(f"blob {digest.hex()[:16]}… was cut off")
    return data


@dataclass(frozen=True, slots=True)
class StoredUpdate:
    """One site's update, whose row stays where it is."""

    row: StoredVector | PackedRow
    weight: float
    base: Digest


def _beginning(blobs: Blobs, digest: Digest) -> bytes:
    """The first bytes of a blob, with the whole header if it is a tensor file."""
    head = blobs.get(digest, 0, _HEAD_BYTES)
    wanted = header_bytes(head)
    return head if wanted <= len(head) else blobs.get(digest, 0, wanted)


def open_model(blobs: Blobs, layout: Layout, digest: Digest) -> StoredVector:
    """A stored model of exactly this layout; refuses anything else, as `load_model` does. Its
    numbers are not looked at: see `check_model`, and `Blobs.check` for the bytes."""
    start = read_model_header(layout, _beginning(blobs, digest), blobs.size(digest))
    return StoredVector(blobs, digest, start, _runs_of(layout.specs), layout.dtype)


def open_tensors(blobs: Blobs, layout: Layout, digest: Digest) -> dict[str, StoredVector]:
    """Each tensor of a stored model as a vector of its own."""
    at = read_model_header(layout, _beginning(blobs, digest), blobs.size(digest))
    vectors = {}
    for spec in layout.specs:
        vectors[spec.name] = StoredVector(blobs, digest, at, _runs_of((spec,)), DTYPES[spec.dtype])
        at += spec.size_bytes
    return vectors


def check_model(blobs: Blobs, layout: Layout, digest: Digest) -> None:
    """That a model is there, unchanged, of this layout, and finite."""
    blobs.check(digest)
    vector = open_model(blobs, layout, digest)
    for lo, hi in cut(0, len(vector), CHUNK):
        if not np.isfinite(vector[lo:hi]).all():
            raise ModelFileError("the model has numbers that are not finite")


def open_update(blobs: Blobs, form: Form, digest: Digest) -> StoredUpdate:
    """A stored update of this form. Only its header is looked at, and how many places a packed
    one names, and trusted in nothing; raises what `load_update` raises. A slice of a packed row
    raises `FormatError` for what cannot be unpacked."""
    weight, base, start = read_update_header(_beginning(blobs, digest), form, blobs.size(digest))
    if form.packing is None:
        row = StoredVector(blobs, digest, start, _runs_of(form.specs), form.dtype)
        return StoredUpdate(row, weight, base)

    def read(at: int, size_bytes: int) -> bytes:
        return _whole(blobs, digest, start + at, size_bytes)

    return StoredUpdate(packed_row(form, read), weight, base)


# ---- writing ------------------------------------------------------------------------


class ModelSink:
    """A model that is being written by columns, in any order and from several threads."""

    def __init__(self, writer: BlobWriter, layout: Layout) -> None:
        header = write_header(layout.specs, {})
        self._writer, self._start, self._dtype = writer, len(header), layout.dtype
        self._runs = _runs_of(layout.specs)
        writer.write_at(0, header)

    def put(self, lo: int, values: npt.NDArray[Any]) -> None:
        """Columns from `lo` on, rounded to the vector's type and then to the tensor's, as
        `save_model` does. Refuses numbers that are not finite after that."""
        rounded = values.astype(self._dtype, copy=False)
        for run, first, end in _pieces(self._runs, lo, lo + len(values)):
            part = rounded[first - lo : end - lo].astype(run.dtype, copy=False)
            if not np.isfinite(part).all():
                raise ModelFileError("the model has numbers that are not finite")
            self._writer.write_at(self._start + run.byte(first), part.view(np.uint8).data)

    def finish(self) -> Digest:
        """Make it a blob. All columns have been put."""
        return self._writer.finish()

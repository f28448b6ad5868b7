"""A packed step as a vector whose slices are unpacked when they are asked for.

The bytes come from outside. Whatever cannot be unpacked raises `FormatError` from the slice
that meets it, so one pass over all columns checks every byte. What is held besides the
bytes is one number for every 65,280 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.errors import FormatError
from consortium.packing.codes import GROUP, check_scales, scaled, unpack_levels
from consortium.packing.packed import Packing, Sent
from consortium.packing.places import (
    DRAWN_AT_ONCE,
    INDEXED,
    SPAN,
    Places,
    drawn_places,
    kept_of,
    spans,
    unpack_places,
)
from consortium.tensors import DTYPES

Read = Callable[[int, int], bytes | memoryview]  # so many bytes from this one on
_PIECE = 1 << 20  # bytes of counts that are looked at together


@dataclass(frozen=True, slots=True)
class PackedStep:
    """The columns of a packed step. Make one with `open_step`."""

    packing: Packing
    size: int
    dtype: np.dtype[Any]
    read: Read
    starts: dict[str, int]  # of each tensor, in bytes
    before: tuple[int, ...]  # where places are named: how many before each 256th span

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, columns: slice, /) -> npt.NDArray[Any]:
        lo, hi, _ = columns.indices(self.size)
        if hi <= lo:
            return np.empty(0, self.dtype)
        if self.packing.sent is Sent.ALL:
            return self._numbers(lo, hi)
        values = np.zeros(hi - lo, self.dtype)
        for first, places in self._kept(lo, hi):
            start, end = np.searchsorted(places, (lo, hi))
            if start < end:
                values[places[start:end] - lo] = self._numbers(first + start, first + end)
        return values

    def _kept(self, lo: int, hi: int) -> list[tuple[int, Places]]:
        """(number of the first, places) that include all that are kept of the columns lo:hi."""
        return [self._named(lo, hi)] if self.packing.sent is Sent.TOP else self._drawn(lo, hi)

    def _named(self, lo: int, hi: int) -> tuple[int, Places]:
        from_span, to_span = lo // SPAN // INDEXED * INDEXED, spans(hi)
        counts = self._tensor("counts", from_span, to_span)
        first = self.before[from_span // INDEXED]
        offsets = self._tensor("places", first, first + int(counts.sum(dtype=np.int64)))
        return first, unpack_places(counts, offsets, from_span, self.size)

    def _drawn(self, lo: int, hi: int) -> list[tuple[int, Places]]:
        keep, draw, found = self.packing.keep, self.packing.draw, []
        for block in range(lo // DRAWN_AT_ONCE, -(-hi // DRAWN_AT_ONCE)):
            width = min(DRAWN_AT_ONCE, self.size - block * DRAWN_AT_ONCE)
            first = block * kept_of(DRAWN_AT_ONCE, keep)
            found.append((first, drawn_places(draw, block, width, keep)))
        return found

    def _numbers(self, lo: int, hi: int) -> npt.NDArray[Any]:
        """The numbers lo:hi of those that are sent."""
        bits = self.packing.bits
        if not bits:
            return self._tensor("values", lo, hi)
        codes = self._tensor("codes", lo * bits // 8, -(-hi * bits // 8))
        scales = self._tensor("scales", lo // GROUP, -(-hi // GROUP))
        check_scales(scales)
        levels = unpack_levels(codes, lo, hi, self.packing.count(self.size), bits)
        return scaled(levels, scales, lo % GROUP)

    def _tensor(self, name: str, lo: int, hi: int) -> npt.NDArray[Any]:
        dtype = self.dtype if name in ("scales", "values") else np.dtype(np.uint8)
        start = self.starts[name] + lo * dtype.itemsize
        return np.frombuffer(self.read(start, (hi - lo) * dtype.itemsize), dtype)


def open_step(packing: Packing, size: int, dtype: str, read: Read) -> PackedStep:
    """The step whose tensors `read` gives, from the first one's first byte on. Of the places,
    only how many there are is looked at."""
    starts, at = {}, 0
    for spec in packing.specs("", size, dtype):
        starts[spec.name.removeprefix(".")] = at
        at += spec.size_bytes
    before: tuple[int, ...] = ()
    if packing.sent is Sent.TOP:
        before = _before(packing.count(size), spans(size), starts["counts"], read)
    return PackedStep(packing, size, DTYPES[dtype], read, starts, before)


def _before(count: int, width: int, start: int, read: Read) -> tuple[int, ...]:
    found: list[int] = []
    for at in range(0, width, _PIECE):
        counts = np.frombuffer(read(start + at, min(_PIECE, width - at)), np.uint8)
        padded = np.pad(counts, (0, -len(counts) % INDEXED)).reshape(-1, INDEXED)
        found += padded.sum(axis=1, dtype=np.int64).tolist()
    if sum(found) != count:
        raise FormatError("the update names another number of places than it has numbers")
    return tuple(accumulate(found[:-1], initial=0))


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A row that begins with a packed step; what stands behind it is not packed."""

    step: PackedStep
    rest: int  # columns
    rest_at: int  # in bytes, as the step counts them

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.step.dtype

    def __len__(self) -> int:
        return self.step.size + self.rest

    def __getitem__(self, columns: slice, /) -> npt.NDArray[Any]:
        lo, hi, _ = columns.indices(len(self))
        size = self.step.size
        if hi <= size:
            return self.step[lo:hi]
        first, width = max(lo, size) - size, self.dtype.itemsize
        data = self.step.read(self.rest_at + first * width, (hi - size - first) * width)
        rest = np.frombuffer(data, self.dtype)
        return rest if lo >= size else np.concatenate([self.step[lo:size], rest])

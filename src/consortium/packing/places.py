"""Which columns of a step are sent: those that a site names, or those that a public rule draws.

Named places are written down by spans of 255 columns: how many are kept in each span, one byte,
and where in its span each of them is, one byte. So a slice of columns is found without reading
the rest, and a list of 1 % of the places takes 1.4 bytes a place (a bitmap 12.5, numbers of 16
bits 2).

Drawn places follow from 32 public bytes, so they are not sent, and all sites of a round have the
same. Columns are drawn in blocks, so that those of a slice are known without the rest.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from consortium.errors import FormatError

SPAN = 255  # so that a count of kept columns fits a byte too
INDEXED = 256  # spans: how much of the counts a reader of a slice looks at, at most
DRAWN_AT_ONCE = 65_536  # columns

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_CONTEXT = b"consortium/coordinates/v1\0"


def kept_of(size: int, keep: float) -> int:
    """How many of so many columns are kept: the fraction, rounded, and one at least."""
    return min(size, max(1, round(keep * size)))


# ---- named by the site --------------------------------------------------------------


def spans(size: int) -> int:
    return -(-size // SPAN)


def pack_places(places: Places, size: int) -> tuple[Bytes, Bytes]:
    """(kept in each span, place in its span) of ascending places (n, k) among `size` columns."""
    rows, width = len(places), spans(size)
    span, offset = np.divmod(places, SPAN)
    flat = (span + np.arange(rows)[:, None] * width).reshape(-1)
    counts = np.bincount(flat, minlength=rows * width).reshape(rows, width)
    return counts.astype(np.uint8), offset.astype(np.uint8)


def unpack_places(counts: Bytes, offsets: Bytes, first_span: int, size: int) -> Places:
    """The places of some spans, of which the first is number `first_span`. Refuses places that
    do not ascend, or lie outside their span or the step."""
    starts = (first_span + np.arange(len(counts))) * SPAN
    places = np.repeat(starts, counts) + offsets
    is_inside = not len(places) or (int(offsets.max()) < SPAN and int(places[-1]) < size)
    if not is_inside or (np.diff(places) <= 0).any():
        raise FormatError("the update's places do not ascend, or are outside of it")
    return places


# ---- drawn by a public rule ---------------------------------------------------------


def draw_of(plan: bytes, round_number: int) -> bytes:
    """The 32 bytes that the places of a round follow from: its plan's digest and its number."""
    return sha256(_CONTEXT + plan + round_number.to_bytes(8, "big")).digest()


def drawn_count(size: int, keep: float) -> int:
    """How many of `size` columns are drawn."""
    whole, rest = divmod(size, DRAWN_AT_ONCE)
    return whole * kept_of(DRAWN_AT_ONCE, keep) + (kept_of(rest, keep) if rest else 0)


@lru_cache(maxsize=16)  # the rows of a round have the same ones
def drawn_places(draw: bytes, block: int, width: int, keep: float) -> Places:
    """The places drawn among the `width` columns of one block: those whose numbers are the
    smallest, the lower column first where two are equal. The number of column j is SplitMix64's
    (Steele et al. 2014) number j + 1 from the first eight bytes of `draw`."""
    columns = np.arange(width, dtype=np.uint64) + np.uint64(block * DRAWN_AT_ONCE)
    numbers = _split_mix(int.from_bytes(draw[:8], "little"), columns)
    lowest = np.argsort(numbers, kind="stable")[: kept_of(width, keep)]
    places: Places = np.sort(lowest).astype(np.int64) + block * DRAWN_AT_ONCE
    places.setflags(write=False)
    return places


def all_drawn(draw: bytes, size: int, keep: float) -> Places:
    """Every place that is drawn among `size` columns."""
    blocks = [
        drawn_places(draw, at // DRAWN_AT_ONCE, min(DRAWN_AT_ONCE, size - at), keep)
        for at in range(0, size, DRAWN_AT_ONCE)
    ]
    return np.concatenate(blocks)


def _split_mix(seed: int, columns: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Modulo 2^64, as NumPy's unsigned numbers are."""
    mixed = np.uint64(seed) + (columns + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))

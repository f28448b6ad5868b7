"""Many rows combined column after column, so that memory does not grow with the sites.

Columns are independent of one another, so a model is cut into column chunks and a few
threads take them in turn. Nothing that is computed here depends on where the cuts are or
on how many threads there are: the result has the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from consortium.errors import InsufficientParticipantsError, InternalError

Columns = npt.NDArray[np.float64]
Combine = Callable[[int, int], Columns]  # the combined columns lo:hi
Work = Callable[[int, int], object]
T = TypeVar("T")

# Columns that a thread takes at a time, and of one float64 row and its scratch. Threads wait for
# each other between two calls of NumPy or of the store, so that shorter pieces are slower over
# two threads than over one; longer ones fall out of a core's cache, and memory grows with them.
CHUNK = 65_536
_MOST_THREADS = 4  # a sum is bound by memory: more threads than channels do not help


class Row(Protocol):
    """A vector that is only read, in slices: an array, a memory map, or columns in a store."""

    @property
    def dtype(self) -> np.dtype[Any]: ...  # float32 or float64

    def __len__(self) -> int: ...

    def __getitem__(self, columns: slice, /) -> npt.NDArray[Any]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """One member's row, or a sum that a simulated block has already made.

    Of `values`, slices are taken, each of them once a pass. With `is_sum` it is the
    float64 weighted sum Σ wᵢΔᵢ of several members of one block, `rank` is the lowest of
    theirs and `weight` is Σ wᵢ.
    """

    rank: int
    values: Row
    weight: float
    is_sum: bool = False


def ranked(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Sources by rank; refuses none at all, one rank twice, and rows of unequal length."""
    if not sources:
        raise InsufficientParticipantsError("there is nothing to average")
    ranks = [source.rank for source in sources if not source.is_sum]
    if len(set(ranks)) < len(ranks):
        raise InternalError("every rank is combined once")
    if len({len(source.values) for source in sources}) > 1:
        raise InternalError("rows to be combined have one length")
    return tuple(sorted(sources, key=lambda source: source.rank))


def cut(lo: int, hi: int, width: int) -> Iterator[tuple[int, int]]:
    """lo:hi in pieces of at most `width`.

    >>> list(cut(0, 5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    return ((start, min(start + width, hi)) for start in range(lo, hi, width))


def for_columns(size: int, work: Work, threads: int | None = None) -> None:
    """Call `work(lo, hi)` once for every chunk of `size` columns, over some threads."""
    in_turn(list(cut(0, size, CHUNK)), lambda chunk: work(*chunk), threads)


def in_turn(items: Sequence[T], work: Callable[[T], object], threads: int | None = None) -> None:
    """Call `work(item)` once for every item, over some threads.

    NumPy lets go of the interpreter while it computes, and so do hashes and files, so threads
    do run side by side. They keep the caller's `np.errstate`, which threads do not inherit by
    themselves. What `work` raises is raised here.
    """
    left = iter(items)  # shared: the next free thread takes the next item
    # To ask for the cores takes as long as to sum up a small model.
    most = threads or (min(os.cpu_count() or 1, _MOST_THREADS) if len(items) > 1 else 1)
    workers = min(most, len(items))
    settings = np.geterr()

    def take() -> None:
        with np.errstate(**settings):
            for item in left:
                work(item)

    if workers <= 1:
        return take()
    with ThreadPoolExecutor(workers) as pool:
        for taken in [pool.submit(take) for _ in range(workers)]:
            taken.result()
    return None


def weighted_sum(rows: Sequence[tuple[Row, float]], lo: int, hi: int) -> Columns:
    """Σ wᵢxᵢ over columns lo:hi in float64, row after row in the order given.

    Only multiplications and additions of single numbers, in a fixed order, so that every
    machine gives the same bits: no BLAS, no fused multiply-add. A weight of one is not
    multiplied: the product would be the number itself.
    """
    out = np.empty(hi - lo)
    scratch = np.empty(min(CHUNK, hi - lo))
    for start, end in cut(lo, hi, CHUNK):
        total, product = out[start - lo : end - lo], scratch[: end - start]
        for at, (values, weight) in enumerate(rows):
            target = product if at else total
            np.copyto(target, values[start:end])
            if weight != 1.0:
                np.multiply(target, weight, out=target)
            if at:
                np.add(total, product, out=total)
    return out

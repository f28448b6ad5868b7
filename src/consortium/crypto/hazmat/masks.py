"""WARNING: sharp tool. A key that masks two vectors gives away their difference.

AES-128 in counter mode from block zero, as little-endian words of 32 bits, is added to or
taken from a vector modulo 2**32. The keystream is even over the whole ring, so a masked number
tells nothing.

Speed: a chunk of the vector stays in a core's cache while the masks of all keys are applied to
it, and nothing is allocated on the way. AES and NumPy let go of the interpreter, so threads run
side by side, each with columns of its own: counters start in the middle of the stream. (The
library's ciphers let go since its pull request 15359 of July 2026; with older ones threads take
turns.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from consortium.errors import InternalError

U32 = npt.NDArray[np.uint32]
Move = tuple[Callable[[Any, Any], int], np.ufunc]  # the next part of a stream, and what to do

KEY_BYTES = 16
_BLOCK_BYTES = 16
_WORDS_PER_BLOCK = 4
_WORD = np.dtype("<u4")
CHUNK = 1 << 15  # words: 128 KiB of the vector and as much of the stream fit a core's own cache
_LEAST_PART = CHUNK // 2  # of a thread: starting one takes as long as some masks of it
_ZEROS = memoryview(bytes(CHUNK * _WORD.itemsize))


def add_masks(
    total: U32, plus: Sequence[bytes], minus: Sequence[bytes] = (), *, threads: int = 1
) -> None:
    """Add the masks of the keys in `plus` to `total`, take away those in `minus`, in place."""
    if total.dtype != np.uint32 or total.ndim != 1 or not total.flags.c_contiguous:
        raise InternalError("masks go on one row of words of 32 bits")
    cuts = _cuts(len(total), threads)
    if len(cuts) == 1:
        return _add(total, 0, plus, minus)
    with ThreadPoolExecutor(len(cuts)) as pool:
        parts = [pool.submit(_add, total[lo:hi], lo, plus, minus) for lo, hi in cuts]
        for part in parts:
            part.result()
    return None


def keystream(key: bytes, size_bytes: int, first_block: int = 0) -> bytes:
    """The stream itself, from a block on."""
    return _encryptor(key, _counter(first_block)).update(bytes(size_bytes))


def _cuts(size: int, threads: int) -> list[tuple[int, int]]:
    """Columns for each thread, in equal parts that start with a block."""
    workers = max(1, min(threads, size // _LEAST_PART))
    edges = [size * at // workers // _WORDS_PER_BLOCK * _WORDS_PER_BLOCK for at in range(workers)]
    return list(pairwise([*edges, size]))


def _add(part: U32, first: int, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Masks on the columns from `first` on."""
    stream = np.empty(min(len(part), CHUNK) * _WORD.itemsize, np.uint8)
    moves: list[Move] = []
    for at in range(0, len(part), CHUNK):
        here = part[at : at + CHUNK]
        raw = stream[: here.nbytes]
        zeros, words = _ZEROS[: here.nbytes], raw.view(_WORD)
        for fill, move in moves if at else _started(moves, first, plus, minus):
            fill(zeros, raw)
            move(here, words, out=here)


def _started(
    moves: list[Move], first: int, plus: Sequence[bytes], minus: Sequence[bytes]
) -> Iterator[Move]:
    """Each key made ready when it is needed, and kept: while one thread does that, which takes
    the interpreter, others compute."""
    counter = _counter(first // _WORDS_PER_BLOCK)
    for keys, move in ((plus, np.add), (minus, np.subtract)):
        for key in keys:
            moves.append((_encryptor(key, counter).update_into, move))
            yield moves[-1]


def _counter(first_block: int) -> modes.CTR:
    return modes.CTR(first_block.to_bytes(_BLOCK_BYTES, "big"))


def _encryptor(key: bytes, counter: modes.CTR) -> CipherContext:
    encryptor: CipherContext = Cipher(algorithms.AES128(key), counter).encryptor()
    return encryptor

"""WARNING: sharp tool. A key that masks two vectors gives away their difference.

AES-128 in counter mode from block zero, as little-endian words of 32 bits, is added to or
taken from a vector modulo 2**32. The keystream is even over the whole ring, so a masked number
tells nothing.

Speed: a chunk of the vector stays in a core's cache while the masks of all keys are applied to
it, and nothing is allocated on the way. AES and NumPy let go of the interpreter, so threads run
side by side. On a long row each has columns of its own: counters start in the middle of the
stream. On a short row each has keys of its own, and a row that is added at the end: making a key
ready takes as long as 7,000 words of its mask, so it is done once and not by every thread. (The
library's ciphers let go since its pull request 15359 of July 2026; with older ones threads take
turns.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
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
_LEAST_WORK = 1 << 19  # words of masks a thread: starting one takes as long as a part of them
_SHORT = 1 << 18  # words: a thread may have a row of its own, of 1 MiB at most
_ZEROS = memoryview(bytes(CHUNK * _WORD.itemsize))


def add_masks(
    total: U32, plus: Sequence[bytes], minus: Sequence[bytes] = (), *, threads: int = 1
) -> None:
    """Add the masks of the keys in `plus` to `total`, take away those in `minus`, in place."""
    if total.dtype != np.uint32 or total.ndim != 1 or not total.flags.c_contiguous:
        raise InternalError("masks go on one row of words of 32 bits")
    workers = min(threads, len(total) * (len(plus) + len(minus)) // _LEAST_WORK)
    if workers < 2:
        return _add(total, 0, plus, minus)
    with ThreadPoolExecutor(workers) as pool:
        share = _add_by_keys if len(total) < _SHORT else _add_by_columns
        share(pool, workers, total, plus, minus)
    return None


def keystream(key: bytes, size_bytes: int, first_block: int = 0) -> bytes:
    """The stream itself, from a block on."""
    return _encryptor(key, _counter(first_block)).update(bytes(size_bytes))


def _add_by_columns(
    pool: Executor, workers: int, total: U32, plus: Sequence[bytes], minus: Sequence[bytes]
) -> None:
    """In equal parts that start with a block."""
    inner = [len(total) * at // workers // _WORDS_PER_BLOCK for at in range(workers)]
    cuts = pairwise([*(at * _WORDS_PER_BLOCK for at in inner), len(total)])
    _wait([pool.submit(_add, total[lo:hi], lo, plus, minus) for lo, hi in cuts])


def _add_by_keys(
    pool: Executor, workers: int, total: U32, plus: Sequence[bytes], minus: Sequence[bytes]
) -> None:
    """In turn to each, so that their numbers differ by two at most."""
    others = np.zeros((workers - 1, len(total)), np.uint32)
    _wait(
        [
            pool.submit(_add, row, 0, plus[at::workers], minus[at::workers])
            for at, row in enumerate((total, *others))
        ]
    )
    for row in others:
        np.add(total, row, out=total)


def _wait(parts: list[Future[None]]) -> None:
    for part in parts:
        part.result()


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

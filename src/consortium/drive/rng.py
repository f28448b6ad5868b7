"""Random streams by purpose: each is keyed by (seed, purpose, round, seat), so that no
draw depends on who else drew, in which order, or in which process."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

_CONTEXT = b"consortium/rng/v1\0"
_ZERO = np.zeros(4, np.uint64)  # where Philox counts from by itself; made of a number it takes long


def stream(seed: int, purpose: str, round_number: int = 0, seat: int = 0) -> np.random.Generator:
    """The generator for one purpose in one round at one seat. For simulation only: nothing
    that protects anybody is ever drawn from it."""
    key = _key(seed, purpose, round_number, seat)
    return np.random.Generator(np.random.Philox(_Given(key), _ZERO))  # type: ignore[arg-type]  # any ISeedSequence


def seed_bytes(seed: int, purpose: str, round_number: int) -> bytes:
    """32 bytes for a simulated round's public seed."""
    return sha256(_framed(seed, purpose, round_number, 0)).digest()


class _Given(ISeedSequence):
    """A key as it is. `Philox(key=...)` gives the same stream, and takes three times as long,
    because it first asks the system for a seed that it then does not use."""

    __slots__ = ("_key",)

    def __init__(self, key: npt.NDArray[np.uint64]) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: object = None) -> npt.NDArray[np.uint64]:  # noqa: ARG002
        return self._key


def _key(seed: int, purpose: str, round_number: int, seat: int) -> npt.NDArray[np.uint64]:
    """The first 16 bytes of a digest as one number; in two halves, which NumPy takes faster."""
    digest = sha256(_framed(seed, purpose, round_number, seat)).digest()[:16]
    return np.frombuffer(digest[::-1], "<u8")


def _framed(seed: int, purpose: str, round_number: int, seat: int) -> bytes:
    return _CONTEXT + f"{seed}/{purpose}/{round_number}/{seat}".encode()

"""Random streams by purpose: each is keyed by (seed, purpose, round, seat), so that no
draw depends on who else drew, in which order, or in which process."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

_CONTEXT = b"consortium/rng/v2\0"


def stream(seed: int, purpose: str, round_number: int = 0, seat: int = 0) -> np.random.Generator:
    """The generator for one purpose in one round at one seat. For simulation only: nothing
    that protects anybody is ever drawn from it."""
    digest = sha256(_framed(seed, purpose, round_number, seat)).digest()
    # A simulated site has a new one in every round: this kind begins in a quarter of the time that
    # Philox takes.
    start = _Given(np.frombuffer(digest, "<u8"))
    return np.random.Generator(np.random.PCG64DXSM(start))  # type: ignore[arg-type]  # any ISeedSequence


def seed_bytes(seed: int, purpose: str, round_number: int) -> bytes:
    """32 bytes for a simulated round's public seed."""
    return sha256(_framed(seed, purpose, round_number, 0)).digest()


class _Given(ISeedSequence):
    """Where a generator begins, as it is: the 256 bits of a digest need no stirring."""

    __slots__ = ("_words",)

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = None) -> npt.NDArray[np.uint64]:  # noqa: ARG002
        return self._words


def _framed(seed: int, purpose: str, round_number: int, seat: int) -> bytes:
    return _CONTEXT + f"{seed}/{purpose}/{round_number}/{seat}".encode()

"""Random streams by purpose: each is keyed by (seed, purpose, round, seat), so that no
draw depends on who else drew, in which order, or in which process."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import numpy.typing as npt

_CONTEXT = b"consortium/rng/v1\0"


def stream(seed: int, purpose: str, round_number: int = 0, seat: int = 0) -> np.random.Generator:
    """The generator for one purpose in one round at one seat. For simulation only: nothing
    that protects anybody is ever drawn from it."""
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose, round_number, seat)))


def seed_bytes(seed: int, purpose: str, round_number: int) -> bytes:
    """32 bytes for a simulated round's public seed."""
    return sha256(_framed(seed, purpose, round_number, 0)).digest()


def _key(seed: int, purpose: str, round_number: int, seat: int) -> npt.NDArray[np.uint64]:
    """The first 16 bytes of a digest as one number; in two halves, which NumPy takes faster."""
    digest = sha256(_framed(seed, purpose, round_number, seat)).digest()[:16]
    return np.frombuffer(digest[::-1], "<u8")


def _framed(seed: int, purpose: str, round_number: int, seat: int) -> bytes:
    return _CONTEXT + f"{seed}/{purpose}/{round_number}/{seat}".encode()

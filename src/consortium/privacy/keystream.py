"""Words that nobody can foresee: AES-256 in counter mode, under a key that is used once.

The counter starts at zero, because no key is used twice. A key never leaves this module: it
has no name in the object's text form, and the object cannot be pickled or copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from consortium.errors import InternalError

U64 = npt.NDArray[np.uint64]
Words = Callable[[int], U64]  # so many words, each of the 2**64 equally likely

_KEY_BYTES = 32
_ZEROS = bytes(1 << 16)  # encrypted part by part: they stay in a core's cache
_WORD = np.dtype("<u8")


class Keystream:
    """The words of one key, from the first on, each of them once."""

    __slots__ = ("_encryptor",)

    def __init__(self, key: bytes) -> None:
        """For known answers. Everybody else takes `fresh`."""
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    @classmethod
    def fresh(cls) -> Keystream:
        """A key of the operating system's random source."""
        return cls(os.urandom(_KEY_BYTES))

    def words(self, count: int) -> U64:
        """The next words."""
        out = np.empty(count * _WORD.itemsize, np.uint8)
        for at in range(0, len(out), len(_ZEROS)):
            part = out[at : at + len(_ZEROS)].data
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        return out.view(_WORD).astype(np.uint64, copy=False)

    def __repr__(self) -> str:
        return "Keystream(…)"

    def __reduce__(self) -> NoReturn:
        raise InternalError("a secret key is not written down")

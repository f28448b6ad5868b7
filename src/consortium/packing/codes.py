"""Whole numbers of 4 or 8 bits, and the scales that make real ones of them.

A number is level × scale. Levels go from -(2^(bits-1) - 1) to 2^(bits-1) - 1, so that every
level has its opposite; a code is its level and 2^(bits-1), and code 0 stands for nothing. At
4 bits the first of two codes is the lower half of its byte; a half byte left over is 0. `GROUP`
numbers next to each other share a scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.errors import FormatError

# One scale for 256 numbers is 1.6 % of their float32 bytes; for 128 it would be twice as much, and
# an update of 10,000 numbers at 4 bits would not be below 14 % with its header.
GROUP = 256

Codes = npt.NDArray[np.uint8]
Levels = npt.NDArray[np.int8]


def most_level(bits: int) -> int:
    """The largest level."""
    return (1 << (bits - 1)) - 1


def codes_bytes(count: int, bits: int) -> int:
    """Bytes that so many codes take."""
    return -(-count * bits // 8)


def groups(count: int) -> int:
    """Scales of so many numbers."""
    return -(-count // GROUP)


def pack_levels(levels: Levels, bits: int) -> Codes:
    """The codes of levels (n, m), as bytes (n, codes_bytes(m))."""
    codes = levels.view(np.uint8) + np.uint8(1 << (bits - 1))  # modulo 256
    if bits == 8:
        return codes
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    low, high = codes[:, 0::2], codes[:, 1::2]
    return low | (high << np.uint8(4))


def unpack_levels(codes: Codes, lo: int, hi: int, count: int, bits: int) -> Levels:
    """The levels lo:hi of `count`, from the bytes that hold them. Refuses code 0, and a left-over
    half byte that is not 0."""
    if bits == 8:
        found = codes
    else:
        found = np.empty(2 * len(codes), np.uint8)
        found[0::2] = codes & 0x0F
        found[1::2] = codes >> np.uint8(4)
        if hi == count and count % 2 and hi > lo and found[-1] != 0:
            raise FormatError("the update has bits behind its last code")
        found = found[lo % 2 :][: hi - lo]
    if not found.all():
        raise FormatError("the update has a code that stands for nothing")
    return (found - np.uint8(1 << (bits - 1))).view(np.int8)  # modulo 256


def scaled(levels: Levels, scales: npt.NDArray[Any], first: int = 0) -> npt.NDArray[Any]:
    """The numbers of levels (..., m), of which the first is number `first` of its group. One
    product each, in the scales' own type: the same bits everywhere."""
    count = levels.shape[-1]
    wide = np.repeat(scales, GROUP, axis=-1)[..., first : first + count]
    with np.errstate(over="ignore"):  # whoever reads them looks for what is not finite
        numbers: npt.NDArray[Any] = np.multiply(wide, levels, dtype=scales.dtype)
    return numbers


def check_scales(scales: npt.NDArray[Any]) -> None:
    """A scale is a number from zero on."""
    if not np.isfinite(scales).all() or np.signbit(scales).any():
        raise FormatError("the update has a scale that is below zero or not finite")

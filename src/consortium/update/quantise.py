"""Numbers as a few bits: stochastic rounding to levels, with one scale for every 256 of them.

A number x in a group whose largest magnitude is m becomes one of the two levels around
x / s, s = m / most, by chance, so that the mean is x itself (QSGD, Alistarh et al. 2017, with
the largest magnitude in place of the norm). A group of zeros has scale zero and stays zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.packing.codes import GROUP, Levels, groups, most_level

Block = npt.NDArray[Any]  # (n, m), float32 or float64


def quantise(values: Block, bits: int, rngs: Sequence[np.random.Generator]) -> tuple[Levels, Block]:
    """Levels (n, m) and scales (n, groups) of finite rows. A row draws from its own generator,
    one number for each of its values, and from nothing else."""
    rows, count = values.shape
    most, width = most_level(bits), groups(count) * GROUP
    padded = np.zeros((rows, width), values.dtype)
    padded[:, :count] = values
    grouped = padded.reshape(rows, -1, GROUP)  # (n, groups, 256)
    scales = _scales(np.abs(grouped).max(axis=2), most)
    divisors = np.where(scales > 0, scales, 1)[:, :, None]
    wanted = np.where(scales[:, :, None] > 0, grouped / divisors, 0).reshape(rows, width)[:, :count]
    lower = np.floor(wanted)
    chances = np.stack([rng.random(count, dtype=np.float32) for rng in rngs])
    rounded = lower + (chances < wanted - lower)
    # The quotient of the largest can be a rounding error more than `most`; it stands for `most`.
    return np.clip(rounded, -most, most).astype(np.int8), scales


def _scales(largest: Block, most: int) -> Block:
    """One level of each group. The largest level of the largest group must still be a number."""
    limit = np.finfo(largest.dtype).max / most
    scales: Block = np.minimum(largest / most, np.nextafter(limit, 0, dtype=largest.dtype))
    return scales

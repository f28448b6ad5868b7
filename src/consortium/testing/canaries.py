"""Worst-case sites: two rounds that differ in one of them, and where to look for it.

Tensors have one number each here: what matters is how many there are. Directions are those of
what is released; behind the row of a single site come its weight and its samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consortium.update.stage import Rows
from consortium.update.weigh import MAX_SAMPLES

Floats = npt.NDArray[np.float64]

_TOO_LONG = 1e6
_HUGE = 3e38  # near the largest float32: its square is none


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Rows of two adjacent rounds, before anything was done to them."""

    name: str
    without: Rows
    having: Rows
    direction: Floats


def added(clip: float, tensors: int = 8, others: int = 9) -> tuple[Neighbours, ...]:
    """Rounds with and without one site. Each of the others has one sample."""
    first, second, spread = _directions(tensors)
    allowed, even, poisoned = clip * first, _TOO_LONG * clip * spread, _TOO_LONG * clip * second
    poisoned[0] = np.nan
    quiet, loud = (np.tile(one, (others, 1)) for one in (0 * first, allowed))

    canaries = (
        ("as long as allowed", quiet, allowed, first, 1.0),
        ("too long, over all tensors", quiet, even, spread, 1.0),
        ("claims many samples", quiet, allowed, first, MAX_SAMPLES),
        ("against the others", loud, -allowed, first, 1.0),
        ("not finite", quiet, poisoned, second, 1.0),
        ("near the largest number", quiet, _HUGE * first, first, 1.0),
    )
    return tuple(
        Neighbours(name, _rows(crowd), _rows([*crowd, canary], samples), look)
        for name, crowd, canary, look, samples in canaries
    )


def replaced(clip: float, tensors: int = 8) -> tuple[Neighbours, ...]:
    """One site with one update or another, which is all that it sends."""
    first, _, spread = _directions(tensors)
    beside = np.zeros(2)
    look, even = np.concatenate([first, beside]), np.concatenate([spread, beside])
    count = np.concatenate([0 * first, np.ones(2)])
    allowed, long = clip * first, _TOO_LONG * clip * spread
    return (
        Neighbours("the other way", _rows([-allowed]), _rows([allowed]), look),
        Neighbours("the other way, too long", _rows([-long]), _rows([long]), even),
        Neighbours("few or many samples", _rows([0 * first]), _rows([0 * first], 1e6), count),
    )


def _directions(tensors: int) -> tuple[Floats, Floats, Floats]:
    """Along the first tensor, along the second, and along all of them."""
    axes = np.eye(tensors)
    return axes[0], axes[1 % tensors], np.full(tensors, tensors**-0.5)


def _rows(values: Floats | list[Floats], samples: float = 1.0) -> Rows:
    """All have one sample, and the last of them `samples`."""
    block = np.array(values, np.float32)
    counts = np.ones(len(block))
    counts[-1] = samples
    return Rows(block, counts, counts.copy())

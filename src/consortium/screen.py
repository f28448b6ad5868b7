"""The anomaly screen: which updates of a round stand out from the others, and by what.

It looks at the geometry of the round's steps alone, as their products with each other show
it. It needs a majority to stand out from: with fewer than five members, or when half of
them or more would be called strange, nobody is. It cannot see under secure aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import Source
from consortium.aggregate.robust import gram_matrix, rounded
from consortium.core.facts import Fault

MIN_MEMBERS = 5
# Times the median of the round. Honest steps of uneven hospitals differ by less than three.
NORM_FACTOR = 4.0
# Times the median distance of the round, and farther than one whole step: where sites agree
# closely, an honest one that agrees a little less would be far from all others.
DISTANCE_FACTOR = 3.0
# Robust deviations below the round's median, for the cosine with the others.
DIRECTION_DEVIATIONS = 4.0
CHANCE_DEVIATIONS = 3.0
_MAD_TO_SIGMA = 1.4826  # of a normal distribution

_Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """How each row lies among the others, (n,) each."""

    norms: _Matrix
    cosines: _Matrix  # median cosine with the others
    distances: _Matrix  # median distance to the others, apart from the difference in norm


def screen(rows: Sequence[Source], size: int) -> dict[int, Fault]:
    """Which rows stand out in their first `size` columns, by place, and the first reason."""
    if len(rows) < MIN_MEMBERS:
        return {}
    shape = shape_of(rounded(gram_matrix(rows, size)))  # another machine's last bits do not count
    found: dict[int, Fault] = {}
    for fault, stands_out in _findings(shape, size):
        for place in np.flatnonzero(stands_out):
            found.setdefault(int(place), fault)
    return found if 2 * len(found) < len(rows) else {}


def shape_of(gram: _Matrix) -> Shape:
    """Norms, and the median cosine and distance of each row to the others."""
    squares = np.diag(gram)
    norms = np.sqrt(squares)
    scale = np.where(norms > 0, norms, 1.0)
    cosines = gram / np.outer(scale, scale)
    # |x - y|^2 = (|x| - |y|)^2 + 2 (|x| |y| - xy): how long a step is, the norms show already.
    distances = np.sqrt(np.maximum(2 * (np.outer(norms, norms) - gram), 0.0))
    is_other = ~np.eye(len(gram), dtype=bool)
    count = len(gram)
    return Shape(
        norms,
        np.median(cosines[is_other].reshape(count, -1), axis=1),
        np.median(distances[is_other].reshape(count, -1), axis=1),
    )


def _findings(shape: Shape, size: int) -> list[tuple[Fault, npt.NDArray[np.bool_]]]:
    middle = np.median(shape.cosines)
    spread = _MAD_TO_SIGMA * np.median(np.abs(shape.cosines - middle))
    typical = np.median(shape.norms)
    farthest = max(DISTANCE_FACTOR * np.median(shape.distances), typical)
    # In few dimensions honest steps point anywhere: the cosine of two random ones spreads by
    # 1 / sqrt(size), so a small model shows no direction to stand out from.
    by_chance = -CHANCE_DEVIATIONS / np.sqrt(size)
    lowest = min(middle - DIRECTION_DEVIATIONS * max(float(spread), 0.02), by_chance)
    return [
        (Fault.NORM, shape.norms > NORM_FACTOR * typical),
        (Fault.DIRECTION, shape.cosines < lowest),
        (Fault.DISTANCE, shape.distances > farthest),
    ]

"""Which columns of a row are worth sending: those with the largest magnitudes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.packing.places import Places


def largest_places(values: npt.NDArray[Any], count: int) -> Places:
    """The places (n, count) of the `count` largest magnitudes of each row, ascending. Of equal
    ones the lower columns are taken, so that the same row gives the same places everywhere.

    >>> largest_places(np.float32([[1, -3, 0, 3, 1]]), 3)
    array([[0, 1, 3]])
    """
    rows, size = values.shape
    magnitudes = np.abs(values)
    least = np.partition(magnitudes, size - count, axis=1)[:, size - count, None]
    is_larger, is_equal = magnitudes > least, magnitudes == least
    wanted = count - is_larger.sum(axis=1, keepdims=True)
    is_kept = is_larger | (is_equal & (np.cumsum(is_equal, axis=1) <= wanted))
    return np.nonzero(is_kept)[1].reshape(rows, count)

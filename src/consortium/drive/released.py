"""Was there noise on what a coordinator released, and as much as the plan says?

Noise cannot be drawn again, but an auditor has the updates: what the released model has beyond
their mean is the noise. It must look like noise of that size. That tells a coordinator that added
none, or too little; one that chose its noise on purpose is not told from others by its looks.
"""

from __future__ import annotations

import math

import numpy as np

from consortium.aggregate.columns import cut
from consortium.core import duties as d
from consortium.core import facts as f
from consortium.drive.hands import CoordinatorHands
from consortium.drive.release import Noised
from consortium.stored import open_model

_CHUNK = 1 << 16
_MOST = 12.0  # deviations: beyond, one in 1e32 numbers
_DOUBT = 6.0  # standard errors of the mean square: one in 1e9 audits complains wrongly


def noise_complaint(
    hands: CoordinatorHands, release: Noised, duty: d.Aggregate, fact: f.Aggregated
) -> str | None:
    """What is wrong with the noise of a released model; None when it looks right. Behind a
    server's optimiser with moments it cannot be seen, and is not judged."""
    optimiser = hands.strategy.optimiser()
    if optimiser.name != "sgd" or duty.staleness:
        return None
    blobs, layout = hands.blobs, hands.layout
    rows = hands.rows(duty)
    base = open_model(blobs, layout, duty.base)
    model = open_model(blobs, layout, fact.model)
    squares, most = 0.0, 0.0
    for lo, hi in cut(0, layout.size, _CHUNK):
        mean = release.exact(rows, lo, hi)
        expected = base[lo:hi].astype(np.float64) + optimiser.lr * mean
        noise = (model[lo:hi] - expected) / (optimiser.lr * release.deviation)
        squares += float(np.square(noise).sum())
        most = max(most, float(np.abs(noise).max()))
    off = _rounding(layout.dtype, release.deviation * optimiser.lr)
    error = _DOUBT * math.sqrt(2 / layout.size) + off
    if not most <= _MOST + off or not abs(squares / layout.size - 1) <= error:
        return "the released model does not have the noise that the plan promises"
    return None


def _rounding(dtype: np.dtype, deviation: float) -> float:
    """What casting to the model's type can add, in deviations, for numbers up to 100."""
    return float(np.finfo(dtype).eps) * 100 / deviation

"""Standard normal numbers and coins, from words.

Numbers: Box & Muller 1958, with the tangent of half the angle in place of sine and cosine. The
radius comes from 64 bits and the angle from 53. So no number is larger than √(130 ln 2) = 9.49,
beyond which the normal distribution has 2.3e-21 of its mass, and each is off by a few units in
its last place, as the logarithm and the tangent of NumPy are.

These are floating-point numbers: added to a secret, the low bits of the sum can tell which secret
it was (Mironov 2012). They are for sums that are rounded and worked on before anybody sees them,
as in a step of local training. What is released as it is gets discrete noise on a grid.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from consortium.errors import ImpossiblePlanError
from consortium.privacy.keystream import Words

Doubles = npt.NDArray[np.float64]
_PAIRS = 1 << 13  # at once: all that is computed of them stays in a core's cache


def normals(count: int, words: Words) -> Doubles:
    """So many standard normal numbers; of every pair, the two stand a block apart."""
    out = np.empty(count + count % 2)
    room = np.empty((2, min(_PAIRS, len(out) // 2)))  # new memory for each step would take longer
    for at in range(0, len(out), 2 * _PAIRS):
        part = out[at : at + 2 * _PAIRS]
        pairs = len(part) // 2
        drawn = words(2 * pairs)
        radius, tangent, square, more = part[:pairs], part[pairs:], *room[:, :pairs]
        np.add(drawn[:pairs], 0.5, out=radius)
        radius *= 2.0**-64
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        _set_tangents(tangent, drawn[pairs:], more)
        # With t = tan(angle / 2): cos = (1 - t²) / (1 + t²), sin = 2t / (1 + t²).
        np.multiply(tangent, tangent, out=square)
        radius /= np.add(square, 1.0, out=more)
        tangent *= 2.0
        tangent *= radius
        radius *= np.subtract(1.0, square, out=square)
    return out[:count]


def _set_tangents(half: Doubles, words: npt.NDArray[np.uint64], room: Doubles) -> None:
    """Of half of an angle that is uniform around the circle. None is infinite: π/2 is no
    floating-point number."""
    whole = np.right_shift(words, np.uint64(11), out=room.view(np.uint64))
    np.add(whole.view(np.int64), 0.5, out=half)
    half *= math.pi * 2.0**-53
    half -= math.pi / 2
    np.tan(half, out=half)


def coins(count: int, rate: float, words: Words) -> npt.NDArray[np.bool_]:
    """Truth values, each true with probability `rate`, or less than 2**-64 below it: never above,
    because what is claimed of sampling holds for smaller rates too."""
    if not 0.0 <= rate <= 1.0:
        raise ImpossiblePlanError("a sampling rate lies between 0 and 1")
    limit = math.floor(math.ldexp(rate, 64))
    if limit == 1 << 64:
        return np.ones(count, np.bool_)
    heads: npt.NDArray[np.bool_] = words(count) < np.uint64(limit)
    return heads

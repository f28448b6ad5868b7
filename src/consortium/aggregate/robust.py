"""Rules that a minority of hostile sites cannot steer.

They look at single rows, so they cannot run on sums, and they ignore weights: a hostile
site may claim any weight. Two sort every column. Four need only
distances between whole rows: one pass over the columns gives the Gram matrix XXᵀ, a small
calculation on it gives a coefficient for every row, and a second pass adds the rows up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import Columns, Combine, Row, Source, cut, ranked, weighted_sum
from consortium.errors import InsufficientParticipantsError, InternalError

Matrix = npt.NDArray[np.float64]  # (n, n)
Coefficients = npt.NDArray[np.float64]  # (n,)

_SCRATCH_BYTES = 4 << 20  # of one thread
_MOST_COLUMNS, _FEWEST_COLUMNS = 8_192, 256
_SMOOTHING = 1e-6  # of the typical distance: what counts as being at a point
_TOLERANCE = 1e-9  # of itself: a coefficient that moves less has arrived, however small
_WEISZFELD_STEPS = 200
_CLIPPING_STEPS = 10
_BITS = 24


def hostile_count(n: int, hostile: float) -> int:
    """f: how many of n sites are assumed hostile, for a share `hostile` of them."""
    return math.ceil(hostile * n - 1e-9)


def _members(sources: Sequence[Source]) -> tuple[Source, ...]:
    if any(source.is_sum for source in sources):
        raise InternalError("a robust rule looks at single updates, never at sums")
    return ranked(sources)


def _width(row_bytes: int) -> int:
    """Columns at a time, so that the scratch of one thread does not grow with the sites."""
    return max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, _SCRATCH_BYTES // row_bytes))


# ---- column by column ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Median:
    """The median of every column (Yin et al. 2018, Definition 1)."""

    name: str = "median"
    linear: bool = False

    def columns(self, sources: Sequence[Source]) -> Combine:
        rows = [member.values for member in _members(sources)]
        return _mean_of_middle(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True, slots=True)
class TrimmedMean:
    """The mean of every column without its f smallest and f largest numbers.

    Yin et al. 2018, Definition 2. With at most f hostile sites the result lies between
    the smallest and the largest honest number of the column.
    """

    hostile: float
    name: str = "trimmed_mean"
    linear: bool = False

    def columns(self, sources: Sequence[Source]) -> Combine:
        rows = [member.values for member in _members(sources)]
        n, f = len(rows), hostile_count(len(rows), self.hostile)
        if n <= 2 * f:
            raise InsufficientParticipantsError(
                f"a trimmed mean that drops {f} updates at each end needs {2 * f + 1}, "
                f"and {n} came",
                hint="let more sites join, or assume a smaller share of hostile sites",
            )
        return _mean_of_middle(rows, f)


def _mean_of_middle(rows: Sequence[Row], dropped: int) -> Combine:
    """Of every column the mean without its `dropped` smallest and largest numbers.

    A chunk of columns is laid out column after column, because NumPy sorts short runs of
    neighbouring numbers several times faster than numbers that lie apart.
    """
    dtype = np.result_type(*(row.dtype for row in rows))
    n = len(rows)
    width = _width(2 * n * dtype.itemsize)

    def combine(lo: int, hi: int) -> Columns:
        out = np.empty(hi - lo)
        block = np.empty((n, min(width, hi - lo)), dtype)
        columns = np.empty((min(width, hi - lo), n), dtype)
        for start, end in cut(lo, hi, width):
            for at, row in enumerate(rows):
                block[at, : end - start] = row[start:end]
            part = columns[: end - start]
            part[...] = block[:, : end - start].T
            part.sort(axis=1)
            total = out[start - lo : end - lo]
            np.copyto(total, part[:, dropped])
            for place in range(dropped + 1, n - dropped):  # one after the other: the same bits
                np.add(total, part[:, place], out=total)
            total[np.isnan(part[:, n - 1])] = np.nan  # sorted to the end, and not to be hidden
        out /= n - 2 * dropped
        # Which of -0.0 and 0.0 is the smaller depends on the machine; adding 0.0 makes them one.
        return np.add(out, 0.0, out=out)

    return combine


# ---- from distances between rows ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combination:
    """Σ cᵢxᵢ / divisor, where `weigh` takes the Gram matrix to the coefficients c."""

    name: str
    weigh: Callable[[Matrix], tuple[Coefficients, float]]
    linear: bool = False

    def columns(self, sources: Sequence[Source]) -> Combine:
        members = _members(sources)
        with np.errstate(over="ignore", invalid="ignore"):
            coefficients, divisor = self.weigh(gram_matrix(members))
        terms = [
            (member.values, float(coefficient))
            for member, coefficient in zip(members, coefficients, strict=True)
            if coefficient != 0.0
        ]
        return lambda lo, hi: weighted_sum(terms, lo, hi) / divisor


def gram_matrix(sources: Sequence[Source], size: int | None = None) -> Matrix:
    """XXᵀ in float64 over the first `size` columns, or over all.

    It is added up over chunks of columns in an order that depends on n alone.
    """
    n = len(sources)
    size = len(sources[0].values) if size is None else size
    width = _width(8 * n)
    total, buffer = np.zeros((n, n)), np.empty((n, min(width, size)))
    for lo, hi in cut(0, size, width):
        chunk = buffer[:, : hi - lo]  # (n, width)
        for target, source in zip(chunk, sources, strict=True):
            np.copyto(target, source.values[lo:hi])
        with np.errstate(over="ignore", invalid="ignore"):  # a huge row: see `distances`
            total += chunk @ chunk.T
    return total


def distances(products: Matrix) -> Matrix:
    """‖xᵢ - xⱼ‖² = xᵢ·xᵢ + xⱼ·xⱼ - 2xᵢ·xⱼ, never below zero.

    A row so large that its square overflows is infinitely far from all others.
    """
    squares = np.diagonal(products)
    squared = squares[:, None] + squares[None, :] - 2.0 * products
    return np.where(np.isfinite(squared), np.maximum(squared, 0.0), np.inf)


def rounded(values: Coefficients) -> Coefficients:
    """To 24 binary digits.

    BLAS gives other last bits on another machine. Rounding keeps them, but for a rare
    number at the very edge, out of ties and out of the model.
    """
    mantissa, exponent = np.frexp(values)
    digits = np.round(mantissa * 2.0**_BITS) / 2.0**_BITS
    near: Coefficients = np.ldexp(digits, exponent)
    return near


def _by_score(products: Matrix, f: int) -> npt.NDArray[np.intp]:
    """Rows by Krum score, best first: Σ‖xᵢ - xⱼ‖² over the n - f - 2 nearest others."""
    n = len(products)
    if n < 2 * f + 3:
        raise InsufficientParticipantsError(
            f"Krum against {f} hostile sites needs {2 * f + 3} updates, and {n} came",
            hint="let more sites join, or assume a smaller share of hostile sites",
        )
    squared = distances(products)
    np.fill_diagonal(squared, np.inf)
    scores = np.sort(squared, axis=1)[:, : n - f - 2].sum(axis=1)  # (n,)
    return np.argsort(rounded(scores), kind="stable")  # of equals, the lowest rank


def krum(products: Matrix, hostile: float) -> tuple[Coefficients, float]:
    """The one row that is nearest to its neighbours (Blanchard et al. 2017, section 3)."""
    n = len(products)
    best = _by_score(products, hostile_count(n, hostile))[0]
    return (np.arange(n) == best).astype(np.float64), 1.0


def multi_krum(products: Matrix, hostile: float) -> tuple[Coefficients, float]:
    """The mean of the m = n - f best rows by Krum score (Blanchard et al. 2017, section 5)."""
    n = len(products)
    f = hostile_count(n, hostile)
    coefficients = np.zeros(n)
    coefficients[_by_score(products, f)[: n - f]] = 1.0
    return coefficients, float(n - f)


def geometric_median(products: Matrix) -> tuple[Coefficients, float]:
    """The point with the least sum of distances, by Weiszfeld's iteration.

    Smoothed as in Pillutla et al. 2022 (RFA, Algorithm 2): cᵢ ∝ 1 / max(ν, ‖xᵢ - v‖). The
    point is v = Σ cᵢxᵢ with Σ cᵢ = 1, so ‖xᵢ - v‖² = Σⱼ cⱼDᵢⱼ - ½ cᵀDc for the squared
    distances D. ν is measured by the median of each row's median distance: a minority of
    far rows cannot stretch it.
    """
    usable = _usable(products)
    squared = distances(products[np.ix_(usable, usable)])  # (k, k)
    nu = _SMOOTHING * float(np.median(np.median(np.sqrt(squared), axis=1)))
    part = np.full(len(usable), 1.0 / len(usable))
    for _ in range(_WEISZFELD_STEPS):
        spread = squared @ part
        away = np.sqrt(np.maximum(spread - 0.5 * (part @ spread), 0.0))
        nearness = 1.0 / np.maximum(away, max(nu, 1e-150))
        before, part = part, nearness / nearness.sum()
        if (np.abs(part - before) <= _TOLERANCE * part).all():
            break
    coefficients = _spread_out(part, usable, len(products))
    return coefficients, math.fsum(coefficients)


def centred_clipping(products: Matrix, radius: float | None) -> tuple[Coefficients, float]:
    """v ← v + mean of (xᵢ - v) · min(1, r / ‖xᵢ - v‖), ten times from v = 0.

    Karimireddy, He and Jaggi 2021, Algorithm 2. Zero is the natural centre: a row is a
    step away from the present model. Without a radius, r is the median of the distances
    in each iteration.
    """
    usable = _usable(products)
    inner = products[np.ix_(usable, usable)]  # (k, k)
    part = np.zeros(len(usable))
    for _ in range(_CLIPPING_STEPS):
        spread = inner @ part
        away = np.sqrt(np.maximum(np.diagonal(inner) - 2.0 * spread + part @ spread, 0.0))
        limit = float(np.median(away)) if radius is None else radius
        share = np.divide(limit, away, out=np.ones_like(away), where=away > limit)
        part = part * (1.0 - share.mean()) + share / len(usable)
    return _spread_out(part, usable, len(products)), 1.0


def _usable(products: Matrix) -> npt.NDArray[np.intp]:
    """Rows whose square is a number; the others count as not there."""
    usable = np.flatnonzero(np.isfinite(np.diagonal(products)))
    if not usable.size:
        raise InsufficientParticipantsError("no update has a finite length")
    return usable


def _spread_out(part: Coefficients, usable: npt.NDArray[np.intp], n: int) -> Coefficients:
    coefficients = np.zeros(n)
    coefficients[usable] = rounded(part)
    return coefficients

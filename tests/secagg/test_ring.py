"""Real numbers in the ring and back: exact where they are on the grid, even, bounded."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.errors import DimensionError, FormatError, ImpossiblePlanError, MagnitudeError
from consortium.privacy.keystream import U64, Keystream
from consortium.update.ring import BETA, Ring, RingSums, bits_for, rounded_norm


def words_of(seed: int) -> Keystream:
    return Keystream(seed.to_bytes(32, "big"))


def summed(ring: Ring, rows: list[np.ndarray]) -> RingSums:
    return ring.decode(np.add.reduce(rows, dtype=np.uint32))


@given(st.integers(1, 5000))
def test_no_cohort_can_wrap_with_its_bits_and_one_more_could(cohort: int) -> None:
    bits = bits_for(cohort)
    most = 2 ** (bits - 1) - 1
    assert cohort * most < 2**31 <= cohort * (2 * most + 1) + cohort


def test_the_largest_values_of_a_whole_cohort_do_not_wrap() -> None:
    for sign in (1.0, -1.0):
        ring = Ring(3.7, 100, bits_for(100), (5.0,))
        row = ring.encode(np.array([sign * 3.7]), 1.0, [9 * sign], words_of(1).words)
        found = summed(ring, [row] * 100)
        assert found.values[0] == pytest.approx(sign * 370, abs=100 * ring.step)
        assert (found.weight, found.metrics) == (100.0, (500.0 * sign,))


def test_what_is_on_the_grid_comes_back_exactly() -> None:
    ring = Ring(8.0, 10, 20, (1000.0,))
    values = np.array([0.0, 1.0, -2.5, 4.0, ring.step], np.float32)
    rows = [ring.encode(values, 1.0, [731.0], words_of(at).words) for at in range(10)]
    found = summed(ring, rows)
    assert (found.values == 10 * values.astype(np.float64)).all()
    assert (found.weight, found.metrics) == (10.0, (7310.0,))


def test_what_is_on_the_grid_stays_whatever_chance_says() -> None:
    ring = Ring(8.0, 10, 20)
    values = np.array([0.0, -2.5, ring.step])
    row = ring.encode(values, 1.0, [], lambda count: np.zeros(count, np.uint64))
    assert ring.decode(row).values.tolist() == values.tolist()


def test_a_cohort_may_be_one_site_and_a_row_may_have_no_values() -> None:
    ring = Ring(1.0, 1, bits_for(1))
    row = ring.encode(np.zeros(0), 1.0, [], words_of(0).words)
    assert len(row) == 1 and ring.decode(row).weight == 1.0


def test_values_are_multiplied_with_their_weight() -> None:
    ring = Ring(1.0, 4, 24)
    row = ring.encode(np.array([0.5, -0.25]), 0.5, [], words_of(0).words)
    found = ring.decode(row)
    assert found.values.tolist() == [0.25, -0.125] and found.weight == 0.5


def test_the_mean_of_many_roundings_is_the_number() -> None:
    """40,000 roundings of numbers between levels: 5 σ of a step's half."""
    ring = Ring(300.0, 3, 9)
    values = np.full(40_000, 0.3, np.float32)
    found = ring.decode(ring.encode(values, 1.0, [], words_of(2).words)).values
    assert set(found) == {0.0, ring.step}
    assert abs(found.mean() - 0.3) < 5 * ring.step / 2 / 200


@pytest.mark.parametrize("size", [1, 3, 32_768, 70_001])
def test_a_row_depends_on_its_numbers_and_its_words_alone(size: int) -> None:
    ring = Ring(1.0, 50, bits_for(50))
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    values /= np.float32(1.01 * np.linalg.norm(values))
    rows = [ring.encode(values, 0.7, [], words_of(4).words) for _ in range(2)]
    assert (rows[0] == rows[1]).all() and rows[0].dtype == np.uint32
    found = ring.decode(rows[0])
    assert np.abs(found.values - 0.7 * values.astype(np.float64)).max() <= ring.step
    assert abs(found.weight - 0.7) <= 2.0**-24


@given(st.integers(2, 12), st.integers(1, 200), st.integers(0, 1000))
def test_no_row_is_longer_than_the_bound(bits: int, size: int, seed: int) -> None:
    ring = Ring(1.0, 5, bits)
    values = np.random.default_rng(seed).standard_normal(size)
    values *= 0.999999 / np.linalg.norm(values)
    found = ring.decode(ring.encode(values, 1.0, [], words_of(seed).words)).values
    assert np.linalg.norm(found) <= ring.sensitivity(size) * (1 + 1e-12)


def test_the_bound_is_that_of_the_paper() -> None:
    """Kairouz, Liu & Steinke 2021, theorem 1: c = 10, d = 100, β = e^-½, then β tiny."""
    assert rounded_norm(10.0, 100) == pytest.approx(math.sqrt(100 + 25 + 1 * (10 + 5)))
    assert rounded_norm(10.0, 100, 1e-300) == 20.0
    assert rounded_norm(2.0**24, 10**6) / 2.0**24 < 1 + 1e-7


def test_draws_exceed_the_bound_at_most_as_often_as_claimed() -> None:
    """All roundings of a small row, each with its chance."""
    row, beta = [0.3, 0.5, 0.9, -0.4, 1.2, 0.1], 0.2
    limit = rounded_norm(math.sqrt(sum(x * x for x in row)), len(row), beta) ** 2
    chance = 0.0
    for ups in product((0, 1), repeat=len(row)):
        parts = [
            (x - math.floor(x)) if up else 1 - (x - math.floor(x))
            for x, up in zip(row, ups, strict=True)
        ]
        length = sum((math.floor(x) + up) ** 2 for x, up in zip(row, ups, strict=True))
        chance += math.prod(parts) * (length > limit)
    assert chance <= beta


def test_a_row_that_came_out_too_long_is_rounded_again() -> None:
    """Zeros round everything up: a hundred steps are longer than the bound, √32."""
    ring, calls = Ring(1.0, 3, 2), []

    def words(count: int) -> U64:
        calls.append(count)
        return np.full(count, 0 if len(calls) == 1 else 2**64 - 1, np.uint64)

    row = ring.encode(np.full(100, 1e-6), 1.0, [], words)
    assert calls == [50, 50, 1] and row.tolist() == [0] * 100 + [1]


@pytest.mark.parametrize(
    ("values", "weight", "metrics", "error"),
    [
        ([1.5], 1.0, [0.0], MagnitudeError),
        ([0.5], 1.5, [0.0], MagnitudeError),
        ([0.5], -0.5, [0.0], MagnitudeError),
        ([math.nan], 1.0, [0.0], FormatError),
        ([0.5], math.nan, [0.0], FormatError),
        ([0.5], 1.0, [math.inf], FormatError),
        ([0.5], 1.0, [], DimensionError),
        ([[0.5]], 1.0, [0.0], DimensionError),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    values: list[float], weight: float, metrics: list[float], error: type[Exception]
) -> None:
    with pytest.raises(error):
        Ring(1.0, 3, 20, (2.0,)).encode(np.array(values), weight, metrics, words_of(0).words)


@pytest.mark.parametrize(
    "total", [np.zeros(1, np.uint32), np.zeros((1, 3), np.uint32), np.zeros(3, np.int64)]
)
def test_sums_that_do_not_fit_are_refused(total: np.ndarray) -> None:
    with pytest.raises(DimensionError):
        Ring(1.0, 3, 20, (2.0,)).decode(total)


@pytest.mark.parametrize(
    "given",
    [
        (1.0, 0, 8),
        (1.0, 3, 1),
        (1.0, 3, 33),
        (1.0, 100, 26),
        (0.0, 3, 8),
        (math.nan, 3, 8),
        (1.0, 3, 8, (0.0,)),
        (1.0, 3, 8, (), 1.0),
        (1.0, 3, 8, (), 0.0),
    ],
)
def test_rings_that_cannot_be_are_refused(given: tuple) -> None:
    with pytest.raises(ImpossiblePlanError):
        Ring(*given)


def test_the_usual_share_of_long_draws_is_that_of_the_paper() -> None:
    assert pytest.approx(math.exp(-0.5)) == BETA


def test_a_bound_that_is_one_step_above_a_power_of_two_has_the_next_step() -> None:
    ring = Ring(127.5, 3, 8)
    assert ring.most == 127 and ring.step == 2.0
    assert Ring(127.0, 3, 8).step == 1.0 and Ring(64.0, 3, 8).step == 1.0

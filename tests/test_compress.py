"""Compression of rows: right in the mean, nothing lost, nobody's neighbour's business."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from consortium.checks import measure
from consortium.model import Form
from consortium.packing.codes import GROUP, scaled
from consortium.packing.packed import Packing, Sent
from consortium.update.clip import ClipByNorm
from consortium.update.compress import Compress
from consortium.update.quantise import quantise
from consortium.update.sparsify import largest_places
from consortium.update.stage import Rows

PLAN = bytes(32)
PACKINGS = [
    Packing(8),
    Packing(4),
    Packing(0, Sent.TOP, 0.1),
    Packing(4, Sent.TOP, 0.1),
    Packing(0, Sent.DRAWN, 0.3, PLAN, 7),
    Packing(4, Sent.DRAWN, 0.3, PLAN, 7),
]
blocks = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float64]),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 600)),
    elements=st.floats(-1e6, 1e6, width=32),
)


def form_of(values: Any, packing: Packing) -> Form:
    return Form((("step", values.shape[1]),), values.dtype, packing)


def rngs(count: int, first: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng(first + at) for at in range(count)]


# ---- stages -------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
@given(values=blocks)
def test_a_row_is_the_same_alone_and_in_a_block(packing: Packing, values: Any) -> None:
    form = form_of(values, packing)
    together = Compress(form).apply(values, rngs(len(values)))
    for at in range(len(values)):
        one = slice(at, at + 1)
        alone = Compress(form).apply(values[one], rngs(1, at))
        assert alone.rows.tobytes() == together.rows[one].tobytes()
        assert alone.left.tobytes() == together.left[one].tobytes()
        assert alone.packed == together.packed[one]


@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_is_right_in_the_mean(bits: int) -> None:
    """Of 4,000 roundings: the mean's deviation is below scale / 2 / sqrt(4,000), and six of them
    have a chance of about 1e-6 over 500 columns."""
    value = np.random.default_rng(1).normal(size=(1, 500)).astype(np.float32)
    many = np.repeat(value, 4_000, axis=0)
    levels, scales = quantise(many, bits, rngs(4_000))
    mean = scaled(levels, scales).astype(np.float64).mean(axis=0)
    bound = 6 * np.repeat(scales[0], GROUP)[:500] / 2 / np.sqrt(4_000)
    assert (np.abs(mean - value[0]) <= bound).all()


@pytest.mark.parametrize("bits", [4, 8])
@given(values=blocks)
def test_rounding_goes_to_a_neighbouring_level(bits: int, values: Any) -> None:
    levels, scales = quantise(values, bits, rngs(len(values)))
    wide = np.repeat(scales, GROUP, axis=1)[:, : values.shape[1]]
    read = scaled(levels, scales)
    assert (np.abs(read.astype(np.float64) - values) <= wide * (1 + 1e-5)).all()
    assert not read[values == 0].any()  # a zero stays one


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_and_the_smallest_numbers_stay_finite(bits: int, dtype: Any) -> None:
    about = np.finfo(dtype)
    edges = [about.max, -about.max, about.tiny, about.smallest_subnormal, 0.0, 3 * about.tiny]
    for edge in edges:
        values = np.zeros((1, 300), dtype)
        values[0, 7] = edge
        levels, scales = quantise(values, bits, rngs(1))
        read = scaled(levels, scales)
        assert np.isfinite(read).all() and np.isfinite(scales).all()
        assert not np.delete(read[0], 7).any()


@given(
    values=hnp.arrays(np.float32, (3, 40), elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])),
    count=st.integers(1, 40),
)
def test_the_largest_are_kept_and_of_equal_ones_the_first(values: Any, count: int) -> None:
    found = largest_places(values, count)
    for row, places in zip(values, found, strict=True):
        best = sorted(range(40), key=lambda at: (-abs(row[at]), at))[:count]
        assert places.tolist() == sorted(best)


def test_drawn_numbers_are_right_in_the_mean() -> None:
    """Of 4,000 rounds: a column's mean has the deviation 3 |x| / sqrt(4,000) at keep = 0.1, and
    six of them have a chance of 1e-6 over 500 columns."""
    value = np.random.default_rng(1).normal(size=(1, 500))
    total = np.zeros(500)
    for number in range(4_000):
        packing = Packing(0, Sent.DRAWN, 0.1, PLAN, number)
        total += Compress(form_of(value, packing)).apply(value, rngs(1)).rows[0]
    assert (np.abs(total / 4_000 - value[0]) <= 6 * 3 * np.abs(value[0]) / np.sqrt(4_000)).all()


def test_drawn_numbers_too_large_to_be_scaled_up_stay_finite() -> None:
    large = np.full((1, 50), -3e38, np.float32)
    for bits in (0, 4, 8):
        packing = Packing(bits, Sent.DRAWN, 0.1, PLAN, 1)
        found = Compress(form_of(large, packing)).apply(large, rngs(1))
        assert np.isfinite(found.rows).all() and found.rows.min() < -1e38


# ---- error feedback -----------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
def test_nothing_is_lost_it_only_leaves_later(packing: Packing) -> None:
    """Σ sent + held back = Σ steps, but for the rounding of float64 sums."""
    rng = np.random.default_rng(0)
    held, sent, steps = np.zeros((2, 900)), np.zeros((2, 900)), np.zeros((2, 900))
    for number in range(30):
        step = rng.normal(size=(2, 900))
        form = form_of(step, packing.in_round(number))
        found = Compress(form, has_feedback=True).apply(step + held, [rng, rng])
        held, sent, steps = found.left, sent + found.rows, steps + step
    np.testing.assert_allclose(sent + held, steps, atol=1e-12)
    assert np.linalg.norm(held) < 0.75 * np.linalg.norm(steps)


def test_what_stands_behind_a_step_stays_as_it_is() -> None:
    rows = np.random.default_rng(0).normal(size=(2, 301)).astype(np.float32)
    form = Form((("step", 300), ("tau", 1)), rows.dtype, Packing(4))
    found = Compress(form).apply(rows, rngs(2))
    assert (found.rows[:, 300] == rows[:, 300]).all()
    assert (found.rows[:, :300] != rows[:, :300]).any()
    assert found.left.shape == (2, 300)
    assert found.packed[0].endswith(rows[0, 300:].tobytes())


# ---- the clip -----------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACKINGS)
@given(values=blocks, limit=st.floats(1e-6, 1e3))
def test_what_leaves_is_never_longer_than_the_clip(
    packing: Packing, values: Any, limit: float
) -> None:
    ones = np.ones(len(values))
    clipped = ClipByNorm(limit).apply(Rows(values, ones, ones)).values
    form = form_of(values, packing)
    found = Compress(form, limit).apply(clipped, rngs(len(values)))
    for row in found.rows:
        assert measure(row, form).norm <= limit

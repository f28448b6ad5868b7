"""Stages on rows: properties, and the mistakes that a clip must not make."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from consortium.errors import FormatError, ImpossiblePlanError
from consortium.update.clip import ClipByNorm, norms
from consortium.update.stage import Bound, Domain, Rows, Stage, chain
from consortium.update.weigh import Weigh, Weighting

blocks = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.float64]),
    shape=st.tuples(st.integers(1, 6), st.integers(1, 40)),
    elements=st.floats(-1e6, 1e6, width=32),
)


def rows_of(values: np.ndarray, samples: list[float] | None = None) -> Rows:
    counts = np.array(samples or [10.0 + row for row in range(len(values))])
    return Rows(values, counts, np.ones_like(counts))


PIPELINES: list[Stage] = [
    Weigh(Weighting.SAMPLES),
    Weigh(Weighting.CAPPED, 12.0),
    ClipByNorm(1.5),
    chain(Weigh(Weighting.SQRT), ClipByNorm(0.01)),
]


@pytest.mark.parametrize("stage", PIPELINES)
@given(values=blocks)
def test_a_row_is_the_same_alone_and_in_a_block(stage: Stage, values: np.ndarray) -> None:
    together = stage.apply(rows_of(values))
    for row in range(len(values)):
        alone = stage.apply(rows_of(values[row : row + 1], [10.0 + row]))
        assert alone.values.tobytes() == together.values[row : row + 1].tobytes()
        assert alone.weights[0] == together.weights[row]


@given(values=blocks, limit=st.floats(1e-3, 1e3))
def test_no_clipped_row_is_longer_than_the_clip(values: np.ndarray, limit: float) -> None:
    clipped = ClipByNorm(limit).apply(rows_of(values))
    assert (norms(clipped.values) <= limit).all()
    assert clipped.values.dtype == values.dtype


@given(values=blocks)
def test_rows_within_the_clip_are_left_alone(values: np.ndarray) -> None:
    limit = float(norms(rows_of(values).values).max()) * 1.01 + 1.0
    clipped = ClipByNorm(limit).apply(rows_of(values))
    assert clipped.values.tobytes() == values.tobytes()


def test_a_clipped_row_keeps_its_direction() -> None:
    clipped = ClipByNorm(1.0).apply(rows_of(np.array([[3.0, 4.0]])))
    np.testing.assert_allclose(clipped.values, [[0.6, 0.8]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_does_not_pass_the_clip(bad: float) -> None:
    with pytest.raises(FormatError):
        ClipByNorm(1.0).apply(rows_of(np.array([[1.0, bad]])))


def test_the_norm_of_many_small_float32_is_summed_in_float64() -> None:
    row = np.full((1, 1 << 20), 1e-3, np.float32)
    expected = np.sqrt(np.sum(row.astype(np.float64) ** 2))
    assert norms(rows_of(row).values)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Weigh(Weighting.SAMPLES), [1000, 800, 4]),
        (Weigh(Weighting.UNIFORM), [1, 1, 1]),
        (Weigh(Weighting.CAPPED, 900), [1, 800 / 900, 4 / 900]),
        (Weigh(Weighting.SQRT), [1000**0.5, 800**0.5, 2]),
    ],
)
def test_weights_follow_the_plan(stage: Weigh, expected: list[float]) -> None:
    rows = stage.apply(rows_of(np.zeros((3, 2)), [1000, 800, 4]))
    np.testing.assert_allclose(rows.weights, expected)
    np.testing.assert_array_equal(rows.samples, [1000, 800, 4])


def test_the_sensitivity_flows_down_the_chain() -> None:
    free = chain(Weigh(Weighting.SAMPLES), ClipByNorm(2.0))
    bounded = chain(Weigh(Weighting.CAPPED, 100), ClipByNorm(2.0))
    loose = chain(Weigh(Weighting.UNIFORM))
    assert free.bound(Bound()).sensitivity is None
    assert bounded.bound(Bound()).sensitivity == 2.0
    assert loose.bound(Bound()).sensitivity is None
    assert (bounded.takes, bounded.gives) == (Domain.REAL, Domain.REAL)


def test_stages_that_do_not_fit_cannot_be_chained() -> None:
    ring = Weigh(Weighting.UNIFORM, takes=Domain.RING)
    with pytest.raises(ImpossiblePlanError, match="gives real numbers"):
        chain(ClipByNorm(1.0), ring)
    with pytest.raises(ImpossiblePlanError, match="at least one"):
        chain()

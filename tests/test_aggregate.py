"""The weighted mean: golden values, and the same bits whoever adds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.aggregate.block import BLOCK
from consortium.errors import InsufficientParticipantsError, InternalError
from tests.plain_mean import WeightedMean, blocks, step, sum_block


def mean_of(rows: list[tuple[int, np.ndarray, float]]) -> np.ndarray:
    mean = WeightedMean()
    for partial in blocks(rows):
        mean.merge(partial)
    return mean.finish()


def test_three_sites_by_hand() -> None:
    rows = [
        (0, np.float32([1, 0]), 1000.0),
        (1, np.float32([0, 1]), 800.0),
        (2, np.float32([4, 4]), 200.0),
    ]
    np.testing.assert_array_equal(mean_of(rows), [1800 / 2000, 1600 / 2000])


def test_weights_of_1000_and_800_are_0_556_and_0_444() -> None:
    rows = [(0, np.float32([1, 0]), 1000.0), (1, np.float32([0, 1]), 800.0)]
    np.testing.assert_allclose(mean_of(rows), [0.556, 0.444], atol=5e-4)


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_blocks_summed_anywhere_give_the_same_bits(sites: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-6, 6, sites)
    ranks = sorted(random.Random(seed).sample(range(2 * sites), sites))
    rows = [
        (rank, rng.normal(size=5) * scale[at], float(rng.integers(1, 99)))
        for at, rank in enumerate(ranks)
    ]
    whole = mean_of(rows)
    grouped: dict[int, list[tuple[int, np.ndarray, float]]] = {}
    for row in rows:
        grouped.setdefault(row[0] // BLOCK, []).append(row)
    workers = {block: sum_block(group) for block, group in reversed(grouped.items())}
    merged = WeightedMean()
    for block in sorted(workers):
        merged.merge(workers[block])
    assert merged.finish().tobytes() == whole.tobytes()


def test_the_mean_agrees_with_exact_arithmetic() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(200, 3)).astype(np.float32), rng.integers(1, 50, 200)
    rows = [(rank, values[rank], float(weights[rank])) for rank in range(200)]
    expected = (values.astype(np.longdouble) * weights[:, None]).sum(axis=0) / weights.sum()
    np.testing.assert_allclose(mean_of(rows), expected.astype(float), rtol=1e-13)


def test_an_unordered_or_empty_sum_is_refused() -> None:
    one = np.ones(1)
    with pytest.raises(InternalError):
        sum_block([(1, one, 1.0), (0, one, 1.0)])
    with pytest.raises(InternalError):
        sum_block([(0, one, 1.0), (BLOCK, one, 1.0)])
    with pytest.raises(InternalError):
        sum_block([])
    mean = WeightedMean()
    mean.merge(sum_block([(BLOCK, one, 1.0)]))
    with pytest.raises(InternalError):
        mean.merge(sum_block([(0, one, 1.0)]))
    with pytest.raises(InternalError):
        mean.merge(sum_block([(BLOCK + 1, one, 1.0)]))
    with pytest.raises(InsufficientParticipantsError):
        WeightedMean().finish()


def test_adding_does_not_change_what_the_caller_holds() -> None:
    vector, partial = np.ones(2), sum_block([(0, np.ones(2), 2.0)])
    mean = WeightedMean()
    mean.merge(partial)
    mean.merge(sum_block([(BLOCK, vector, 3.0)]))
    np.testing.assert_array_equal(vector, [1, 1])
    np.testing.assert_array_equal(partial.total, [2, 2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_keeps_the_models_type_and_the_base(dtype: type) -> None:
    base = np.array([1.0, 2.0], dtype)
    moved = step(base, np.array([0.5, -0.5]), 2.0)
    assert moved.dtype == dtype
    np.testing.assert_array_equal(moved, [2.0, 1.0])
    np.testing.assert_array_equal(base, [1.0, 2.0])

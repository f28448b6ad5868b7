"""Means and their intervals, against published tables and against a count."""

from __future__ import annotations

import math

import numpy as np
import pytest

from consortium.drive.interval import interval, t_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Two-sided 95 %: any table of Student's distribution.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (29, 2.045), (60, 2.000)],
)
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_quantiles_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 2, 3, 7, 8, 99, 100):
        assert t_quantile(freedom) == pytest.approx(float(stats.t.ppf(0.975, freedom)), rel=1e-9)


def test_one_value_has_no_interval() -> None:
    found = interval([0.7])
    assert (found.count, found.mean, found.half_width) == (1, 0.7, None)
    assert (found.low, found.high) == (0.7, 0.7)


def test_the_interval_of_three() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.half_width == pytest.approx(4.302653 / math.sqrt(3))
    assert (found.low + found.high) / 2 == pytest.approx(2.0)
    assert interval([5.0, 5.0]).half_width == 0.0


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_intervals_hold_the_mean_as_often_as_they_say(count: int) -> None:
    """2,000 draws: a standard deviation of 0.5 points, so 2.5 points are missed once in two
    million; the seed is fixed."""
    rng = np.random.default_rng(7)
    found = [interval(list(rng.normal(3.0, 2.0, count))) for _ in range(2000)]
    held = sum(one.low <= 3.0 <= one.high for one in found) / 2000
    assert 0.925 < held < 0.975

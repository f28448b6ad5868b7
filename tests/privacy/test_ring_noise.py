"""Shares of noise on the ring: how they add up, how large they are, and that nothing wraps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from consortium.errors import ImpossiblePlanError
from consortium.privacy.discrete_gaussian import DiscreteGaussian, most_of
from consortium.privacy.discrete_sum import LEAST_SHARE, check_shares, sum_gap
from consortium.privacy.keystream import Keystream
from consortium.privacy.noise import SecretNoise
from consortium.update.ring import Ring
from consortium.update.ring_noise import NoiseShare, share_for, sum_deviation


def chances(sigma: float, most: int) -> np.ndarray:
    """Of -most to most."""
    x = np.arange(-most, most + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    return weights / weights.sum()


@pytest.mark.parametrize("sigma", [0.5, 0.6, 0.75, 1.0])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_a_sum_is_as_near_to_one_draw_as_claimed(sigma: float, count: int) -> None:
    """By exact convolution, where chances are not too small for a float; τ is far from zero."""
    most = math.ceil(14 * sigma * math.sqrt(count))
    one = summed = chances(sigma, most)
    for _ in range(count - 1):
        summed = np.convolve(summed, one)
    whole = chances(sigma * math.sqrt(count), len(summed) // 2)
    looked = np.flatnonzero(whole > 1e-12)
    gap = np.abs(np.log(summed[looked] / whole[looked])).max()
    assert gap <= sum_gap(sigma, count) + 1e-9


def test_one_draw_has_no_gap_and_shares_of_four_levels_next_to_none() -> None:
    assert sum_gap(1.0, 1) == 0.0
    assert sum_gap(LEAST_SHARE, 1_000_000) * 1e10 < 1e-50
    check_shares(LEAST_SHARE, 1_000_000, 10**9)


@pytest.mark.parametrize("sigma", [3.9, 0.0, math.nan])
def test_shares_that_are_too_coarse_are_refused(sigma: float) -> None:
    with pytest.raises(ImpossiblePlanError, match="too coarse"):
        check_shares(sigma, 10, 100)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.9, 8.0, 1000.0, 1e7])
def test_no_draw_is_larger_than_said(sigma: float) -> None:
    """The last bin is the one that all ones give; its last number is the largest there is."""
    sampler, most = DiscreteGaussian(sigma), most_of(sigma)
    bins = len(sampler._cuts)
    assert most == (bins << sampler._shift) - 1
    drawn = sampler.draw(20_000, Keystream(bytes(32)).words)
    assert np.abs(drawn).max() <= most < 15 * sigma + 3


def test_a_share_is_made_for_the_honest_and_for_what_rounding_does() -> None:
    ring = Ring(1.0, 10, 12)
    share = share_for(ring, 5000, 2.0, 4)
    assert share.sigma * 2 == pytest.approx(sum_deviation(ring, 5000, 2.0))
    assert sum_deviation(ring, 5000, 2.0) > 2.0 * ring.longest(5000) > 2.0 * 1.0 / ring.step


def test_shares_of_a_round_have_the_noise_that_is_promised() -> None:
    """A thousand sums of five shares: their spread is off by 4.5 % once in 50,000 runs."""
    ring = Ring(1.0, 10, 20)
    share = share_for(ring, 1000, 1.5, 5)
    zeros = np.zeros(1001, np.uint32)
    rows = [share.added(zeros, 1000, SecretNoise()) for _ in range(5)]
    total = np.add.reduce(rows, dtype=np.uint32)[:1000].view(np.int32).astype(np.float64)
    assert total.std() == pytest.approx(sum_deviation(ring, 1000, 1.5), rel=0.1)


def test_nobody_honest_is_refused() -> None:
    with pytest.raises(ImpossiblePlanError, match="nobody is left"):
        share_for(Ring(1.0, 10, 20), 10, 1.0, 0)


def test_the_ring_keeps_room_for_the_largest_noise_of_everybody() -> None:
    share = NoiseShare(1e6)
    ring = Ring(1.0, 10, 24, spare=share.most)
    assert 10 * (ring.most + ring.spare) < 2**31
    with pytest.raises(ImpossiblePlanError, match="can wrap"):
        Ring(1.0, 10, 24, spare=2**28)

"""The audit of mechanisms: real ones stand, planted ones fall, and by as much as was expected.

Audits of secret noise have a confidence of 1 - 1e-7: a true claim is refuted once in ten million
runs. The others draw from fixed seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from consortium.errors import ImpossiblePlanError
from consortium.privacy.noise import SecretNoise
from consortium.testing.canaries import added, replaced
from consortium.testing.mechanism_audit import Central, Mechanism, audit
from consortium.update.clip import ClipByNorm
from consortium.update.stage import Rows, chain
from consortium.update.weigh import Weigh, Weighting
from tests.privacy.mechanisms import CLAIM, CLIP, ROW_CLAIM, SIGMA, SURE, central, local, seeded


@pytest.mark.parametrize("weighing", [Weighting.UNIFORM, Weighting.CAPPED])
def test_noise_on_a_sum_stands(weighing: Weighting) -> None:
    found = audit(central(SecretNoise(), weighing), added(CLIP), CLAIM, 50_000, SURE)
    assert not found.is_refuted
    assert (found.claim, found.draws, found.confidence) == (CLAIM, 50_000, SURE)


def test_noise_on_a_row_stands() -> None:
    found = audit(local(SecretNoise()), replaced(CLIP), ROW_CLAIM, 5_000, SURE)
    assert not found.is_refuted


def test_an_audit_of_a_true_claim_comes_near_to_it() -> None:
    """0.443 in the ground truth's own trial, at 95 %."""
    found = audit(central(seeded(3)), added(CLIP)[:1], CLAIM, 100_000)
    assert 0.4 < found.lower_bound <= CLAIM.epsilon
    assert found.canary == "as long as allowed"


def shifted(by: float) -> Mechanism:
    """Plain Gaussian noise on a sum that one site moves by so many clips."""
    rng = np.random.default_rng(1)

    def mechanism(rows: Rows, draws: int) -> np.ndarray:
        total = rows.values.astype(np.float64).sum(0) * by
        return total + rng.normal(0, SIGMA * CLIP, (draws, len(total)))

    return mechanism


@pytest.mark.parametrize(
    ("by", "proven"), [(1.0, 0.40), (2.0, 0.96), (math.sqrt(8), 1.4), (4.0, 2.1)]
)
def test_lower_bounds_of_the_ground_truth(by: float, proven: float) -> None:
    """Faults of sensitivity that are truly 0.5, 1.067, 1.565 and 2.30."""
    found = audit(shifted(by), added(CLIP)[:1], CLAIM, 100_000)
    truly = {1.0: 0.5, 2.0: 1.067, math.sqrt(8): 1.565, 4.0: 2.30}[by]
    assert proven < found.lower_bound < truly
    assert found.is_refuted is (by > 1)


def test_too_little_noise_falls_and_too_much_proves_nothing() -> None:
    assert audit(central(seeded(), sigma=SIGMA / 1.5), added(CLIP), CLAIM, 50_000, SURE).is_refuted
    assert audit(central(seeded(), sigma=1000.0), added(CLIP), CLAIM, 2_000).lower_bound == 0.0


@pytest.mark.parametrize("seen", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stands_out(seen: float) -> None:
    def mechanism(rows: Rows, draws: int) -> np.ndarray:
        is_there = len(rows.values) == 10
        return np.full((draws, rows.values.shape[1]), seen if is_there else 0.0)

    found = audit(mechanism, added(CLIP)[:1], CLAIM, 1000, SURE)
    assert found.is_refuted and found.lower_bound > 10


def test_a_mechanism_that_says_nothing_or_always_the_same_hides_everything() -> None:
    for always in (math.nan, 0.0):
        same = audit(lambda rows, draws, x=always: np.full((draws, 8), x), added(CLIP), CLAIM, 100)  # type: ignore[misc]
        assert same.lower_bound == 0.0 and not same.is_refuted


def test_a_site_that_is_against_the_others_is_seen_from_the_other_side() -> None:
    loud = [pair for pair in added(CLIP) if pair.name == "against the others"]
    assert audit(shifted(4.0), loud, CLAIM, 20_000, SURE).is_refuted


def test_a_chain_that_bounds_nothing_is_not_even_run() -> None:
    stages = chain(Weigh(Weighting.SAMPLES), ClipByNorm(CLIP))
    with pytest.raises(ImpossiblePlanError):
        audit(Central(stages, central(seeded()).release), added(CLIP), CLAIM, 10)


def test_a_round_in_which_every_site_is_refused_is_noise_alone() -> None:
    rows = Rows(np.full((2, 3), np.nan, np.float32), np.ones(2), np.ones(2))
    assert central(seeded())(rows, 4).shape == (4, 3)

"""Noise under masks, audited through the real protocol with the fewest survivors.

Audits have a confidence of 1 - 1e-7: a true claim is refuted once in ten million runs.
"""

from __future__ import annotations

import numpy as np
import pytest

from consortium.privacy.noise import SecretNoise
from consortium.testing.canaries import added
from consortium.testing.masked_rounds import secure_sum, site_ids
from consortium.testing.mechanism_audit import audit
from consortium.update.stage import Rows
from consortium.update.weigh import Weighting
from tests.privacy import mechanisms as m


@pytest.mark.parametrize("weighing", [Weighting.UNIFORM, Weighting.CAPPED])
def test_noise_of_the_fewest_honest_survivors_stands(weighing: Weighting) -> None:
    found = audit(
        m.under_masks(SecretNoise(), weighing), added(m.CLIP), m.MASKED_CLAIM, 10_000, m.SURE
    )
    assert not found.is_refuted


def test_the_audit_comes_near_to_the_claim() -> None:
    pairs = [pair for pair in added(m.CLIP) if pair.name == "as long as allowed"]
    found = audit(m.under_masks(m.seeded(3)), pairs, m.MASKED_CLAIM, 40_000)
    assert 1.7 < found.lower_bound <= 2.0


@pytest.mark.parametrize(("honest", "draws"), [(m.COHORT, 30_000), (m.QUORUM, 120_000)])
def test_noise_for_more_than_are_left_falls(honest: int, draws: int) -> None:
    """Made for all who were asked, or for all survivors although two of them collude: truly 3.0
    and 2.45."""
    mechanism = m.under_masks(m.seeded(), honest=honest)
    found = audit(mechanism, added(m.CLIP)[:1], m.MASKED_CLAIM, draws, m.SURE)
    assert found.is_refuted


def test_nothing_stands_behind_noised_values() -> None:
    """What a site weighs would be told there, without any noise."""
    mechanism = m.under_masks(m.seeded())
    row = mechanism.share.added(np.arange(9, dtype=np.uint32), 8, m.seeded())
    assert row[8] == 0 and (row[:8] != np.arange(8)).any()


def test_a_site_whose_update_is_refused_sends_zeros() -> None:
    rows = Rows(np.full((10, 8), np.nan, np.float32), np.ones(10), np.ones(10))
    seen = m.under_masks(m.seeded())(rows, 50)
    assert seen.shape == (50, 8) and np.isfinite(seen).all()


@pytest.mark.parametrize(("count", "stay"), [(3, 3), (3, 2), (10, 7), (101, 90)])
def test_masks_leave_the_sum_as_it_was(count: int, stay: int) -> None:
    rng = np.random.default_rng(count)
    rows = {site: rng.integers(0, 1 << 32, 7, dtype=np.uint32) for site in site_ids(count)}
    survivors = frozenset(list(rows)[-stay:])
    seed = bytes(32) if count > 100 else b""
    found = secure_sum(rows, survivors, seed)
    assert (found == np.add.reduce([rows[site] for site in survivors], dtype=np.uint32)).all()

"""A coordinator that looks at one site learns nothing of its update, and sees it when masks have
a planted bug. The records behind plain updates come back; behind masked ones they do not."""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np
import pytest

from consortium.core.ids import SiteId
from consortium.crypto.hazmat import masks
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.session import terms_for
from consortium.crypto.secure_sum.site import Site
from consortium.update.clip import norms
from tests.secagg.attacks import RING, SITES, Round, correlation, encoded, numbers, tells_nothing
from tests.secagg.inversion import INPUTS, Model, record
from tests.secagg.scene import Scene, ids
from tests.secagg.test_planted import biased_mask, keys_reused

Patch = pytest.MonkeyPatch
ROUNDS = 200
FEW = 3  # rounds: a planted bug shows in the first or in the second


def test_two_hundred_rounds_tell_nothing_of_an_update() -> None:
    tells_nothing(ROUNDS)


def test_old_seeds_in_a_new_round_still_tell_nothing() -> None:
    """Round and session are in every key."""
    tells_nothing(FEW, has_old_seeds=True)


def test_the_views_are_different_rows_and_the_update_is_on_the_grid() -> None:
    """So that no look is at nothing."""
    here = Round(0)
    assert len({row.tobytes() for _, row in here.views()}) == 4
    update = here.update()
    assert np.abs(numbers(encoded(update, 0)) - update).max() <= RING.step


# ---- planted bugs --------------------------------------------------------------------


def own_mask_of(site: Site) -> bytes:
    return keys.own_mask(site._session, site._me, site._seeds.own.reveal())


def no_pair_masks(patch: Patch) -> None:
    def mask(self: Site, vector: U32, sharers: Set[SiteId]) -> U32:
        masked = vector.copy()
        masks.add_masks(masked, [own_mask_of(self)])
        return masked

    patch.setattr(Site, "mask", mask)


def no_own_mask(patch: Patch) -> None:
    real = Site.mask

    def mask(self: Site, vector: U32, sharers: Set[SiteId]) -> U32:
        masked = real(self, vector, sharers)
        masks.add_masks(masked, [], [own_mask_of(self)])
        return masked

    patch.setattr(Site, "mask", mask)


def known_masks_alone(patch: Patch) -> None:
    """A site that masks with itself and with the one that drops, and with no survivor."""
    real = Site.mask

    def mask(self: Site, vector: U32, sharers: Set[SiteId]) -> U32:
        gone = max(sharers)
        with patch.context() as inner:
            inner.setattr(Site, "_neighbours", lambda _: {gone})
            return real(self, vector, sharers)

    patch.setattr(Site, "mask", mask)


def no_mask(patch: Patch) -> None:
    patch.setattr(Site, "mask", lambda self, vector, sharers: vector.copy())


def a_little(patch: Patch) -> None:
    """What is sent goes with the update by 0.02: too little for one look."""
    real = Site.mask

    def mask(self: Site, vector: U32, sharers: Set[SiteId]) -> U32:
        masked = real(self, vector, sharers)
        told = vector.view(np.int32).astype(np.float64) / np.std(vector.view(np.int32))
        moved = masked.view(np.int32) + told * (0.02 * 2.0**32 / 12**0.5)
        return np.clip(moved, -(2.0**31), 2.0**31 - 1).astype(np.int32).view(np.uint32)

    patch.setattr(Site, "mask", mask)


PLANTED: dict[str, tuple[Callable[[Patch], None], bool, str]] = {
    "biased mask": (biased_mask, False, "its masked row"),
    "keys reused": (keys_reused, True, "the difference of two rounds"),
    "no pair masks": (no_pair_masks, False, "its row without its own mask"),
    "known masks alone": (known_masks_alone, False, "its row without all masks that are known"),
    "no own mask": (no_own_mask, False, "its row that comes when it counts as dropped"),
    "no mask": (no_mask, False, "its masked row"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_shows(name: str, monkeypatch: Patch) -> None:
    plant, has_old_seeds, words = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=f"{words} goes with the update"):
        tells_nothing(FEW, has_old_seeds=has_old_seeds)


def test_what_tells_a_little_in_every_round_shows_in_all_of_them(monkeypatch: Patch) -> None:
    a_little(monkeypatch)
    with pytest.raises(AssertionError, match="its masked row goes with the update a little"):
        tells_nothing(ROUNDS)


def test_the_difference_of_two_rounds_with_one_key_is_that_of_the_updates(
    monkeypatch: Patch,
) -> None:
    """Not only alike: the very numbers."""
    keys_reused(monkeypatch)
    (_, one), *_ = Round(1, has_old_seeds=True).views()
    (_, two), *_ = Round(2, has_old_seeds=True).views()
    wanted = Round(2).update() - Round(1).update()
    assert np.abs(numbers(two - one) - wanted).max() <= 2 * RING.step


# ---- gradient inversion --------------------------------------------------------------

MODELS = {"softmax regression": Model(0), "network": Model(32)}
RECORDS = 20
# A record and 784 numbers that have nothing to do with it, as above: one of 16,000 is beyond.
UNLIKE = 4 / INPUTS**0.5


def inverted(model: Model, seed: int) -> tuple[float, float, float]:
    """How the record goes with what comes out of the plain update, of the same on the ring, and
    of what the site sends."""
    x = record(seed)
    update = model.update(x, label=seed % 10)
    update *= min(1.0, RING.clip / norms(update[None])[0])
    row = encoded(update, seed)
    here = Scene(ids(SITES), terms_for(SITES), tag=f"record {seed}")
    masked = here.parties[here.sites[0]].mask(row, here.everybody())
    found = [model.inverted(one) for one in (update, numbers(row), numbers(masked))]
    plain, on_ring, sent = (correlation(x, one) for one in found)
    return plain, on_ring, sent


def check_inversion(model: Model) -> None:
    for seed in range(RECORDS):
        plain, on_ring, sent = inverted(model, seed)
        assert plain >= 0.99 and on_ring >= 0.99, f"record {seed}: the attack is too weak"
        assert abs(sent) < UNLIKE, f"record {seed} came back from a masked update: {sent:.3f}"


@pytest.mark.parametrize("name", MODELS)
def test_a_record_comes_back_from_a_plain_update_and_not_from_a_masked_one(name: str) -> None:
    check_inversion(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_record_comes_back_when_nothing_is_masked(name: str, monkeypatch: Patch) -> None:
    no_mask(monkeypatch)
    with pytest.raises(AssertionError, match=r"came back from a masked update: 1\.000"):
        check_inversion(MODELS[name])

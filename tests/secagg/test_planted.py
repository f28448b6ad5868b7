"""The checks let the product pass, and each planted bug fails the check that is for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from consortium.core.ids import SiteId
from consortium.crypto.hazmat import framing, masks
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import coordinator, keys, site
from consortium.crypto.secure_sum.graph import Graph
from consortium.crypto.secure_sum.session import Session, Split
from consortium.crypto.secure_sum.site import Answer, Held, Site
from consortium.errors import InvalidInputError
from tests.secagg.checks import CHECKS, exact_sum, laid_bare
from tests.secagg.scene import scene


@pytest.mark.parametrize("name", CHECKS)
def test_the_product_passes(name: str) -> None:
    CHECKS[name]()


Patch = pytest.MonkeyPatch


def keys_reused(patch: Patch) -> None:
    """Keys know neither their round nor their session."""

    def framed(purpose: str, *fields: framing.Field) -> bytes:
        return framing.framed(purpose, *fields[2:])

    def info(purpose: str, session: Session, *fields: bytes | str) -> bytes:
        return framing.framed(purpose, *fields)

    patch.setattr(keys, "framed", framed)
    patch.setattr(keys, "_info", info)


class Low:
    """A stream whose words have only 24 bits."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def update_into(self, zeros: Any, out: Any) -> int:
        done: int = self.inner.update_into(zeros, out)
        out.view(np.uint32)[:] &= 0xFFFFFF
        return done


def biased_mask(patch: Patch) -> None:
    real = masks._encryptor
    patch.setattr(masks, "_encryptor", lambda key, block: Low(real(key, block)))


def overlap_unchecked(patch: Patch) -> None:
    def answer(self: Site, split: Split, held: Mapping[SiteId, Held]) -> Answer:
        return Answer(
            self._me,
            {owner: held[owner].own.reveal() for owner in held.keys() & split.survivors},
            {owner: held[owner].mask.reveal() for owner in held.keys() & split.dropped},
        )

    patch.setattr(Site, "answer", answer)


def sign_flipped(patch: Patch) -> None:
    """Both of a pair add their mask."""
    real = masks.add_masks

    class Adding:
        KEY_BYTES = masks.KEY_BYTES

        @staticmethod
        def add_masks(
            total: U32, plus: Sequence[bytes], minus: Sequence[bytes], **more: int
        ) -> None:
            real(total, [*plus, *minus], **more)

    patch.setattr(site, "masks", Adding)


def sign_flipped_at_the_coordinator(patch: Patch) -> None:
    class Swapping:
        @staticmethod
        def add_masks(
            total: U32, plus: Sequence[bytes], minus: Sequence[bytes], **more: int
        ) -> None:
            masks.add_masks(total, minus, plus, **more)

    patch.setattr(coordinator, "masks", Swapping)


def wrong_neighbour(patch: Patch) -> None:
    """The neighbours of one site are one place further on than theirs are."""

    def holders(self: Graph, owner: SiteId) -> tuple[SiteId, ...]:
        found = real(self, owner)
        if self.is_full or self._place[owner]:
            return found
        return (*found[1:], self._around[self.degree + 1])

    real = Graph.holders
    patch.setattr(Graph, "holders", holders)


def threshold_off_by_one(patch: Patch) -> None:
    real = keys.coefficients
    patch.setattr(keys, "coefficients", lambda *given: [row[1:] for row in real(*given)])


PLANTED: dict[str, tuple[Callable[[Patch], None], str, str]] = {
    "keys reused": (keys_reused, "fresh_masks", "two rounds have one mask"),
    "biased mask": (biased_mask, "even_masks", "a bit of the mask"),
    "biased mask beside the vector": (biased_mask, "no_correlation", "correlation"),
    "overlap unchecked": (overlap_unchecked, "overlap_is_refused", "laid bare"),
    "sign flipped": (sign_flipped, "exact_sum", "not that of the vectors"),
    "sign flipped at the coordinator": (
        sign_flipped_at_the_coordinator,
        "exact_sum",
        "not that of the vectors",
    ),
    "wrong neighbour": (wrong_neighbour, "exact_sum", "those who shared are not"),
    "threshold off by one": (threshold_off_by_one, "fewer_shares_tell_nothing", "too few shares"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str, monkeypatch: Patch) -> None:
    """By the check's own words, or by a refusal of the product that says the same."""
    plant, check, words = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvalidInputError), match=words):
        CHECKS[check]()


def test_a_mask_that_one_side_alone_has_is_seen_in_the_sum(monkeypatch: Patch) -> None:
    """Also where no seal is there to tell."""
    real, forgetful = Site.mask, scene(4).sites[2]

    def mask(self: Site, vector: U32, sharers: frozenset[SiteId]) -> U32:
        return real(self, vector, sharers - {min(sharers)} if self._me == forgetful else sharers)

    monkeypatch.setattr(Site, "mask", mask)
    with pytest.raises(AssertionError, match="not that of the vectors"):
        exact_sum()


def test_two_answers_in_one_round_lay_a_site_bare() -> None:
    """Why a site writes down what it answered: here nobody can tell that it is the second time."""
    here = scene(4)
    victim, everybody = here.sites[3], here.everybody()
    splits = [
        Split(everybody, frozenset()),
        Split(everybody - {victim}, frozenset({victim})),
    ]
    assert (laid_bare(here, splits, victim) == here.vector(victim)).all()

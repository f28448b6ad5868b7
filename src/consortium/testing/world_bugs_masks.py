"""Planted bugs of secret sums: what is durable before what leaves, who is in the sum, and the
arithmetic that nobody would miss while all goes well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import secagg
from consortium.core import secagg_facts as m
from consortium.core import site_facts as s
from consortium.core.state import Federation, Round
from consortium.core.tables import MASKED_ROUND, Step
from consortium.core.terms import Terms
from consortium.crypto.hazmat import masks
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import coordinator, keys
from consortium.crypto.secure_sum.keys import Seeds
from consortium.crypto.secure_sum.session import Split
from consortium.crypto.secure_sum.site import Answer, Site
from consortium.drive import hands, secret_sum
from consortium.errors import DeadlineExpiredError
from consortium.testing.patches import Facts, Patches, Plant
from consortium.testing.world_masked_site import MaskedSitePlayer, Secrets
from consortium.testing.world_site import SitePlayer

Original = Any
_SPLIT = (Step.AGREEING, Step.UNMASKING)  # when it is on record
_LOW_BYTE = np.uint32(0xFF)


# ---- at the site --------------------------------------------------------------------


def _seeds_used_again(patches: Patches) -> None:
    """A site that has seeds needs no new ones."""

    def make(original: Original, site: MaskedSitePlayer, number: int) -> Seeds:
        for old in site._old.values():
            site.secrets.seeds.setdefault(number, old)
        return original(site, number)  # type: ignore[no-any-return]

    patches.attribute(MaskedSitePlayer, "make_seeds", make)


def _seeds_in_memory(patches: Patches) -> None:
    """Keys leave before the seeds are durable: a crash makes others."""

    def begin(original: Original, site: SitePlayer) -> None:
        original(site)
        if isinstance(site, MaskedSitePlayer):
            site.secrets = Secrets()

    patches.attribute(SitePlayer, "_begin", begin)


def _keys_before_seeds(patches: Patches) -> None:
    """The seeds are made durable in a while; what the first ones were, a crash forgets."""

    def make(original: Original, site: MaskedSitePlayer, number: int) -> Seeds:
        seeds: Seeds = original(site, number)
        if site.state.note is None:
            del site.secrets.seeds[number]
        return seeds

    patches.attribute(MaskedSitePlayer, "make_seeds", make)


def _pin_not_durable(patches: Patches, kind: type[Any]) -> None:
    def persist(original: Original, site: SitePlayer, facts: Sequence[Any]) -> None:
        original(site, tuple(fact for fact in facts if not isinstance(fact, kind)))

    patches.attribute(SitePlayer, "persist", persist)


def _split_not_durable(patches: Patches) -> None:
    _pin_not_durable(patches, s.SplitPinned)


def _session_not_durable(patches: Patches) -> None:
    _pin_not_durable(patches, s.SessionPinned)


def _overlap_unchecked(patches: Patches) -> None:
    """A coordinator counts members among the dropped too, and no site minds."""

    def split_of(original: Original, sharers: Any, members: Any) -> Split:
        return Split(frozenset(members), frozenset(sharers))

    def answer(original: Original, site: Site, split: Split, held: Any) -> Answer:
        clean = Split(split.survivors, split.dropped - split.survivors)
        right: Answer = original(site, clean, held)
        both = {owner: held[owner].mask.reveal() for owner in held if owner in split.dropped}
        return replace(right, mask=both)

    patches.attribute(secret_sum, "split_of", split_of)
    patches.attribute(Site, "answer", answer)


def _masks_forgotten(patches: Patches) -> None:
    """The row leaves as it is."""
    patches.attribute(MaskedSitePlayer, "mask", lambda original, site, half, row, sharers: row)


def _own_mask_alone(patches: Patches) -> None:
    """Sums are right, and every row lies open as soon as own seeds are given back."""

    def mask(original: Original, site: Site, row: U32, sharers: Any, **how: Any) -> U32:
        masked = row.copy()
        own = keys.own_mask(site._session, site._me, site._seeds.own.reveal())
        masks.add_masks(masked, [own])
        return masked

    patches.attribute(Site, "mask", mask)


def _biased_masks(patches: Patches) -> None:
    """The lowest byte of every mask is zero: sums are right, and that byte of every row shows."""

    def add(
        original: Original,
        total: U32,
        plus: Sequence[bytes],
        minus: Sequence[bytes] = (),
        *,
        threads: int = 1,
    ) -> None:
        for names, move in ((plus, np.add), (minus, np.subtract)):
            for key in names:
                mask = np.zeros_like(total)
                original(mask, [key])
                move(total, mask & ~_LOW_BYTE, out=total)

    patches.attribute(masks, "add_masks", add)


# ---- at the coordinator -------------------------------------------------------------


def _split_again_after_a_crash(patches: Patches) -> None:
    """Whoever starts anew takes those who have answered for the members."""

    def tick(original: Original, state: Federation, item: i.Tick) -> Facts:
        known = state.round
        is_split = known is not None and known.step in _SPLIT and known.closed is not None
        if known is None or known.closed is None or not is_split:
            return original(state, item)  # type: ignore[no-any-return]
        heard = known.answers.keys() or known.consents.keys()
        is_new = item.awake_ms > known.closed.at_ms and 0 < len(heard) < len(known.members)
        if not is_new:
            return original(state, item)  # type: ignore[no-any-return]
        return (f.RoundClosed(known.number, tuple(sorted(heard)), item.now_ms),)

    patches.rule(i.Tick, tick)
    for step in _SPLIT:
        patches.move(MASKED_ROUND, (step, f.RoundClosed), step)


def _late_update_in_the_sum(patches: Patches) -> None:
    """An update that comes after the split is put among the members."""

    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except DeadlineExpiredError:
            known = state.round
            is_open = known is not None and known.step in (*_SPLIT, Step.SUMMING)
            if known is None or not is_open or item.seat not in known.waiting:
                raise
        late = (item.round, item.seat)
        return (
            f.UpdateReceived(*late, item.update, item.envelope, item.now_ms),
            f.UpdateAccepted(*late, None, None, item.now_ms),
        )

    def accepted(original: Original, state: Federation, fact: f.UpdateAccepted) -> None:
        original(state, fact)
        known = state.round
        if known is not None and known.closed is not None:
            known.members[fact.seat] = None

    patches.rule(i.Submit, submit)
    patches.record(f.UpdateAccepted, accepted)
    for step in (*_SPLIT, Step.SUMMING):
        for kind in (f.UpdateReceived, f.UpdateAccepted):
            patches.move(MASKED_ROUND, (step, kind), step)


def _asked_with_one_signature(patches: Patches) -> None:
    """Members are asked as soon as one of them has signed the split."""

    def give(original: Original, state: Federation, terms: Terms, item: i.GiveConsent) -> Facts:
        facts: Facts = original(state, terms, item)
        if len(facts) != 1:
            return facts
        seats, by_ms = (item.seat,), item.now_ms + terms.duration_ms
        return (*facts, m.ConsentsClosed(item.round, seats, by_ms, item.now_ms))

    patches.rule(i.GiveConsent, give)


def _quorum_of_the_plan(patches: Patches) -> None:
    """Three are enough, however many gave keys."""
    patches.attribute(secagg, "quorum_of", lambda original, terms, sites: 3)


def _seeds_unchecked(patches: Patches) -> None:
    """A seed is believed that is not the one that its site has committed itself to."""

    def own_key(original: Original, session: Any, owner: Any, answered: Any) -> bytes:
        own = coordinator._seed(session, owner, answered)
        return keys.own_mask(session, owner, own)

    patches.attribute(coordinator, "_own_key", own_key)


def _dropped_forgotten(patches: Patches) -> None:
    """The masks that members share with those who dropped out stay on the sum."""
    patches.attribute(coordinator, "_pair_keys", lambda original, *_: [])


def _members_removed(patches: Patches) -> None:
    """A member that is revoked after the split is taken out, as in a plain round."""

    def depart(original: Original, terms: Any, known: Round, seat: Any, now_ms: int) -> Facts:
        if seat in known.members and len(known.members) > known.quorum:
            return (f.MemberRemoved(known.number, seat, now_ms),)
        return original(terms, known, seat, now_ms)  # type: ignore[no-any-return]

    patches.attribute(secagg, "depart_member", depart)
    for step in (*_SPLIT, Step.SUMMING):
        patches.move(MASKED_ROUND, (step, f.MemberRemoved), step)


def _scores_of_fewer(patches: Patches) -> None:
    """A site's test records are counted, and what it found on them is not."""

    def found(original: Original, ring: Any, rows: Any, count: int) -> tuple[int, Any]:
        samples, sums = original(ring, rows, count)
        return samples, tuple(max(0.0, total - 0.5) for total in sums)

    patches.attribute(hands, "scores_in", found)


def _scores_of_the_next(patches: Patches) -> None:
    """What the sum says of the base is written down as if it were of the candidate."""

    def summed(original: Original, state: Federation, terms: Terms, item: i.Summed) -> Facts:
        facts: Facts = original(state, terms, item)
        return tuple(
            replace(fact, version=fact.version + 1) if isinstance(fact, f.BaseScored) else fact
            for fact in facts
        )

    patches.rule(i.Summed, summed)


PLANTS: tuple[tuple[str, Plant], ...] = (
    ("a site uses its seeds in two rounds", _seeds_used_again),
    ("a site's seeds are in memory alone", _seeds_in_memory),
    ("keys leave before their seeds are durable", _keys_before_seeds),
    ("a site would not remember by which split it answered", _split_not_durable),
    ("a site would not remember in which session it shared", _session_not_durable),
    ("a member counts as dropped too, and nobody minds", _overlap_unchecked),
    ("a row leaves without its masks", _masks_forgotten),
    ("a site takes its own mask alone", _own_mask_alone),
    ("a byte of every mask is zero", _biased_masks),
    ("the split is made again after a crash", _split_again_after_a_crash),
    ("a late update is put into a secret sum", _late_update_in_the_sum),
    ("members are asked when one has signed the split", _asked_with_one_signature),
    ("three are enough for any secret sum", _quorum_of_the_plan),
    ("a seed that was given back is not checked", _seeds_unchecked),
    ("masks of those who dropped out stay on the sum", _dropped_forgotten),
    ("a revoked member is taken out of a secret sum", _members_removed),
    ("a secret sum's scores are not its members'", _scores_of_fewer),
    ("a secret sum's scores are taken for the candidate's", _scores_of_the_next),
)

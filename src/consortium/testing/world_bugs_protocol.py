"""Planted bugs about repetition, time, who counts, and what a site remembers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consortium.checks import Findings
from consortium.core import evolve as records
from consortium.core import facts as f
from consortium.core import federation, verdict
from consortium.core import inputs as i
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.state import Federation
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.drive import hands
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    UnauthorizedClientError,
)
from consortium.testing.patches import Facts, Patches, Plant, nothing
from consortium.testing.world_coordinator import CoordinatorPlayer
from consortium.testing.world_site import SitePlayer, fold

# Planted functions take the original first and then whatever the original takes.
Original = Any


# ---- repetition and time ------------------------------------------------------------


def _replay_set_in_memory(patches: Patches) -> None:
    """Each process remembers by itself what it has taken."""
    taken: dict[int, tuple[Federation, set[tuple[int, int]]]] = {}

    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        facts: Facts = original(state, terms, item)
        _, known = taken.setdefault(id(state), (state, set()))
        is_known = (item.round, item.seat) in known
        known.add((item.round, item.seat))
        if facts or is_known:
            return facts
        return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)

    patches.rule(i.Submit, submit)


def _late_update(patches: Patches) -> None:
    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except DeadlineExpiredError:
            if state.round is None or item.seat not in state.round.waiting:
                raise
        return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)

    patches.rule(i.Submit, submit)


def _other_digest(patches: Patches) -> None:
    def submit(original: Original, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except AlreadySubmittedError:
            return ()

    patches.rule(i.Submit, submit)


def _their_clock(patches: Patches) -> None:
    patches.attribute(CoordinatorPlayer, "stamp", lambda original, player, request: request.sent_ms)


def _endless_extensions(patches: Patches) -> None:
    def tick(original: Original, state: Federation, item: i.Tick) -> Facts:
        ahead = state.clone()
        if ahead.terms is not None:
            ahead.terms = replace(ahead.terms, max_extensions=1000)
        return original(ahead, item)  # type: ignore[no-any-return]

    patches.rule(i.Tick, tick)


def _no_alarm_clock(patches: Patches) -> None:
    def tick(original: Original, state: Federation, item: i.Tick) -> Facts:
        return original(state, item) if state.round is None else ()

    patches.rule(i.Tick, tick)


# ---- who counts ---------------------------------------------------------------------


def _revoked_counts(patches: Patches) -> None:
    def departed(original: Original, state: Federation, fact: f.SiteDeparted) -> None:
        member = state.roster.members.pop(fact.seat)
        del state.roster.seat_of[member.site]

    patches.move(records._RECORD, f.SiteDeparted, lambda *args: departed(None, *args))
    patches.attribute(federation, "_after_departure", nothing)


def _counted_twice(patches: Patches) -> None:
    def rows(original: Original, *arguments: Any) -> list[Any]:
        first, *rest = original(*arguments)
        return [replace(first, values=2 * first.values), *rest]

    patches.attribute(hands, "open_rows", rows)


def _anybody_evaluates(patches: Patches) -> None:
    def score(original: Original, state: Federation, terms: Terms, item: i.Score) -> Facts:
        try:
            return original(state, terms, item)  # type: ignore[no-any-return]
        except UnauthorizedClientError:
            now = state.round
            if now is None or now.step is not Step.EVALUATING or item.round != now.number:
                raise
        verdict._check_sums(terms, item.samples, item.candidate, item.base)
        given = item.samples, item.candidate, item.base
        return (f.Evaluated(item.round, item.seat, *given, item.envelope, item.now_ms),)

    patches.rule(i.Score, score)


def _nobody_signs(patches: Patches) -> None:
    patches.attribute(CoordinatorPlayer, "authenticate", nothing)


def _unchecked(patches: Patches) -> None:
    patches.attribute(hands, "check_update", lambda *_: Findings(None, 1.0, 1.0))


# ---- sites --------------------------------------------------------------------------


def _no_spool(patches: Patches) -> None:
    def persist(original: Original, site: SitePlayer, facts: p.SiteFacts) -> None:
        original(site, tuple(x for x in facts if not isinstance(x, s.UpdateSpooled)))

    patches.attribute(SitePlayer, "persist", persist)


def _forgetful_site(patches: Patches) -> None:
    def recover(original: Original, site: SitePlayer) -> p.Participant:
        return p.Participant(approved=fold(site.records).approved)

    patches.attribute(SitePlayer, "recover", recover)


def _credulous_witness(patches: Patches) -> None:
    def shown(state: p.Participant, item: p.Shown) -> p.SiteFacts:
        if (item.size, item.root) == (state.seen_size, state.seen_root):
            return ()
        return (s.CheckpointWitnessed(item.size, item.root, item.now_ms),)

    patches.move(p._RULES, p.Shown, shown)


PLANTS: tuple[tuple[str, Plant], ...] = (
    ("the replay set is in memory only", _replay_set_in_memory),
    ("a late update is counted", _late_update),
    ("another digest after the first is acknowledged", _other_digest),
    ("the site's clock is trusted", _their_clock),
    ("deadlines are extended without bound", _endless_extensions),
    ("nobody looks at the clock while a round is open", _no_alarm_clock),
    ("a revoked site is counted", _revoked_counts),
    ("an update is counted twice in the sum", _counted_twice),
    ("an evaluation by a non-member is taken", _anybody_evaluates),
    ("signatures are not checked", _nobody_signs),
    ("updates are not checked", _unchecked),
    ("no spool: a restarted site trains again", _no_spool),
    ("a site's log is not replayed", _forgetful_site),
    ("a site accepts a log that shrank", _credulous_witness),
)

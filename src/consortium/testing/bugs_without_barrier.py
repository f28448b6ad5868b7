"""Planted bugs of federations without a barrier."""

from __future__ import annotations

from dataclasses import replace

from consortium.core import buffer
from consortium.core import evolve as records
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.ids import Digest, Seat
from consortium.core.state import Federation, Invitation, Round
from consortium.core.terms import Terms
from consortium.errors import DeadlineExpiredError
from consortium.testing.federations import BUFFERED, FRESH, LED
from consortium.testing.patches import Bug, Facts, Patches, Wrapper


def _pass_members_on(patches: Patches) -> None:
    def end(real: Wrapper, state: Federation) -> None:
        over = records._open(state)
        real(state)
        state.passing |= {seat: over.invitation(seat) for seat in over.members}

    patches.attribute(records, "_end", end)


def _lose_what_was_received(patches: Patches) -> None:
    def end(real: Wrapper, state: Federation) -> None:
        real(state)
        state.passing = {x: made for x, made in state.passing.items() if made.update is None}

    patches.attribute(records, "_end", end)


def _pass_the_departed_on(patches: Patches) -> None:
    def departed(real: Wrapper, state: Federation, fact: f.SiteDeparted) -> None:
        made = state.passing.get(fact.seat)
        real(state, fact)
        if made is not None:
            state.passing[fact.seat] = made

    patches.record(f.SiteDeparted, departed)


def _withdraw_nothing(patches: Patches) -> None:
    def rolled_back(real: Wrapper, state: Federation, fact: f.RolledBack) -> None:
        passing = state.passing
        real(state, fact)
        state.passing = passing

    patches.record(f.RolledBack, rolled_back)


def _take_late(patches: Patches) -> None:
    def submit(real: Wrapper, state: Federation, terms: Terms, item: i.Submit) -> Facts:
        try:
            return real(state, terms, item)  # type: ignore[no-any-return]
        except DeadlineExpiredError:
            if item.seat not in state.passing:
                raise
        return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)

    patches.rule(i.Submit, submit)


def _keep_the_stale(patches: Patches) -> None:
    def is_fresh(real: Wrapper, state: Federation, made: Invitation) -> bool:
        return True

    patches.attribute(buffer, "is_fresh", is_fresh)


def _keep_the_late(patches: Patches) -> None:
    def holds(real: Wrapper, state: Federation, made: Invitation, now_ms: int) -> bool:
        return buffer.is_fresh(state, made)

    patches.attribute(buffer, "_holds", holds)


def _check_the_wrong_base(patches: Patches) -> None:
    def base_of(real: Wrapper, known: Round, seat: Seat) -> Digest:
        return known.base

    patches.attribute(Round, "base_of", base_of)


def _forget_the_age(patches: Patches) -> None:
    patches.attribute(Round, "staleness", lambda real, known, seat: 0)


def _renew_the_deadline(patches: Patches) -> None:
    def kept(real: Wrapper, state: Federation, fact: f.InvitationsKept) -> None:
        real(state, fact)
        one = state.round
        assert one is not None
        late_ms = one.deadline_ms + 1
        one.kept = {seat: replace(made, deadline_ms=late_ms) for seat, made in one.kept.items()}

    patches.record(f.InvitationsKept, kept)


BUGS = (
    Bug("a member passes on after it was counted", BUFFERED, _pass_members_on),
    Bug("what was received and not counted is lost", BUFFERED, _lose_what_was_received),
    Bug("a site that has left passes on", BUFFERED, _pass_the_departed_on),
    Bug("a roll-back withdraws no invitation", LED, _withdraw_nothing),
    Bug("a late update is taken between rounds", BUFFERED, _take_late),
    Bug("a model that is too old is kept", FRESH, _keep_the_stale),
    Bug("an invitation that is late is kept", BUFFERED, _keep_the_late),
    Bug("an old update is checked against the new model", BUFFERED, _check_the_wrong_base),
    Bug("the age of an update is forgotten", BUFFERED, _forget_the_age),
    Bug("a kept invitation gets another deadline", BUFFERED, _renew_the_deadline),
)

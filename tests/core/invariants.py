"""What must be true of a federation's state after every step (reliability.md, section 2)."""

from __future__ import annotations

from consortium.core.state import Federation, Round
from consortium.core.tables import Phase, Standing, Step


def check_state(state: Federation) -> None:
    """Raise AssertionError, with a sentence, at the first invariant that does not hold."""
    assert (state.round is not None) == (state.standing is Standing.RUNNING), "standing and round"
    assert (state.finished is not None) == (state.standing is Standing.FINISHED), "finished"
    assert not state.versions or state.current in state.versions, "the current version exists"
    roster = state.roster
    assert {member.site: seat for seat, member in roster.members.items()} == roster.seat_of
    assert list(roster.members) == sorted(roster.members), "seats stay in order"
    assert all(seat < roster.next_seat for seat in roster.members), "seats are not reused"
    if state.round is not None:
        assert not state.round.is_over, "an open round is not over"
        assert state.round.number == state.last_number
        check_round(state.round)
        _check_against_roster(state, state.round)
    for seat, made in state.passing.items():
        assert state.round is None and seat in state.roster, "who is passing can go on"
        assert made.version <= max(state.versions), "an invitation from a model that is not there"
    if state.ended is not None:
        assert state.ended.is_over, "an ended round is over"
        check_round(state.ended)


def check_round(one: Round) -> None:
    """The book-keeping of one round is in one piece."""
    places = (one.waiting, one.unchecked, one.accepted, one.fallen)
    assert sum(map(len, places)) == len(one.invited), "a seat is in two places or in none"
    for place in places:
        assert place.keys() <= one.invited.keys(), "an uninvited seat is in the round"
    assert sorted(one.invited.values()) == list(range(len(one.invited))), "ranks are 0, 1, 2 …"
    assert one.submitted.keys() <= one.invited.keys()
    assert one.unchecked.keys() <= one.submitted.keys(), "an update to check was received"
    assert not one.waiting.keys() & one.submitted.keys(), "who is waited for has not submitted"
    assert one.norms == sorted(norm for norm in one.accepted.values() if norm is not None)
    assert one.members.keys() <= one.accepted.keys(), "a member's update was accepted"
    counted = [seat for seats, _, _ in one.partials for seat in seats]
    assert len(counted) == len(set(counted)), "a simulated site is in two partial sums"
    assert not one.submitted.keys() & set(counted), "a site is summed alone and in a cohort"
    _check_phase(one)
    _check_secret(one)


def _check_secret(one: Round) -> None:
    """A secret sum: who is in which step was in the one before."""
    known = one.keys.keys()
    assert known <= one.named.keys() and one.shares.keys() <= known, "shares without keys"
    assert one.sharers.keys() <= one.shares.keys(), "a sharer whose shares are not there"
    assert one.answers.keys() <= one.members.keys(), "a site answers that is no member"
    assert one.lifters.keys() <= one.answers.keys()
    assert one.consents.keys() <= one.members.keys(), "a site signs that is no member"
    assert one.agreed.keys() <= one.consents.keys()
    owned = [key for held in one.keys.values() for key in (held.mask_key, held.seal_key)]
    assert len(set(owned)) == len(owned), "one key is there twice"
    if one.session is not None:
        is_enough = 2 * len(known) <= 3 * one.quorum
        assert 3 <= one.quorum <= len(known) and is_enough, "too few could be summed"
    if one.split is not None:
        assert one.members.keys() <= one.sharers.keys(), "a member that did not share"
        assert len(one.members) >= one.quorum, "fewer members than a session's quorum"
    assert (one.split is not None) == bool(one.sharing and one.members), "a split is told once"
    if one.answers or one.step is Step.UNMASKING:
        assert 3 * len(one.agreed) >= 2 * len(known), "asked before enough have signed"
    if one.lifters:
        assert 3 * len(one.lifters) >= 2 * len(known), "too few answers"


def _check_phase(one: Round) -> None:
    if one.step.phase is Phase.AGGREGATING or one.step is Step.COMPLETED:
        assert len(one.members) >= one.quorum, "fewer members than the quorum"
    if one.step in (Step.INITIALIZED, Step.SELECTING):
        assert one.invited.keys() == one.kept.keys(), "invited before selection"
    if one.step is Step.EVALUATING:
        assert one.unheard, "an evaluation that waits for nobody is closed"
        heard = [
            *one.evaluations,
            *(seat for sums in one.cohort_evaluations for seat in sums.seats),
        ]
        assert len(heard) == len(set(heard)), "a member is evaluated twice"
        assert not one.unheard.keys() & set(heard)
        assert one.unheard.keys() | set(heard) <= one.members.keys()
    elif one.step is not Step.FAILED:
        assert not one.unheard, "waiting for evaluations outside the evaluation"
    assert (one.reason is not None) == (one.step is Step.FAILED), "a failed round has a reason"


def _check_against_roster(state: Federation, one: Round) -> None:
    is_training = one.step is Step.TRAINING
    is_buffered = state.terms is not None and state.terms.is_buffered
    for seat in (*one.waiting, *one.unchecked) if is_buffered else ():
        assert seat in state.roster, "a revoked site would pass on"
    if is_training or one.step in (Step.SCREENING, Step.AGREEING, Step.UNMASKING, Step.SUMMING):
        live = one.accepted if is_training else one.members
        for seat in (*live, *(one.waiting if is_training else ())):
            assert seat in state.roster, "a revoked site would be counted"
    if one.step in (Step.KEYING, Step.SHARING):
        assert all(seat in state.roster for seat in one.waiting), "a revoked site is waited for"
    if one.step is Step.KEYING:
        assert one.keys.keys() <= one.waiting.keys(), "a session with somebody who has left"
    assert all(seat in state.roster for seat in one.unheard), "a revoked site is asked"

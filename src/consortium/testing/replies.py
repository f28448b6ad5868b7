"""What must hold of every reply that changes nothing: a refusal, or silence for old news.

`HEARD_RULES` say which inputs must not be without effect, whatever the reply; they get the
state and the input. `REPLY_RULES` also get the refusal, None for silence, and say when it
must be which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortium.core import inputs as i
from consortium.core.facts import ANOMALIES, RoundEnd
from consortium.core.ids import Seat
from consortium.core.roster import eligible
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    InvalidInputError,
    Refusal,
    TooStaleError,
    UnauthorizedClientError,
)
from consortium.testing.transitions import awaited_until_ms, is_exchanging

Reply = Refusal | Exception | None
# Each rule takes the one kind of input that its table lists it under.
HeardRule = Callable[[Federation, Any], bool]
ReplyRule = Callable[[Federation, Any, Reply], bool]


def _spoken_of(state: Federation, number: int, seat: Seat) -> Round | None:
    """The round that a site means by this number: the one that its invitation was kept by."""
    known = [one for one in (state.round, state.ended) if one is not None]
    for one in known:
        if seat in one.invited and one.number_of(seat) == number:
            return one
    return next((one for one in known if one.number == number), None)


def _at(state: Federation, number: int, step: Step) -> Round | None:
    present = state.round
    is_there = present is not None and present.number == number and present.step is step
    return present if is_there else None


# ---- sites --------------------------------------------------------------------------


def strangers_are_refused(
    state: Federation,
    item: i.Submit | i.Fail | i.Score | i.GiveKeys | i.GiveShares | i.GiveConsent | i.GiveAnswer,
    reply: Reply,
) -> bool:
    """Whoever is not on the roster or was not invited is told so, and nothing else."""
    known = _spoken_of(state, item.round, item.seat)
    is_invited = known is None or (
        item.seat in known.invited and known.number_of(item.seat) == item.round
    )
    is_known = item.seat in state.roster and is_invited
    return is_known or isinstance(reply, UnauthorizedClientError)


def updates_in_time_are_taken(state: Federation, item: i.Submit, reply: Reply) -> bool:
    """A site that is waited for can answer up to the deadline itself, and no later."""
    deadline_ms = awaited_until_ms(state, item.round, item.seat)
    if deadline_ms is None:
        return True
    made, terms = state.passing.get(item.seat), state.terms
    if item.now_ms <= deadline_ms and made is not None and terms is not None:
        is_old = state.current - made.version > terms.max_staleness
        return is_old and isinstance(reply, TooStaleError)
    return item.now_ms > deadline_ms and isinstance(reply, DeadlineExpiredError)


def the_same_update_again_is_fine(state: Federation, item: i.Submit, reply: Reply) -> bool:
    """A retry is answered like the first time, however late it comes."""
    return reply is None or _held(state, item.round, item.seat) != item.update


def another_update_is_refused(state: Federation, item: i.Submit, reply: Reply) -> bool:
    """A second update of the same site is refused, and the first one stands."""
    held = _held(state, item.round, item.seat)
    return held in (None, item.update) or isinstance(reply, AlreadySubmittedError)


def _held(state: Federation, number: int, seat: Seat) -> bytes | None:
    if seat not in state.roster:
        return None
    for made in (state.passing.get(seat), state.lapsed.get(seat)):
        if made is not None and made.round == number:
            return made.update
    known = _spoken_of(state, number, seat)
    is_meant = known is not None and known.number_of(seat) == number
    return known.submitted.get(seat) if known is not None and is_meant else None


def failures_are_heard(state: Federation, item: i.Fail) -> bool:
    """A site that is waited for and cannot go on is let go."""
    present = state.round
    if present is not None and item.seat in present.unheard:
        return present.number_of(item.seat) != item.round
    if is_exchanging(state, item.round, item.seat):
        return False
    return awaited_until_ms(state, item.round, item.seat) is None


def evaluations_in_time_are_taken(state: Federation, item: i.Score, reply: Reply) -> bool:
    """A member can evaluate the candidate up to the deadline itself, and no later."""
    present = state.round
    if present is None or item.seat not in present.unheard:
        return True
    if present.number_of(item.seat) != item.round:
        return True
    if item.now_ms > present.evaluate_by_ms:
        return isinstance(reply, DeadlineExpiredError)
    has_sense = item.model == present.model and item.samples > 0
    has_sense = has_sense and len(item.candidate) == len(item.base)
    return not has_sense and isinstance(reply, InvalidInputError)


def departures_are_heard(state: Federation, item: i.Dismiss) -> bool:
    """Whoever is on the roster can be revoked at any time."""
    return item.seat not in state.roster


# ---- duties and time ----------------------------------------------------------------


def the_first_seed_is_taken(state: Federation, item: i.Drawn, reply: Reply) -> bool:
    """The seed that a round waits for is taken, unless it has the wrong length."""
    return _at(state, item.round, Step.INITIALIZED) is None or reply is not None


def checks_are_heard(state: Federation, item: i.Checked) -> bool:
    """The result of a check that is owed is never ignored."""
    present = _at(state, item.round, Step.TRAINING)
    if present is None or item.seat not in present.unchecked:
        return True
    return present.submitted[item.seat] != item.update


def screens_are_heard(state: Federation, item: i.Screened, reply: Reply) -> bool:
    """A screen of the present members is ignored only if it is none: it excludes others,
    somebody twice, or for what no screen finds."""
    present = _at(state, item.round, Step.SCREENING)
    if present is None or item.count != len(present.members):
        return reply is None
    seats = [seat for seat, _ in item.excluded]
    is_of_members = set(seats) <= present.members.keys() and seats == sorted(set(seats))
    has_sense = is_of_members and {fault for _, fault in item.excluded} <= ANOMALIES
    return not has_sense and isinstance(reply, InvalidInputError)


def lost_sums_are_heard(state: Federation, item: i.NotSummed) -> bool:
    """That there is no sum over the present members is never ignored."""
    present = _at(state, item.round, Step.SUMMING)
    return present is None or item.count != len(present.members)


def verdicts_are_heard(state: Federation, item: i.Verdict) -> bool:
    """The verdict on the candidate is never ignored."""
    present = _at(state, item.round, Step.JUDGING)
    return present is None or item.model != present.model


def releases_are_heard(state: Federation, item: i.Released) -> bool:
    """The news that the accepted model can be fetched is never ignored."""
    present = _at(state, item.round, Step.RELEASING)
    return present is None or item.model != present.model


def time_is_heard(state: Federation, item: i.Tick) -> bool:
    """Once a deadline has passed, a tick is not without effect."""
    present, terms = state.round, state.terms
    if present is None or terms is None:
        return True
    if present.step is Step.SELECTING:
        return item.now_ms <= present.deadline_ms
    if present.step in (Step.KEYING, Step.SHARING, Step.UNMASKING):
        assert terms.masking is not None
        return item.now_ms <= max(present.deadline_ms, item.awake_ms + terms.masking.phase_ms)
    if present.step is Step.TRAINING:
        patience_ms = terms.grace_ms if present.unchecked else 0
        return item.now_ms <= present.deadline_ms + patience_ms
    return present.step is not Step.EVALUATING or item.now_ms <= present.evaluate_by_ms


def due_rounds_open(state: Federation, item: i.Tick) -> bool:
    """Between rounds, a tick that is due opens the next one, if enough sites are eligible."""
    if state.round is not None or state.terms is None:
        return True
    is_idle = state.is_held or state.finished is not None
    has_sites = len(eligible(state.roster, state.terms, item.now_ms)) >= state.terms.wait_for
    is_asked = state.asked > 0  # then the account has the word
    due_ms = max(state.next_due_ms, state.frees_ms)
    return is_idle or is_asked or not has_sites or item.now_ms < due_ms


def cancelling_is_heard(state: Federation, item: i.CancelRound, reply: Reply) -> bool:
    """The lead can cancel the open round at any step, and no other; twice is as once."""
    is_open = state.round is not None and state.round.number == item.round
    over = state.ended
    is_done = over is not None and over.number == item.round and over.reason is RoundEnd.CANCELLED
    return not is_open and (reply is None) is is_done


HEARD_RULES: dict[type[Any], tuple[HeardRule, ...]] = {
    i.Fail: (failures_are_heard,),
    i.Dismiss: (departures_are_heard,),
    i.Checked: (checks_are_heard,),
    i.NotSummed: (lost_sums_are_heard,),
    i.Verdict: (verdicts_are_heard,),
    i.Released: (releases_are_heard,),
    i.Tick: (time_is_heard, due_rounds_open),
}

REPLY_RULES: dict[type[Any], tuple[ReplyRule, ...]] = {
    i.Submit: (
        strangers_are_refused,
        updates_in_time_are_taken,
        the_same_update_again_is_fine,
        another_update_is_refused,
    ),
    i.Fail: (strangers_are_refused,),
    i.Score: (strangers_are_refused, evaluations_in_time_are_taken),
    i.GiveKeys: (strangers_are_refused,),
    i.GiveShares: (strangers_are_refused,),
    i.GiveConsent: (strangers_are_refused,),
    i.GiveAnswer: (strangers_are_refused,),
    i.Drawn: (the_first_seed_is_taken,),
    i.Screened: (screens_are_heard,),
    i.CancelRound: (cancelling_is_heard,),
}

"""Duties, derived from the state: what must be going on now, and for whom.

They are computed and never queued, so recovery is to fold the log and ask again. What is
open costs; what is over does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from consortium.core import duties as d
from consortium.core import verdict
from consortium.core.buffer import is_fresh
from consortium.core.ids import Seat, Seats
from consortium.core.state import Federation, Invitation, Payment, Round
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.errors import (
    FederationOverError,
    InsufficientParticipantsError,
    NoModelError,
    OnHoldError,
    Refusal,
    RoundOpenError,
)


def why_not_open(state: Federation) -> Refusal | None:
    if state.round is not None:
        return RoundOpenError(f"round {state.round.number} is open")
    if state.terms is None or not state.versions:
        return NoModelError("a round needs a plan and a model to start from")
    if state.finished is not None:
        return FederationOverError(f"the federation has finished: {state.finished.name}")
    if state.is_held:
        return OnHoldError("the federation is on hold")
    if len(state.roster) < state.terms.wait_for:
        return InsufficientParticipantsError(
            f"{len(state.roster)} sites have joined; a round needs {state.terms.wait_for}"
        )
    return None


def owed(state: Federation) -> tuple[d.Duty, ...]:
    """What the coordinator must be doing now. Costs what is open, not what ever was."""
    open_round, settling = state.round, _owe_settling(state)
    if open_round is None:
        return settling if why_not_open(state) else (*settling, _owe_opening(state))
    assert state.terms is not None
    return (*settling, *_OWED[open_round.step](state, state.terms, open_round))


def _owe_settling(state: Federation) -> tuple[d.Duty, ...]:
    """What accounts are yet to be told."""
    return tuple(
        d.Settle(state.id, number, account, payment is Payment.CHARGED)
        for number, (account, payment) in state.unsettled.items()
        if payment is not Payment.HELD
    )


def _owe_opening(state: Federation) -> d.Duty:
    """The next round: its costs, if they were asked for, else its time."""
    assert state.terms is not None
    if state.asked and state.terms.budget is not None:
        budget = state.terms.budget
        after = state.newest_paid.get(budget.account, 0)
        return d.Reserve(state.id, state.asked, budget, after)
    return d.WakeAt(state.due_ms)


def _owe_draw(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    return (d.Draw(open_round.number),)


def _owe_waiting(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    return (d.WakeAt(open_round.deadline_ms + 1),)


def _owe_checks(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    wake = d.WakeAt(open_round.deadline_ms + 1)
    if not open_round.unchecked:
        return (wake,)
    checks = tuple(
        d.Check(open_round.number, seat, open_round.submitted[seat], open_round.base_of(seat))
        for seat in open_round.unchecked
    )
    return (*checks, wake, d.WakeAt(open_round.deadline_ms + terms.grace_ms + 1))


def _owe_screen(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    ranks, submitted = open_round.invited, open_round.submitted
    updates = tuple(
        (seat, ranks[seat], submitted[seat])
        for seat in sorted(open_round.members, key=ranks.__getitem__)
    )
    return (d.Screen(open_round.number, len(updates), open_round.base, updates),)


def _owe_sum(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    ranks, submitted = open_round.invited, open_round.submitted
    in_order = sorted(open_round.members, key=ranks.__getitem__)
    single = [seat for seat in in_order if seat in submitted]
    updates = [(ranks[seat], submitted[seat]) for seat in single]
    ages = [open_round.staleness(seat) for seat in single] if terms.is_buffered else []
    partials = sorted(
        (min(ranks[seat] for seat in seats), weight, partial)
        for seats, weight, partial in open_round.partials
    )
    return (
        d.Aggregate(
            open_round.number,
            len(open_round.members),
            open_round.eligible,
            open_round.base,
            open_round.server_state,
            tuple(updates),
            tuple(partials),
            tuple(ages),
            terms.discount_ppm,
            _lifting(state, open_round, tuple(in_order)) if terms.is_masked else None,
        ),
    )


def _lifting(state: Federation, open_round: Round, members: Seats) -> d.Lifting:
    named = open_round.named
    return d.Lifting(
        state.id,
        open_round.seed,
        open_round.quorum,
        tuple((named[seat], keys) for seat, keys in open_round.keys.items()),
        tuple(named[seat] for seat in open_round.sharers),
        tuple(named[seat] for seat in members),
        tuple((named[seat], open_round.answers[seat]) for seat in open_round.lifters),
    )


def _owe_evaluation(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    return (d.WakeAt(open_round.evaluate_by_ms + 1),)


def _owe_verdict(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    assert open_round.model is not None
    _, candidate, base = verdict.means(open_round)
    return (
        d.Judge(
            open_round.number,
            open_round.model,
            open_round.evaluation_count,
            candidate,
            base,
            tuple(state.scores),
            terms,
        ),
    )


def _owe_release(state: Federation, terms: Terms, open_round: Round) -> tuple[d.Duty, ...]:
    assert open_round.model is not None
    return (d.Release(open_round.number, open_round.model),)


def owed_by(state: Federation, seat: Seat) -> d.SiteDuty | None:
    """What the site is asked for when it comes to ask: to train, to evaluate, or nothing."""
    open_round, made = state.round, state.passing.get(seat)
    if seat not in state.roster:
        return None
    if made is not None and made.update is None:  # it goes on between rounds
        return _train(state, seat, made) if is_fresh(state, made) else None
    if open_round is None:
        return None
    if open_round.step in _MASKED_STEPS:
        return _owed_under_masks(state, open_round, seat)
    if seat in open_round.waiting and _is_training(state, open_round):
        is_last = open_round.invited[seat] >= open_round.first_backup
        is_urgent = is_last and seat not in open_round.kept
        asked = _train(state, seat, open_round.invitation(seat), is_urgent=is_urgent)
        return replace(asked, sharing=open_round.sharing)
    if seat in open_round.unheard:
        assert open_round.model is not None
        return d.Evaluate(
            open_round.number_of(seat),
            seat,
            open_round.model,
            open_round.base,
            state.versions[open_round.version].round,
            open_round.evaluate_by_ms,
        )
    return None


_MASKED_STEPS = frozenset({Step.KEYING, Step.SHARING, Step.AGREEING, Step.UNMASKING})
_OF_MEMBERS = (Step.AGREEING, Step.UNMASKING)


def _owed_under_masks(state: Federation, open_round: Round, seat: Seat) -> d.SiteDuty | None:
    number, by_ms = open_round.number, open_round.deadline_ms
    if _has_given(open_round, seat):
        return None
    if open_round.step in _OF_MEMBERS:
        assert open_round.split is not None
        asks = d.Agree if open_round.step is Step.AGREEING else d.Unmask
        is_asked = seat in open_round.members
        return asks(number, seat, open_round.split, by_ms) if is_asked else None
    if seat not in open_round.waiting:
        return None
    if open_round.step is Step.SHARING:
        assert open_round.session is not None
        return d.Share(number, seat, open_round.session, by_ms)
    assert state.plan is not None and state.task is not None
    ground = open_round.base, open_round.server_state, state.plan, state.task
    return d.JoinSum(number, seat, *ground, by_ms)


def _has_given(open_round: Round, seat: Seat) -> bool:
    """Whether the site has answered the present step of a secret sum."""
    match open_round.step:
        case Step.KEYING:
            return seat in open_round.keys
        case Step.SHARING:
            return seat in open_round.shares
        case Step.AGREEING:
            return seat in open_round.consents
        case _:
            return seat in open_round.answers


def answered_in(open_round: Round) -> list[Seat]:
    """Who has given what the present step asks for."""
    if open_round.step not in _MASKED_STEPS:
        return list(open_round.submitted)
    return [seat for seat in open_round.invited if _has_given(open_round, seat)]


def awaited_in(open_round: Round) -> list[Seat]:
    """Who is waited for in the present step."""
    if open_round.step not in _MASKED_STEPS:
        return list(open_round.unheard or open_round.waiting)
    asked = open_round.members if open_round.step in _OF_MEMBERS else open_round.waiting
    return [seat for seat in asked if not _has_given(open_round, seat)]


def has_answered(state: Federation, seat: Seat) -> bool:
    """Whether nothing is asked of the site because it has given its answer."""
    open_round, made = state.round, state.passing.get(seat)
    if made is not None:
        return made.update is not None
    if open_round is not None and open_round.step in _MASKED_STEPS:
        return seat in open_round.invited and _has_given(open_round, seat)
    if open_round is None or seat not in open_round.invited or seat in open_round.waiting:
        return False
    is_asked_again = open_round.evaluate_by_ms > 0 and seat in open_round.members
    return seat in open_round.evaluations if is_asked_again else True


def _is_training(state: Federation, open_round: Round) -> bool:
    """Without a barrier, sites train whatever the open round does just now."""
    assert state.terms is not None
    return open_round.step is Step.TRAINING or state.terms.is_buffered


def _train(state: Federation, seat: Seat, made: Invitation, *, is_urgent: bool = False) -> d.Train:
    assert state.plan is not None and state.task is not None
    base = made.base, made.server_state
    return d.Train(made.round, seat, *base, state.plan, state.task, made.deadline_ms, is_urgent)


_OWED: dict[Step, Callable[[Federation, Terms, Round], tuple[d.Duty, ...]]] = {
    Step.INITIALIZED: _owe_draw,
    Step.SELECTING: _owe_waiting,
    Step.KEYING: _owe_waiting,
    Step.SHARING: _owe_waiting,
    Step.TRAINING: _owe_checks,
    Step.SCREENING: _owe_screen,
    Step.AGREEING: _owe_waiting,
    Step.UNMASKING: _owe_waiting,
    Step.SUMMING: _owe_sum,
    Step.EVALUATING: _owe_evaluation,
    Step.JUDGING: _owe_verdict,
    Step.RELEASING: _owe_release,
}

"""When a fact may be written: one rule for each kind, or a few, asked on every change.

A rule gets the change and the fact. Facts of one change are recorded together, so what a
rule reads of the round is how it stood before the change (`was`) or after (`became`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.selection import choose, invitation_size
from consortium.core.tables import Step
from consortium.core.terms import Close
from consortium.testing.rules import loud_among
from consortium.testing.transitions import (
    Change,
    awaited_until_ms,
    is_exchanging,
    ready_among,
    spares,
)

# Each rule takes the one kind of fact that FACT_RULES lists it under.
FactRule = Callable[[Change, Any], bool]

_CLOSED = (Step.SCREENING, Step.SUMMING)


# ---- opening and selection ----------------------------------------------------------


def a_round_starts_from_the_current_model(change: Change, fact: f.RoundOpened) -> bool:
    """The next round opens from the current version, when no other is open or held back."""
    before = change.before
    is_idle = before.round is None and before.finished is None and not before.is_held
    is_next = fact.round > before.last_number
    return is_idle and is_next and fact.base == before.versions[before.current].model


def the_seed_is_drawn_once(change: Change, fact: f.SelectionStarted) -> bool:
    """A round's seed is written while it has none, and is the one that was drawn."""
    is_drawn = isinstance(change.item, i.Drawn) and change.item.seed == fact.seed
    return is_drawn and change.was.step is Step.INITIALIZED and not change.was.seed


def the_invited_are_eligible(change: Change, fact: f.SitesInvited) -> bool:
    """The invited follow from the recorded seed and the eligible sites alone."""
    terms, seed = change.terms, change.became.seed
    free = sorted(spares(change))
    busy = change.was.kept.keys() & change.was.waiting.keys()
    pool = sorted({*free, *ready_among(change, change.was.invited)})
    target, count = invitation_size(terms, len(pool))
    if terms.is_buffered:
        count = max(0, target - len(busy))
    chosen = choose(terms, change.after.roster, free, count, seed)
    span_ms = terms.duration_ms if terms.masking is None else terms.masking.phase_ms
    is_in_time = fact.deadline_ms == change.item.now_ms + span_ms
    return len(pool) >= terms.wait_for and (chosen, target, is_in_time) == (
        fact.seats,
        fact.target,
        True,
    )


def backups_are_eligible(change: Change, fact: f.BackupsInvited) -> bool:
    """Backups are eligible sites that were not invited before."""
    return bool(fact.seats) and set(fact.seats) <= spares(change)


def a_deadline_moves_later(change: Change, fact: f.DeadlineExtended) -> bool:
    """An extension starts from the deadline, or from now if that has passed."""
    start_ms = max(change.was.deadline_ms, change.item.now_ms)
    return fact.deadline_ms == start_ms + change.terms.extension_ms > change.was.deadline_ms


# ---- updates ------------------------------------------------------------------------


def an_update_is_received_in_time(change: Change, fact: f.UpdateReceived) -> bool:
    """An update is recorded up to the deadline in force, from a site that is waited for."""
    item, before = change.item, change.before
    is_sent = isinstance(item, i.Submit) and item.update == fact.update
    deadline_ms = awaited_until_ms(before, fact.round, fact.seat)
    is_due = deadline_ms is not None and fact.at_ms <= deadline_ms
    return is_sent and is_due and fact.seat in before.roster


def the_kept_can_still_count(change: Change, fact: f.InvitationsKept) -> bool:
    """A round keeps every invitation that is passing, whose model is not too old, and that was
    answered or still can be; and no other."""
    before, most = change.before, change.terms.max_staleness
    expected = [
        seat
        for seat, made in before.passing.items()
        if before.current - made.version <= most
        and (made.update is not None or fact.at_ms <= made.deadline_ms)
    ]
    is_whole = tuple(sorted(expected)) == fact.seats
    return is_whole and change.after.round is not None and not change.after.passing


def an_update_passed_its_checks(change: Change, fact: f.UpdateAccepted) -> bool:
    """An update is accepted when the checks of these very bytes found no fault."""
    item = change.item
    if not isinstance(item, i.Checked) or item.fault is not None or item.norm != fact.norm:
        return False
    return _is_checked(change, item)


def an_update_failed_its_checks(change: Change, fact: f.UpdateRejected) -> bool:
    """An update is rejected for the fault that the checks of these very bytes found."""
    item = change.item
    return isinstance(item, i.Checked) and item.fault is fact.fault and _is_checked(change, item)


def _is_checked(change: Change, item: i.Checked) -> bool:
    is_waiting = item.seat in change.was.unchecked
    return is_waiting and change.was.submitted[item.seat] == item.update


def who_is_excluded_stands_out(change: Change, fact: f.UpdateExcluded) -> bool:
    """An update is excluded at closing, when it is far larger than the median of the round,
    or by the screen of all members, for the reason that it gave."""
    item, was = change.item, change.was
    if was.step is Step.SCREENING:
        is_told = isinstance(item, i.Screened) and (fact.seat, fact.fault) in item.excluded
        return is_told and fact.seat in was.members and fact.fault in f.ANOMALIES
    norms = {**change.was.accepted, **_newly(change)}
    for seat in change.names(f.SiteDeparted):
        norms.pop(seat, None)
    is_closing = any(isinstance(other, f.RoundClosed) for other in change.facts)
    is_loud = fact.seat in loud_among(norms, change.terms.norm_factor)
    return is_closing and is_loud and fact.fault is f.Fault.MAGNITUDE


def nobody_is_excluded_twice(change: Change, fact: f.UpdateExcluded) -> bool:
    """An update is excluded once; whoever fell before keeps the first reason."""
    seats = [other.seat for other in change.facts if isinstance(other, f.UpdateExcluded)]
    return seats.count(fact.seat) == 1 and fact.seat not in change.was.fallen


def _newly(change: Change) -> dict[Any, float | None]:
    return {fact.seat: fact.norm for fact in change.facts if isinstance(fact, f.UpdateAccepted)}


def who_drops_out_was_awaited(change: Change, fact: f.SiteDropped) -> bool:
    """A site drops out of what is still expected of it: its keys, its update, its evaluation."""
    was = change.before.round
    if is_exchanging(change.before, fact.round, fact.seat):
        return True
    is_unheard = was is not None and fact.seat in was.unheard
    is_unheard = is_unheard and was is not None and was.number_of(fact.seat) == fact.round
    return is_unheard or awaited_until_ms(change.before, fact.round, fact.seat) is not None


# ---- closing ------------------------------------------------------------------------


def members_are_all_that_count(change: Change, fact: f.RoundClosed) -> bool:
    """The members are the accepted without the loud, in order: nobody missing, none extra."""
    norms = {**change.was.accepted, **_newly(change)}
    gone = change.names(f.SiteDeparted)
    kept = {seat: norm for seat, norm in norms.items() if seat not in gone}
    loud = loud_among(kept, change.terms.norm_factor)
    return fact.members == tuple(sorted(kept.keys() - loud)) and all(
        seat in change.after.roster for seat in fact.members
    )


def a_closing_is_due(change: Change, fact: f.RoundClosed) -> bool:
    """A round closes when it has enough, or all have answered, or its time is over."""
    became, terms = change.became, change.terms
    if len(fact.members) < became.quorum:
        return False
    if terms.close is Close.QUORUM or len(fact.members) >= (terms.buffer or became.target):
        return True
    if not became.waiting and not became.unchecked:
        return True
    grace_ms = terms.grace_ms if became.unchecked else 0
    return change.item.now_ms > change.was.deadline_ms + grace_ms


def a_failure_has_its_reason(change: Change, fact: f.RoundFailed) -> bool:
    """A round fails for the reason that is true: no time, no sites, no sum, or the lead."""
    item, was, became = change.item, change.was, change.became
    match fact.reason:
        case f.RoundEnd.CANCELLED:
            return isinstance(item, i.CancelRound) and item.round == was.number
        case f.RoundEnd.NO_ELIGIBLE_SITES:
            free, coming = spares(change), len(was.waiting) + len(was.unchecked)
            is_short = len({*free, *ready_among(change, was.invited)}) < change.terms.wait_for
            is_thin = change.terms.is_buffered and coming + len(free) < was.quorum
            return was.step is Step.SELECTING and change.is_late and (is_short or is_thin)
        case f.RoundEnd.MEMBER_REVOKED if change.terms.is_masked:
            is_closed = was.step in (Step.AGREEING, Step.UNMASKING, Step.SUMMING)
            return is_closed and bool(was.members.keys() & change.names(f.SiteDeparted))
        case f.RoundEnd.NO_QUORUM if was.step in (Step.KEYING, Step.SHARING):
            return _is_exchange_short(change)
        case f.RoundEnd.NOT_AGREED:
            is_short = 3 * len(was.consents) < 2 * len(was.keys)
            return was.step is Step.AGREEING and change.is_late and is_short
        case f.RoundEnd.NOT_ANSWERED:
            is_short = 3 * len(was.answers) < 2 * len(was.keys)
            return was.step is Step.UNMASKING and change.is_late and is_short
        case f.RoundEnd.MEMBER_REVOKED:
            left = was.members.keys() - change.names(f.SiteDeparted)
            return was.step in _CLOSED and len(left) < was.quorum
        case f.RoundEnd.NO_QUORUM if was.step is Step.SCREENING:
            return _is_screened(change) and len(became.members) < was.quorum
        case f.RoundEnd.NO_QUORUM:
            count = len(became.accepted) - len(
                loud_among(became.accepted, change.terms.norm_factor)
            )
            is_lost = count + len(became.waiting) + len(became.unchecked) < was.quorum
            is_over = change.is_late and was.extensions >= change.terms.max_extensions
            return was.step is Step.TRAINING and count < was.quorum and (is_lost or is_over)
    return isinstance(item, i.NotSummed) and item.count == len(was.members)


def _is_exchange_short(change: Change) -> bool:
    """Too few gave keys or shares in time, or are left that could."""
    was, became = change.was, change.became
    given = was.keys if was.step is Step.KEYING else was.shares
    left = was.waiting.keys() - change.names(f.SiteDeparted, f.SiteDropped)
    if len(left) < was.quorum:
        return became.reason is f.RoundEnd.NO_QUORUM
    return change.is_late and len(given.keys() & left) < was.quorum


# ---- from the screen to the end -----------------------------------------------------


def a_screen_is_of_the_members(change: Change, fact: f.UpdatesScreened) -> bool:
    """A screen is taken once, of exactly the present members; all but those that it excludes
    are left, and they are a quorum."""
    item, was, became = change.item, change.was, change.became
    out = {seat for seat, _ in item.excluded} if isinstance(item, i.Screened) else set()
    is_whole = became.members.keys() == was.members.keys() - out
    is_counted = fact.count_left == len(became.members) >= was.quorum
    return _is_screened(change) and is_whole and is_counted


def _is_screened(change: Change) -> bool:
    item, was = change.item, change.was
    is_told = isinstance(item, i.Screened) and item.count == len(was.members)
    return is_told and was.step is Step.SCREENING


def a_member_is_removed_by_departure(change: Change, fact: f.MemberRemoved) -> bool:
    """A member leaves the sum only by leaving the roster, while there is no sum yet."""
    is_gone = fact.seat in change.names(f.SiteDeparted)
    return change.was.step in _CLOSED and is_gone and fact.seat not in change.became.members


def the_sum_is_over_the_members(change: Change, fact: f.Aggregated) -> bool:
    """A sum is taken once, over exactly the present members, all of them on the roster."""
    item, was = change.item, change.was
    is_told = isinstance(item, i.Summed) and item.model == fact.model
    is_whole = fact.count == len(was.members) == getattr(item, "count", -1)
    is_present = all(seat in change.before.roster for seat in was.members)
    return is_told and is_whole and is_present and was.step is Step.SUMMING and was.model is None


def an_evaluation_is_of_the_candidate(change: Change, fact: f.Evaluated) -> bool:
    """An evaluation comes in time, from a member yet unheard, and is of the candidate."""
    item, was = change.item, change.was
    is_told = isinstance(item, i.Score) and item.model == was.model
    is_due = was.step is Step.EVALUATING and fact.at_ms <= was.evaluate_by_ms
    return is_told and is_due and fact.seat in was.members and fact.seat in was.unheard


def an_evaluation_is_waited_for(change: Change, fact: f.EvaluationClosed) -> bool:
    """The evaluation closes when all were heard or its time is over, and counts right."""
    was, became = change.was, change.became
    answered = change.names(f.Evaluated, f.SiteDropped, f.SiteDeparted)
    is_heard = was.unheard.keys() <= answered
    is_over = was.step is Step.EVALUATING and fact.at_ms > was.evaluate_by_ms
    is_skipped = was.step is Step.SUMMING and not change.terms.has_evaluation
    is_due = is_over or is_skipped or (is_heard and was.step is Step.EVALUATING)
    return is_due and fact.evaluations == len(became.evaluations)


def a_verdict_has_its_evidence(change: Change, fact: f.Judged) -> bool:
    """The gate judges the candidate once, by the means over all that was evaluated."""
    item, was = change.item, change.was
    if not isinstance(item, i.Verdict) or item.model != was.model or item.outcome != fact.outcome:
        return False
    samples = sum(one.samples for one in was.evaluations.values())
    sums = zip(*(one.candidate for one in was.evaluations.values()), strict=True)
    means = [sum(column) / samples for column in sums]
    is_right = all(map(math.isclose, means, fact.candidate)) and len(means) == len(fact.candidate)
    return was.step is Step.JUDGING and samples == fact.samples and is_right


def what_is_published_was_accepted(change: Change, fact: f.ModelPublished) -> bool:
    """A model is published once released, if that very candidate was judged ACCEPTED."""
    item, was = change.item, change.was
    is_told = isinstance(item, i.Released) and item.model == fact.model == was.model
    is_accepted = was.judged is not None and was.judged.outcome is f.Outcome.ACCEPTED
    return is_told and is_accepted and was.step is Step.RELEASING


def a_version_is_one_more(change: Change, fact: f.ModelPublished) -> bool:
    """A published model is the next version, and the current one from then on."""
    is_next = fact.version == max(change.before.versions) + 1
    return is_next and change.after.current == fact.version


def a_round_completes_with_its_verdict(change: Change, fact: f.RoundCompleted) -> bool:
    """A round completes once: published if accepted, unpublished if kept or unjudged."""
    judged = change.became.judged
    is_published = any(isinstance(other, f.ModelPublished) for other in change.facts)
    is_accepted = fact.outcome is f.Outcome.ACCEPTED
    is_true = judged is not None and judged.outcome is fact.outcome
    return is_true and is_published == is_accepted


def a_federation_finishes_in_time(change: Change, fact: f.FederationFinished) -> bool:
    """The federation finishes with its last round, when the lead stops it, or when nothing is
    left to pay with."""
    if isinstance(change.item, i.Denied):
        return change.item.frees_ms is None and fact.reason is f.Finish.BUDGET_SPENT
    if isinstance(change.item, i.Stop):
        return change.before.round is None and fact.reason is f.Finish.STOPPED
    is_last = change.was.number >= change.terms.rounds
    return change.after.round is None and (is_last or fact.reason is not f.Finish.ROUNDS_DONE)


FACT_RULES: dict[type[Any], tuple[FactRule, ...]] = {
    f.RoundOpened: (a_round_starts_from_the_current_model,),
    f.SelectionStarted: (the_seed_is_drawn_once,),
    f.SitesInvited: (the_invited_are_eligible,),
    f.BackupsInvited: (backups_are_eligible,),
    f.DeadlineExtended: (a_deadline_moves_later,),
    f.InvitationsKept: (the_kept_can_still_count,),
    f.UpdateReceived: (an_update_is_received_in_time,),
    f.UpdateAccepted: (an_update_passed_its_checks,),
    f.UpdateRejected: (an_update_failed_its_checks,),
    f.UpdateExcluded: (who_is_excluded_stands_out, nobody_is_excluded_twice),
    f.SiteDropped: (who_drops_out_was_awaited,),
    f.RoundClosed: (members_are_all_that_count, a_closing_is_due),
    f.UpdatesScreened: (a_screen_is_of_the_members,),
    f.MemberRemoved: (a_member_is_removed_by_departure,),
    f.Aggregated: (the_sum_is_over_the_members,),
    f.Evaluated: (an_evaluation_is_of_the_candidate,),
    f.EvaluationClosed: (an_evaluation_is_waited_for,),
    f.Judged: (a_verdict_has_its_evidence,),
    f.ModelPublished: (what_is_published_was_accepted, a_version_is_one_more),
    f.RoundCompleted: (a_round_completes_with_its_verdict,),
    f.RoundFailed: (a_failure_has_its_reason,),
    f.FederationFinished: (a_federation_finishes_in_time,),
}

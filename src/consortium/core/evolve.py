"""Bookkeeping: what each fact does to the state. The only code that replay runs.

House rules: no rule lives here, so that next year's rules never reinterpret last year's
log. One small function a fact; the machines' moves come from `tables`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from consortium.core import facts as f
from consortium.core import secagg_evolve
from consortium.core.ids import Seats
from consortium.core.names import split_name
from consortium.core.roster import Member
from consortium.core.state import Federation, Payment, Round, Sums, Version
from consortium.core.tables import FEDERATION, Phase, Step, round_moves
from consortium.core.terms import Budget, Terms


def evolve(state: Federation, fact: f.Fact) -> None:
    """Record `fact`. `fact` must be legal in `state`: `decide` made it, or a verifier asked
    `is_legal` first."""
    kind = type(fact)
    open_round = state.round
    if open_round is not None:
        move = open_round.step, kind
        open_round.step = round_moves(_terms(state)).get(move, open_round.step)
    _RECORD[kind](state, fact)
    state.standing = FEDERATION.get((state.standing, kind), state.standing)


def replay(facts: list[f.Fact]) -> Federation:
    """The state that a log folds into."""
    state = Federation()
    for fact in facts:
        evolve(state, fact)
    return state


# ---- the federation -----------------------------------------------------------------


def _founded(state: Federation, fact: f.FederationFounded) -> None:
    state.id = fact.federation


def _plan_adopted(state: Federation, fact: f.PlanAdopted) -> None:
    _ask_no_more(state)  # another plan may cost less
    state.plan, state.task, state.layout = fact.plan, fact.task, fact.layout
    state.terms = fact.terms
    state.finished = None
    _start_afresh(state)  # another plan may be judged by another metric


def _buffering_adopted(state: Federation, fact: f.BufferingAdopted) -> None:
    parts = fact.buffer, fact.max_staleness, fact.discount_ppm
    state.terms = _terms(state).buffered(*parts)


def _scoring_adopted(state: Federation, fact: f.ScoringAdopted) -> None:
    state.terms = replace(_terms(state), has_scored_sums=True)


def _budget_adopted(state: Federation, fact: f.BudgetAdopted) -> None:
    budget = Budget(fact.account, fact.unit, fact.costs, fact.is_spent_at_sites)
    state.terms = replace(_terms(state), budget=budget)


def _budget_asked(state: Federation, fact: f.BudgetAsked) -> None:
    state.asked = state.named = fact.round


def _budget_reserved(state: Federation, fact: f.BudgetReserved) -> None:
    budget = _terms(state).budget
    assert budget is not None, "costs, and no budget was adopted"
    state.asked, state.frees_ms = 0, 0
    state.positions[budget.account] = fact.position
    state.newest_paid[budget.account] = fact.round
    state.unsettled[fact.round] = budget.account, Payment.HELD


def _budget_refused(state: Federation, fact: f.BudgetRefused) -> None:
    state.asked = 0
    if fact.frees_ms is not None:
        state.frees_ms = fact.frees_ms


def _budget_charged(state: Federation, fact: f.BudgetCharged) -> None:
    account, _ = state.unsettled[fact.round]
    state.unsettled[fact.round] = account, Payment.CHARGED


def _budget_settled(state: Federation, fact: f.BudgetSettled) -> None:
    del state.unsettled[fact.round]


def _ask_no_more(state: Federation) -> None:
    """A round that an account was asked to pay for, and that will not open: its costs go back,
    and no other round has its number. Whoever asks for it still, or has just heard the answer, is
    late, and cannot be mistaken for somebody who asks by the next plan, at another price."""
    budget = None if state.terms is None else state.terms.budget
    if budget is not None and state.named >= state.next_number:
        state.unsettled[state.named] = budget.account, Payment.RETURNED
        state.voided = state.named
    state.asked, state.frees_ms = 0, 0


def _model_installed(state: Federation, fact: f.ModelInstalled) -> None:
    state.versions[fact.version] = Version(fact.model, None, 0)
    state.current = fact.version
    _start_afresh(state)


def _site_admitted(state: Federation, fact: f.SiteAdmitted) -> None:
    roster = state.roster
    roster.members[fact.seat] = Member(fact.site, fact.key, fact.at_ms)
    roster.seat_of[fact.site] = fact.seat
    roster.next_seat = fact.seat + 1


def _cohort_admitted(state: Federation, fact: f.CohortAdmitted) -> None:
    roster = state.roster
    roster.next_seat = fact.first + fact.count
    roster.cohorts.append((fact.first, roster.next_seat))
    roster.cohort_size += fact.count


def _site_reported(state: Federation, fact: f.SiteReported) -> None:
    old = state.roster.members[fact.seat]
    state.roster.members[fact.seat] = Member(old.site, old.key, fact.at_ms, fact.report)


def _site_departed(state: Federation, fact: f.SiteDeparted) -> None:
    member = state.roster.members.pop(fact.seat)
    del state.roster.seat_of[member.site]
    state.passing.pop(fact.seat, None)
    state.lapsed.pop(fact.seat, None)
    open_round = state.round
    if open_round is None:
        return
    # Without a barrier it is in the buffer, or awaited, in any step.
    is_out = fact.seat in open_round.waiting or fact.seat in open_round.unchecked
    if open_round.step.phase is Phase.TRAINING or (is_out and _terms(state).is_buffered):
        open_round.fall(fact.seat, f.Failure.REVOKED)
    elif open_round.step is Step.EVALUATING:  # later, the gate's evidence is closed
        open_round.unheard.pop(fact.seat, None)
        open_round.evaluations.pop(fact.seat, None)


def _rolled_back(state: Federation, fact: f.RolledBack) -> None:
    state.current = fact.version
    _start_afresh(state)  # the versions that were withdrawn are no measure any more


def _held(state: Federation, fact: f.FederationHeld) -> None:
    state.is_held = True


def _resumed(state: Federation, fact: f.FederationResumed) -> None:
    state.is_held = False


def _finished(state: Federation, fact: f.FederationFinished) -> None:
    state.finished = fact.reason
    _ask_no_more(state)
    _withdraw(state)


def _log_key_adopted(state: Federation, fact: f.LogKeyAdopted) -> None:
    state.log_keys.append(fact.key)


# ---- a round: from its opening to its closing ---------------------------------------


def _opened(state: Federation, fact: f.RoundOpened) -> None:
    state.round = Round(
        number=fact.round,
        version=fact.version,
        base=fact.base,
        server_state=fact.server_state,
        quorum=fact.quorum,
        target=fact.target,
        opened_ms=fact.at_ms,
        deadline_ms=fact.deadline_ms,
    )
    state.last_number = fact.round
    state.next_due_ms = fact.at_ms + _terms(state).every_ms


def _selection_started(state: Federation, fact: f.SelectionStarted) -> None:
    _open(state).seed = fact.seed


def _kept(state: Federation, fact: f.InvitationsKept) -> None:
    """Ranks go by the seat, whatever the order in which the last round left them."""
    open_round = _open(state)
    for seat in fact.seats:
        made = open_round.kept[seat] = state.passing.pop(seat)
        open_round.invited[seat] = len(open_round.invited)
        if made.update is None:
            open_round.waiting[seat] = None
        else:
            open_round.submitted[seat] = made.update
            open_round.unchecked[seat] = None
    _withdraw(state)


def _invited(state: Federation, fact: f.SitesInvited) -> None:
    open_round = _open(state)
    open_round.target, open_round.deadline_ms = fact.target, fact.deadline_ms
    _invite(state, fact.seats)
    open_round.first_backup = len(open_round.invited)
    open_round.eligible = fact.eligible


def _backups_invited(state: Federation, fact: f.BackupsInvited) -> None:
    _invite(state, fact.seats)
    _open(state).backup_calls += 1


def _invite(state: Federation, seats: Seats) -> None:
    open_round = _open(state)
    for rank, seat in enumerate(seats, start=len(open_round.invited)):
        open_round.invited[seat] = rank
        open_round.waiting[seat] = None


def _extended(state: Federation, fact: f.DeadlineExtended) -> None:
    open_round = _open(state)
    open_round.deadline_ms = fact.deadline_ms
    open_round.extensions += 1


def _received(state: Federation, fact: f.UpdateReceived) -> None:
    open_round = state.round
    if open_round is None:
        state.passing[fact.seat] = replace(state.passing[fact.seat], update=fact.update)
        return
    del open_round.waiting[fact.seat]
    open_round.submitted[fact.seat] = fact.update
    open_round.unchecked[fact.seat] = None


def _accepted(state: Federation, fact: f.UpdateAccepted) -> None:
    open_round = _open(state)
    del open_round.unchecked[fact.seat]
    open_round.accepted[fact.seat] = fact.norm
    if fact.norm is not None:
        insort(open_round.norms, fact.norm)


def _cohort_trained(state: Federation, fact: f.CohortTrained) -> None:
    open_round = _open(state)
    for seat in fact.seats:
        del open_round.waiting[seat]
    open_round.accepted.update(dict.fromkeys(fact.seats))
    open_round.partials.append((fact.seats, fact.weight, fact.partial))


def _rejected(state: Federation, fact: f.UpdateRejected) -> None:
    _open(state).fall(fact.seat, fact.fault)


def _excluded(state: Federation, fact: f.UpdateExcluded) -> None:
    open_round = _open(state)
    open_round.members.pop(fact.seat, None)  # before the closing there are none
    open_round.fall(fact.seat, fact.fault)


def _dropped(state: Federation, fact: f.SiteDropped) -> None:
    open_round = state.round
    if open_round is None:
        state.lapsed[fact.seat] = state.passing.pop(fact.seat)
    elif fact.seat in open_round.unheard:  # it cannot evaluate; its update is counted all the same
        del open_round.unheard[fact.seat]
    else:
        open_round.fall(fact.seat, fact.failure)


def _closed(state: Federation, fact: f.RoundClosed) -> None:
    open_round, masking = _open(state), _terms(state).masking
    open_round.members = dict.fromkeys(fact.members)
    if masking is not None:
        open_round.closed, open_round.split = fact, split_name(fact)
        open_round.deadline_ms = fact.at_ms + masking.phase_ms
    counts = state.roster.taken_part
    for seat in fact.members:
        counts[seat] = counts.get(seat, 0) + 1


# ---- a round: from the sum to its end -----------------------------------------------


def _member_removed(state: Federation, fact: f.MemberRemoved) -> None:
    open_round = _open(state)
    del open_round.members[fact.seat]
    open_round.fall(fact.seat, f.Failure.REVOKED)


def _screened(state: Federation, fact: f.UpdatesScreened) -> None:
    """Who is out, the exclusions say; the step is in the table."""


def _base_scored(state: Federation, fact: f.BaseScored) -> None:
    terms, means = _terms(state), fact.means
    _open(state).scored = fact
    if means:
        state.stale_rounds = 0 if fact.is_improvement else state.stale_rounds + 1
    if means and fact.is_improvement:
        state.best_score = means[terms.metric_index(terms.judged_by)]


def _aggregated(state: Federation, fact: f.Aggregated) -> None:
    open_round = _open(state)
    open_round.model, open_round.model_state = fact.model, fact.server_state
    open_round.evaluate_by_ms = fact.evaluate_by_ms
    if fact.evaluate_by_ms:
        open_round.unheard = {seat: None for seat in open_round.members if seat in state.roster}


def _evaluated(state: Federation, fact: f.Evaluated) -> None:
    open_round = _open(state)
    del open_round.unheard[fact.seat]
    open_round.evaluations[fact.seat] = fact


def _cohort_evaluated(state: Federation, fact: f.CohortEvaluated) -> None:
    open_round = _open(state)
    for seat in fact.seats:
        del open_round.unheard[seat]
    open_round.cohort_evaluations.append(Sums(fact.seats, fact.samples, fact.candidate, fact.base))


def _evaluation_closed(state: Federation, fact: f.EvaluationClosed) -> None:
    _open(state).unheard.clear()


def _judged(state: Federation, fact: f.Judged) -> None:
    _open(state).judged = fact
    has_scores = not _terms(state).has_scored_sums  # else they were of the base, and are noted
    if has_scores and fact.outcome is not f.Outcome.UNJUDGED:
        state.stale_rounds = 0 if fact.is_improvement else state.stale_rounds + 1


def _published(state: Federation, fact: f.ModelPublished) -> None:
    open_round, terms = _open(state), _terms(state)
    state.versions[fact.version] = Version(fact.model, fact.server_state, fact.round)
    state.current = fact.version
    judged = open_round.judged
    if judged is not None and judged.candidate:
        score = judged.candidate[terms.metric_index(terms.judged_by)]
        state.scores = [*state.scores, score][-terms.gate_window :]
        if judged.is_improvement:
            state.best_score = score


def _completed(state: Federation, fact: f.RoundCompleted) -> None:
    _end(state)


def _failed(state: Federation, fact: f.RoundFailed) -> None:
    open_round = _open(state)
    open_round.reason = fact.reason
    account, payment = state.unsettled.get(fact.round, ("", None))
    if payment is Payment.HELD:
        state.unsettled[fact.round] = account, Payment.RETURNED
    retry_ms = fact.at_ms + _terms(state).retry_ms
    if fact.reason is f.RoundEnd.CANCELLED:  # on purpose: the cadence stands
        retry_ms = max(retry_ms, state.next_due_ms)
    state.next_due_ms = retry_ms
    _end(state)


def _end(state: Federation) -> None:
    """The round is over. Without a barrier, who was not in its sum passes on."""
    over = _open(state)
    state.round, state.ended = None, over
    if not _terms(state).is_buffered:
        return
    is_closed = bool(over.members)  # then whoever is accepted was taken out of the buffer
    left = [*over.waiting, *over.unchecked, *(() if is_closed else over.accepted)]
    state.passing = {seat: over.invitation(seat) for seat in left if seat in state.roster}


def _start_afresh(state: Federation) -> None:
    """Forget the scores that the gate and patience compare with, and whom the last model or
    plan was given to."""
    state.scores, state.best_score, state.stale_rounds = [], None, 0
    _withdraw(state)


def _withdraw(state: Federation) -> None:
    """No round keeps the invitations that are passing."""
    state.lapsed.update(state.passing)
    state.passing = {}


def _open(state: Federation) -> Round:
    assert state.round is not None, "a fact about a round, and none is open"
    return state.round


def _terms(state: Federation) -> Terms:
    assert state.terms is not None, "a round, and no plan was adopted"
    return state.terms


_RECORD: dict[type[Any], Callable[[Federation, Any], None]] = {
    f.FederationFounded: _founded,
    f.PlanAdopted: _plan_adopted,
    f.ModelInstalled: _model_installed,
    f.SiteAdmitted: _site_admitted,
    f.CohortAdmitted: _cohort_admitted,
    f.SiteReported: _site_reported,
    f.SiteDeparted: _site_departed,
    f.RolledBack: _rolled_back,
    f.FederationHeld: _held,
    f.FederationResumed: _resumed,
    f.FederationFinished: _finished,
    f.LogKeyAdopted: _log_key_adopted,
    f.BufferingAdopted: _buffering_adopted,
    f.ScoringAdopted: _scoring_adopted,
    f.BudgetAdopted: _budget_adopted,
    f.BudgetAsked: _budget_asked,
    f.BudgetReserved: _budget_reserved,
    f.BudgetRefused: _budget_refused,
    f.BudgetCharged: _budget_charged,
    f.BudgetSettled: _budget_settled,
    f.RoundOpened: _opened,
    f.SelectionStarted: _selection_started,
    f.SitesInvited: _invited,
    f.BackupsInvited: _backups_invited,
    f.DeadlineExtended: _extended,
    f.UpdateReceived: _received,
    f.UpdateAccepted: _accepted,
    f.UpdateRejected: _rejected,
    f.UpdateExcluded: _excluded,
    f.SiteDropped: _dropped,
    f.CohortTrained: _cohort_trained,
    f.RoundClosed: _closed,
    f.MemberRemoved: _member_removed,
    f.BaseScored: _base_scored,
    f.Aggregated: _aggregated,
    f.Evaluated: _evaluated,
    f.CohortEvaluated: _cohort_evaluated,
    f.EvaluationClosed: _evaluation_closed,
    f.Judged: _judged,
    f.ModelPublished: _published,
    f.RoundCompleted: _completed,
    f.RoundFailed: _failed,
    f.UpdatesScreened: _screened,
    f.InvitationsKept: _kept,
    **secagg_evolve.RECORD,
}

"""Whether a fact can stand where it stands: what a verifier asks of every fact in a log.

These are not the rules by which facts are made: those may become stricter, and last
year's log stays legal. They say what any honest version could have written, so that a
forged, cut or shuffled log is told from a true one, and `evolve` never meets a fact that
it cannot record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from consortium.core import facts as f
from consortium.core import secagg_legal as masked
from consortium.core.ids import Seat
from consortium.core.state import Federation, Payment, Round
from consortium.core.tables import FEDERATION, Phase, Step, round_moves
from consortium.core.terms import Budget
from consortium.core.verdict import improves, means

_ANY_TIME = frozenset(
    {
        f.SiteAdmitted,
        f.CohortAdmitted,
        f.SiteReported,
        f.SiteDeparted,
        f.FederationHeld,
        f.FederationResumed,
        f.LogKeyAdopted,
        f.BudgetCharged,
        f.BudgetSettled,
    }
)


def is_legal(state: Federation, fact: f.Fact) -> bool:
    """Whether `fact` can follow the facts that `state` was folded from."""
    return why_illegal(state, fact) is None


def why_illegal(state: Federation, fact: f.Fact) -> str | None:
    """What is wrong with `fact` here, in a few words; None when it is legal."""
    kind = type(fact)
    if not state.id and kind is not f.FederationFounded:
        return "the federation has not been founded"
    if kind in _ROUND_CHECKS:
        open_round, terms = state.round, state.terms
        if isinstance(fact, _Passing) and _is_between_rounds(state, fact):
            return None
        if open_round is None or terms is None or not _speaks_of(open_round, fact):
            return "it speaks of a round that is not open"
        if (open_round.step, kind) not in round_moves(terms):
            return f"it cannot happen while the round is {open_round.step.name}"
        return None if _ROUND_CHECKS[kind](state, open_round, fact) else "it does not fit the round"
    if kind not in _ANY_TIME and (state.standing, kind) not in FEDERATION:
        return f"it cannot happen while the federation is {state.standing.name}"
    return None if _FEDERATION_CHECKS[kind](state, fact) else "it does not fit the federation"


# What a site sends names the round that made its invitation; all else names the open one.
_Sent = f.UpdateReceived | f.SiteDropped | f.Evaluated
_Passing = f.UpdateReceived | f.SiteDropped


def _speaks_of(open_round: Round, fact: Any) -> bool:
    """Whether a round's fact is about the open round."""
    if isinstance(fact, _Sent):
        return open_round.number_of(fact.seat) == fact.round
    return bool(open_round.number == fact.round)


def _is_between_rounds(state: Federation, fact: _Passing) -> bool:
    """Whether a site answers an invitation that has outlived its round, while none is open."""
    made = state.passing.get(fact.seat)
    if state.round is not None or made is None or made.update is not None:
        return False
    is_late = isinstance(fact, f.UpdateReceived) and fact.at_ms > made.deadline_ms
    return made.round == fact.round and not is_late


# ---- the federation -----------------------------------------------------------------


def _next_version(state: Federation) -> int:
    return max(state.versions) + 1 if state.versions else 0


def _opened(state: Federation, fact: f.RoundOpened) -> bool:
    base = state.versions.get(state.current)
    return (
        base is not None
        and state.terms is not None
        and fact.round == state.next_number
        and (fact.version, fact.base) == (state.current, base.model)
        and fact.server_state == base.server_state
        and fact.quorum == state.terms.quorum
        and (state.terms.budget is None or _payment(state, fact.round) is Payment.HELD)
    )


def _budget(state: Federation) -> Budget | None:
    return None if state.terms is None else state.terms.budget


def _payment(state: Federation, number: int) -> Payment | None:
    """What became of a round's costs; None: there are none, or the account knows."""
    return state.unsettled.get(number, ("", None))[1]


def _budget_adopted(state: Federation, fact: f.BudgetAdopted) -> bool:
    """Once a plan."""
    terms = state.terms
    if terms is None or terms.budget is not None:
        return False
    budget = Budget(fact.account, fact.unit, fact.costs, fact.is_spent_at_sites)
    return replace(terms, budget=budget).are_sound()


def _reserved(state: Federation, fact: f.BudgetReserved) -> bool:
    """By an account that was asked, and that has not become shorter since the last time."""
    budget = _budget(state)
    if budget is None or not 0 < fact.round == state.asked:
        return False
    return fact.position > state.positions.get(budget.account, 0)


def _charged(state: Federation, fact: f.BudgetCharged) -> bool:
    """Once a round, as soon as sites are invited or the round has closed."""
    budget, open_round = _budget(state), state.round
    if budget is None or open_round is None:
        return False
    is_at_sites = budget.is_spent_at_sites
    is_due = bool(open_round.invited) if is_at_sites else bool(open_round.members)
    is_held = _payment(state, fact.round) is Payment.HELD
    return is_due and is_held and open_round.number == fact.round


def _buffering_adopted(state: Federation, fact: f.BufferingAdopted) -> bool:
    """Once a plan, and the plan's other terms allow it."""
    terms = state.terms
    if terms is None or terms.is_buffered or not fact.buffer:
        return False
    return terms.buffered(fact.buffer, fact.max_staleness, fact.discount_ppm).are_sound()


def _scoring_adopted(state: Federation, fact: f.ScoringAdopted) -> bool:
    """Once a plan, and the plan's other terms allow it."""
    terms = state.terms
    if terms is None or terms.has_scored_sums:
        return False
    return replace(terms, has_scored_sums=True).are_sound()


_FEDERATION_CHECKS: dict[type[Any], Callable[[Federation, Any], bool]] = {
    f.FederationFounded: lambda state, fact: not state.id and bool(fact.federation),
    f.PlanAdopted: lambda state, fact: bool(state.id) and fact.terms.are_sound(),
    f.ModelInstalled: lambda state, fact: fact.version == _next_version(state),
    f.SiteAdmitted: lambda state, fact: (
        fact.seat == state.roster.next_seat and fact.site not in state.roster.seat_of
    ),
    f.CohortAdmitted: lambda state, fact: fact.first == state.roster.next_seat and fact.count > 0,
    f.SiteReported: lambda state, fact: fact.seat in state.roster.members,
    f.SiteDeparted: lambda state, fact: fact.seat in state.roster.members,
    f.RolledBack: lambda state, fact: fact.version in state.versions,
    f.FederationHeld: lambda state, fact: not state.is_held,
    f.FederationResumed: lambda state, fact: state.is_held,
    f.FederationFinished: lambda state, fact: True,
    f.LogKeyAdopted: lambda state, fact: fact.key not in state.log_keys,
    f.BufferingAdopted: _buffering_adopted,
    f.ScoringAdopted: _scoring_adopted,
    f.MaskingAdopted: masked.adopted,
    f.BudgetAdopted: _budget_adopted,
    f.BudgetAsked: lambda state, fact: (
        _budget(state) is not None and not state.asked and fact.round == state.next_number
    ),
    f.BudgetReserved: _reserved,
    f.BudgetRefused: lambda state, fact: state.asked == fact.round and fact.round > 0,
    f.BudgetCharged: _charged,
    f.BudgetSettled: lambda state, fact: (
        _payment(state, fact.round) in (Payment.CHARGED, Payment.RETURNED)
    ),
    f.RoundOpened: _opened,
}


# ---- a round ------------------------------------------------------------------------


def _is_unpaid_at_sites(state: Federation, number: int) -> bool:
    """Whether a site has spent what was not charged. `number` is that of the round that it was
    invited to, which may have been an earlier one."""
    budget = _budget(state)
    is_held = _payment(state, number) is Payment.HELD
    return budget is not None and budget.is_spent_at_sites and is_held


def _are_invitable(state: Federation, open_round: Round, seats: tuple[Seat, ...]) -> bool:
    return all(seat in state.roster and seat not in open_round.invited for seat in seats)


def _invited(state: Federation, open_round: Round, fact: f.SitesInvited) -> bool:
    """Somebody; or nobody, where others go on from the round before."""
    is_somebody = bool(fact.seats) or bool(open_round.waiting or open_round.unchecked)
    return is_somebody and _are_invitable(state, open_round, fact.seats) and fact.target > 0


def _kept(state: Federation, open_round: Round, fact: f.InvitationsKept) -> bool:
    """Invitations that are passing, not too old, and answered or not yet late."""
    terms, passing = state.terms, state.passing
    assert terms is not None
    return all(
        seat in passing
        and open_round.version - passing[seat].version <= terms.max_staleness
        and (passing[seat].update is not None or fact.at_ms <= passing[seat].deadline_ms)
        for seat in fact.seats
    )


def _dropped(state: Federation, open_round: Round, fact: f.SiteDropped) -> bool:
    return fact.seat in open_round.unheard or (
        fact.seat in open_round.waiting and _is_training(state, open_round)
    )


def _is_training(state: Federation, open_round: Round) -> bool:
    """Without a barrier, sites train and answer in every step."""
    is_buffered = state.terms is not None and state.terms.is_buffered
    return is_buffered or open_round.step.phase is Phase.TRAINING


def _excluded(state: Federation, open_round: Round, fact: f.UpdateExcluded) -> bool:
    """Before the closing for a fault of its own, after it for one that the screen finds."""
    is_screening = open_round.step is Step.SCREENING
    pool = open_round.members if is_screening else open_round.accepted
    return fact.seat in pool and (fact.fault in f.ANOMALIES) is is_screening


def _cohort_trained(state: Federation, open_round: Round, fact: f.CohortTrained) -> bool:
    """Simulated sites that are waited for; a screen would not see them one by one, nor would
    each be scaled by its own staleness."""
    terms = state.terms
    return (
        bool(fact.seats)
        and terms is not None
        and not (terms.is_screened or terms.is_buffered)
        and all(
            seat in open_round.waiting and state.roster.is_simulated(seat) for seat in fact.seats
        )
    )


def _screened(state: Federation, open_round: Round, fact: f.UpdatesScreened) -> bool:
    """Those that are left are a quorum, and still there."""
    return fact.count_left == len(open_round.members) >= open_round.quorum and all(
        seat in state.roster for seat in open_round.members
    )


def _closed(state: Federation, open_round: Round, fact: f.RoundClosed) -> bool:
    """All that were accepted and no others, and never fewer than the quorum."""
    return (
        set(fact.members) == open_round.accepted.keys()
        and len(fact.members) >= open_round.quorum
        and all(seat in state.roster for seat in fact.members)
    )


def _base_scored(state: Federation, open_round: Round, fact: f.BaseScored) -> bool:
    """Once a sum, of the round's own base, if the plan asks for it. Better is what is better."""
    terms = state.terms
    assert terms is not None
    found = fact.means if len(fact.sums) == len(terms.metrics) else ()
    return (
        terms.has_scored_sums
        and open_round.scored is None
        and fact.version == open_round.version
        and len(fact.sums) == len(terms.metrics)
        and fact.is_improvement == (bool(found) and improves(state, terms, found))
    )


def _aggregated(state: Federation, open_round: Round, fact: f.Aggregated) -> bool:
    """Over the members as they are; costs are spent, and the sum's scores told, before."""
    terms = state.terms
    assert terms is not None
    return (
        fact.count == len(open_round.members)
        and all(seat in state.roster for seat in open_round.members)
        and _payment(state, open_round.number) is not Payment.HELD
        and (open_round.scored is not None) is terms.has_scored_sums
    )


def _judged(state: Federation, open_round: Round, fact: f.Judged) -> bool:
    """The evidence is what the members reported. Better is what is better."""
    terms = state.terms
    assert terms is not None
    is_better = fact.outcome is f.Outcome.ACCEPTED and improves(state, terms, fact.candidate)
    evidence = fact.samples, fact.candidate, fact.base
    return evidence == means(open_round) and fact.is_improvement is is_better


def _published(state: Federation, open_round: Round, fact: f.ModelPublished) -> bool:
    judged = open_round.judged
    return (
        judged is not None
        and judged.outcome is f.Outcome.ACCEPTED
        and (fact.model, fact.server_state) == (open_round.model, open_round.model_state)
        and fact.version == _next_version(state)
    )


def _completed(state: Federation, open_round: Round, fact: f.RoundCompleted) -> bool:
    judged = open_round.judged
    published = state.versions[max(state.versions)].round == open_round.number
    is_accepted = fact.outcome is f.Outcome.ACCEPTED
    return judged is not None and judged.outcome is fact.outcome and published is is_accepted


_ROUND_CHECKS: dict[type[Any], Callable[[Federation, Round, Any], bool]] = {
    f.SelectionStarted: lambda state, open_round, fact: not state.passing,
    f.SitesInvited: _invited,
    f.BackupsInvited: lambda state, open_round, fact: (
        bool(fact.seats) and _are_invitable(state, open_round, fact.seats)
    ),
    f.InvitationsKept: _kept,
    f.DeadlineExtended: lambda state, open_round, fact: (
        fact.deadline_ms > open_round.deadline_ms
        and state.terms is not None
        and open_round.extensions < state.terms.max_extensions
    ),
    f.UpdateReceived: lambda state, open_round, fact: (
        fact.seat in open_round.waiting
        and not _is_unpaid_at_sites(state, fact.round)
        and fact.at_ms <= open_round.invitation(fact.seat).deadline_ms
    ),
    f.UpdateAccepted: lambda state, open_round, fact: fact.seat in open_round.unchecked,
    f.UpdateRejected: lambda state, open_round, fact: fact.seat in open_round.unchecked,
    f.UpdateExcluded: _excluded,
    f.SiteDropped: _dropped,
    f.CohortTrained: _cohort_trained,
    f.RoundClosed: _closed,
    f.MemberRemoved: lambda state, open_round, fact: (
        fact.seat in open_round.members and fact.seat not in state.roster
    ),
    f.BaseScored: _base_scored,
    f.Aggregated: _aggregated,
    f.Evaluated: lambda state, open_round, fact: (
        fact.seat in open_round.unheard and fact.at_ms <= open_round.evaluate_by_ms
    ),
    f.CohortEvaluated: lambda state, open_round, fact: (
        bool(fact.seats) and all(seat in open_round.unheard for seat in fact.seats)
    ),
    f.EvaluationClosed: lambda state, open_round, fact: (
        fact.evaluations == open_round.evaluation_count
    ),
    f.Judged: _judged,
    f.ModelPublished: _published,
    f.RoundCompleted: _completed,
    f.RoundFailed: lambda state, open_round, fact: True,
    f.UpdatesScreened: _screened,
    **masked.CHECKS,
}

"""The federation: the three functions that everything else calls.

    decide(state, input) -> facts    the rules; changes nothing; may refuse
    evolve(state, fact)  -> None     bookkeeping; the only code that replay runs
    owed(state)          -> duties   what the coordinator must be doing now
    owed_by(state, seat) -> duty     what one site is asked for now

Who calls them must make the facts durable before anything that follows from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from consortium.core import budget, buffer, secagg, verdict
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import round as rounds
from consortium.core.ending import Facts, fail
from consortium.core.evolve import evolve, replay
from consortium.core.ids import Seat, is_plain_id
from consortium.core.legal import is_legal
from consortium.core.owing import owed, owed_by, why_not_open
from consortium.core.roster import (
    MAX_COHORT,
    MAX_REPORT,
    SEEN_GRAIN_MS,
    eligible,
    encoded_report,
    is_reportable,
)
from consortium.core.state import Federation
from consortium.core.tables import Standing, Step
from consortium.core.terms import Terms
from consortium.errors import (
    InvalidInputError,
    NoModelError,
    RoundOpenError,
    UnauthorizedClientError,
    UnknownVersionError,
    WrongPhaseError,
)

__all__ = ["decide", "evolve", "is_legal", "owed", "owed_by", "replay"]


LOG_KEY_BYTES = 32
MAX_KEY_BYTES = 1024


def decide(state: Federation, item: i.Input) -> Facts:
    """The facts that `item` brings about, or a `Refusal`. `state` is left as it was."""
    if not state.id and type(item) is not i.Found:
        raise WrongPhaseError("found the federation first")
    rule = _FEDERATION_RULES.get(type(item))
    if rule is not None:
        return rule(state, item)
    if state.terms is None:
        raise NoModelError("no plan has been adopted")
    return _ROUND_RULES[type(item)](state, state.terms, item)


# ---- the lead's and the administrator's requests ------------------------------------


def _found(state: Federation, item: i.Found) -> Facts:
    if not is_plain_id(item.federation):
        raise InvalidInputError("a federation's id is 1 to 64 letters, digits and dashes")
    if state.id == item.federation:
        return ()
    if state.id:
        raise WrongPhaseError("this stream already belongs to a federation")
    return (f.FederationFounded(item.federation, item.now_ms),)


def _adopt(state: Federation, item: i.AdoptPlan) -> Facts:
    if (state.plan, state.task, state.layout, state.terms) == (
        item.plan,
        item.task,
        item.layout,
        item.terms,
    ):
        return ()
    _between_rounds(state)
    if not item.terms.are_sound():
        raise InvalidInputError("the plan's terms name a metric or a quorum that cannot be")
    used = max(state.last_number, state.named)
    if item.terms.rounds <= used:
        raise WrongPhaseError(
            f"the plan is for {item.terms.rounds} rounds, and {used} have been run",
            hint="rounds counts from the federation's first round",
        )
    if state.versions and item.layout != state.layout:
        raise WrongPhaseError("the plan's task has another layout than the model")
    if state.versions and state.terms is not None and state.terms.is_masked > item.terms.is_masked:
        raise WrongPhaseError(
            "the sums of this federation are secret, and this plan would show every update",
            hint="keep [security] secure_aggregation = true, or found another federation",
        )
    terms, told = item.terms, item.terms.as_adopted()
    facts: list[f.Fact] = [f.PlanAdopted(item.plan, item.task, item.layout, told, item.now_ms)]
    if terms.is_buffered:
        parts = terms.buffer, terms.max_staleness, terms.discount_ppm
        facts.append(f.BufferingAdopted(*parts, item.now_ms))
    if terms.has_scored_sums:
        facts.append(f.ScoringAdopted(item.now_ms))
    if terms.masking is not None:
        facts.append(f.MaskingAdopted(terms.masking.phase_ms, item.now_ms))
    if terms.budget is not None:
        paid = terms.budget
        costs = paid.costs, paid.is_spent_at_sites
        facts.append(f.BudgetAdopted(paid.account, paid.unit, *costs, item.now_ms))
    return tuple(facts)


def _install(state: Federation, item: i.InstallModel) -> Facts:
    present = state.versions.get(state.current)
    if present is not None and present.model == item.model:
        return ()
    _between_rounds(state)
    if state.standing not in (Standing.PLANNED, Standing.READY):
        raise WrongPhaseError("a model is installed once a plan has been adopted")
    version = max(state.versions) + 1 if state.versions else 0
    return (f.ModelInstalled(version, item.model, item.now_ms),)


def _admit(state: Federation, item: i.Admit) -> Facts:
    seat = state.roster.seat_of.get(item.site)
    if seat is not None:
        if state.roster.members[seat].key == item.key:
            return ()
        raise UnauthorizedClientError("another key is on record for this site")
    if not is_plain_id(item.site) or len(item.key) > MAX_KEY_BYTES:
        raise InvalidInputError("a site's id is 1 to 64 letters, digits and dashes")
    admitted = f.SiteAdmitted(Seat(state.roster.next_seat), item.site, item.key, item.now_ms)
    return (admitted, *_look_again(state, admitted))


def _admit_cohort(state: Federation, item: i.AdmitCohort) -> Facts:
    if item.count < 1 or state.roster.cohort_size + item.count > MAX_COHORT:
        raise InvalidInputError(f"simulated sites number from 1 to {MAX_COHORT}")
    admitted = f.CohortAdmitted(Seat(state.roster.next_seat), item.count, item.now_ms)
    return (admitted, *_look_again(state, admitted))


def _look_again(
    state: Federation, news: f.SiteAdmitted | f.CohortAdmitted | f.SiteReported
) -> Facts:
    """A round that waits for eligible sites may have them now."""
    if state.round is None or state.round.step is not Step.SELECTING:
        return ()
    ahead = replace(state, roster=state.roster.clone())  # the news is about the roster alone
    evolve(ahead, news)
    assert ahead.terms is not None and ahead.round is not None
    return rounds.select(ahead, ahead.terms, ahead.round, news.at_ms)


def _dismiss(state: Federation, item: i.Dismiss) -> Facts:
    """A site is revoked or leaves; an open round goes on without it."""
    if item.seat not in state.roster.members:
        if 0 < item.seat < state.roster.next_seat and not state.roster.is_simulated(item.seat):
            return ()
        raise UnauthorizedClientError("this site is not on the roster")
    departed = f.SiteDeparted(item.seat, item.departure, item.now_ms)
    return (departed, *_after_departure(state, item.seat, item.now_ms))


_AFTER_THE_SPLIT = (Step.AGREEING, Step.UNMASKING, Step.SUMMING)


def _after_departure(state: Federation, seat: Seat, now_ms: int) -> Facts:
    open_round, terms = state.round, state.terms
    if open_round is None or terms is None:
        return ()
    if open_round.step in (Step.KEYING, Step.SHARING):
        return secagg.lose(terms, open_round, seat, now_ms)
    if open_round.step is Step.TRAINING:
        return rounds.depart(state, terms, seat, now_ms)
    if terms.is_masked and open_round.step in _AFTER_THE_SPLIT:
        return secagg.depart_member(terms, open_round, seat, now_ms)
    if open_round.step in (Step.SCREENING, Step.SUMMING):
        return verdict.remove_member(open_round, terms, seat, now_ms)
    if open_round.step is Step.EVALUATING:
        return verdict.depart_evaluator(open_round, seat, now_ms)
    return ()


def _roll_back(state: Federation, item: i.RollBack) -> Facts:
    if item.version not in state.versions:
        raise UnknownVersionError(f"there is no model version {item.version}")
    if item.version == state.current:
        return ()
    _between_rounds(state)
    return (f.RolledBack(item.version, item.now_ms),)


def _hold(state: Federation, item: i.Hold) -> Facts:
    return () if state.is_held else (f.FederationHeld(item.now_ms),)


def _resume(state: Federation, item: i.Resume) -> Facts:
    return (f.FederationResumed(item.now_ms),) if state.is_held else ()


def _stop(state: Federation, item: i.Stop) -> Facts:
    _between_rounds(state)
    if state.finished is not None:
        return ()
    if state.standing is not Standing.READY:
        raise WrongPhaseError("the federation has not begun")
    return (f.FederationFinished(f.Finish.STOPPED, item.now_ms),)


def _adopt_log_key(state: Federation, item: i.AdoptLogKey) -> Facts:
    if item.key in state.log_keys[-1:]:
        return ()
    if len(item.key) != LOG_KEY_BYTES or item.key in state.log_keys:
        raise InvalidInputError(f"a log key has {LOG_KEY_BYTES} bytes, and is never used again")
    return (f.LogKeyAdopted(item.key, item.now_ms),)


def _between_rounds(state: Federation) -> None:
    if state.round is not None:
        raise RoundOpenError(f"round {state.round.number} is open")


# ---- time, reports and the opening of rounds ----------------------------------------


def _report(state: Federation, item: i.Report) -> Facts:
    """A site tells what it has. Written down when it is news, or an hour after the last."""
    member = state.roster.members.get(item.seat)
    if member is None:
        raise UnauthorizedClientError("this site is not on the roster")
    names = [name for name, _ in item.report]
    if names != sorted(set(names)):
        raise InvalidInputError("a report names each thing once, in sorted order")
    if len(names) > MAX_REPORT or not all(map(is_reportable, item.report)):
        raise InvalidInputError(
            f"a report has at most {MAX_REPORT} entries: short names with a truth value, a "
            "finite number or a short text"
        )
    is_news = encoded_report(item.report) != encoded_report(member.report)
    if not is_news and item.now_ms - member.seen_ms < SEEN_GRAIN_MS:
        return ()
    reported = f.SiteReported(item.seat, item.report, item.now_ms)
    return (reported, *_look_again(state, reported))


def _tick(state: Federation, item: i.Tick) -> Facts:
    """Time has passed: open what is due, close what is late."""
    open_round, terms = state.round, state.terms
    if terms is None:
        return ()
    if open_round is None:
        if item.now_ms < state.due_ms or why_not_open(state) is not None:
            return ()
        # A round that nobody could be invited to would only use up the plan.
        has_sites = len(eligible(state.roster, terms, item.now_ms)) >= terms.wait_for
        return _open_or_ask(state, item.now_ms) if has_sites else ()
    if open_round.step is Step.SELECTING:
        return rounds.select(state, terms, open_round, item.now_ms)
    if open_round.step in (Step.KEYING, Step.SHARING, Step.AGREEING, Step.UNMASKING):
        return secagg.tick(terms, open_round, item)
    if open_round.step is Step.TRAINING:
        return rounds.tick(state, terms, open_round, item)
    if open_round.step is Step.EVALUATING:
        return verdict.tick_evaluation(open_round, item.now_ms)
    return ()


def _open_round(state: Federation, item: i.OpenRound) -> Facts:
    """The lead asks for a round now, whatever the cadence."""
    refusal = why_not_open(state)
    if refusal is not None:
        raise refusal
    budget.refuse_early(state, item.now_ms)
    return _open_or_ask(state, item.now_ms)


def _open_or_ask(state: Federation, now_ms: int) -> Facts:
    """Open a round, or ask the account that it is paid from."""
    assert state.terms is not None
    is_paid = state.terms.budget is None
    return _opening(state, now_ms) if is_paid else budget.ask(state, now_ms)


def _granted(state: Federation, item: i.Granted) -> Facts:
    """The costs are held ready: the round opens in the same commit."""
    if why_not_open(state) is not None:
        return ()
    reserved = budget.granted(state, item)
    return (*reserved, *_opening(state, item.now_ms)) if reserved else ()


def _opening(state: Federation, now_ms: int) -> Facts:
    terms = state.terms
    assert terms is not None
    base = state.versions[state.current]
    opened = f.RoundOpened(
        state.next_number,
        state.current,
        base.model,
        base.server_state,
        terms.quorum,
        terms.target,
        now_ms + terms.duration_ms,
        now_ms,
    )
    return (opened, *buffer.keep(state, now_ms))


def _cancel(state: Federation, terms: Terms, item: i.CancelRound) -> Facts:
    ended = state.ended
    if ended is not None and (ended.number, ended.reason) == (item.round, f.RoundEnd.CANCELLED):
        return ()
    if state.round is None or state.round.number != item.round:
        raise WrongPhaseError(f"round {item.round} is not open")
    return fail(state.round, terms, f.RoundEnd.CANCELLED, item.now_ms)


def _fail(state: Federation, terms: Terms, item: i.Fail) -> Facts:
    asked = state.round
    is_asked = asked is not None and asked.has_invited(item.seat, item.round)
    if asked is not None and is_asked and item.seat in asked.unheard:
        return verdict.drop_evaluator(asked, item)
    is_exchanging = asked is not None and asked.step in (Step.KEYING, Step.SHARING)
    if asked is not None and is_asked and is_exchanging and item.seat in asked.waiting:
        return secagg.drop(terms, asked, item)
    return rounds.drop(state, terms, item)


_FEDERATION_RULES: dict[type[Any], Callable[[Federation, Any], Facts]] = {
    i.Found: _found,
    i.AdoptPlan: _adopt,
    i.InstallModel: _install,
    i.Admit: _admit,
    i.AdmitCohort: _admit_cohort,
    i.Dismiss: _dismiss,
    i.OpenRound: _open_round,
    i.RollBack: _roll_back,
    i.Hold: _hold,
    i.Resume: _resume,
    i.Stop: _stop,
    i.AdoptLogKey: _adopt_log_key,
    i.Report: _report,
    i.Tick: _tick,
    i.Granted: _granted,
    i.Denied: budget.denied,
    i.AccountTold: budget.told,
}

_ROUND_RULES: dict[type[Any], Callable[[Federation, Terms, Any], Facts]] = {
    i.CancelRound: _cancel,
    i.Drawn: rounds.draw,
    i.Submit: rounds.submit,
    i.Checked: rounds.check,
    i.Fail: _fail,
    i.GiveKeys: secagg.give_keys,
    i.GiveShares: secagg.give_shares,
    i.GiveConsent: secagg.give_consent,
    i.GiveAnswer: secagg.give_answer,
    i.TrainedCohort: rounds.train_cohort,
    i.Screened: verdict.screened,
    i.Summed: verdict.summed,
    i.NotSummed: verdict.not_summed,
    i.Score: verdict.score,
    i.ScoredCohort: verdict.score_cohort,
    i.Verdict: verdict.judge,
    i.Released: verdict.release,
}

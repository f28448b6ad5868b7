"""The rules of a round from its closing to its end: the screen, one sum, evaluation by the
members, the gate's verdict, publication, and whether the federation is done."""

from __future__ import annotations

import math
from dataclasses import replace

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.ending import Facts, fail, finish
from consortium.core.ids import Seat
from consortium.core.round import invited_round
from consortium.core.state import Federation, Round, Sums
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    InvalidInputError,
    UnauthorizedClientError,
)

# So that no number of members can make the totals overflow, which would leave a verdict
# that can be neither computed nor written down.
_MAX_SAMPLES = 10**12
_MAX_SUM = 1e300


def at_step(state: Federation, number: int, step: Step) -> Round | None:
    """The open round if it is this one and stands at `step`; None means old news."""
    open_round = state.round
    if open_round is None or open_round.number != number or open_round.step is not step:
        return None
    return open_round


# ---- the screen ---------------------------------------------------------------------


def screened(state: Federation, terms: Terms, item: i.Screened) -> Facts:
    """The members' updates were compared. The first screen of the present members stands;
    without a quorum of them left, there is nothing to sum."""
    open_round = at_step(state, item.round, Step.SCREENING)
    if open_round is None or item.count != len(open_round.members):
        return ()
    _check_excluded(open_round, item.excluded)
    excluded = [
        f.UpdateExcluded(item.round, seat, fault, item.now_ms) for seat, fault in item.excluded
    ]
    left = item.count - len(excluded)
    if left < open_round.quorum:
        return (*excluded, *fail(open_round, terms, f.RoundEnd.NO_QUORUM, item.now_ms))
    return (*excluded, f.UpdatesScreened(item.round, left, item.now_ms))


def _check_excluded(open_round: Round, excluded: tuple[tuple[Seat, f.Fault], ...]) -> None:
    seats = [seat for seat, _ in excluded]
    if seats != sorted(set(seats)) or not all(seat in open_round.members for seat in seats):
        raise InvalidInputError("a screen names members of the round, each once, in sorted order")
    if not all(fault in f.ANOMALIES for _, fault in excluded):
        raise InvalidInputError("a screen excludes for what it takes the others to tell")


# ---- the sum ------------------------------------------------------------------------


def summed(state: Federation, terms: Terms, item: i.Summed) -> Facts:
    """The candidate exists. The first sum over the present members stands."""
    open_round = at_step(state, item.round, Step.SUMMING)
    if open_round is None or item.count != len(open_round.members):
        return ()
    scored = _scored(state, terms, open_round, item)
    by_ms = item.now_ms + terms.evaluation_ms if terms.has_evaluation else 0
    aggregated = f.Aggregated(
        item.round, item.count, item.model, item.server_state, by_ms, item.now_ms
    )
    if terms.has_evaluation:
        return (aggregated,)
    return (*scored, aggregated, f.EvaluationClosed(item.round, 0, item.now_ms))


def _scored(state: Federation, terms: Terms, open_round: Round, item: i.Summed) -> Facts:
    """What the sum says of the model that the round began from, where the plan asks for it. That
    it is known one round after its publication is the price of seeing no single site's."""
    if not terms.has_scored_sums:
        if item.samples or item.scores:
            raise InvalidInputError("the plan asks for no scores in its sums")
        return ()
    _check_scores(terms, item)
    sums = item.scores
    found = f.BaseScored(item.round, open_round.version, item.samples, sums, False, item.now_ms)
    is_better = bool(found.means) and improves(state, terms, found.means)
    return (replace(found, is_improvement=is_better),)


def _check_scores(terms: Terms, item: i.Summed) -> None:
    if not 0 <= item.samples <= _MAX_SAMPLES or len(item.scores) != len(terms.metrics):
        raise InvalidInputError(f"a sum has scores of {len(terms.metrics)} metrics")
    if not all(abs(value) <= _MAX_SUM for value in item.scores):
        raise InvalidInputError("a sum has a score that is not finite, or too large")


def not_summed(state: Federation, terms: Terms, item: i.NotSummed) -> Facts:
    open_round = at_step(state, item.round, Step.SUMMING)
    if open_round is None or item.count != len(open_round.members):
        return ()
    return fail(open_round, terms, item.reason, item.now_ms)


def remove_member(open_round: Round, terms: Terms, seat: Seat, now_ms: int) -> Facts:
    """A member is revoked between closing and the sum: its update must not be in it. A
    screen that compared it with the others has to be made again."""
    if seat not in open_round.members:
        return ()
    if len(open_round.members) - 1 < open_round.quorum:
        return fail(open_round, terms, f.RoundEnd.MEMBER_REVOKED, now_ms)
    return (f.MemberRemoved(open_round.number, seat, now_ms),)


# ---- evaluation by the members ------------------------------------------------------


def score(state: Federation, terms: Terms, item: i.Score) -> Facts:
    """A member has tried candidate and base on its own test data."""
    asked = invited_round(state, item.round, item.seat)
    if item.seat not in asked.members:
        raise UnauthorizedClientError("only members of the round evaluate it")
    held = asked.evaluations.get(item.seat)
    if held is not None:
        if (held.samples, held.candidate, held.base) == (item.samples, item.candidate, item.base):
            return ()
        raise AlreadySubmittedError("this site has already evaluated the round")
    is_open = asked.step is Step.EVALUATING and item.seat in asked.unheard
    if not is_open or item.now_ms > asked.evaluate_by_ms:
        raise DeadlineExpiredError(f"round {item.round} takes no more evaluations")
    if item.model != asked.model:
        raise InvalidInputError("the evaluation is of another model")
    _check_sums(terms, item.samples, item.candidate, item.base)
    evaluated = f.Evaluated(
        item.round,
        item.seat,
        item.samples,
        item.candidate,
        item.base,
        item.envelope,
        item.now_ms,
    )
    return (evaluated, *_close_evaluation(asked, item.now_ms, heard=1, answered=1))


def score_cohort(state: Federation, terms: Terms, item: i.ScoredCohort) -> Facts:
    open_round = at_step(state, item.round, Step.EVALUATING)
    if open_round is None or item.model != open_round.model:
        return ()
    if not item.seats or not all(seat in open_round.unheard for seat in item.seats):
        return ()
    _check_sums(terms, item.samples, item.candidate, item.base)
    evaluated = f.CohortEvaluated(
        item.round, item.seats, item.samples, item.candidate, item.base, item.now_ms
    )
    count = len(item.seats)
    return (evaluated, *_close_evaluation(open_round, item.now_ms, heard=count, answered=count))


def drop_evaluator(open_round: Round, item: i.Fail) -> Facts:
    """A member that is asked for it cannot evaluate; its update is counted all the same."""
    dropped = f.SiteDropped(item.round, item.seat, item.failure, item.envelope, item.now_ms)
    return (dropped, *_close_evaluation(open_round, item.now_ms, answered=1))


def depart_evaluator(open_round: Round, seat: Seat, now_ms: int) -> Facts:
    """A member leaves the roster while the round is EVALUATING."""
    if seat in open_round.unheard:
        return _close_evaluation(open_round, now_ms, answered=1)
    return ()  # it is no member, or has answered: others are still waited for


def tick_evaluation(open_round: Round, now_ms: int) -> Facts:
    """While EVALUATING: give up waiting at the evaluation's own deadline."""
    if now_ms <= open_round.evaluate_by_ms:
        return ()
    return (f.EvaluationClosed(open_round.number, open_round.evaluation_count, now_ms),)


def _close_evaluation(
    open_round: Round, now_ms: int, *, heard: int = 0, answered: int = 0
) -> Facts:
    """Close when nobody is left to wait for, once this answer is recorded."""
    if len(open_round.unheard) > answered:
        return ()
    count = open_round.evaluation_count + heard
    return (f.EvaluationClosed(open_round.number, count, now_ms),)


def _check_sums(
    terms: Terms, samples: int, candidate: tuple[float, ...], base: tuple[float, ...]
) -> None:
    if not 1 <= samples <= _MAX_SAMPLES:
        raise InvalidInputError("an evaluation is over one sample at least, and not so many")
    if len(candidate) != len(terms.metrics) or len(base) != len(terms.metrics):
        raise InvalidInputError(f"an evaluation has {len(terms.metrics)} metrics")
    if not all(abs(value) <= _MAX_SUM for value in (*candidate, *base)):
        raise InvalidInputError("an evaluation has a sum that is not finite, or too large")


# ---- the verdict and the end --------------------------------------------------------


def means(open_round: Round) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """(samples, means of the candidate, means of the base) over everybody's test data.

    `fsum` is exact, so the means do not depend on the order in which members answered.
    """
    answers: list[f.Evaluated | Sums] = [
        *open_round.evaluations.values(),
        *open_round.cohort_evaluations,
    ]
    samples = sum(answer.samples for answer in answers)
    candidate = _columns([answer.candidate for answer in answers], samples)
    return samples, candidate, _columns([answer.base for answer in answers], samples)


def _columns(rows: list[tuple[float, ...]], samples: int) -> tuple[float, ...]:
    return tuple(math.fsum(column) / samples for column in zip(*rows, strict=True))


def judge(state: Federation, terms: Terms, item: i.Verdict) -> Facts:
    """The gate has spoken. Kept and unjudged candidates end the round here."""
    open_round = at_step(state, item.round, Step.JUDGING)
    if open_round is None or item.model != open_round.model:
        return ()
    samples, candidate, base = means(open_round)
    is_accepted = item.outcome is f.Outcome.ACCEPTED
    judged = f.Judged(
        item.round,
        item.outcome,
        samples,
        candidate,
        base,
        is_accepted and improves(state, terms, candidate),
        item.now_ms,
    )
    if is_accepted:
        return (judged,)
    completed = f.RoundCompleted(item.round, item.outcome, item.now_ms)
    stale_rounds = state.stale_rounds + (item.outcome is f.Outcome.KEPT)
    return (judged, completed, *finish(terms, item.round, item.now_ms, stale_rounds))


def release(state: Federation, terms: Terms, item: i.Released) -> Facts:
    """The model can be fetched: publish it and end the round."""
    open_round = at_step(state, item.round, Step.RELEASING)
    if open_round is None or item.model != open_round.model:
        return ()
    version = max(state.versions) + 1
    published = f.ModelPublished(
        item.round, version, item.model, open_round.model_state, item.now_ms
    )
    completed = f.RoundCompleted(item.round, f.Outcome.ACCEPTED, item.now_ms)
    ended = finish(terms, item.round, item.now_ms, state.stale_rounds, _newest_means(open_round))
    return (published, completed, *ended)


def _newest_means(open_round: Round) -> tuple[float, ...]:
    """Of the candidate that is published now, or, where scores come with sums, of its base."""
    judged, scored = open_round.judged, open_round.scored
    assert judged is not None, "published, and the gate has not spoken"
    return judged.candidate or (() if scored is None else scored.means)


def improves(state: Federation, terms: Terms, candidate: tuple[float, ...]) -> bool:
    """Whether a model does better than the best so far, by as much as the plan asks for."""
    if not candidate or state.best_score is None:
        return True
    index = terms.metric_index(terms.judged_by)
    gain = candidate[index] - state.best_score
    if not terms.metrics[index].higher_is_better:
        gain = -gain
    return gain > terms.min_delta

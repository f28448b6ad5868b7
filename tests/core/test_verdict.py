"""A round from its closing to its end: the sum, the evaluation, the gate, the last round."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import owed, owed_by
from consortium.core.ids import Seat
from consortium.core.owing import has_answered
from consortium.core.tables import Standing, Step
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    InvalidInputError,
    UnauthorizedClientError,
)

from .small import JUDGED, START_MS, World, digest, evaluating, ready, summing, training


def kinds(facts: tuple[Any, ...]) -> list[type[Any]]:
    return [type(fact) for fact in facts]


# ---- the sum ------------------------------------------------------------------------


def test_first_sum_over_the_members_stands() -> None:
    world = summing()
    assert kinds(world.sum()) == [f.Aggregated, f.EvaluationClosed]
    again = i.Summed(1, 3, digest("another"), None, START_MS)
    assert world.give(again) == ()
    assert world.round.model == digest("model 1")


@pytest.mark.parametrize(("number", "count"), [(1, 2), (2, 3)])
def test_sum_of_others_than_the_members_is_old_news(number: int, count: int) -> None:
    world = summing()
    assert world.give(i.Summed(number, count, digest("m"), None, START_MS)) == ()
    reason = f.RoundEnd.NOT_FINITE
    assert world.give(i.NotSummed(number, count, reason, START_MS)) == ()
    assert world.round.step is Step.SUMMING


def test_sum_before_the_closing_is_old_news() -> None:
    world = training()
    assert world.give(i.Summed(1, 0, digest("m"), None, START_MS)) == ()


@pytest.mark.parametrize("reason", [f.RoundEnd.NOT_FINITE, f.RoundEnd.AGGREGATION])
def test_round_whose_sum_is_impossible_fails_with_the_reason(reason: f.RoundEnd) -> None:
    world = summing()
    assert world.give(i.NotSummed(1, 3, reason, START_MS)) == (f.RoundFailed(1, reason, START_MS),)
    assert world.state.current == 0


# ---- evaluation by the members ------------------------------------------------------


def test_members_are_asked_for_candidate_and_base_with_a_deadline() -> None:
    world = evaluating()
    by_ms = START_MS + JUDGED.evaluation_ms
    assert owed_by(world.state, Seat(2)) == d.Evaluate(
        1, Seat(2), digest("model 1"), digest("model 0"), 0, by_ms
    )
    assert owed(world.state) == (d.WakeAt(by_ms + 1),)
    assert world.tick(by_ms) == ()


def test_evaluation_closes_when_every_member_has_answered() -> None:
    world = evaluating()
    assert kinds(world.score(1) + world.score(2)) == [f.Evaluated, f.Evaluated]
    facts = world.score(3)
    assert kinds(facts) == [f.Evaluated, f.EvaluationClosed]
    assert facts[1].evaluations == 3
    assert owed_by(world.state, Seat(1)) is None


def test_a_member_has_answered_again_when_it_has_evaluated() -> None:
    world = evaluating()
    assert not has_answered(world.state, Seat(1))
    world.score(1)
    assert has_answered(world.state, Seat(1)) and not has_answered(world.state, Seat(2))
    world.tick(world.round.evaluate_by_ms + 1)
    assert not has_answered(world.state, Seat(2))  # so it is told that it need not go on


def test_evaluation_closes_at_its_deadline_with_those_who_answered() -> None:
    world = evaluating()
    world.score(1)
    (closed,) = world.tick(world.round.evaluate_by_ms + 1)
    assert closed.evaluations == 1
    with pytest.raises(DeadlineExpiredError):
        world.score(2)


def test_same_score_again_changes_nothing_and_another_is_refused() -> None:
    world = evaluating()
    world.score(1)
    assert world.score(1) == ()
    with pytest.raises(AlreadySubmittedError):
        world.score(1, samples=99)
    world.score(2)
    world.score(3)
    world.judge()
    world.release()
    assert world.score(1) == ()


def test_score_after_its_deadline_is_refused_before_anybody_looked_at_the_clock() -> None:
    world = evaluating()
    world.now_ms = world.round.evaluate_by_ms + 1
    with pytest.raises(DeadlineExpiredError):
        world.score(1)


def test_score_for_a_round_that_was_cancelled_is_refused() -> None:
    world = evaluating()
    world.give(i.CancelRound(1, START_MS))
    with pytest.raises(DeadlineExpiredError):
        world.score(1)
    world.open()
    with pytest.raises(DeadlineExpiredError):
        world.give(
            i.Score(1, Seat(1), digest("model 1"), 9, (1.0, 1.0), (1.0, 1.0), None, START_MS)
        )


def test_score_of_a_site_whose_update_did_not_count_is_refused() -> None:
    world = training(sites=4, terms=replace(JUDGED, target=4))
    world.fail(4)
    world.send(1, 2, 3)
    world.sum()
    with pytest.raises(UnauthorizedClientError, match="only members"):
        world.score(4)


def test_score_of_another_model_is_refused() -> None:
    world = evaluating()
    other = i.Score(1, Seat(1), digest("other"), 100, (80.0, 20.0), (70.0, 30.0), None, START_MS)
    with pytest.raises(InvalidInputError, match="another model"):
        world.give(other)


@pytest.mark.parametrize(
    ("samples", "candidate", "base"),
    [
        (0, (1.0, 1.0), (1.0, 1.0)),
        (-1, (1.0, 1.0), (1.0, 1.0)),
        (2**63 - 1, (1.0, 1.0), (1.0, 1.0)),  # two of these could not be added up
        (1, (1.0,), (1.0, 1.0)),
        (1, (1.0, 1.0), (1.0, 1.0, 1.0)),
        (1, (1.0, math.nan), (1.0, 1.0)),
        (1, (1.0, 1.0), (-math.inf, 1.0)),
        (1, (1.7e308, 1.0), (1.0, 1.0)),  # nor these
        (1, (1.0, 1.0), (1.0, -1.7e308)),
    ],
)
def test_score_that_no_honest_site_sends_is_refused(
    samples: int, candidate: tuple[float, ...], base: tuple[float, ...]
) -> None:
    world = evaluating()
    with pytest.raises(InvalidInputError):
        world.score(1, candidate, base, samples)


def test_largest_scores_still_add_up() -> None:
    world = evaluating()
    for seat in (1, 2, 3):
        world.score(seat, (1e300, -1e300), (1e300, 1e300), 10**12)
    (duty,) = owed(world.state)
    assert all(math.isfinite(value) for value in (*duty.candidate, *duty.base))
    world.judge()


def test_member_that_cannot_evaluate_is_not_waited_for_but_counts() -> None:
    world = evaluating()
    assert kinds(world.fail(1, f.Failure.NO_TEST_DATA)) == [f.SiteDropped]
    assert world.fail(1, f.Failure.NO_TEST_DATA) == ()
    world.score(2)
    facts = world.fail(3, f.Failure.NO_TEST_DATA)
    assert kinds(facts) == [f.SiteDropped, f.EvaluationClosed]
    assert facts[1].evaluations == 1
    assert set(world.round.members) == {1, 2, 3}


def _cohort_evaluating() -> World:
    world = ready(sites=1, terms=replace(JUDGED, target=4))
    world.give(i.AdmitCohort(3, START_MS))
    world.open()
    world.send(1)
    seats = tuple(Seat(seat) for seat in (2, 3, 4))
    world.give(i.TrainedCohort(1, seats, 3.0, digest("partial"), START_MS))
    world.sum()
    return world


def _scored(
    world: World, *seats: int, model: str = "model 1", samples: int = 300
) -> tuple[Any, ...]:
    named = tuple(Seat(seat) for seat in seats)
    sums = (30.0, 3.0), (20.0, 6.0)
    return world.give(i.ScoredCohort(1, named, digest(model), samples, *sums, START_MS))


def test_simulated_members_are_evaluated_in_blocks() -> None:
    world = _cohort_evaluating()
    assert kinds(_scored(world, 2, 3)) == [f.CohortEvaluated]
    world.score(1, (10.0, 1.0), (10.0, 2.0), 100)
    facts = _scored(world, 4, samples=100)
    assert kinds(facts) == [f.CohortEvaluated, f.EvaluationClosed]
    assert facts[1].evaluations == 4
    (duty,) = owed(world.state)
    assert duty.candidate == (70 / 500, 7 / 500)
    assert duty.base == (50 / 500, 14 / 500)


def test_cohort_score_that_is_no_news_changes_nothing() -> None:
    world = _cohort_evaluating()
    assert _scored(world, 2, model="other") == ()
    assert _scored(world) == ()
    _scored(world, 2, 3)
    assert _scored(world, 2, 3) == ()
    assert _scored(world, 3, 4) == ()
    with pytest.raises(InvalidInputError):
        _scored(world, 4, samples=0)


def test_means_do_not_depend_on_the_order_of_answers() -> None:
    answers = {1: (1.0, 1e16), 2: (2.0, 1.0), 3: (3.0, -1e16)}
    shown = []
    for order in ((1, 2, 3), (3, 2, 1), (2, 3, 1)):
        world = evaluating()
        for seat in order:
            world.score(seat, answers[seat], answers[seat], 1)
        (duty,) = owed(world.state)
        shown.append(duty.candidate)
    assert shown == [(2.0, 1 / 3)] * 3


# ---- the gate's verdict -------------------------------------------------------------


def _judging(terms: Any = JUDGED) -> World:
    world = evaluating(terms=terms)
    for seat in (1, 2, 3):
        world.score(seat)
    return world


def test_gate_is_shown_the_means_and_the_recent_scores() -> None:
    world = _judging()
    shown = (0.8, 0.2), (0.7, 0.3), ()
    assert owed(world.state) == (d.Judge(1, digest("model 1"), 3, *shown, JUDGED),)
    world.judge()
    world.release()
    _next(world, loss=10.0)
    assert world.state.scores == [0.2, 0.1]


def test_accepted_candidate_is_released_and_published() -> None:
    world = _judging()
    (judged,) = world.judge()
    assert judged == f.Judged(1, f.Outcome.ACCEPTED, 300, (0.8, 0.2), (0.7, 0.3), True, START_MS)
    assert owed(world.state) == (d.Release(1, digest("model 1")),)
    assert world.release() == (
        f.ModelPublished(1, 1, digest("model 1"), digest("state"), START_MS),
        f.RoundCompleted(1, f.Outcome.ACCEPTED, START_MS),
    )
    assert world.state.current == 1
    assert world.state.scores == [0.2]


@pytest.mark.parametrize("outcome", [f.Outcome.KEPT, f.Outcome.UNJUDGED])
def test_other_outcomes_complete_the_round_and_keep_the_base(outcome: f.Outcome) -> None:
    world = _judging()
    judged, completed = world.judge(outcome)
    assert (judged.outcome, judged.is_improvement) == (outcome, False)
    assert completed == f.RoundCompleted(1, outcome, START_MS)
    assert world.state.current == 0
    assert world.state.scores == []
    assert world.state.ended is not None and world.state.ended.step is Step.COMPLETED


def test_verdict_and_release_of_another_model_or_step_are_old_news() -> None:
    world = _judging()
    stranger = digest("stranger")
    assert world.give(i.Verdict(1, stranger, f.Outcome.ACCEPTED, START_MS)) == ()
    assert world.give(i.Released(1, digest("model 1"), START_MS)) == ()
    world.judge()
    assert world.give(i.Verdict(1, digest("model 1"), f.Outcome.KEPT, START_MS)) == ()
    assert world.give(i.Released(1, stranger, START_MS)) == ()
    world.release()
    assert world.give(i.Released(1, digest("model 1"), START_MS)) == ()


def test_time_does_not_move_a_round_that_is_being_summed_or_judged() -> None:
    for world in (summing(), _judging()):
        assert world.tick(START_MS + 10**9) == ()


# ---- when the federation is done (R11) ----------------------------------------------


def _next(world: World, loss: float, outcome: f.Outcome = f.Outcome.ACCEPTED) -> tuple[Any, ...]:
    """One more round whose candidate has `loss` % mean loss; the facts of its end."""
    world.open()
    world.send(1, 2, 3)
    world.sum()
    for seat in (1, 2, 3):
        world.score(seat, (0.0, loss), (0.0, 0.0))
    facts = world.judge(outcome)
    return facts if outcome is not f.Outcome.ACCEPTED else world.release()


def _finish(facts: tuple[Any, ...]) -> f.Finish | None:
    last = facts[-1]
    return last.reason if isinstance(last, f.FederationFinished) else None


def test_federation_stops_when_the_loss_is_below_the_threshold() -> None:
    world = ready(sites=3, terms=replace(JUDGED, stop_below=0.05))
    assert _finish(_next(world, loss=10.0)) is None
    assert _finish(_next(world, loss=5.0)) is None  # equal is not below
    assert _finish(_next(world, loss=4.0)) is f.Finish.CONVERGED
    assert world.state.standing is Standing.FINISHED


def test_candidate_that_was_not_accepted_does_not_stop_the_federation() -> None:
    world = ready(sites=3, terms=replace(JUDGED, stop_below=0.05))
    assert _finish(_next(world, 1.0, f.Outcome.UNJUDGED)) is None


def test_without_evaluations_no_loss_is_low() -> None:
    world = evaluating(terms=replace(JUDGED, is_gated=False, stop_below=0.05))
    world.tick(world.round.evaluate_by_ms + 1)
    world.judge()
    world.release()
    assert world.state.finished is None


def test_federation_stops_after_too_many_rounds_without_improvement() -> None:
    world = ready(sites=3, terms=replace(JUDGED, patience=2, min_delta=0.01))
    assert _finish(_next(world, loss=50.0)) is None
    assert _finish(_next(world, loss=49.5)) is None  # better, but not by min_delta
    assert _finish(_next(world, loss=40.0)) is None  # an improvement starts the count afresh
    assert _finish(_next(world, loss=40.0)) is None
    assert _finish(_next(world, loss=45.0)) is f.Finish.NO_IMPROVEMENT


def test_kept_candidates_wear_patience_out_too() -> None:
    world = ready(sites=3, terms=replace(JUDGED, patience=2))
    assert _finish(_next(world, 50.0, f.Outcome.KEPT)) is None
    assert _finish(_next(world, 50.0, f.Outcome.KEPT)) is f.Finish.NO_IMPROVEMENT


def test_improvement_goes_upward_where_higher_is_better() -> None:
    world = ready(sites=3, terms=replace(JUDGED, judged_by="accuracy", patience=1))
    world.open()
    world.send(1, 2, 3)
    world.sum()
    for seat in (1, 2, 3):
        world.score(seat)
    assert world.judge()[0].is_improvement
    assert _finish(world.release()) is None
    assert world.state.best_score == 0.8
    assert _finish(_next(world, loss=0.0)) is f.Finish.NO_IMPROVEMENT  # accuracy 0
    assert world.state.best_score == 0.8


def test_new_plan_starts_the_gate_afresh() -> None:
    world = ready(sites=3, terms=replace(JUDGED, patience=3))
    _next(world, loss=50.0)
    _next(world, loss=60.0)
    assert (world.state.best_score, world.state.stale_rounds) == (0.5, 1)
    world.adopt(JUDGED, "plan 2")
    assert (world.state.scores, world.state.best_score, world.state.stale_rounds) == ([], None, 0)


def test_gate_remembers_the_window_and_no_more() -> None:
    world = ready(sites=3, terms=replace(JUDGED, gate_window=2))
    for loss in (40.0, 30.0, 20.0):
        _next(world, loss)
    assert world.state.scores == [0.3, 0.2]


def test_last_round_of_the_plan_ends_the_federation_whatever_its_outcome() -> None:
    world = ready(sites=3, terms=replace(JUDGED, rounds=2))
    assert _finish(_next(world, 50.0, f.Outcome.KEPT)) is None
    assert _finish(_next(world, 50.0, f.Outcome.KEPT)) is f.Finish.ROUNDS_DONE

"""Scores inside sums: of the model that a round began from, and known one round later."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import evolve, is_legal, owed_by
from consortium.core.ids import Seat
from consortium.core.secagg_facts import MaskingAdopted
from consortium.core.snapshot import load, save
from consortium.core.tables import Step
from consortium.core.terms import Masking
from consortium.errors import InvalidInputError
from tests.core.small import (
    JUDGED,
    MASKED,
    PHASE_MS,
    SCORED,
    START_MS,
    World,
    digest,
    masked_summing,
    ready,
    summing,
)

SECRET = replace(SCORED, target=4, norm_factor=0, masking=Masking(PHASE_MS))
GOOD = (80.0, 20.0)  # accuracy 0.8 and loss 0.2 of a hundred records


def kinds(facts: tuple[Any, ...]) -> list[type[Any]]:
    return [type(fact) for fact in facts]


def next_round(
    world: World, loss: float, samples: int = 100, accuracy: float = 0.0
) -> tuple[Any, ...]:
    """One more round, whose base has this mean loss and accuracy in percent."""
    world.open()
    world.send(1, 2, 3)
    scores = (accuracy, loss) if samples else (0.0, 0.0)
    return world.sum(samples=samples, scores=scores) + world.judge() + world.release()


def finish(facts: tuple[Any, ...]) -> f.Finish | None:
    last = facts[-1]
    return last.reason if isinstance(last, f.FederationFinished) else None


# ---- terms --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"judged_by": ""},
        {"is_gated": True},
        {"buffer": 3, "max_staleness": 1, "target": 3},
        {"judged_by": "auroc"},
    ],
)
def test_terms_that_cannot_have_scores_in_sums_are_not_sound(change: dict[str, Any]) -> None:
    assert SCORED.are_sound() and SECRET.are_sound()
    assert not replace(SCORED, **change).are_sound()


def test_scores_in_sums_ask_members_for_no_others() -> None:
    assert JUDGED.has_evaluation and not SCORED.has_evaluation
    assert not SCORED.as_adopted().has_scored_sums


def test_scoring_is_told_by_a_fact_of_its_own() -> None:
    world = ready(terms=SECRET)
    assert world.state.terms == SECRET
    adopted = f.ScoringAdopted(START_MS)
    assert not is_legal(world.state, adopted), "once a plan"
    assert not is_legal(ready().state, adopted), "nothing says by which metric"
    plain = ready(terms=SCORED.as_adopted())
    assert is_legal(plain.state, adopted)
    assert not is_legal(ready(terms=SECRET.as_adopted()).state, MaskingAdopted(1, START_MS))
    plain.state.terms = None
    assert not is_legal(plain.state, adopted)


def test_scores_are_told_before_the_masks() -> None:
    """A plan with masks asks no member for its own scores: the other order would be no plan."""
    world = World()
    world.give(i.Found("f1", START_MS))
    assert kinds(world.adopt(SECRET)) == [f.PlanAdopted, f.ScoringAdopted, MaskingAdopted]
    assert world.adopt(SECRET) == ()


# ---- a sum --------------------------------------------------------------------------


@pytest.mark.parametrize("world", [summing(terms=SCORED), masked_summing(terms=SECRET)])
def test_sum_tells_of_the_base_and_nobody_is_asked_to_evaluate(world: World) -> None:
    scored, aggregated, closed = world.sum(samples=100, scores=GOOD)
    assert scored == f.BaseScored(1, 0, 100, GOOD, True, START_MS)
    assert scored.means == (0.8, 0.2)
    assert (aggregated.evaluate_by_ms, closed.evaluations) == (0, 0)
    assert world.round.step is Step.JUDGING and world.round.scored == scored
    assert all(owed_by(world.state, Seat(seat)) is None for seat in (1, 2, 3))
    (judged,) = world.judge()
    assert (judged.samples, judged.candidate, judged.base) == (0, (), ())
    assert world.state.scores == [] and world.state.best_score == 0.2


def test_sum_of_members_without_test_records_has_no_score() -> None:
    world = summing(terms=SCORED)
    scored = world.sum(samples=0, scores=(0.0, 0.0))[0]
    assert scored.means == () and not scored.is_improvement
    assert (world.state.best_score, world.state.stale_rounds) == (None, 0)


@pytest.mark.parametrize(
    ("samples", "scores"),
    [
        (100, ()),
        (100, (1.0,)),
        (100, (1.0, 2.0, 3.0)),
        (-1, GOOD),
        (10**12 + 1, GOOD),
        (100, (math.nan, 1.0)),
        (100, (1.0, 1e301)),
    ],
)
def test_scores_that_no_plan_asks_for_are_refused(samples: int, scores: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInputError):
        summing(terms=SCORED).sum(samples=samples, scores=scores)


@pytest.mark.parametrize(("samples", "scores"), [(1, ()), (0, GOOD)])
def test_plan_without_scores_takes_none(samples: int, scores: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInputError):
        summing().sum(samples=samples, scores=scores)
    with pytest.raises(InvalidInputError):
        masked_summing(terms=MASKED).sum(samples=samples, scores=scores)


def test_scores_of_the_same_sum_again_change_nothing() -> None:
    world = summing(terms=SCORED)
    world.sum(samples=100, scores=GOOD)
    again = i.Summed(1, 3, digest("model 1"), None, START_MS, 100, (0.0, 0.0))
    assert world.give(again) == ()


# ---- what can stand in a log --------------------------------------------------------


def test_only_the_scores_of_the_rounds_own_base_can_stand() -> None:
    state = summing(terms=SCORED).state
    right = f.BaseScored(1, 0, 100, GOOD, True, START_MS)
    assert is_legal(state, right)
    assert not is_legal(state, replace(right, is_improvement=False))  # the first is the best
    for change in (
        {"round": 2},
        {"version": 1},
        {"sums": (1.0,)},
        {"samples": 0},
    ):
        assert not is_legal(state, replace(right, **change)), change
    assert not is_legal(summing().state, right), "the plan asks for none"


def test_no_sum_stands_without_its_scores_and_no_scores_twice() -> None:
    world = summing(terms=SCORED)
    aggregated = f.Aggregated(1, 3, digest("m"), None, 0, START_MS)
    assert not is_legal(world.state, aggregated)
    state = world.state.clone()
    scored = f.BaseScored(1, 0, 100, GOOD, True, START_MS)
    evolve(state, scored)
    assert is_legal(state, aggregated) and not is_legal(state, scored)
    assert not is_legal(state, replace(aggregated, count=2))
    assert world.round.scored is None, "a copy is a copy"


def test_scores_survive_a_snapshot() -> None:
    world = summing(terms=SCORED)
    world.sum(samples=100, scores=GOOD)
    data = save(world.state, world.records[-1], b"code")
    assert load(data, world.records[-1], b"code") == world.state == world.replayed()


# ---- when the federation is done (R11), one round late ------------------------------


def test_federation_stops_one_round_after_the_loss_was_low() -> None:
    world = ready(sites=3, terms=replace(SCORED, stop_below=0.05))
    assert finish(next_round(world, loss=5.0)) is None  # of version 0; equal is not below
    facts = next_round(world, loss=4.0)  # of version 1
    assert finish(facts) is f.Finish.CONVERGED
    assert facts[0].version == 1 and world.state.current == 2, "the model after it is published"


def test_without_test_records_no_loss_is_low() -> None:
    world = ready(sites=3, terms=replace(SCORED, stop_below=0.05, patience=1))
    for _ in range(3):
        assert finish(next_round(world, loss=0.0, samples=0)) is None


def test_federation_stops_after_too_many_bases_without_improvement() -> None:
    world = ready(sites=3, terms=replace(SCORED, patience=2, min_delta=0.01))
    assert finish(next_round(world, loss=50.0)) is None  # the first is the best so far
    assert finish(next_round(world, loss=49.5)) is None  # better, but not by min_delta
    assert finish(next_round(world, loss=40.0)) is None  # an improvement starts the count afresh
    assert finish(next_round(world, loss=40.0)) is None
    assert finish(next_round(world, loss=0.0, samples=0)) is None  # no score wears nothing out
    assert finish(next_round(world, loss=45.0)) is f.Finish.NO_IMPROVEMENT
    assert world.state.best_score == 0.4


def test_improvement_goes_upward_where_higher_is_better() -> None:
    world = ready(sites=3, terms=replace(SCORED, judged_by="accuracy", patience=1))
    assert finish(next_round(world, 0.0, accuracy=80.0)) is None
    assert finish(next_round(world, 0.0, accuracy=90.0)) is None
    assert finish(next_round(world, 0.0, accuracy=85.0)) is f.Finish.NO_IMPROVEMENT


def test_new_plan_starts_patience_afresh() -> None:
    world = ready(sites=3, terms=replace(SCORED, patience=3))
    next_round(world, loss=50.0)
    next_round(world, loss=60.0)
    assert (world.state.best_score, world.state.stale_rounds) == (0.5, 1)
    world.adopt(SCORED, "plan 2")
    assert (world.state.best_score, world.state.stale_rounds) == (None, 0)

"""The tables: every step × every fact, and no fact outside them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from consortium.core import evolve as evolve_module
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import legal as legal_module
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.federation import _FEDERATION_RULES, _ROUND_RULES, is_legal
from consortium.core.legal import why_illegal
from consortium.core.owing import _OWED
from consortium.core.tables import (
    BUFFERED_ROUND,
    FEDERATION,
    FINAL_STEPS,
    MASKED_ROUND,
    PARTICIPANT,
    ROUND,
    SCREENED_ROUND,
    Phase,
    Stage,
    Standing,
    Step,
    round_moves,
)
from consortium.core.terms import Terms

from .small import (
    JUDGED,
    START_MS,
    World,
    agreeing,
    evaluating,
    founded,
    keying,
    ready,
    screening,
    sharing,
    summing,
    training,
    unmasking,
)

ROUND_FACTS: tuple[type[Any], ...] = get_args(f.RoundFact)
FEDERATION_FACTS: tuple[type[Any], ...] = get_args(f.FederationFact)


def _initialized() -> World:
    world = ready(sites=3)
    world.give(i.OpenRound(START_MS))
    return world


def _selecting() -> World:
    world = _initialized()
    world.dismiss(3)
    world.give(i.Drawn(1, bytes(32), START_MS))
    return world


def _judging() -> World:
    world = evaluating()
    for seat in (1, 2, 3):
        world.score(seat)
    return world


def _releasing() -> World:
    world = _judging()
    world.judge()
    return world


AT_STEP = {
    Step.INITIALIZED: _initialized,
    Step.SELECTING: _selecting,
    Step.KEYING: keying,
    Step.SHARING: sharing,
    Step.TRAINING: training,
    Step.SCREENING: screening,
    Step.AGREEING: agreeing,
    Step.UNMASKING: unmasking,
    Step.SUMMING: summing,
    Step.EVALUATING: evaluating,
    Step.JUDGING: _judging,
    Step.RELEASING: _releasing,
}


def _planned() -> World:
    world = founded()
    world.adopt(JUDGED)
    return world


def _finished() -> World:
    world = ready()
    world.give(i.Stop(START_MS))
    return world


AT_STANDING = {
    Standing.FOUNDED: founded,
    Standing.PLANNED: _planned,
    Standing.READY: ready,
    Standing.RUNNING: training,
    Standing.FINISHED: _finished,
}


def _some(kind: type[Any], number: int = 1) -> Any:
    """A fact of this kind about round `number`, with nothing in it."""
    values = dict.fromkeys((field.name for field in fields(kind)), 0)
    return kind(**{**values, **({"round": number} if "round" in values else {})})


def test_every_step_and_standing_is_reached_by_these_tests() -> None:
    assert set(AT_STEP) == set(Step) - FINAL_STEPS
    for step, make in AT_STEP.items():
        assert make().round.step is step
    for standing, make in AT_STANDING.items():
        assert make().state.standing is standing


@pytest.mark.parametrize("step", AT_STEP, ids=lambda step: step.name)
def test_round_fact_is_illegal_in_the_steps_that_the_table_does_not_list(step: Step) -> None:
    state = AT_STEP[step]().state
    assert state.terms is not None
    moves = round_moves(state.terms)
    for kind in ROUND_FACTS:
        if (step, kind) not in moves:
            assert "cannot happen while" in (why_illegal(state, _some(kind)) or ""), kind
        assert why_illegal(state, _some(kind, number=2)) is not None, kind


@pytest.mark.parametrize("standing", AT_STANDING, ids=lambda standing: standing.name)
def test_federation_fact_is_illegal_where_the_table_does_not_list_it(standing: Standing) -> None:
    state = AT_STANDING[standing]().state
    for kind in FEDERATION_FACTS:
        if (standing, kind) not in FEDERATION and kind not in legal_module._ANY_TIME:
            assert "cannot happen while" in (why_illegal(state, _some(kind)) or ""), kind
    is_open = standing is Standing.RUNNING
    assert is_legal(state, _some(f.RoundFailed)) is is_open


def test_every_fact_is_recorded_and_every_input_has_a_rule() -> None:
    assert set(evolve_module._RECORD) == {*ROUND_FACTS, *FEDERATION_FACTS}
    assert {*_FEDERATION_RULES, *_ROUND_RULES} == set(get_args(i.Input))
    assert not _FEDERATION_RULES.keys() & _ROUND_RULES.keys()
    assert set(p._RULES) == set(get_args(p.SiteInput))
    assert set(_OWED) == set(Step) - FINAL_STEPS


def test_every_round_fact_has_a_place_in_the_table() -> None:
    listed = {kind for _, kind in (*BUFFERED_ROUND, *MASKED_ROUND)}
    assert listed == set(ROUND_FACTS) - {f.RoundOpened}
    assert set(ROUND) < set(BUFFERED_ROUND)
    assert {step for step, _ in BUFFERED_ROUND} == {step for step, _ in ROUND}
    moves = {kind for _, kind in PARTICIPANT}
    free = {s.TaskApproved, s.ApprovalWithdrawn, s.SiteHeld, s.SiteResumed}
    free |= {s.CheckpointWitnessed, s.RoundSettled, s.ReportSpooled}
    assert moves == set(get_args(s.SiteFact)) - free


def test_screened_round_differs_in_one_move_alone() -> None:
    changed = {key for key in SCREENED_ROUND if SCREENED_ROUND[key] != ROUND[key]}
    assert SCREENED_ROUND.keys() == ROUND.keys()
    assert changed == {(Step.TRAINING, f.RoundClosed)}
    reached = set(SCREENED_ROUND.values()) | set(MASKED_ROUND.values())
    assert reached | {Step.INITIALIZED} == set(Step)


def test_nobody_comes_to_a_secret_sum_later_and_nobody_is_taken_out() -> None:
    late = (f.BackupsInvited, f.CohortTrained, f.MemberRemoved, f.UpdateExcluded)
    after = [step for step, _ in MASKED_ROUND if step not in (Step.INITIALIZED, Step.SELECTING)]
    assert not any(
        (step, kind) in MASKED_ROUND
        for step in after
        if step is not Step.SCREENING
        for kind in late
    )
    closings = [step for step, kind in MASKED_ROUND if kind is f.RoundClosed]
    assert closings == [Step.TRAINING], "there is one split a round"
    assert MASKED_ROUND[Step.TRAINING, f.RoundClosed] is Step.AGREEING


def test_nothing_leaves_a_final_step_and_every_step_can_fail() -> None:
    assert not any(step in FINAL_STEPS for step, _ in ROUND)
    for step in set(Step) - FINAL_STEPS:
        assert {**MASKED_ROUND, **ROUND}[step, f.RoundFailed] is Step.FAILED


def test_lifecycle_has_the_names_of_the_requirement() -> None:
    assert [phase.value for phase in Phase] == [
        "INITIALIZED",
        "SELECTING",
        "TRAINING",
        "AGGREGATING",
        "COMPLETED",
        "FAILED",
    ]
    order = list(Phase)
    for (step, kind), after in (*ROUND.items(), *MASKED_ROUND.items()):
        assert order.index(after.phase) >= order.index(step.phase), kind  # never backward
    assert all(step.meaning for step in Step)


def test_every_stage_of_a_site_can_be_reached_and_left() -> None:
    reached = set(PARTICIPANT.values())
    assert reached == set(Stage)
    for stage in Stage:
        assert any(before is stage for before, _ in PARTICIPANT)


def test_fact_about_no_open_round_is_not_legal() -> None:
    state = ready().state
    assert not any(
        is_legal(state, _some(kind)) for kind in ROUND_FACTS if kind is not f.RoundOpened
    )


def test_metric_is_found_by_name() -> None:
    assert JUDGED.metric_index("loss") == 1
    assert JUDGED.has_evaluation
    assert not Terms(rounds=1, quorum=1, wait_for=1).has_evaluation

"""A verifier tells a forged log from a true one: every change to every fact is found."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.core.federation import evolve
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.legal import why_illegal
from consortium.core.state import Federation

from .small import JUDGED, SEED, START_MS, World, digest, evaluating, ready, training


def story() -> World:
    """A log with every kind of fact in it."""
    world = evaluating(sites=4, terms=replace(JUDGED, target=4))
    for seat in (1, 2, 3):
        world.score(seat)
    world.fail(4)
    world.judge()
    world.release()
    world.give(i.RollBack(0, START_MS))
    world.give(i.Hold(START_MS))
    world.give(i.Resume(START_MS))
    world.give(i.Report(Seat(1), (("gpu", True),), START_MS))
    world.give(i.AdmitCohort(2, START_MS))
    world.open()
    world.submit(1)
    world.check(1, fault=f.Fault.FORMAT)
    world.fail(2)
    world.give(i.Admit(SiteId("s9"), b"", START_MS))
    world.fail(3)
    seats = tuple(seat for seat in world.round.waiting if world.state.roster.is_simulated(seat))
    world.give(i.TrainedCohort(2, seats, 2.0, digest("partial"), START_MS))
    world.tick(world.round.deadline_ms + 1)
    world.give(i.CancelRound(2, world.now_ms))
    world.open()
    return world


def facts_of(world: World) -> list[f.Fact]:
    return [decode(record) for record in world.records]


def found(log: list[f.Fact]) -> tuple[int, str] | None:
    """(position, complaint) of the first fact that is not legal."""
    state = Federation()
    for position, fact in enumerate(log):
        complaint = why_illegal(state, fact)
        if complaint is not None:
            return position, complaint
        evolve(state, fact)
    return None


STORY = facts_of(story())
LOUD = facts_of(evaluating())


def test_a_true_log_is_legal_throughout() -> None:
    assert found(STORY) is None


@pytest.mark.parametrize("position", range(len(STORY)))
def test_a_fact_told_twice_is_found(position: int) -> None:
    fact = STORY[position]
    doubled = [*STORY[: position + 1], fact, *STORY[position + 1 :]]
    harmless = (f.SiteReported, f.PlanAdopted, f.RolledBack)  # the same again changes nothing
    assert (found(doubled) is None) is isinstance(fact, harmless), fact


def forged(fact: f.Fact) -> list[f.Fact]:
    """The fact with one field changed, for fields whose change must be found."""
    changes: dict[str, Any] = {
        "seat": Seat(99),
        "seats": (Seat(99),),
        "first": Seat(99),
        "members": (Seat(1), Seat(2), Seat(99)),
        "count": 99,
        "count_left": 99,
        "version": 99,
        "round": 99,
        "evaluations": 99,
        "samples": 99,
        "base": digest("forged"),
        "quorum": 1,
        "server_state": digest("forged"),
    }
    made = []
    for field in fields(fact):
        if field.name in changes and (type(fact).__name__, field.name) not in UNCHECKED:
            value = changes[field.name]
            if isinstance(getattr(fact, field.name), tuple) and not isinstance(value, tuple):
                value = tuple(1.0 + number for number in getattr(fact, field.name))
            made.append(replace(fact, **{field.name: value}))
    return made


# Claims that nothing earlier in the log confirms: they are signed evidence of their own.
UNCHECKED = {
    ("Evaluated", "samples"),
    ("Evaluated", "base"),
    ("CohortAdmitted", "count"),
    ("Aggregated", "server_state"),
}


@pytest.mark.parametrize("position", range(len(STORY)))
def test_a_forged_field_is_found_where_it_stands(position: int) -> None:
    for fact in forged(STORY[position]):
        told = found([*STORY[:position], fact, *STORY[position + 1 :]])
        assert told is not None, fact
        assert told[0] == position, f"{fact} was found only at {told}"


def first(kind: type[Any], log: list[f.Fact] = STORY) -> tuple[int, Any]:
    return next((at, fact) for at, fact in enumerate(log) if isinstance(fact, kind))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (f.UpdateReceived, {"at_ms": 1 << 50}),
        (f.Evaluated, {"at_ms": 1 << 50}),
        (f.DeadlineExtended, {"deadline_ms": 0}),
        (f.RoundCompleted, {"outcome": f.Outcome.KEPT}),
        (f.ModelPublished, {"model": digest("forged")}),
        (f.Judged, {"candidate": (9.0, 9.0)}),
        (f.Judged, {"outcome": f.Outcome.KEPT}),
        (f.Judged, {"is_improvement": False}),
        (f.RoundClosed, {"members": ()}),
        (f.CohortTrained, {"seats": ()}),
        (f.FederationFounded, {"federation": ""}),
    ],
)
def test_a_forged_value_is_found(kind: type[Any], change: dict[str, Any]) -> None:
    position, fact = first(kind)
    told = found([*STORY[:position], replace(fact, **change), *STORY[position + 1 :]])
    assert told is not None
    assert told[0] - position in (0, 1)


def test_a_sum_over_a_member_that_has_departed_is_found() -> None:
    world = training(sites=4, terms=replace(JUDGED, target=4))
    world.send(1, 2, 3, 4)
    world.dismiss(4)
    removed = facts_of(world)
    assert isinstance(removed[-1], f.MemberRemoved)
    aggregated = f.Aggregated(1, 4, Digest(SEED), None, 0, START_MS)
    told = found([*removed[:-1], aggregated])
    assert told == (len(removed) - 1, "it does not fit the round")


def test_a_cohorts_evaluation_is_checked() -> None:
    world = ready(sites=0, terms=replace(JUDGED, target=3))
    world.give(i.AdmitCohort(3, START_MS))
    world.open()
    seats = tuple(world.round.waiting)
    world.give(i.TrainedCohort(1, seats, 2.0, digest("partial"), START_MS))
    world.sum()
    sums = (9.0, 9.0)
    item = i.ScoredCohort(1, seats, world.round.model, 10, sums, sums, START_MS)  # type: ignore[arg-type]
    world.give(item)
    log = facts_of(world)
    assert found(log) is None
    position, fact = first(f.CohortEvaluated, log)
    for seats in ((), (Seat(99),)):
        assert found([*log[:position], replace(fact, seats=seats)]) is not None


def test_facts_before_a_federation_or_a_plan_are_found() -> None:
    plan = first(f.PlanAdopted)[1]
    assert found([plan]) is not None
    assert found([first(f.RoundOpened)[1]]) is not None

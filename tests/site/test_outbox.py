"""The outbox: everything that left, from the site's own log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consortium.cli.site_outbox import as_json, table
from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.drive.clock import ManualClock
from consortium.errors import UsageError
from consortium.model import digest_of
from consortium.plan.values import Plan
from consortium.privacy.accountant import epsilon
from consortium.privacy.gaussian import epsilon_of, mu_of
from consortium.site.machine import Machine
from consortium.site.outbox import (
    OutboxEntry,
    Sort,
    entries,
    failure_body,
    priced,
    score_body,
    total_bytes,
    update_file,
)
from consortium.store.memory import MemoryLog
from consortium.wire.messages import FailureNote, ScoreNote, read_body
from tests.site.homes import enrolled

TASK, PLAN, BASE, MODEL, UPDATE = (Digest(bytes([number]) * 32) for number in range(5))


@pytest.fixture
def machine() -> Machine:
    made = Machine(MemoryLog(), ManualClock())
    made.feed(p.Approve(TASK, PLAN, 1))
    return made


def _train(machine: Machine, number: int) -> None:
    duty = d.Train(number, Seat(1), BASE, None, PLAN, TASK, 1_000_000, is_urgent=False)
    machine.feed(p.Asked(duty, 10 * number))


def _acknowledged(machine: Machine) -> None:
    work = machine.owed()
    assert work is not None
    machine.feed(p.Heard(work, 99))


def _sent(machine: Machine, number: int, size: int) -> None:
    _train(machine, number)
    machine.feed(p.Trained(number, UPDATE, None, size, 10 * number + 1))
    _acknowledged(machine)


def test_a_site_that_did_nothing_sent_nothing(machine: Machine) -> None:
    _train(machine, 1)
    assert entries(machine) == []
    assert total_bytes(entries(machine)) == 0


def test_an_update_counts_from_when_it_may_leave(machine: Machine) -> None:
    _train(machine, 1)
    machine.feed(p.Trained(1, UPDATE, None, 700, 11))
    assert entries(machine) == [OutboxEntry(Sort.UPDATE, 1, UPDATE, 700, 11, told=False)]
    _acknowledged(machine)
    assert entries(machine) == [OutboxEntry(Sort.UPDATE, 1, UPDATE, 700, 11, told=True)]


def test_who_is_asked_to_try_the_model_knows_that_its_update_has_come(machine: Machine) -> None:
    """The answer to the update may come after the next request, or never."""
    _train(machine, 1)
    machine.feed(p.Trained(1, UPDATE, None, 700, 11))
    machine.feed(p.Asked(d.Evaluate(1, Seat(1), MODEL, BASE, 0, 1_000_000), 12))
    assert [entry.told for entry in entries(machine)] == [True]


def test_scores_and_failures_are_listed_with_the_bytes_that_tell_them(machine: Machine) -> None:
    _sent(machine, 1, 700)
    machine.feed(p.Asked(d.Evaluate(1, Seat(1), MODEL, BASE, 0, 1_000_000), 12))
    machine.feed(p.Scored(1, 30, (1.5, 2.0), (1.25, 2.5), 13))
    _acknowledged(machine)
    machine.feed(p.Settled(1, True, 14))
    _train(machine, 2)
    machine.feed(p.Broke(2, Failure.DATA_QUALITY, 21))
    found = entries(machine)
    assert [(entry.kind, entry.round, entry.told) for entry in found] == [
        (Sort.UPDATE, 1, True),
        (Sort.SCORE, 1, True),
        (Sort.FAILURE, 2, False),
    ]
    score = next(fact for _, fact in machine.facts() if type(fact).__name__ == "ScoreSpooled")
    body = score_body(score)  # type: ignore[arg-type]
    note = read_body(ScoreNote, body)
    assert (note.samples, note.candidate, note.base) == (30, [1.5, 2.0], [1.25, 2.5])
    assert (found[1].digest, found[1].size_bytes) == (digest_of(body), len(body))
    assert total_bytes(found) == 700 + len(body) + found[2].size_bytes


def test_a_failure_tells_its_code_and_nothing_else(machine: Machine) -> None:
    machine.feed(p.HoldSite(2))
    _train(machine, 1)
    (found,) = entries(machine)
    fact = next(fact for _, fact in machine.facts() if type(fact).__name__ == "InvitationDeclined")
    body = failure_body(fact)  # type: ignore[arg-type]
    assert read_body(FailureNote, body).failure == "POLICY"
    assert found.size_bytes == len(body) < 30


@pytest.mark.parametrize("is_heard", [True, False])
def test_an_answer_that_was_not_needed_any_more_is_late(machine: Machine, is_heard: bool) -> None:
    """Two thirds are enough for a secret sum: who is slower leaves the round."""
    ground = (BASE, None, PLAN, TASK, 1_000_000)
    machine.feed(p.Asked(d.JoinSum(1, Seat(1), *ground), 10))
    _acknowledged(machine)
    machine.feed(p.Asked(d.Share(1, Seat(1), MODEL, 1_000_000), 10))
    _acknowledged(machine)
    machine.feed(p.Asked(d.Train(1, Seat(1), *ground, is_urgent=False, sharing=MODEL), 10))
    machine.feed(p.Trained(1, UPDATE, None, 700, 11))
    machine.feed(p.Asked(d.Unmask(1, Seat(1), MODEL, 1_000_000), 12))
    machine.feed(p.Spool(1, BASE, 80, 13))
    work = machine.owed()
    assert isinstance(work, p.SendAnswer)
    machine.feed(p.Heard(work, 14) if is_heard else p.TurnedAway(work, 14))
    *_, answer = entries(machine)
    assert (answer.kind, answer.told, answer.is_late) == (Sort.ANSWER, is_heard, not is_heard)
    assert as_json(answer)["is_late"] is not is_heard
    lines = table(entries(machine))
    assert f"  {'yes' if is_heard else 'late'} " in lines[2]
    assert any("enough others answered" in line for line in lines) is not is_heard


PRIVATE = {
    "unit": "record",
    "noise_multiplier": 2.0,
    "side_noise": 20.0,
    "sampling_rate": 1.0,
    "steps": 1,
    "records": 100,
}
NOISED = {"enabled": True, "metric": "accuracy"}


@pytest.mark.parametrize(
    ("sections", "sigmas"),  # of all that is noised in a round: the step, and two scores
    [
        ({}, []),
        ({"privacy": PRIVATE, "evaluation": NOISED}, [2.0, 20.0, 20.0]),
        ({"privacy": PRIVATE | {"test_records": "public"}}, [2.0]),
    ],
    ids=["open", "noised scores", "public test records"],
)
def test_one_price_is_for_the_update_and_the_noised_scores_of_its_round(
    tmp_path: Path, sections: dict[str, Any], sigmas: list[float]
) -> None:
    home = enrolled(tmp_path / "home")
    machine = Machine(home.log, ManualClock())
    plan = home.blobs.put(Plan(**sections).canonical())
    machine.feed(p.Approve(TASK, plan, 1))
    machine.feed(p.Describe((("region", "north"),), 2))
    duty = d.Train(1, Seat(1), BASE, None, plan, TASK, 1_000_000, is_urgent=False)
    machine.feed(p.Asked(duty, 10))
    machine.feed(p.Trained(1, UPDATE, None, 700, 11))
    machine.feed(p.Asked(d.Evaluate(1, Seat(1), MODEL, BASE, 0, 1_000_000), 12))
    machine.feed(p.Scored(1, 30, (1.0,), (1.0,), 13))
    found = entries(machine)
    report, *rest = priced(found, home, machine, epsilon)
    assert report == found[0]
    assert [entry.kind for entry in rest] == [Sort.UPDATE, Sort.SCORE]
    cost = pytest.approx(epsilon_of(mu_of(sigmas), 1e-5)) if sigmas else None
    beside = 0.0 if len(sigmas) > 1 else None
    assert [entry.cost for entry in rest] == [cost, beside]
    assert [entry.delta is None for entry in rest] == [cost is None, beside is None]
    home.close()


@pytest.mark.parametrize("is_scored", [True, False])
def test_an_update_with_scores_in_it_says_so(tmp_path: Path, is_scored: bool) -> None:
    home = enrolled(tmp_path / "home")
    machine = Machine(home.log, ManualClock())
    evaluation = {"enabled": is_scored, "gate": False, "bound": 10.0}
    made = Plan(security={"secure_aggregation": True}, evaluation=evaluation)
    plan = home.blobs.put(made.canonical())
    machine.feed(p.Approve(TASK, plan, 1))
    duty = d.Train(1, Seat(1), BASE, None, plan, TASK, 1_000_000, is_urgent=False)
    machine.feed(p.Asked(duty, 10))
    machine.feed(p.Trained(1, UPDATE, None, 700, 11))
    found = priced(entries(machine), home, machine, epsilon)
    assert [entry.has_scores for entry in found] == [is_scored]
    assert [as_json(entry)["has_scores"] for entry in found] == [is_scored]
    told = "updates have the scores of their round in them, under the same masks"
    assert (told in table(found)) is is_scored
    home.close()


def test_oldest_first_over_many_rounds(machine: Machine) -> None:
    for number in range(1, 6):
        _sent(machine, number, number)
        machine.feed(p.Settled(number, False, 10 * number + 2))
    found = entries(machine)
    assert [entry.round for entry in found] == [1, 2, 3, 4, 5]
    assert [entry.at_ms for entry in found] == sorted(entry.at_ms for entry in found)
    assert total_bytes(found) == 15


def test_the_bytes_of_an_update_stay(tmp_path: Path) -> None:
    home = enrolled(tmp_path / "home")
    machine = Machine(home.log, ManualClock())
    machine.feed(p.Approve(TASK, PLAN, 1))
    _train(machine, 3)
    machine.feed(p.Trained(3, home.blobs.put(b"the update"), None, 10, 31))
    assert update_file(home, machine, 3).read_bytes() == b"the update"
    with pytest.raises(UsageError):
        update_file(home, machine, 2)

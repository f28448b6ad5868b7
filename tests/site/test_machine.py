"""The site's machine on its log: several of them, in threads and in processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.codec import encode
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.core.tables import Stage
from consortium.drive.clock import ManualClock
from consortium.errors import NotApprovedError, StoreFailedError
from consortium.site.machine import STREAM, Machine
from consortium.store.memory import MemoryLog
from consortium.store.sqlite import SqliteLog

TASK, PLAN, BASE = (Digest(bytes([number]) * 32) for number in (1, 2, 3))


def _train(number: int) -> p.Asked:
    duty = d.Train(number, Seat(1), BASE, None, PLAN, TASK, 1_000_000, is_urgent=False)
    return p.Asked(duty, 10)


def _machine(log: MemoryLog | SqliteLog) -> Machine:
    return Machine(log, ManualClock())


def test_facts_are_in_the_log_before_they_are_answered() -> None:
    log = MemoryLog()
    machine = _machine(log)
    facts = machine.feed(p.Approve(TASK, PLAN, 5))
    assert facts == (s.TaskApproved(TASK, PLAN, 5),)
    assert list(log.read(STREAM)) == [encode(facts[0])]
    assert machine.size == 1 and machine.state.approved == {(TASK, PLAN)}


def test_a_machine_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.sqlite")
    first = _machine(log)
    first.feed(p.Approve(TASK, PLAN, 5))
    first.feed(_train(1))
    log.close()
    again = _machine(SqliteLog(tmp_path / "log.sqlite"))
    assert again.state == first.state
    assert again.owed() == p.TrainHere(1, BASE, None)


def test_a_refusal_writes_nothing() -> None:
    log = MemoryLog()
    machine = _machine(log)
    with pytest.raises(NotApprovedError):
        machine.feed(_train(1))
    assert machine.size == 0 and not list(log.read(STREAM))


def test_what_another_machine_appended_is_known_before_the_next_decision() -> None:
    log = MemoryLog()
    agent, command = _machine(log), _machine(log)
    agent.feed(p.Approve(TASK, PLAN, 5))
    command.feed(p.HoldSite(6))
    facts = agent.feed(_train(1))
    assert facts == (s.InvitationDeclined(1, Failure.POLICY, 10),)


def test_nothing_new_is_said_only_of_what_is_in_the_log_now() -> None:
    log = MemoryLog()
    agent, command = _machine(log), _machine(log)
    agent.feed(p.Approve(TASK, PLAN, 5))
    command.feed(p.Withdraw(TASK, PLAN, 6))
    assert agent.feed(p.Approve(TASK, PLAN, 7)) == (s.TaskApproved(TASK, PLAN, 7),)


class _Racing(MemoryLog):
    """Somebody else holds the site between the decision and the append."""

    is_due = True

    def append(self, stream, expected, records):  # type: ignore[no-untyped-def]
        if self.is_due and expected == 1:
            self.is_due = False
            super().append(stream, expected, [encode(s.SiteHeld(8))])
        return super().append(stream, expected, records)


def test_the_loser_of_a_race_decides_again() -> None:
    machine = _machine(_Racing())
    machine.feed(p.Approve(TASK, PLAN, 5))
    facts = machine.feed(_train(1))
    assert facts == (s.InvitationDeclined(1, Failure.POLICY, 10),)
    assert machine.state.is_held and machine.size == 3


class _Failing(MemoryLog):
    is_broken = False

    def append(self, stream, expected, records):  # type: ignore[no-untyped-def]
        length = super().append(stream, expected, records)
        if self.is_broken:
            raise StoreFailedError("the disk failed after it wrote")
        return length


def test_an_append_that_failed_after_it_was_written_is_found_later() -> None:
    log = _Failing()
    machine = _machine(log)
    log.is_broken = True
    with pytest.raises(StoreFailedError):
        machine.feed(p.Approve(TASK, PLAN, 5))
    log.is_broken = False
    assert machine.feed(p.Approve(TASK, PLAN, 6)) == ()
    assert machine.size == 1


def test_threads_share_a_machine() -> None:
    log = MemoryLog()
    machine = _machine(log)

    def approve(first: int) -> None:
        for number in range(first, first + 50):
            machine.feed(p.Approve(Digest(number.to_bytes(32, "big")), PLAN, 5))

    threads = [threading.Thread(target=approve, args=(start,)) for start in (0, 25, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert machine.size == len(list(log.read(STREAM))) == len(machine.state.approved) == 100


def test_waiting_ends_when_there_is_something_new() -> None:
    log = MemoryLog()
    agent, command = _machine(log), _machine(log)
    assert not agent.wait(0.01)
    timer = threading.Timer(0.05, command.feed, [p.HoldSite(6)])
    timer.start()
    assert agent.wait(10.0)
    assert agent.state.is_held
    timer.join()


_HOLD = """
import sys
from pathlib import Path
from consortium.core import participant as p
from consortium.drive.clock import ManualClock
from consortium.site.machine import Machine
from consortium.store.sqlite import SqliteLog
Machine(SqliteLog(Path(sys.argv[1])), ManualClock()).feed(p.HoldSite(6))
"""


def test_waiting_ends_when_another_process_decided_something(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    agent = _machine(SqliteLog(path))
    agent.feed(p.Approve(TASK, PLAN, 5))
    agent.feed(_train(1))
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(path)]) as command:
        began = time.monotonic()
        assert agent.wait(30.0)
        assert time.monotonic() - began < 25
        assert command.wait() == 0
    assert agent.state.stage is Stage.REPORTING
    assert agent.owed() == p.TellFailure(1, Failure.POLICY)


def test_facts_are_read_with_their_positions() -> None:
    machine = _machine(MemoryLog())
    machine.feed(p.Approve(TASK, PLAN, 5))
    machine.feed(p.HoldSite(6))
    machine.feed(p.ResumeSite(7))
    machine.feed(p.HoldSite(8))
    assert [(at, type(fact)) for at, fact in machine.facts()] == [
        (0, s.TaskApproved),
        (1, s.SiteHeld),
        (2, s.SiteResumed),
        (3, s.SiteHeld),
    ]
    assert machine.newest(s.SiteHeld) == s.SiteHeld(8)
    assert machine.newest(s.RoundSettled) is None

"""The loop: durable before recorded, decided again after a conflict, recovery by folding."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import RoundEnd
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.drive.clock import ManualClock
from consortium.drive.driver import Driver
from consortium.drive.engine import begin
from consortium.drive.hands import CoordinatorHands
from consortium.errors import ConflictError, InternalError, RoundOpenError, StoreError
from consortium.model import Layout, Update, save_model, save_update
from consortium.plan import Plan
from consortium.store.memory import MemoryBlobs, MemoryLog
from tests.studies import TASK, sites

A, B, C, MODEL = (Digest(bytes([number]) * 32) for number in range(1, 5))
TERMS = Terms(rounds=9, quorum=1, wait_for=1)


def federation(log: MemoryLog, clock: ManualClock, stream: str = "one") -> Driver:
    driver = Driver(log, stream, clock)
    driver.feed(i.Found(stream, 0))
    driver.feed(i.AdoptPlan(A, B, C, TERMS, 0))
    driver.feed(i.InstallModel(MODEL, 0))
    driver.feed(i.AdmitCohort(3, 0))
    return driver


class FullDisk(MemoryLog):
    is_full = False

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        if self.is_full:
            raise StoreError("no space left")
        return super().append(stream, expected, records)


def test_what_is_not_durable_is_not_recorded() -> None:
    log = FullDisk()
    driver = federation(log, ManualClock())
    before = driver.state.clone()
    log.is_full = True
    with pytest.raises(StoreError):
        driver.feed(i.OpenRound(1))
    assert driver.state == before
    log.is_full = False
    assert driver.feed(i.OpenRound(1))


def test_the_loser_of_a_race_reads_and_decides_again() -> None:
    log, clock = MemoryLog(), ManualClock()
    first = federation(log, clock)
    second = Driver(log, "one", clock)
    assert second.state == first.state
    first.feed(i.OpenRound(1))
    with pytest.raises(RoundOpenError):  # its own view said that no round was open
        second.feed(i.OpenRound(1))
    assert second.state == first.state


def test_a_stale_driver_catches_up_and_goes_on() -> None:
    log, clock = MemoryLog(), ManualClock()
    first, second = federation(log, clock), Driver(log, "one", clock)
    first.feed(i.Hold(1))
    assert second.feed(i.AdmitCohort(2, 1))
    first.catch_up()
    assert first.state == second.state
    assert len(first.state.roster) == 5


class AlwaysBeaten(MemoryLog):
    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        raise ConflictError("somebody else was first")


def test_endless_conflicts_end_in_an_error() -> None:
    driver = Driver(AlwaysBeaten(), "one", ManualClock(), jitter=lambda: 0.0)
    with pytest.raises(InternalError, match="others were faster"):
        driver.feed(i.Found("x", 0))


class BeatenThrice(MemoryLog):
    attempts = 0

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        self.attempts += 1
        if self.attempts < 4:
            raise ConflictError("somebody else was first")
        return super().append(stream, expected, records)


def test_who_loses_one_race_tries_at_once_and_who_loses_more_waits_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    draws = iter([0.25, 1.0])
    driver = Driver(BeatenThrice(), "one", ManualClock(), jitter=lambda: next(draws))
    assert driver.feed(i.Found("one", 0))
    assert pauses == [0.001, 0.004]


# ---- several threads ----------------------------------------------------------------


class Slow:
    """Hands that draw only when somebody else has been heard meanwhile."""

    def __init__(self) -> None:
        self.begun, self.heard = threading.Event(), threading.Event()

    def perform(self, duty: d.Duty) -> i.Input:
        assert isinstance(duty, d.Draw)
        self.begun.set()
        assert self.heard.wait(10), "the lock was held while a duty was performed"
        return i.Drawn(duty.round, bytes(32), 0)


def test_inputs_are_taken_while_a_duty_is_performed() -> None:
    driver, hands = federation(MemoryLog(), ManualClock()), Slow()
    driver.feed(i.OpenRound(0))
    worker = threading.Thread(target=driver.work, args=(hands,))
    worker.start()
    assert hands.begun.wait(10)
    assert driver.feed(i.AdmitCohort(2, 1))
    assert driver.wakes_at_ms() is None
    hands.heard.set()
    worker.join()
    assert driver.state.round is not None and driver.state.round.step is Step.TRAINING


def test_whoever_holds_the_lock_sees_a_state_that_stands_still() -> None:
    driver = federation(MemoryLog(), ManualClock())
    others = [threading.Thread(target=driver.feed, args=(i.AdmitCohort(1, 1),)) for _ in range(8)]
    with driver.lock:
        for thread in others:
            thread.start()
        others[0].join(0.05)
        assert (driver.position, len(driver.state.roster)) == (4, 3)
    for thread in others:
        thread.join()
    assert (driver.position, len(driver.state.roster)) == (12, 11)


def test_recovery_is_folding_the_log() -> None:
    log, clock = MemoryLog(), ManualClock()
    driver = federation(log, clock)
    driver.feed(i.OpenRound(5))
    recovered = Driver(log, "one", clock)
    assert recovered.state == driver.state
    assert recovered.position == driver.position


def test_two_federations_in_one_log_do_not_touch_each_other() -> None:
    log, clock = MemoryLog(), ManualClock()
    one, two = federation(log, clock, "one"), federation(log, clock, "two")
    before = two.state.clone()
    one.feed(i.OpenRound(1))
    two.catch_up()
    assert two.state == before
    assert one.state.round is not None


class Silent:
    """Hands that report what they are asked, without doing anything."""

    def perform(self, duty: d.Duty) -> i.Input:
        assert isinstance(duty, d.Draw)
        return i.Drawn(duty.round, bytes(32), 0)


def test_a_wake_is_ticked_once_when_it_is_due() -> None:
    clock = ManualClock()
    driver = federation(MemoryLog(), clock)
    assert [type(fact).__name__ for fact in driver.work(Silent())] == ["RoundOpened"]
    drawn = [type(fact).__name__ for fact in driver.work(Silent())]
    assert drawn == ["SelectionStarted", "SitesInvited"]
    assert driver.work(Silent()) == ()
    assert driver.wakes_at_ms() == TERMS.duration_ms + 1
    clock.advance_to(TERMS.duration_ms + 1)
    extended = [type(fact).__name__ for fact in driver.work(Silent())]
    assert extended == ["BackupsInvited", "DeadlineExtended"]
    assert driver.work(Silent()) == ()


def test_the_clock_never_goes_back() -> None:
    clock = ManualClock(10)
    clock.advance_to(5)
    assert clock.now_ms() == 10


def test_waking_is_not_for_the_hands() -> None:
    layout = begin(TASK, Plan(), sites(1), 0)[0].layout
    hands = CoordinatorHands(
        layout, Plan().strategy, MemoryBlobs(), ManualClock(), lambda number: bytes(32)
    )
    with pytest.raises(InternalError):
        hands.perform(d.WakeAt(0))
    assert isinstance(layout, Layout)


# ---- one site's update must not keep a round from ending ----------------------------


def collecting() -> tuple[Driver, CoordinatorHands, ManualClock]:
    """Three sites are invited; the first has sent an update whose bytes are then lost."""
    clock, blobs = ManualClock(), MemoryBlobs()
    local, vector = begin(TASK, Plan(), sites(1), 0)
    layout = local.layout
    driver = Driver(MemoryLog(), "one", clock)
    model = blobs.put(save_model(layout, vector))
    driver.feed(i.Found("one", 0))
    driver.feed(i.AdoptPlan(A, B, C, replace(TERMS, quorum=2, wait_for=3, target=3), 0))
    driver.feed(i.InstallModel(model, 0))
    for number in range(3):
        driver.feed(i.Admit(SiteId(f"site-{number}"), b"", 0))
    driver.feed(i.OpenRound(0))
    driver.feed(i.Drawn(1, bytes(32), 0))
    hands = CoordinatorHands(layout, Plan().strategy, blobs, clock, lambda number: bytes(32))
    for seat in (1, 2, 3):
        step = np.full(layout.size, seat, np.float32)
        digest = blobs.put(save_update(Update(step, 10.0, model)))
        driver.feed(i.Submit(1, Seat(seat), digest, None, 0))
    return driver, hands, clock


def lose_update(driver: Driver, hands: CoordinatorHands, seat: int) -> None:
    assert driver.state.round is not None
    hands.blobs.drop(driver.state.round.submitted[Seat(seat)])


def test_an_update_whose_bytes_are_gone_is_rejected_and_the_round_goes_on() -> None:
    driver, hands, _ = collecting()
    lose_update(driver, hands, 1)
    while driver.state.round is not None:
        assert driver.work(hands)
    assert driver.state.ended is not None
    assert tuple(driver.state.ended.members) == (2, 3)


def test_a_sum_whose_bytes_are_gone_fails_the_round() -> None:
    driver, hands, _ = collecting()
    while driver.state.round is not None and driver.state.round.step is Step.TRAINING:
        driver.work(hands)
    lose_update(driver, hands, 2)
    driver.work(hands)
    assert driver.state.ended is not None
    assert driver.state.ended.reason is RoundEnd.AGGREGATION


class Clumsy:
    """Hands that cannot check the first site's update, and say so."""

    def __init__(self, hands: CoordinatorHands) -> None:
        self._hands = hands

    def perform(self, duty: d.Duty) -> i.Input:
        if isinstance(duty, d.Check) and duty.seat == 1:
            raise StoreError("this disk cannot be read")
        return self._hands.perform(duty)


def test_a_duty_that_fails_keeps_neither_the_others_nor_the_clock_from_going_on() -> None:
    driver, hands, clock = collecting()
    clumsy = Clumsy(hands)
    assert driver.work(clumsy)
    assert driver.work(clumsy)
    with pytest.raises(StoreError, match="cannot be read"):  # only it is left: it is told
        driver.work(clumsy)
    assert driver.state.round is not None
    clock.advance_to(driver.state.round.deadline_ms + TERMS.grace_ms + 1)
    closed = [type(fact).__name__ for fact in driver.work(clumsy)]
    assert closed == ["RoundClosed"]

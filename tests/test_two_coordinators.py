"""Two coordinators on one data directory: neither answers, shows or signs from an old state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.terms import Terms
from consortium.drive.clock import ManualClock
from consortium.drive.coordinate import Coordinator
from consortium.drive.directory import SIGNER_NAME, DataDirectory
from consortium.drive.driver import Driver
from consortium.errors import WrongRoundError
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Verifier, open_checkpoint
from consortium.store.memory import MemoryLog

A, B, C, MODEL, UPDATE = (Digest(bytes([number]) * 32) for number in range(1, 6))
ONE, TWO = Seat(1), Seat(2)
TERMS = Terms(rounds=9, quorum=1, wait_for=1, fraction_ppm=1_000_000)


def two_drivers() -> tuple[Driver, Driver]:
    """The second has not heard of the round that the first has opened."""
    log, clock = MemoryLog(), ManualClock()
    first = Driver(log, "one", clock)
    first.feed(i.Found("one", 0))
    first.feed(i.AdoptPlan(A, B, C, TERMS, 0))
    first.feed(i.InstallModel(MODEL, 0))
    first.feed(i.Admit(SiteId("site-1"), b"", 0))
    first.feed(i.Admit(SiteId("site-2"), b"", 0))
    first.feed(i.Report(ONE, (("ready", True),), 0))
    second = Driver(log, "one", clock)
    first.feed(i.OpenRound(0))
    first.feed(i.Drawn(1, bytes(32), 0))
    return first, second


def test_an_update_is_not_refused_by_an_old_state() -> None:
    _, second = two_drivers()
    assert second.feed(i.Submit(1, ONE, UPDATE, None, 1))


def test_a_report_is_not_taken_for_old_news_by_an_old_state() -> None:
    first, second = two_drivers()
    first.feed(i.Report(ONE, (("ready", False),), 1))
    assert second.feed(i.Report(ONE, (("ready", True),), 2))
    first.catch_up()
    assert first.state.roster.members[ONE].report == (("ready", True),)


def test_a_refusal_of_the_newest_state_stands() -> None:
    _, second = two_drivers()
    with pytest.raises(WrongRoundError):
        second.feed(i.Fail(2, ONE, Failure.TRAINING, None, 1))


class Overtaken:
    """While it checks an update, the other coordinator cancels the round."""

    def __init__(self, mine: Driver, other: Driver) -> None:
        self.mine, self.other, self.seen = mine, other, 0

    def perform(self, duty: d.Duty) -> i.Input:
        assert isinstance(duty, d.Check)
        assert self.mine.state.round is not None, "a duty of the past"
        self.seen += 1
        self.other.catch_up()
        self.other.feed(i.CancelRound(1, 2))
        return i.Checked(1, duty.seat, duty.update, None, 1.0, 1.0, 2)


def test_duties_of_an_old_state_are_not_performed() -> None:
    first, second = two_drivers()
    second.feed(i.Submit(1, ONE, UPDATE, None, 1))
    second.feed(i.Submit(1, TWO, UPDATE, None, 1))
    hands = Overtaken(second, first)
    assert second.work(hands) == ()
    assert hands.seen == 1
    assert second.state.round is None


# ---- evidence -----------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Coordinator, Coordinator]]:
    directories = [DataDirectory(tmp_path), DataDirectory(tmp_path)]
    clock = ManualClock()
    yield (
        Coordinator(directories[0], "one", clock),
        Coordinator(directories[1], "one", clock),
    )
    for directory in directories:
        directory.close()


def test_one_that_is_behind_shows_no_shorter_log(pair: tuple[Coordinator, Coordinator]) -> None:
    first, second = pair
    first.feed(i.AdoptPlan(A, B, C, TERMS, 0))
    seen = first.driver.position
    offer = second.offer(seen)
    assert offer.note.split("\n")[1] == str(seen)


def test_both_sign_with_a_new_key(pair: tuple[Coordinator, Coordinator]) -> None:
    first, second = pair
    first.rotate_key()
    second.driver.catch_up()
    new = Verifier(SIGNER_NAME, first.driver.state.log_keys[-1])
    for coordinator in pair:
        open_checkpoint(coordinator.checkpoint(), origin_of("one"), [new])


def test_old_key_vouches_for_the_new_one_after_a_crash(
    pair: tuple[Coordinator, Coordinator], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    old = first.driver.state.log_keys[-1]
    monkeypatch.setattr(first, "keep_checkpoint", lambda **_: None)  # it crashes before
    first.rotate_key()
    second.driver.catch_up()
    second.keep_checkpoint()
    note = second.checkpoint()
    open_checkpoint(note, origin_of("one"), [Verifier(SIGNER_NAME, old)])

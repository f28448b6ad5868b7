"""Snapshots: the identical state, or nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.core import inputs as i
from consortium.core import snapshot
from consortium.core.facts import Fault
from consortium.core.federation import owed
from consortium.core.ids import Seat
from consortium.core.state import Federation
from consortium.core.tables import Phase
from consortium.errors import CodecError

from .small import (
    JUDGED,
    START_MS,
    World,
    agreeing,
    digest,
    evaluating,
    keying,
    masked_summing,
    masked_training,
    ready,
    screening,
    sharing,
    summing,
    training,
    unmasking,
)


def with_cohort() -> World:
    world = ready(sites=1, terms=replace(JUDGED, target=3))
    world.give(i.AdmitCohort(2, START_MS))
    world.give(i.Report(Seat(1), (("gpu", True), ("region", "eu")), START_MS))
    world.open()
    seats = tuple(seat for seat in world.round.waiting if seat > 1)
    world.give(i.TrainedCohort(1, seats, 2.0, digest("partial"), START_MS))
    world.send(1)
    world.sum()
    sums = (9.0, 9.0)
    assert world.round.model is not None
    world.give(i.ScoredCohort(1, seats, world.round.model, 10, sums, sums, START_MS))
    return world


def screened() -> World:
    world = screening()
    world.screen(2, fault=Fault.DIRECTION)
    return world


def ended() -> World:
    world = evaluating()
    world.score(1)
    world.score(2)
    world.fail(3)
    world.judge()
    world.release()
    world.give(i.AdoptLogKey(bytes(32), START_MS))
    world.open()
    world.submit(1)
    world.check(1, norm=None)
    world.fail(2)
    return world


WORLDS = [World, ready, training, screening, screened, summing, evaluating, with_cohort, ended]
WORLDS += [keying, sharing, masked_training, agreeing, unmasking, masked_summing]


@pytest.mark.parametrize("make", WORLDS)
def test_a_snapshot_is_the_identical_state(make: type[World]) -> None:
    state = make().state
    again = snapshot.load(snapshot.save(state, b"last", b"code"), b"last", b"code")
    assert again == state
    assert again is not state
    if state.round is not None:
        assert owed(again) == owed(state)  # the order of seats is part of the state


def test_a_snapshot_of_another_log_or_other_code_is_refused() -> None:
    saved = snapshot.save(Federation(), b"last", b"code")
    for last, code in ((b"other", b"code"), (b"last", b"other")):
        with pytest.raises(CodecError):
            snapshot.load(saved, last, code)


@given(st.data())
def test_a_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    saved = bytearray(snapshot.save(SAVED, b"last", b"code"))
    at = data.draw(st.integers(0, len(saved) - 1))
    saved[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CodecError):
        snapshot.load(bytes(saved), b"last", b"code")
    with pytest.raises(CodecError):
        snapshot.load(bytes(saved[:at]), b"last", b"code")


@pytest.mark.parametrize("byte", [0, 1, 20, 127, 255])
def test_a_forged_snapshot_is_a_state_or_refused(byte: int) -> None:
    """Sealed by whoever can: every byte of it may be any."""
    body = snapshot.save(SAVED, b"last", b"code")[32:]
    for at in range(len(body)):
        forged = body[:at] + bytes([byte]) + body[at + 1 :]
        with suppress(CodecError):
            snapshot.load(snapshot._seal(forged, b"last", b"code") + forged, b"last", b"code")


@pytest.mark.parametrize("hint", [Phase, int | None])
def test_a_number_that_stands_for_nothing_is_refused(hint: object) -> None:
    _, take = snapshot._state_coder(hint)
    with pytest.raises(CodecError, match="unknown"):
        take(b"\x14", 0)


SAVED = ended().state

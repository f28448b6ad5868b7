"""Receipts: a site gets the same answer about its update however often it asks."""

from __future__ import annotations

from dataclasses import replace

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.answers import Receipt, Status, receipt
from consortium.core.ids import Seat
from consortium.core.terms import Close

from .small import START_MS, TERMS, World, digest, summing, training

FIVE = replace(TERMS, target=5)


def _status(world: World, seat: int, number: int = 1) -> Status | None:
    found = receipt(world.state, number, Seat(seat))
    return found.status if found else None


def test_receipt_follows_the_update_from_arrival_to_the_end() -> None:
    world = training()
    assert receipt(world.state, 1, Seat(1)) is None
    world.submit(1)
    assert receipt(world.state, 1, Seat(1)) == Receipt(
        1, Seat(1), digest("update 1"), Status.RECEIVED, None
    )
    world.check(1)
    assert _status(world, 1) is Status.ACCEPTED
    world.send(2, 3)
    assert _status(world, 1) is Status.ACCEPTED  # until it is in a model it may still be removed
    world.sum()
    assert _status(world, 1) is Status.ACCEPTED
    world.judge()
    world.release()
    assert _status(world, 1) is Status.COUNTED
    world.open()
    assert _status(world, 1) is Status.COUNTED
    assert _status(world, 1, number=2) is None


def test_receipt_of_a_rejected_update_says_why() -> None:
    world = training(sites=5, terms=FIVE)
    world.submit(1)
    world.check(1, fault=f.Fault.DIMENSIONS)
    found = receipt(world.state, 1, Seat(1))
    assert found is not None
    assert (found.status, found.why) == (Status.NOT_COUNTED, f.Fault.DIMENSIONS)


def test_receipt_of_an_excluded_update_says_why() -> None:
    world = training(sites=5, terms=FIVE)
    world.send(1, norm=99.0)
    world.send(2, 3, 4, 5)
    found = receipt(world.state, 1, Seat(1))
    assert found is not None
    assert (found.status, found.why) == (Status.NOT_COUNTED, f.Fault.MAGNITUDE)


def test_receipt_of_a_member_removed_before_the_sum_says_why() -> None:
    world = summing(sites=5, terms=FIVE)
    world.dismiss(2)
    found = receipt(world.state, 1, Seat(2))
    assert found is not None
    assert (found.status, found.why) == (Status.NOT_COUNTED, f.Failure.REVOKED)


def test_update_still_unchecked_at_the_closing_is_not_counted() -> None:
    world = training(sites=5, terms=replace(FIVE, close=Close.QUORUM))
    world.submit(5)
    world.send(1, 2, 3)
    assert _status(world, 5) is Status.NOT_COUNTED


def test_nothing_is_counted_in_a_failed_round() -> None:
    for world in (training(), summing()):
        if not world.round.submitted:
            world.send(1)
        world.give(i.CancelRound(1, START_MS))
        assert _status(world, 1) is Status.NOT_COUNTED


def test_member_of_a_round_that_kept_its_base_was_counted() -> None:
    world = summing()
    world.sum()
    world.judge(f.Outcome.KEPT)
    assert _status(world, 1) is Status.COUNTED

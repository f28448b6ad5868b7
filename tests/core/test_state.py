"""State: copies share nothing, and no field is forgotten."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from consortium.core import facts as f
from consortium.core import secagg_facts as m
from consortium.core.ids import Seat
from consortium.core.roster import Roster
from consortium.core.state import Federation, Round
from consortium.core.tables import Standing, Step

from .small import (
    JUDGED,
    agreeing,
    digest,
    evaluating,
    keying,
    masked_summing,
    screening,
    sharing,
    summing,
    training,
    unmasking,
)

# For each field type a value that is not the default.
CHANGED: dict[str, Any] = {
    "str": "changed",
    "Standing": Standing.RUNNING,
    "Step": Step.JUDGING,
    "bool": True,
    "bytes": b"changed",
    "int": 77,
    "Digest": digest("changed"),
    "Digest | None": digest("changed"),
    "Terms | None": JUDGED,
    "float | None": 7.5,
    "Finish | None": f.Finish.STOPPED,
    "RoundEnd | None": f.RoundEnd.CANCELLED,
    "KeysClosed | None": m.KeysClosed(1, (Seat(1),), 1, 1, 1),
    "SharesClosed | None": m.SharesClosed(1, (Seat(1),), 1, 1),
    "RoundClosed | None": f.RoundClosed(1, (Seat(1),), 1),
    "Judged | None": f.Judged(1, f.Outcome.KEPT, 1, (), (), False, 1),
    "BaseScored | None": f.BaseScored(1, 0, 1, (), False, 1),
}


def _changed(name: str, kind: str) -> Any:
    if kind.startswith("dict"):
        return {Seat(5): None}
    if kind.startswith("list"):
        return [7]
    if kind == "Roster":
        return Roster(next_seat=9, taken_part={Seat(1): 2})
    if kind == "Round | None":
        return Round(9, 0, digest(name), None, 1, 1, 0, 0)
    return CHANGED[kind]


def test_clone_forgets_no_field() -> None:
    roster, one, federation = Roster(), Round(1, 0, digest("b"), None, 3, 3, 0, 0), Federation()
    for original in (roster, one, federation):
        for field in fields(original):
            setattr(original, field.name, _changed(field.name, str(field.type)))
        assert original.clone() == original


def test_clone_shares_nothing_that_changes() -> None:
    world = training()
    frozen, copy = world.state.clone(), world.state.clone()
    world.send(1, 2, 3)
    world.finish_round()
    world.dismiss(2)
    assert copy == frozen != world.state


def test_clone_of_a_secret_sum_shares_nothing_that_changes() -> None:
    world = keying()
    copies = []
    for move in (world.keys, world.share, world.send):
        copies.append((world.state.clone(), world.state.clone()))
        move(1, 2, 3, 4)
    copies.append((world.state.clone(), world.state.clone()))
    world.agree()
    copies.append((world.state.clone(), world.state.clone()))
    world.answer(1, 2, 3)
    assert all(copy == frozen for copy, frozen in copies)


def test_remaining_counts_whose_update_is_in_or_can_come() -> None:
    world = training()
    world.submit(1)
    world.send(2)
    assert world.round.remaining == 3
    world.fail(3)
    assert world.state.ended is not None and world.state.ended.remaining == 2
    assert world.state.ended.is_over


def test_clone_is_complete_at_every_step() -> None:
    makes = (training, screening, summing, evaluating)
    for world in [
        make() for make in (*makes, keying, sharing, agreeing, unmasking, masked_summing)
    ]:
        assert world.state.clone() == world.state == world.replayed()
        assert not world.round.is_over

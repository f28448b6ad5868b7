"""Places for those whom nobody knows: who comes finds one, whoever was there before."""

from __future__ import annotations

import pytest

from consortium.coordinator import rooms
from consortium.coordinator.rooms import Place, Room, Rooms


class Guest:
    def __init__(self) -> None:
        self.is_gone = False

    def abort(self) -> None:
        self.is_gone = True


def test_newcomer_takes_the_place_of_the_oldest_of_its_address() -> None:
    room, guests = Room(per_key=2), [Guest() for _ in range(4)]
    assert room.enter("a", guests[0]) is None
    assert room.enter("b", guests[1]) is None
    assert room.enter("a", guests[2]) is None
    assert room.enter("a", guests[3]) is guests[0]
    assert len(room) == 3


def test_full_room_takes_from_the_address_that_has_most() -> None:
    room = Room(per_key=10, in_all=5)
    many = [Guest() for _ in range(4)]
    for guest in many:
        room.enter("many", guest)
    room.enter("one", Guest())
    assert room.enter("another", Guest()) is many[0]


def test_who_has_left_makes_no_room_and_may_leave_twice() -> None:
    room, first = Room(per_key=1), Guest()
    room.enter("a", first)
    room.leave("a", first)
    room.leave("a", first)
    assert room.enter("a", Guest()) is None and len(room) == 1


def test_guest_that_moves_on_is_safe_from_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "PER_ADDRESS", 3)
    found, honest = Rooms(), Guest()
    found.move(honest, Place.SILENT, "a")
    found.move(honest, Place.SHAKING, "a")
    silent = [Guest() for _ in range(50)]
    for guest in silent:
        found.move(guest, Place.SILENT, "a")
    found.move(honest, Place.KNOWN, "key")
    assert not honest.is_gone and found.place_of(honest) is Place.KNOWN
    assert [guest.is_gone for guest in silent] == [True] * 47 + [False] * 3
    assert found.place_of(silent[0]) is None


def test_site_has_a_few_places_and_the_newest_is_believed() -> None:
    found, guests = Rooms(), [Guest() for _ in range(rooms.PER_KNOWN + 1)]
    for guest in guests:
        found.move(guest, Place.KNOWN, "key")
    assert [guest.is_gone for guest in guests] == [True] + [False] * rooms.PER_KNOWN
    found.leave(guests[-1])
    assert found.count(Place.KNOWN) == rooms.PER_KNOWN - 1

"""Where connections wait whose peers nobody knows yet: rooms that are never full.

    SILENT     has sent nothing
    SHAKING    the handshake is not over
    STRANGER   may be anybody: showed no certificate, and no token that holds

A room has so many places for an address, and so many in all. Who comes when there is none left
takes the place of whoever has been there for longest, of the address that has most. To refuse
the newcomer would let anybody who came first keep everybody else out; this way an honest peer
must leave its room before as many others have come as there are places, and it takes a moment
to do so. Known peers are in none of these rooms: each has a few places of its own.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

PER_ADDRESS = 512  # three hundred sites may come back at once from behind one address
IN_ALL = 1024
PER_KNOWN = 32  # connections that showed the same certificate, or the same token


class Place(Enum):
    """What is known of a peer."""

    SILENT = "has sent nothing"
    SHAKING = "the handshake is not over"
    STRANGER = "may be anybody"
    KNOWN = "showed a certificate, or a token that holds"


class Guest(Protocol):
    """Somebody who can be sent away, and is then no longer there."""

    def abort(self) -> None: ...


class Room:
    """Guests by key, in the order of their arrival."""

    def __init__(self, per_key: int, in_all: int | None = None) -> None:
        self._per_key, self._in_all = per_key, in_all
        self._guests: dict[str, dict[Guest, None]] = {}
        self._count = 0

    def enter(self, key: str, guest: Guest) -> Guest | None:
        """Whoever had to make room."""
        guests = self._guests.setdefault(key, {})
        guests[guest] = None
        self._count += 1
        crowded = key if len(guests) > self._per_key else self._most_crowded()
        if crowded is None:
            return None
        oldest = next(iter(self._guests[crowded]))
        self.leave(crowded, oldest)
        return oldest

    def _most_crowded(self) -> str | None:
        if self._in_all is None or self._count <= self._in_all:
            return None
        return max(self._guests, key=lambda key: len(self._guests[key]))

    def leave(self, key: str, guest: Guest) -> None:
        """It need not be there."""
        guests = self._guests.get(key, {})
        if guest in guests:
            del guests[guest]
            self._count -= 1
            if not guests:
                del self._guests[key]

    def __len__(self) -> int:
        return self._count


class Rooms:
    """All rooms of one port. A guest is in one of them, or in none."""

    def __init__(self) -> None:
        self._rooms = {place: Room(PER_ADDRESS, IN_ALL) for place in Place}
        self._rooms[Place.KNOWN] = Room(PER_KNOWN)
        self._where: dict[Guest, tuple[Place, str]] = {}

    def move(self, guest: Guest, place: Place, key: str) -> None:
        """Let a guest in here, out of where it was. Somebody else may have to go."""
        self.leave(guest)
        self._where[guest] = (place, key)
        gone = self._rooms[place].enter(key, guest)
        if gone is not None:
            del self._where[gone]
            gone.abort()

    def leave(self, guest: Guest) -> None:
        found = self._where.pop(guest, None)
        if found is not None:
            self._rooms[found[0]].leave(found[1], guest)

    def place_of(self, guest: Guest) -> Place | None:
        found = self._where.get(guest)
        return None if found is None else found[0]

    def count(self, place: Place) -> int:
        return len(self._rooms[place])

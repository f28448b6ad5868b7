"""Every invitation of a `World` and what became of it, worked out from the facts alone.

With a barrier an invitation ends with its round; without one it passes on until it is counted,
refused, too old, too late or withdrawn. Nothing here asks the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consortium.core import facts as f
from consortium.core.ids import Digest, Seat
from consortium.testing.world_violation import must

_ENDS = (f.RoundCompleted, f.RoundFailed)
_WITHDRAW = (f.PlanAdopted, f.ModelInstalled, f.RolledBack, f.FederationFinished)
_PPM = 1_000_000
Key = tuple[int, Seat]  # the round that made the invitation, and whose it is


@dataclass(frozen=True, slots=True)
class Asked:
    """One invitation."""

    round: int
    version: int
    base: Digest


class Invitations:
    """The newest invitation of every seat, and the rounds that have what it brought."""

    def __init__(self) -> None:
        self.of: dict[Seat, Asked] = {}
        self.counted_in: dict[Key, int] = {}  # the round that closed with it
        self._received: set[Key] = set()
        self._over: set[Key] = set()
        self._opened: f.RoundOpened | None = None
        self._is_open = False
        self._awaited: set[Seat] = set()  # whose updates the round that opens must keep
        self._buffering: f.BufferingAdopted | None = None
        self._published: set[int] = set()

    def add(self, fact: f.Fact) -> None:
        """The next fact of the log."""
        awaited, self._awaited = self._awaited, set()
        if isinstance(fact, f.InvitationsKept):
            lost = sorted(awaited.difference(fact.seats))
            must(not lost, "I-R3", f"updates of {lost} were received, and no round keeps them")
            self._kept(fact)
            return
        must(not awaited, "I-R3", f"updates of {sorted(awaited)} were received and are forgotten")
        match fact:
            case f.PlanAdopted():
                self._buffering = None
            case f.BufferingAdopted():
                self._buffering = fact
            case f.RoundOpened():
                self._open(fact)
            case f.SitesInvited() | f.BackupsInvited():
                self._invited(fact.seats)
            case f.UpdateReceived():
                self._take(fact)
            case f.UpdateRejected() | f.UpdateExcluded() | f.SiteDropped() | f.SiteDeparted():
                self._fell(fact.seat)
            case f.RoundClosed():
                self._closed(fact.members)
            case f.MemberRemoved():
                self.counted_in.pop(self._key(fact.seat), None)
                self._fell(fact.seat)
            case f.ModelPublished():
                self._published.add(fact.round)
            case _:
                pass
        if isinstance(fact, _ENDS):
            self._is_open = False
        if isinstance(fact, _WITHDRAW):
            self._over.update((asked.round, seat) for seat, asked in self.of.items())

    def staleness(self, seat: Seat) -> int:
        """How many versions older than the open round's the base of a seat's update is."""
        assert self._opened is not None
        return self._opened.version - self.of[seat].version

    def factor(self, seat: Seat) -> float:
        """How much of itself a seat's update counts."""
        if self._buffering is None:
            return 1.0
        return float((1 + self.staleness(seat)) ** -(self._buffering.discount_ppm / _PPM))

    def is_counted(self, number: int, seat: Seat) -> bool:
        """Whether a published model has what the seat sent by this invitation."""
        return self.counted_in.get((number, seat), 0) in self._published

    # ---- one fact each --------------------------------------------------------------

    def _open(self, fact: f.RoundOpened) -> None:
        self._opened, self._is_open = fact, True
        if self._buffering is not None:
            self._awaited = {seat for seat in self.of if self._is_passing(seat)}

    def _is_passing(self, seat: Seat) -> bool:
        assert self._buffering is not None
        key = self._key(seat)
        is_left = key not in self._over and key not in self.counted_in
        is_fresh = self.staleness(seat) <= self._buffering.max_staleness
        return key in self._received and is_left and is_fresh

    def _kept(self, fact: f.InvitationsKept) -> None:
        for seat in self.of:
            key = self._key(seat)
            if seat not in fact.seats:
                self._over.add(key)
                continue
            is_left = key not in self._over and key not in self.counted_in
            must(is_left, "I-R3", f"the invitation of seat {seat} was over, and is kept")

    def _invited(self, seats: Sequence[Seat]) -> None:
        opened = self._opened
        assert opened is not None
        self.of |= {seat: Asked(opened.round, opened.version, opened.base) for seat in seats}

    def _take(self, fact: f.UpdateReceived) -> None:
        key = fact.round, fact.seat
        is_asked = fact.seat in self.of and self._key(fact.seat) == key
        is_asked = is_asked and (self._is_open or self._buffering is not None)
        is_asked = is_asked and key not in self._over
        must(is_asked, "I-A1", f"seat {fact.seat} is received and was not asked in {fact.round}")
        self._received.add(key)

    def _fell(self, seat: Seat) -> None:
        if seat in self.of and self._key(seat) not in self.counted_in:
            self._over.add(self._key(seat))

    def _closed(self, members: Sequence[Seat]) -> None:
        assert self._opened is not None
        for seat in members:
            key = self._key(seat)
            must(key not in self.counted_in, "I-R3", f"the update {key} counts a second time")
            must(key not in self._over, "I-A1", f"the invitation {key} was over, and is counted")
            most = 0 if self._buffering is None else self._buffering.max_staleness
            must(self.staleness(seat) <= most, "I-A1", f"the update {key} is too old, and counted")
            self.counted_in[key] = self._opened.round

    def _key(self, seat: Seat) -> Key:
        return self.of[seat].round, seat

"""Where each round is in the log, and what the log says of one of them.

State keeps the open round and the one before it; whoever asks about an older one (a site
that was away, an operator) is answered from the log itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.ids import Digest, Seat
from consortium.drive.fate import Fate, fate
from consortium.store.ports import Log

_MOST_COUNTED = 10_000


class RoundIndex:
    """The positions at which rounds begin: read once, then only what is new. Threads share it."""

    def __init__(self, log: Log, stream: str) -> None:
        self._log, self._stream = log, stream
        self._lock = threading.Lock()
        self._starts: dict[int, int] = {}
        self._buffered: set[int] = set()  # rounds without a barrier
        self._is_buffered = False  # by the plan that was read last
        self._seen = 0
        self._counted: dict[tuple[int, Seat], bool] = {}  # of what is over

    def facts_of(self, number: int) -> Iterator[tuple[int, f.Fact]]:
        """(position, fact) from the opening of round `number` to that of the next one; nothing
        for a round that never was."""
        start = self._start(number)
        if start is None:
            return
        stop = self._next_start(start)
        for at, record in enumerate(self._log.read(self._stream, start, stop), start=start):
            yield at, decode(record)

    def _next_start(self, start: int) -> int | None:
        """Where the next round begins. Its number may be more than one higher."""
        with self._lock:
            self._read_on()
            return min((at for at in self._starts.values() if at > start), default=None)

    def is_counted(self, number: int, seat: Seat) -> bool | None:
        """Whether a model was published that has what this seat sent by its invitation of round
        `number`; None while that is not over."""
        known = self._counted.get((number, seat))  # a site may ask again and again
        if known is None:
            known = self._is_counted(number, seat)
            if known is not None:
                with self._lock:
                    if len(self._counted) >= _MOST_COUNTED:
                        self._counted.clear()
                    self._counted[number, seat] = known
        return known

    def _is_counted(self, number: int, seat: Seat) -> bool | None:
        found = self._fate(number, seat)
        if found is not None:
            return found.is_published if found.is_over else None
        return is_counted((fact for _, fact in self.facts_of(number)), seat)

    def was_summed(self, number: int, seat: Seat) -> bool:
        """Whether this seat's update is in the sum of a completed round, whatever became of
        its candidate."""
        found = self._fate(number, seat)
        if found is not None:
            return found.is_summed
        end = _end_of(fact for _, fact in self.facts_of(number))
        return end is not None and end.is_completed and seat in end.members

    def received_at(self, number: int, seat: Seat) -> int | None:
        """Where the log says that this seat's update was received."""
        found = self._fate(number, seat)
        if found is not None:
            return found.received_at
        for at, fact in self.facts_of(number):
            if isinstance(fact, f.UpdateReceived) and fact.seat == seat:
                return at
        return None

    def _fate(self, number: int, seat: Seat) -> Fate | None:
        """What became of an invitation that may outlive its round; None where there is a
        barrier, and for a round that never was."""
        start = self._start(number)
        if start is None or number not in self._buffered:
            return None
        records = enumerate(self._log.read(self._stream, start), start=start)
        return fate(((at, decode(record)) for at, record in records), number, seat)

    def update_at(self, position: int) -> Digest:
        """The update that the fact at `position` says was received."""
        (record,) = self._log.read(self._stream, position, position + 1)
        fact = decode(record)
        assert isinstance(fact, f.UpdateReceived)
        return fact.update

    def _start(self, number: int) -> int | None:
        with self._lock:
            if number not in self._starts:
                self._read_on()
            return self._starts.get(number)

    def _read_on(self) -> None:
        for record in self._log.read(self._stream, self._seen):
            if record[0] == f.RoundOpened.KIND:
                number = decode(record).round
                self._starts[number] = self._seen
                if self._is_buffered:
                    self._buffered.add(number)
            elif record[0] in (f.PlanAdopted.KIND, f.BufferingAdopted.KIND):
                self._is_buffered = record[0] == f.BufferingAdopted.KIND
            self._seen += 1


def is_counted(facts: Iterable[f.Fact], seat: Seat) -> bool | None:
    """Whether the round that these facts are of published a model with this seat's update in
    it; None while the round is not over."""
    end = _end_of(facts)
    return None if end is None else end.is_published and seat in end.members


@dataclass(frozen=True, slots=True)
class _End:
    """How a round ended: whose updates are in its sum, and what became of it."""

    members: frozenset[Seat]
    is_completed: bool
    is_published: bool


def _end_of(facts: Iterable[f.Fact]) -> _End | None:
    members: set[Seat] = set()
    is_published = False
    for fact in facts:
        match fact:
            case f.RoundClosed():
                members.update(fact.members)
            case f.MemberRemoved() | f.UpdateExcluded():
                members.discard(fact.seat)
            case f.ModelPublished():
                is_published = True
            case f.RoundCompleted() | f.RoundFailed():
                is_completed = isinstance(fact, f.RoundCompleted)
                return _End(frozenset(members), is_completed, is_published)
            case _:
                pass
    return None

"""Time and wires of a `World`: a calendar of events, and links that lose, double and reorder."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from consortium.core.terms import DAY_MS, MINUTE_MS, SECOND_MS
from consortium.testing.world_faults import DELAYED, DOUBLED, LOST, Faults

START_MS = 30 * DAY_MS  # clocks may jump back from here


@dataclass(slots=True)
class Event:
    """Something that happens once; a message has somebody whom it is for."""

    run: Callable[[], None]
    to: object | None = None
    is_message: bool = False
    is_gone: bool = False


class Calendar:
    """What will happen, in the order of time; what is due at one time, in the order of entry."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self._queue: list[tuple[int, int, Event]] = []
        self._numbers = 0

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def enter(self, delay_ms: int, event: Event, number: int | None = None) -> None:
        number = self.next_number() if number is None else number
        heapq.heappush(self._queue, (self.now_ms + delay_ms, number, event))

    def take(self) -> Event:
        """The next event that was not taken back; the time is now its time."""
        while True:
            at_ms, _, event = heapq.heappop(self._queue)
            if not event.is_gone:
                self.now_ms = max(self.now_ms, at_ms)
                return event

    def pull_forward(self, to: object) -> Event | None:
        """The first message under way to somebody, taken out before its time."""
        under_way = [
            (at_ms, number, event)
            for at_ms, number, event in self._queue
            if event.to is to and not event.is_gone
        ]
        if not under_way:
            return None
        _, _, event = min(under_way, key=lambda entry: entry[:2])
        event.is_gone = True
        return event

    def hush(self) -> None:
        """Whatever is under way never arrives."""
        for _, _, event in self._queue:
            event.is_gone |= event.is_message


class Network:
    """Carries messages, each once, twice or never, and not in order."""

    def __init__(self, calendar: Calendar, faults: Faults) -> None:
        self._calendar, self._faults = calendar, faults
        self._newest: dict[str, int] = {}  # link → newest message delivered

    def carry(self, link: str, to: object | None, run: Callable[[], None]) -> None:
        """`to` is whom a request is for; None for a reply."""
        faults = self._faults
        if faults.strikes("message lost" if to else "reply lost", LOST):
            return
        copies = 2 if faults.strikes("message duplicated", DOUBLED) else 1
        for _ in range(copies):
            delay_ms = faults.rng.randrange(50, 2 * SECOND_MS)
            if faults.strikes("message delayed", DELAYED):
                delay_ms += faults.rng.randrange(20 * SECOND_MS, 10 * MINUTE_MS)
            number = self._calendar.next_number()
            delivery = self._delivery(link, number, run)
            self._calendar.enter(delay_ms, Event(delivery, to, True), number)

    def _delivery(self, link: str, number: int, run: Callable[[], None]) -> Callable[[], None]:
        def deliver() -> None:
            newest = self._newest.get(link, 0)
            if number < newest and not self._faults.is_quiet:
                self._faults.happened("message reordered")
            self._newest[link] = max(newest, number)
            run()

        return deliver

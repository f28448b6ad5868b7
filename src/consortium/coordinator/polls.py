"""Sites that wait for news: any number of them, in no thread.

When something was appended, one thread asks for all who wait whether there is news for them;
only those wake up. It waits a moment before: things are appended in bursts. Who has just
begun to wait is asked for alone: something may have been appended since its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from consortium.coordinator.desk import Desk
from consortium.coordinator.rows import SiteRow
from consortium.coordinator.threads import Threads
from consortium.errors import ConsortiumError
from consortium.wire.messages import Ask

_log = logging.getLogger(__name__)
_PAUSE_S = 0.005  # from something new to a look at all who wait


@dataclass(eq=False, slots=True)
class _Poll:
    site: SiteRow
    ask: Ask
    woken: asyncio.Future[None]


@dataclass(eq=False, slots=True)
class _Room:
    """Who waits for one federation."""

    desk: Desk
    polls: set[_Poll] = field(default_factory=set)
    newcomers: set[_Poll] = field(default_factory=set)
    has_changed: bool = False
    stirs: asyncio.Event = field(default_factory=asyncio.Event)
    looking: asyncio.Task[None] | None = None

    def change(self) -> None:
        self.has_changed = True
        self.stirs.set()

    def enter(self, poll: _Poll) -> None:
        self.polls.add(poll)
        self.newcomers.add(poll)
        self.stirs.set()

    def leave(self, poll: _Poll) -> None:
        self.polls.discard(poll)
        self.newcomers.discard(poll)

    def to_look_at(self) -> tuple[_Poll, ...]:
        """For whom there may be news since the last look."""
        found = tuple(self.polls if self.has_changed else self.newcomers)
        self.has_changed = False
        self.newcomers.clear()
        self.stirs.clear()
        return found


class Polls:
    """All who wait. To be used in one event loop."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._rooms: dict[str, _Room] = {}
        self._is_closed = False

    async def wait(self, desk: Desk, site: SiteRow, ask: Ask, gone: asyncio.Task[None]) -> None:
        """Return when there is news for the site, when `ask.wait_ms` is over, when the peer is
        `gone`, or when the server ends."""
        if self._is_closed:
            return
        room = self._room(desk)
        poll = _Poll(site, ask, asyncio.get_running_loop().create_future())
        room.enter(poll)
        try:
            waits_for: Iterable[asyncio.Future[None]] = (poll.woken, gone)
            await asyncio.wait(
                waits_for, timeout=ask.wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            room.leave(poll)

    def waiting(self, desk: Desk) -> int:
        """How many wait for this federation."""
        room = self._rooms.get(desk.id)
        return len(room.polls) if room else 0

    def close(self) -> None:
        """Wake everybody up, now and from now on."""
        self._is_closed = True
        for room in self._rooms.values():
            _wake(room.polls)
            if room.looking is not None:
                room.looking.cancel()

    def _room(self, desk: Desk) -> _Room:
        room = self._rooms.get(desk.id)
        if room is None:
            room = self._rooms[desk.id] = _Room(desk)
            loop = asyncio.get_running_loop()
            room.looking = loop.create_task(self._look(room))

            def tell() -> None:
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(room.change)

            desk.watch(tell)
        return room

    async def _look(self, room: _Room) -> None:
        while not self._is_closed:
            await room.stirs.wait()
            await asyncio.sleep(_PAUSE_S)
            polls = room.to_look_at()
            try:
                _wake(await self._threads.read(partial(_with_news, room.desk, polls)))
            except Exception:  # whoever waits will find out what it is when it asks
                _log.exception("there is no telling for whom there is news")
                _wake(polls)


def _with_news(desk: Desk, polls: tuple[_Poll, ...]) -> list[_Poll]:
    return [poll for poll in polls if _has_news(desk, poll)]


def _has_news(desk: Desk, poll: _Poll) -> bool:
    try:
        return desk.has_news(poll.site, poll.ask)
    except ConsortiumError:  # for instance, it is off the roster: it will be told when it asks
        return True


def _wake(polls: Iterable[_Poll]) -> None:
    for poll in polls:
        if not poll.woken.done():
            poll.woken.set_result(None)

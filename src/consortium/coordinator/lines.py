"""Lines to sites that listen: connections that this coordinator opens, and sites speak on.

The protocol stays as it is: sites ask, and are answered. Only who opens the connection is
another. A site that listens is called, the call says that the line is the site's, and from
then on it serves the site's signed requests as if it had come in at the port (docs/adr/0039).

A few lines to each site are kept open: one for its long poll, one for its worker, one spare.
What breaks is called again, after longer and longer pauses while nobody answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from consortium.coordinator.calls import Caller, Target
from consortium.coordinator.office import Office
from consortium.coordinator.threads import Threads
from consortium.errors import ConsortiumError, UnreachableError

LINES = 3  # of a site
LOOK_S = 1.0  # from a change of who listens to its effect
LEAST_S, MOST_S = 0.2, 10.0  # between calls that fail
UPGRADE_S = 10.0
_ENOUGH_S = 1.0  # a line that lasts as long was not refused
_MOST_HEAD_BYTES = 8 << 10
_MOST_SHOWN = 120  # letters of a trouble, for people
UPGRADE = "consortium-line/1"
_REQUEST = (
    "POST /v1/line HTTP/1.1\r\nHost: site\r\nConnection: Upgrade\r\n"
    f"Upgrade: {UPGRADE}\r\nContent-Length: 0\r\n\r\n"
).encode()
_log = logging.getLogger(__name__)

MakeProtocol = Callable[[], asyncio.Protocol]


@dataclass(eq=False, slots=True)
class _Called:
    """A site that is called, and what is known of it."""

    target: Target
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    lines: set[Line] = field(default_factory=set)
    trouble: str = ""

    def stop(self) -> None:
        """Call it no more."""
        for task in self.tasks:
            task.cancel()

    def end(self) -> None:
        """Nor let it speak."""
        self.stop()
        for line in list(self.lines):
            line.abort()


class Lines:
    """All lines of one coordinator. To be used in one event loop."""

    def __init__(self, office: Office, threads: Threads, make_protocol: MakeProtocol) -> None:
        self._office, self._threads, self._make_protocol = office, threads, make_protocol
        self._caller = Caller(office)
        self._called: dict[str, _Called] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def close(self) -> None:
        """Call nobody any more. Lines that are open end as all connections do."""
        if self._looking is not None:
            self._looking.cancel()
        for called in self._called.values():
            called.stop()

    async def _look(self) -> None:
        """Call whoever is to be called now, and nobody else."""
        while True:
            try:
                found = await self._threads.read(self._targets)
            except ConsortiumError as error:
                _log.error("%s", error.message, extra={"code": error.code})
            else:
                self._reconcile(found)
            await asyncio.sleep(LOOK_S)

    def _targets(self) -> dict[str, Target]:
        rows = self._office.registry.listening()
        return {row.id: Target(row.id, row.federation, row.name, row.key, url) for row, url in rows}

    def _reconcile(self, wanted: dict[str, Target]) -> None:
        for site, called in list(self._called.items()):
            if wanted.get(site) != called.target:
                called.end()
                del self._called[site]
                self._tell(called.target, None)
        for site, target in wanted.items():
            if site not in self._called:
                called = self._called[site] = _Called(target)
                loop = asyncio.get_running_loop()
                called.tasks = [loop.create_task(self._keep(called)) for _ in range(LINES)]

    async def _keep(self, called: _Called) -> None:
        """Keep one line open."""
        loop, pause_s = asyncio.get_running_loop(), LEAST_S
        while True:
            begun_s = loop.time()
            try:
                line = await self._open(called.target)
                self._note(called, "")
                called.lines.add(line)
                await line.ended
                called.lines.discard(line)
            except ConsortiumError as error:
                self._note(called, error.message)
            is_brief = loop.time() - begun_s < _ENOUGH_S
            pause_s = min(2 * pause_s, MOST_S) if called.trouble or is_brief else LEAST_S
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _open(self, target: Target) -> Line:
        line = Line(self._make_protocol)
        await self._caller.call(target, lambda: line)
        try:
            async with asyncio.timeout(UPGRADE_S):
                await line.opened
        except TimeoutError:
            line.abort()
            raise UnreachableError("it does not take the line") from None
        except asyncio.CancelledError:
            line.abort()
            raise
        return line

    def _note(self, called: _Called, trouble: str) -> None:
        """Log a change, not every attempt. A site with one line open can be called."""
        self._tell(called.target, None if not trouble or called.lines else _shown(trouble))
        if trouble == called.trouble:
            return
        called.trouble, told = trouble, {"site": called.target.name}
        if trouble:
            _log.warning("cannot call %s: %s", called.target.name, trouble, extra=told)
        else:
            _log.info("%s is called again", called.target.name, extra=told)

    def _tell(self, target: Target, trouble: str | None) -> None:
        """What the federation's operator sees of it in the list of sites."""
        for teller in self._office.tellers():
            if teller.desk.id == target.federation:
                teller.note_call(target.site, trouble)


class Line(asyncio.Protocol):
    """One connection to a site: says whose the line is, and then lets another protocol serve
    it. `opened` is done when the site has taken the line, `ended` when it is gone."""

    def __init__(self, make_protocol: MakeProtocol) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._make_protocol = make_protocol
        self._served: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_REQUEST)

    def data_received(self, data: bytes) -> None:
        if self._served is not None:
            self._served.data_received(data)
            return
        self._head += bytes(data)  # what is given here is the loop's own buffer
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if len(head) > _MOST_HEAD_BYTES or (end and not _is_taken(head)):
            self._refuse("it answers otherwise than a site that listens")
        elif end:
            self._serve(rest)

    def _serve(self, rest: bytes) -> None:
        assert self._transport is not None
        self._served, self._head = self._make_protocol(), b""
        self._served.connection_made(self._transport)
        if not self.opened.done():
            self.opened.set_result(None)
        if rest:
            self._served.data_received(rest)

    def _refuse(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(UnreachableError(why))
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._served.eof_received() if self._served is not None else None

    def pause_writing(self) -> None:
        if self._served is not None:
            self._served.pause_writing()

    def resume_writing(self) -> None:
        if self._served is not None:
            self._served.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._served is not None:
            self._served.connection_lost(exc)
        elif not self.opened.done():
            self.opened.set_exception(UnreachableError("it refuses this coordinator's call"))
        if not self.ended.done():
            self.ended.set_result(None)


def _is_taken(head: bytes) -> bool:
    return head.startswith(b"HTTP/1.1 101 ")


def _shown(trouble: str) -> str:
    """What can be printed of a text, and not more than fits."""
    return "".join(one for one in trouble if one.isprintable())[:_MOST_SHOWN]

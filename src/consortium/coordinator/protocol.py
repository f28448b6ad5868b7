"""HTTP/1.1 over TLS as uvicorn speaks it, with what a coordinator adds: the application sees
the peer's certificate, bodies go where they are used without a stop, and silent connections end.

300 sites keep a connection each, and each may send at any time: what one of them keeps in
memory is little, and `benchmarks.network` measures it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from consortium.coordinator.problems import PROBLEM, problem
from consortium.coordinator.tls import LITTLE_BYTES, READ_BYTES, Transport
from consortium.errors import WireError

EXTENSION = "consortium"  # in scope["extensions"]
CERTIFICATE = "certificate"  # the peer's, DER; None when it showed none
INFLOW = "inflow"  # how the request's body comes in
BODY_BYTES = 16 << 10  # of a request's body that wait in memory
HEAD_BYTES, HEAD_LINES = 64 << 10, 100
HEAD_S = 20.0  # from the first byte of a request's head to its last
KEEP_ALIVE_S = 120  # longer than the longest poll, so that a waiting site keeps its session
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # a dead peer: 2 minutes


class Inflow:
    """The body of one request as it comes in. Who sets `take` is given each piece at once,
    without being woken up for it, and must not wait in it. `count` is of the bytes given."""

    __slots__ = ("count", "failure", "take")

    def __init__(self) -> None:
        self.take: Callable[[bytes], None] | None = None
        self.failure: Exception | None = None
        self.count = 0

    def give(self, piece: bytes) -> bool:
        """Whether the piece was taken. What `take` raises is kept for whoever set it."""
        assert self.take is not None
        try:
            self.take(piece)
        except Exception as failure:
            self.take, self.failure = None, failure
            return False
        self.count += len(piece)
        return True


class SiteProtocol(HttpToolsProtocol):
    """One connection."""

    _line: Transport
    _shown: bytes | None
    _inflow: Inflow
    _unanswered: list[RequestResponseCycle]
    _head_ends: asyncio.TimerHandle | None
    _head_bytes: int
    _head_lines: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        assert isinstance(transport, Transport)
        super().connection_made(transport)
        self._unanswered, self._head_ends = [], None
        tls = transport.get_extra_info("ssl_object")
        self._shown = tls.getpeercert(binary_form=True)
        self._line = transport
        transport.set_write_buffer_limits(high=LITTLE_BYTES)
        _set_up(transport.get_extra_info("socket"))
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._inflow = Inflow()
        self.scope["extensions"] = {EXTENSION: {CERTIFICATE: self._shown, INFLOW: self._inflow}}
        self._head_bytes = self._head_lines = 0
        self._head_ends = self.loop.call_later(HEAD_S, self.end)

    def on_url(self, url: bytes) -> None:
        if self._fits(url):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_lines += 1
        if self._fits(name + value):
            super().on_header(name, value)

    def _fits(self, part: bytes) -> bool:
        """Whether the head of the request is still of a decent size; else hang up. Nobody has
        said who it is before its head is whole."""
        self._head_bytes += len(part)
        is_small = self._head_bytes <= HEAD_BYTES and self._head_lines <= HEAD_LINES
        if not is_small:
            self.end()
        return is_small

    def on_body(self, body: bytes) -> None:
        """To whoever takes it; until there is somebody, a little of it waits here."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        is_taken = self._inflow.take is not None
        self._line.read_bytes = READ_BYTES if is_taken else LITTLE_BYTES
        if is_taken:
            if cycle.body:
                body, cycle.body = bytes(cycle.body) + body, bytearray()
            is_stuck = not self._inflow.give(body)
        else:
            cycle.body += body
            is_stuck = len(cycle.body) >= BODY_BYTES
        if is_stuck:
            self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._line.read_bytes = LITTLE_BYTES
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._end_head()
        if self.transport.is_closing():
            return
        super().on_headers_complete()
        self._unanswered = [one for one in self._unanswered if not one.response_complete]
        self._unanswered.append(self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the newest request, but a peer may have sent several at once."""
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._end_head()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def _end_head(self) -> None:
        if self._head_ends is not None:
            self._head_ends.cancel()
            self._head_ends = None

    def _await_request(self) -> None:
        """A peer that connects, or sends half a request's head, must go on within this time."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def end_if_idle(self) -> None:
        """Hang up, unless an answer is under way."""
        if all(cycle.response_complete for cycle in self._unanswered):
            self.end()

    def end(self) -> None:
        """Hang up without waiting for the peer to say goodbye."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets a problem, as everything else does."""
        status, body = problem(WireError(msg))
        head = f"HTTP/1.1 {status} Bad Request\r\ncontent-type: {PROBLEM}\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


def _set_up(sock: socket.socket | None) -> None:
    """Send small answers at once (asyncio forgets it for sockets that it did not make), and
    find out about a peer that is gone without a word: it might wait for news for ever."""
    if sock is None:
        return
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBES.items():
            if hasattr(socket, name):  # not everywhere
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

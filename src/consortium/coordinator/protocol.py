"""HTTP/1.1 over TLS as uvicorn speaks it, with what a coordinator adds: the application sees
the peer's certificate, bodies go where they are used without a stop, and peers that keep us
waiting are hung up on.

    REQUEST   nothing of one has come        FIRST_S, or between requests KEEP_ALIVE_S
    HEAD      the first byte of it has come  HEAD_S for all of it
    BODY      its head is whole              by its bytes (`patience.py`)
    ANSWER    it is whole: our turn          no deadline here; the peer's reading has one (`tls.py`)

300 sites keep a connection each, and each may send at any time: what one of them keeps in
memory is little, and `benchmarks.network` measures it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

import httptools
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from consortium.coordinator.heads import Refused, check_head
from consortium.coordinator.patience import Patience
from consortium.coordinator.problems import PROBLEM, problem
from consortium.coordinator.tls import FLUSH_S, LITTLE_BYTES, READ_BYTES, Transport
from consortium.errors import WireError

EXTENSION = "consortium"  # in scope["extensions"]
CERTIFICATE = "certificate"  # the peer's, DER; None when it showed none
INFLOW = "inflow"  # how the request's body comes in
TRUST = "trust"  # to be called with what a peer is known by, when its token holds
BODY_BYTES = 16 << 10  # of a request's body that wait in memory
HEAD_BYTES, HEAD_LINES = 64 << 10, 100
HEAD_S = 15.0  # from the first byte of a request's head to its last
FIRST_S = 15.0  # from the handshake to the first request
KEEP_ALIVE_S = 120  # longer than the longest poll, so that a waiting site keeps its session
STRANGER_S = 40  # the same for who shows no certificate: longer than our own clients want it
LISTENED_S = 5.0  # after a pause of ours, before a peer is called silent
MOST_UNANSWERED = 32  # requests that one connection has sent and has no answer to
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
            self.fail(failure)
            return False
        self.count += len(piece)
        return True

    def fail(self, failure: Exception) -> None:
        """There will be no more; whoever set `take` finds out why."""
        self.take, self.failure = None, failure


class _Awaits(Enum):
    REQUEST = "nothing of one has come"
    HEAD = "the rest of a request's head"
    BODY = "the rest of a request's body"
    ANSWER = "nothing: the answer is our turn"


class SiteProtocol(HttpToolsProtocol):
    """One connection."""

    _line: Transport
    _shown: bytes | None
    _inflow: Inflow
    _unanswered: list[RequestResponseCycle]
    _awaits: _Awaits
    _patience: Patience
    _head_bytes: int
    _head_lines: int
    _refused: Refused | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        assert isinstance(transport, Transport)
        super().connection_made(transport)
        self._unanswered, self._refused = [], None
        tls = transport.get_extra_info("ssl_object")
        self._shown = tls.getpeercert(binary_form=True)
        self._line = transport
        transport.set_write_buffer_limits(high=LITTLE_BYTES)
        _set_up(transport.get_extra_info("socket"))
        self._patience = Patience(self.loop, self._on_silence)
        # Who connects has something to ask; on a line that we opened, a site asks when it likes.
        self._await(_Awaits.REQUEST, FIRST_S if transport.is_accepted else KEEP_ALIVE_S)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._refused or Refused(WireError("this is not HTTP/1.1")))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._inflow = Inflow()
        told: dict[object, object] = {CERTIFICATE: self._shown, INFLOW: self._inflow}
        told[TRUST] = self._line.trust
        self.scope["extensions"] = {EXTENSION: told}
        self._head_bytes = self._head_lines = 0
        self._await(_Awaits.HEAD, HEAD_S)

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
        self._patience.credit(len(body))
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

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            return
        try:
            check_head(self.parser, self.url, self.headers)
        except Refused as refused:
            self._refused = refused
            raise  # the parser stops, and says so
        self._await(_Awaits.BODY)
        super().on_headers_complete()
        self._unanswered = [one for one in self._unanswered if not one.response_complete]
        self._unanswered.append(self.cycle)
        if len(self._unanswered) > MOST_UNANSWERED:
            self.end()

    def on_message_complete(self) -> None:
        self._line.read_bytes = LITTLE_BYTES
        if self.transport.is_closing():
            return
        super().on_message_complete()
        self._await(_Awaits.ANSWER)
        self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # ours has other rules
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the newest request, but a peer may have sent several at once."""
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._patience.end()
        super().connection_lost(exc)

    # ---- waiting for the peer -------------------------------------------------------

    def _await(self, what: _Awaits, seconds: float | None = None) -> None:
        self._awaits = what
        if what is _Awaits.ANSWER:
            self._patience.stop()
        else:
            self._patience.wait(seconds)

    def _await_request(self) -> None:
        """When all was asked and answered, the next request may take its time."""
        if self._awaits is _Awaits.ANSWER and self._is_idle():
            is_known = self._shown is not None
            self._await(_Awaits.REQUEST, KEEP_ALIVE_S if is_known else STRANGER_S)

    def _is_idle(self) -> bool:
        return all(cycle.response_complete for cycle in self._unanswered)

    def _on_silence(self) -> None:
        """The peer has kept us waiting; unless it was we who did not listen."""
        listened_s = self.loop.time() - self._line.resumed_s
        is_deaf = not self._line.is_reading() and not self._line.is_closing()
        if self._awaits is not _Awaits.REQUEST and (is_deaf or listened_s < LISTENED_S):
            self._patience.wait(LISTENED_S)
        elif self._awaits is _Awaits.REQUEST and self._is_idle():
            self.transport.close()
        elif self._awaits is _Awaits.BODY and self._inflow.take is not None:
            told = {"connection": "close"}
            self._inflow.fail(HTTPException(408, "the rest of the body did not come", told))
            self.cycle.message_event.set()
            self._patience.wait(FLUSH_S)  # for whoever reads it to say so; then it is over
        else:
            self.end()

    def end_if_idle(self) -> None:
        """Hang up, unless an answer is under way."""
        if self._is_idle():
            self.end()

    def end(self) -> None:
        """Hang up without waiting for the peer to say goodbye."""
        self.transport.abort()

    def _refuse(self, refused: Refused) -> None:
        """A request that never reaches the application gets a problem, as others do. While
        an earlier one is being answered, words of ours would be taken for part of that."""
        if not self._is_idle():
            self.end()
            return
        status, body = problem(refused.error, refused.status)
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: {PROBLEM}\r\n"
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

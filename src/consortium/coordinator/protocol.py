"""HTTP/1.1 over TLS as uvicorn speaks it, with what a coordinator adds: the application sees
the peer's certificate, buffers stay small, and silent connections end.

Buffers: 300 sites keep a connection each. asyncio's TLS takes 256 KiB to read and 512 KiB to
write for each of them. With less, taking uploads costs more processor time, and with much
memory grows with the sites: `benchmarks.network` shows both sides of the choice.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio import sslproto
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from consortium.coordinator.problems import PROBLEM, problem
from consortium.errors import WireError

EXTENSION = "consortium"  # in scope["extensions"]
CERTIFICATE = "certificate"  # the peer's, DER; None when it showed none
BUFFER_BYTES = 24 << 10
BODY_BYTES = 24 << 10  # of a request's body that wait in memory
HEAD_BYTES, HEAD_LINES = 64 << 10, 100
HEAD_S = 20.0  # from the first byte of a request's head to its last
KEEP_ALIVE_S = 120  # longer than the longest poll, so that a waiting site keeps its session
_LINGER_S = 1.0  # for a peer to read our last answer
_PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}  # a dead peer: 2 minutes


def use_small_buffers() -> None:
    """For every TLS connection that this process opens from now on."""
    sslproto.SSLProtocol.max_size = BUFFER_BYTES


class SiteProtocol(HttpToolsProtocol):
    """One connection."""

    _extensions: dict[str, Any]
    _unanswered: list[RequestResponseCycle]
    _head_ends: asyncio.TimerHandle
    _head_bytes: int
    _head_lines: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unanswered = []
        tls = transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        self._extensions = {EXTENSION: {CERTIFICATE: shown}}
        if tls is not None:
            transport.set_write_buffer_limits(high=BUFFER_BYTES)
            transport.set_read_buffer_limits(high=BUFFER_BYTES)  # type: ignore[attr-defined]
        _set_up(transport.get_extra_info("socket"))
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
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
        """Wake the application up for much of a body at once, and not for each piece: pieces
        are as small as the line is slow, and waking up costs more than they do."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) >= BODY_BYTES:
            self.flow.pause_reading()
            cycle.message_event.set()

    def on_headers_complete(self) -> None:
        self._head_ends.cancel()
        if self.transport.is_closing():
            return
        super().on_headers_complete()
        self._unanswered = [one for one in self._unanswered if not one.response_complete]
        self._unanswered.append(self.cycle)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # TLS would read on for half a minute
            self.loop.call_later(_LINGER_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the newest request, but a peer may have sent several at once."""
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

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

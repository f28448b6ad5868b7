"""Connections to a coordinator: kept open between requests, and cut from any thread.

A connection serves one request at a time. An idle one serves the next, unless it is old, or
there is something to read on it: nothing was asked, so the other side has hung up.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import IO, Any

from consortium.errors import StoreFailedError
from consortium.site.address import Address, Proxy

CONNECT_S = 10.0
WRITE_S = 15.0
_DEAD_S = 30  # without a sign of life from the other side's system
_FILE_WRITE_S = 120.0  # for a piece of a file: a slow line's queue may be minutes long
IDLE_S = 30.0  # less than a coordinator, or what stands before it, keeps a silent connection
MOST_IDLE = 8
_TOGETHER_BYTES = 8 << 10  # a body up to this size leaves in one piece with its head
_PIECE_BYTES = 1 << 16  # of a file, at a time


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of an open file as a request's body: read while it is sent."""

    file: IO[bytes]
    start: int
    end: int
    on_piece: Callable[[int], None]  # told where the next piece begins

    def __len__(self) -> int:
        return self.end - self.start

    def pieces(self) -> Iterator[bytes]:
        """Trouble with the file is no trouble with the line: it is told as what it is."""
        for at in range(self.start, self.end, _PIECE_BYTES):
            with suppress(OSError, ValueError):  # to show it may fail; that is not the line's fault
                self.on_piece(at)
            size = min(_PIECE_BYTES, self.end - at)
            try:
                self.file.seek(at)
                piece = self.file.read(size)
            except OSError as error:
                raise StoreFailedError(f"{self.file.name}: {error.strerror}") from None
            if len(piece) < size:
                raise StoreFailedError(f"{self.file.name} became shorter while it was sent")
            yield piece


Body = bytes | FilePart


class Connection(HTTPSConnection):
    """One TLS connection, straight or through a proxy."""

    auto_open = 0  # one that was closed is not opened again behind our back

    def __init__(self, address: Address, proxy: Proxy | None, context: ssl.SSLContext) -> None:
        first = proxy or address
        super().__init__(first.host, first.port, timeout=CONNECT_S, context=context)
        if proxy is not None:
            headers = {"Host": f"{address.bracketed}:{address.port}", **proxy.headers}
            self.set_tunnel(address.bracketed, address.port, headers)
        self._address, self._trusted = address, context
        self._tls: ssl.SSLSocket | None = None
        self._body: Body = b""
        self.is_cut = False

    def connect(self) -> None:
        """As `HTTPSConnection` does it, but so that `cut` finds the socket at any time."""
        HTTPConnection.connect(self)
        notice_death(self.sock)
        self._check_cut()
        self.sock = self._tls = self._trusted.wrap_socket(
            self.sock,
            server_hostname=self._address.host,
            do_handshake_on_connect=False,
        )
        self._check_cut()
        self._tls.do_handshake()

    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: Body, read_s: float
    ) -> HTTPResponse:
        """Send a request, and wait up to `read_s` for each piece of what comes back."""
        if self._tls is None:
            self.connect()
        assert self._tls is not None
        named = {"Host": self._address.netloc, "Content-Length": str(len(body)), **headers}
        self._tls.settimeout(WRITE_S)
        self._body = body
        try:
            self.request(method, self._address.prefix + path, headers=named)
        except TimeoutError:
            raise
        except OSError:
            # Who refuses a request need not read all of it: the answer may be here. It is the
            # last one, since the rest of this request never left.
            self.is_cut = True
        self._tls.settimeout(read_s)
        return self.getresponse()

    def send(self, data: Any) -> None:  # Any: as it is declared there; it is the head
        """The head and a small body leave in one record and one packet; a large body is not
        copied for it."""
        body, self._body = self._body, b""
        if isinstance(body, FilePart):
            super().send(data)
            assert self._tls is not None
            self._tls.settimeout(_FILE_WRITE_S)
            for piece in body.pieces():
                super().send(piece)
        elif len(body) <= _TOGETHER_BYTES:
            super().send(data + body)
        else:
            super().send(data)
            super().send(body)

    def is_alive(self) -> bool:
        """Whether an idle connection can be used."""
        if self.sock is None:
            return False
        look = select.poll()
        look.register(self.sock, select.POLLIN)
        return not look.poll(0)

    def cut(self) -> None:
        """End what is under way, from another thread."""
        self.is_cut = True  # before looking for a socket: `connect` looks the other way round
        sock = self._tls or self.sock  # http.client forgets its own before the answer is read
        if sock is not None:
            with suppress(OSError):
                # Not the method of SSLSocket: it would pull its state from under the reader.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _check_cut(self) -> None:
        if self.is_cut:
            raise ConnectionAbortedError("cut")


class Connections:
    """All connections to one coordinator. Threads share them."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._busy: set[Connection] = set()
        self._idle: list[tuple[float, Connection]] = []  # since when; the newest is the last
        self._is_closed = False

    def take(self) -> Connection:
        """A connection for one request. Give it back, whatever happens."""
        found = self._take_idle()
        if found is None:
            found = self._make()
            with self._lock:
                self._busy.add(found)
        return found

    def _take_idle(self) -> Connection | None:
        with self._lock:
            self._drop_old()
            while self._idle:
                found = self._idle.pop()[1]
                if found.is_alive():
                    self._busy.add(found)
                    return found
                found.close()
        return None

    def give_back(self, connection: Connection, *, is_fit: bool) -> None:
        """Keep the connection if it is fit for another request, else close it."""
        with self._lock:
            self._busy.discard(connection)
            self._drop_old()
            has_room = len(self._idle) < MOST_IDLE and not self._is_closed
            if is_fit and has_room and not connection.is_cut:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    def cut(self) -> None:
        """End every request that is under way, and keep no connection."""
        with self._lock:
            self._close_idle()
            for connection in self._busy:
                connection.cut()

    def close(self) -> None:
        """Keep no connection from now on. Those in use are closed by their users."""
        with self._lock:
            self._is_closed = True
            self._close_idle()

    def _close_idle(self) -> None:
        for _, connection in self._idle:
            connection.close()
        self._idle.clear()

    def _drop_old(self) -> None:
        oldest = time.monotonic() - IDLE_S
        while self._idle and self._idle[0][0] < oldest:
            self._idle.pop(0)[1].close()


def notice_death(sock: socket.socket) -> None:
    """A machine that is gone says nothing: what nobody takes for so long ends the connection."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, _DEAD_S * 1000)

"""A TLS port that does on each connection what a test says, byte by byte, and a proxy."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from consortium.crypto.authority import Authority
from consortium.site.transport import Client, verified_context
from tests.site.small_coordinator import server_context

Play = Callable[["Peer"], None]


@dataclass
class Peer:
    """The other end of one connection."""

    raw: socket.socket
    context: ssl.SSLContext
    over: threading.Event

    def tls(self) -> ssl.SSLSocket:
        return self.context.wrap_socket(self.raw, server_side=True)


@dataclass
class Scripted:
    """Connection number n is played by the nth script, and those after by the last."""

    url: str
    authority: Authority
    plays: list[Play]
    count: int = 0  # connections so far
    over: threading.Event = field(default_factory=threading.Event)

    def client(self) -> Client:
        return Client(self.url, verified_context(self.authority.pem()))


@contextmanager
def scripted(folder: Path, *plays: Play, host: str = "127.0.0.1") -> Iterator[Scripted]:
    authority = Authority.make(int(time.time() * 1000))
    context = server_context(folder, authority)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listening(host, family) as door:
        name = f"[{host}]" if ":" in host else host
        told = Scripted(f"https://{name}:{door.getsockname()[1]}", authority, list(plays))

        def meet(raw: socket.socket) -> None:
            told.count += 1
            play = told.plays.pop(0) if len(told.plays) > 1 else told.plays[0]
            play(Peer(raw, context, told.over))

        with serving(door, meet):
            try:
                yield told
            finally:
                told.over.set()


@contextmanager
def connect_proxy(target: int) -> Iterator[tuple[str, list[bytes]]]:
    """A proxy that leads everybody to one port, whatever was asked for; its address, and the
    heads that it was sent."""
    heads: list[bytes] = []

    def meet(raw: socket.socket) -> None:
        heads.append(head := read_head(raw))
        if not head.startswith(b"CONNECT coordinator.test:"):
            raw.sendall(b"HTTP/1.1 403 No\x1b[2J\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", target)) as there:
            raw.sendall(b"HTTP/1.1 200 OK\r\nVia: us\r\n\r\n")
            back = threading.Thread(target=_copy, args=(there, raw))
            back.start()
            _copy(raw, there)
            back.join()

    with listening("127.0.0.1", socket.AF_INET) as door, serving(door, meet):
        yield f"127.0.0.1:{door.getsockname()[1]}", heads


@contextmanager
def listening(host: str, family: socket.AddressFamily) -> Iterator[socket.socket]:
    with socket.create_server((host, 0), family=family) as door:
        yield door


@contextmanager
def serving(door: socket.socket, meet: Callable[[socket.socket], None]) -> Iterator[None]:
    """Meet everybody who comes in a thread of its own. All have ended when this has."""
    threads: list[threading.Thread] = []

    def run(raw: socket.socket) -> None:
        with raw, suppress(OSError):
            raw.settimeout(10)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else a close loses it
            meet(raw)

    def accept() -> None:
        with suppress(OSError):
            while True:
                raw, _ = door.accept()
                threads.append(threading.Thread(target=run, args=(raw,)))
                threads[-1].start()

    threads.append(threading.Thread(target=accept))
    threads[0].start()
    try:
        yield
    finally:
        door.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def read_head(sock: socket.socket) -> bytes:
    """All up to the empty line; raises `OSError` when nobody is there any more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = sock.recv(1)
        if not piece:
            raise OSError("gone")
        head += piece
    return head


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)

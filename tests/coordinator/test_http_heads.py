"""Heads of requests: bounded in size and in time, whoever sends them."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from consortium.coordinator import protocol

from .wired import Wired, wire


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    with wire(tmp_path) as found:
        yield found


def _connect(wired: Wired) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=wired.office.authority.pem().decode())
    raw = socket.create_connection(("127.0.0.1", wired.port), 5.0)
    return context.wrap_socket(raw, server_hostname="localhost")


def _is_closed(line: ssl.SSLSocket, timeout_s: float) -> bool:
    line.settimeout(timeout_s)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_endless_headers_are_hung_up_on(wired: Wired) -> None:
    with _connect(wired) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError):  # whatever a broken line is called here
            _send_for_ever(line)


def _send_for_ever(line: ssl.SSLSocket) -> None:
    for number in range(10_000):
        line.sendall(b"X-%d: %s\r\n" % (number, b"x" * 1000))


def test_half_a_head_is_hung_up_on_though_it_trickles(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_S", 0.5)
    with _connect(wired) as line:
        line.sendall(b"GET /health HTTP/1.1\r\n")
        begun = time.monotonic()
        while time.monotonic() - begun < 5.0:
            try:
                line.sendall(b"X")
            except OSError:
                break
            if _is_closed(line, 0.1):
                break
        assert time.monotonic() - begun < 3.0

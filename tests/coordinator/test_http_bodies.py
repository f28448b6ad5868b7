"""Bodies over the real port: at once, in bits, not to their end, after others."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from consortium.coordinator import patience, protocol
from consortium.wire.signing import sign

from .wired import Site, Wired, until, wire

SLOWLY = 3


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    with wire(tmp_path) as found:
        yield found


def chunk_head(site: Site, place: str, data: bytes) -> bytes:
    """Of a request that brings `data` to the beginning of an upload."""
    line = site.line("PATCH", f"{place}?offset=0", data)
    fields = sign(line, site.key) | {"Host": "x", "Content-Length": str(len(data))}
    lines = [f"PATCH {line.path} HTTP/1.1", *(f"{name}: {fields[name]}" for name in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def begin_upload(site: Site, data: bytes) -> tuple[str, bytes, socket.socket]:
    place = f"/v1/uploads/{sha256(data).hexdigest()}"
    plain = socket.create_connection(("127.0.0.1", site.wired.port), 10)
    line = site.context().wrap_socket(plain, server_hostname="localhost")
    return place, chunk_head(site, place, data), line


def test_pipelined_requests_in_one_record_are_all_answered(wired: Wired) -> None:
    plain = socket.create_connection(("127.0.0.1", wired.port), 10)
    with wired.context().wrap_socket(plain, server_hostname="localhost") as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        found = b""
        while found.count(b"HTTP/1.1 200") < 20:
            found += line.recv(1 << 16)


def test_head_and_body_in_one_write(wired: Wired) -> None:
    site = wired.in_training()[0]
    data = site.update()[: 1 << 20]
    place, head, line = begin_upload(site, data)
    with line:
        line.sendall(head + data)
        assert line.recv(20).startswith(b"HTTP/1.1 200")
    assert site.call("GET", place).json["offset"] == len(data)


def test_body_in_little_bits(wired: Wired) -> None:
    site = wired.in_training()[0]
    data = site.update()[:100_000]
    place, head, line = begin_upload(site, data)
    with line:
        for byte in head:
            line.sendall(bytes([byte]))
        for start in range(0, len(data), 1000):
            line.sendall(data[start : start + 1000])
        assert line.recv(20).startswith(b"HTTP/1.1 200")
    assert site.call("GET", place).json["offset"] == len(data)


@pytest.mark.parametrize("is_polite", [True, False])
def test_goodbye_within_a_body_leaves_nothing_of_it(wired: Wired, is_polite: bool) -> None:
    site = wired.in_training()[0]
    data = site.update()
    place, head, line = begin_upload(site, data)
    line.sendall(head + data[:500_000])
    part = wired.office.uploads.path(site.row.id, digest_in(place))
    until(lambda: part.exists() and part.stat().st_size == 500_000)
    if is_polite:
        line.unwrap()  # waits for the coordinator's own
    line.close()
    until(lambda: part.stat().st_size == 0)
    assert site.call("GET", place).json == {"offset": 0, "is_complete": False}


def digest_in(place: str) -> bytes:
    return bytes.fromhex(place.rpartition("/")[2])


def test_other_bytes_than_were_signed_do_not_count(wired: Wired) -> None:
    site = wired.in_training()[0]
    data = site.update()[: 1 << 20]
    place, head, line = begin_upload(site, data)
    with line:
        line.sendall(head + bytes(len(data)))
        assert line.recv(20).startswith(b"HTTP/1.1 401")
    assert site.call("GET", place).json["offset"] == 0


def test_later_writer_takes_an_upload_over(wired: Wired) -> None:
    """The earlier one is told while it still sends, and its connection goes on."""
    site = wired.in_training()[0]
    data = site.update()[: 1 << 20]
    place, head, line = begin_upload(site, data)
    with line:
        line.sendall(head + data[:300_000])
        part = wired.office.uploads.path(site.row.id, digest_in(place))
        until(lambda: part.exists() and part.stat().st_size == 300_000)
        assert site.call("PATCH", f"{place}?offset=0", data).status == 200
        line.sendall(data[300_000:])
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 409")
        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert line.recv(20).startswith(b"HTTP/1.1 200")
    assert site.call("GET", place).json["offset"] == len(data)


def test_slow_body_is_waited_for_and_a_silent_one_is_not(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.5)
    monkeypatch.setattr(protocol, "LISTENED_S", 0.5)
    site = wired.in_training()[0]
    data = site.update()[:200_000]
    _, head, line = begin_upload(site, data)
    with line:
        line.sendall(head)
        for start in range(0, 150_000, 25_000):  # for longer than that, but never silent
            line.sendall(data[start : start + 25_000])
            time.sleep(0.2)
        begun = time.monotonic()
        assert line.recv(20).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begun < SLOWLY


def test_bytes_of_bodies_are_counted(wired: Wired) -> None:
    site = wired.in_training()[0]
    before = received(wired)
    site.upload(site.update()[: 1 << 20])
    assert received(wired) - before >= 1 << 20


def received(wired: Wired) -> float:
    lines = wired.order("GET", "/metrics").body.decode().splitlines()
    return sum(float(one.split()[-1]) for one in lines if "received_bytes" in one and one[0] != "#")


def test_server_ends_while_a_handshake_stands_still(wired: Wired) -> None:
    with socket.create_connection(("127.0.0.1", wired.port), 10) as line:
        line.sendall(b"\x16\x03\x01")
        begun = time.monotonic()
        wired.server.stop()
        until(lambda: wired.server.is_over)
        assert time.monotonic() - begun < SLOWLY * 2
        assert line.recv(10) == b""

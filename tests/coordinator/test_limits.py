"""Limits over the real port: odd heads, drips, peers that do not read, too many at once."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections import namedtuple
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from consortium.coordinator import patience, protocol, rooms, uploads
from consortium.coordinator.rates import UnderWay
from consortium.coordinator.rooms import Place
from consortium.core.ids import Digest
from consortium.errors import RateLimitError
from consortium.wire.signing import sign

from .test_http_bodies import begin_upload
from .wired import FEDERATION, SIZE, Site, Wired, until, wire

SLOWLY = 5
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with wire(tmp_path_factory.mktemp("limits")) as found:
        yield found


@pytest.fixture(scope="module")
def site(wired: Wired) -> Site:
    return wired.in_training()[0]


def connect(wired: Wired, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", wired.port), 10)
    return (context or wired.context()).wrap_socket(plain, server_hostname="localhost")


def everything(line: socket.socket) -> bytes:
    found = b""
    try:
        while piece := line.recv(1 << 16):
            found += piece
    except TimeoutError:
        raise
    except OSError:
        pass  # hung up on, without a goodbye
    return found


# ---- heads --------------------------------------------------------------------------

ODD = {
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "the same length twice": (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    "a list of lengths": (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    "a signed length": (POST + b"Content-Length: +2\r\n\r\n{}", 400),
    "a length beyond all numbers": (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", 400),
    "length and chunks": (
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    "chunks, odd": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 411),
    "chunks, twice": (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks on a GET": (GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    "a space before the colon": (POST + b"Content-Length : 2\r\n\r\n{}", 400),
    "a folded line": (GET + b"X: a\r\n b\r\n\r\n", 400),
    "compressed": (POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 415),
    "twice compressed": (
        POST + b"Content-Encoding: gzip, zstd\r\nContent-Length: 2\r\n\r\n{}",
        415,
    ),
    "a whole URL": (b"GET https://localhost/health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a star": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "no slash": (b"GET health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a fragment": (b"GET /health#a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "CONNECT": (b"CONNECT localhost:22 HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "TRACE": (b"TRACE /health HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "a method of its own": (b"HACK /health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "HTTP/1.0": (b"GET /health HTTP/1.0\r\nHost: x\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /health\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/3.9": (b"GET /health HTTP/3.9\r\nHost: x\r\n\r\n", 400),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "two hosts": (GET + b"Host: y\r\n\r\n", 400),
    "an upgrade": (GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
    "an upgrade to HTTP/2": (GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
    "great expectations": (POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", 417),
    "no hexadecimal": (b"GET /v1/%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "half an escape": (b"GET /v1/% HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "NUL, escaped": (b"GET /v1/federations/%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a line feed, escaped": (b"GET /v1/federations/a%0Ab HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "not UTF-8": (b"GET /v1/federations/%ff%fe HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "NUL": (b"GET /hea\0lth HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "NUL in a value": (GET + b"X: a\0b\r\n\r\n", 400),
    "too long an address": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    "two ranges": (GET + b"Range: bytes=0-1\r\nRange: bytes=3-4\r\n\r\n", 400),
    "not HTTP": (b"\x05\x01\x00" + bytes(50), 400),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_head_is_refused_and_the_connection_ends(wired: Wired, name: str) -> None:
    sent, status = ODD[name]
    with connect(wired) as line:
        line.sendall(sent)
        told = everything(line)
    assert int(told.split()[1]) == status
    assert b"connection: close" in told and b"application/problem+json" in told
    assert told.count(b"HTTP/1.1 4") == 1


def test_expected_answer_is_given(wired: Wired) -> None:
    with connect(wired) as line:
        line.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 100 ")
        line.sendall(b"{}")
        assert line.recv(100).startswith(b"HTTP/1.1 400 ")


def test_body_on_a_get_is_thrown_away_and_not_taken_for_a_request(wired: Wired) -> None:
    hidden = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(wired) as line:
        line.sendall(GET + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden)
        line.sendall(GET + b"Connection: close\r\n\r\n")
        told = everything(line)
    assert told.count(b"HTTP/1.1 200") == 2 and b"404" not in told


def test_flood_of_requests_on_one_connection_is_hung_up_on(wired: Wired) -> None:
    with connect(wired) as line:
        line.sendall((GET + b"\r\n") * 400)
        assert everything(line).count(b"HTTP/1.1 200") <= protocol.MOST_UNANSWERED


def test_garbage_behind_a_request_is_not_answered_within_its_answer(wired: Wired) -> None:
    with connect(wired) as line:
        line.sendall(GET + b"\r\n" + b"\0garbage\r\n\r\n")
        told = everything(line)
    assert told.count(b"HTTP/1.1") <= 1


# ---- time ---------------------------------------------------------------------------


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.5)
    for name in ("FIRST_S", "HEAD_S", "LISTENED_S"):
        monkeypatch.setattr(protocol, name, 0.5)
    return 0.5


def drip(line: ssl.SSLSocket, piece: bytes, pause_s: float = 0.05) -> float:
    """How long the other side bears it."""
    line.settimeout(pause_s)
    begun = time.monotonic()
    while time.monotonic() - begun < SLOWLY * 2:
        try:
            line.sendall(piece)
            if line.recv(1 << 16) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - begun


DRIPS = {
    "a body": (POST + b"Content-Length: 4000\r\n\r\n", b"x"),
    "a body that nobody reads": (GET + b"Content-Length: 4000\r\n\r\n", b"x"),
    "a head": (GET, b"x"),
    "empty lines": (b"", b"\r\n"),
}


@pytest.mark.parametrize("name", DRIPS)
def test_drip_ends(wired: Wired, hurried: float, name: str) -> None:
    first, piece = DRIPS[name]
    with connect(wired) as line:
        line.sendall(first)
        assert drip(line, piece) < hurried + SLOWLY


def test_dripping_chunk_leaves_nothing_and_the_site_goes_on(
    wired: Wired, site: Site, hurried: float
) -> None:
    data = site.update()[: 1 << 20]
    place, head, line = begin_upload(site, data)
    with line:
        line.sendall(head + data[:300_000])
        assert drip(line, b"x") < hurried + SLOWLY
    assert site.call("GET", place).json["offset"] == 0
    assert site.call("PATCH", f"{place}?offset=0", data).status == 200


def test_slow_line_is_slow_and_no_more(wired: Wired, site: Site, hurried: float) -> None:
    """Eight KiB a second, in records of a KiB, for several times as long as anybody may pause."""
    data = os.urandom(16 << 10)
    _, head, line = begin_upload(site, data)
    with line:
        line.sendall(head)
        for start in range(0, len(data), 1024):
            line.sendall(data[start : start + 1024])
            time.sleep(0.125)
        assert line.recv(20).startswith(b"HTTP/1.1 200")


def test_peer_that_does_not_read_is_hung_up_on(
    wired: Wired, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten models are more than the system keeps for it, and it takes none of them."""
    monkeypatch.setattr(patience, "PATIENCE_S", 0.5)
    path = f"/v1/blobs/{site.invitation()['base']}"
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(10)
    plain.connect(("127.0.0.1", wired.port))
    with site.context().wrap_socket(plain, server_hostname="localhost") as line:
        for _ in range(10):
            line.sendall(signed(site, "GET", path))
        own = plain_address(line)
        until(lambda: own in addresses(wired))
        until(lambda: own not in addresses(wired))
        assert len(everything(line)) < 10 * SIZE * 4


def addresses(wired: Wired) -> list[object]:
    """Of all who are connected."""
    return [one.client for one in list(wired.server.server_state.connections)]


def plain_address(line: ssl.SSLSocket) -> tuple[str, int]:
    host, port = line.getsockname()
    return str(host), int(port)


def signed(
    site: Site, method: str, path: str, body: bytes = b"", count: int | None = None
) -> bytes:
    """A signed request, with so many bytes of its body."""
    told = sign(site.line(method, path, body), site.key)
    fields = told | {"Host": "x", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body[:count]


# ---- how many -----------------------------------------------------------------------


def test_silent_peers_do_not_keep_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "PER_ADDRESS", 20)
    with wire(tmp_path) as wired, ExitStack() as held:
        own = wired.enrol("site-0")
        silent = [
            held.enter_context(socket.create_connection(("127.0.0.1", wired.port), 10))
            for _ in range(60)
        ]
        half = [held.enter_context(connect(wired)) for _ in range(30)]
        acceptor = wired.server.servers[0]
        until(lambda: acceptor.rooms.count(Place.SILENT) <= 20)  # type: ignore[attr-defined]
        assert own.call("GET", "/v1/study").status == 200
        assert wired.order("GET", f"/v1/federations/{FEDERATION}").status == 200
        assert everything(silent[0]) == b"" and everything(half[0]) == b""
        with connect(wired) as line:
            line.sendall(GET + b"\r\n")
            assert line.recv(20).startswith(b"HTTP/1.1 200")


def test_operators_connection_outlives_a_flood_of_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "PER_ADDRESS", 5)
    with wire(tmp_path) as wired, ExitStack() as held:
        token = f"Authorization: Bearer {wired.operator_token}\r\n\r\n"
        ask = b"GET /v1/federations HTTP/1.1\r\nHost: x\r\n" + token.encode()
        line = held.enter_context(connect(wired))
        line.sendall(ask)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
        for _ in range(20):
            held.enter_context(connect(wired))
        line.sendall(ask)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_site_with_too_many_requests_under_way_is_told(wired: Wired, site: Site) -> None:
    gate = wired.server._edge.gate
    for _ in range(16):
        gate.under_way.enter(site.row.id)
    told = site.call("GET", "/v1/study")
    for _ in range(16):
        gate.under_way.leave(site.row.id)
    assert (told.status, told.code, told.headers["retry-after"]) == (429, "E0821", "1")
    assert site.call("GET", "/v1/study").status == 200
    until(lambda: len(gate.under_way) == 0)


def test_requests_under_way_are_counted_by_site() -> None:
    found = UnderWay(most=1)
    found.enter("a")
    found.enter("b")
    with pytest.raises(RateLimitError):
        found.enter("a")
    found.leave("a")
    found.enter("a")


def test_half_sent_request_counts_until_it_is_over(
    wired: Wired, site: Site, hurried: float
) -> None:
    body = b'{"seen_size":0,"own_size":0}'
    gate = wired.server._edge.gate
    with connect(wired, site.context()) as line:
        line.sendall(signed(site, "POST", "/v1/ask", body, 5))
        until(lambda: len(gate.under_way) == 1)
        assert everything(line).startswith(b"HTTP/1.1 408")
    until(lambda: len(gate.under_way) == 0)


# ---- the disk -----------------------------------------------------------------------

Space = namedtuple("Space", ["f_bavail", "f_frsize"])


def test_full_disk_takes_no_uploads_and_says_so(
    wired: Wired, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads.os, "statvfs", lambda _: Space(60 << 8, 4096))
    told = site.call("PATCH", f"/v1/uploads/{'a' * 64}?offset=0", b"x")
    assert (told.status, told.code, told.headers["retry-after"]) == (503, "E0606", "2")
    assert wired.order("GET", "/ready").code == "E0606"
    assert site.call("GET", "/v1/study").status == 200
    monkeypatch.undo()
    assert site.call("PATCH", f"/v1/uploads/{'a' * 64}?offset=0", b"x").status == 200
    assert wired.order("GET", "/ready").status == 200


def test_list_of_what_was_sent_stays_short(tmp_path: Path) -> None:
    found = uploads.Uploads(tmp_path / "uploads")
    digests = [Digest(number.to_bytes(32, "big")) for number in range(1200)]
    for digest in digests:
        found.mark_done("site", digest)
    assert found.is_done("site", digests[-1]) and found.is_done("site", digests[-500])
    assert not found.is_done("site", digests[0])
    assert (tmp_path / "uploads" / "site" / "done").stat().st_size <= 2 * 512 * 65

"""Connections against real ports: kept, dropped, shared, cut, and led through a proxy."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from consortium.errors import (
    ConsortiumError,
    TooLargeError,
    UnreachableError,
    UsageError,
    WireError,
)
from consortium.site import connections
from consortium.site.address import Address, read_address
from consortium.site.transport import Client, verified_context
from consortium.wire.messages import Taken
from tests.site.scripted import Peer, Play, connect_proxy, read_head, scripted
from tests.site.small_coordinator import Heard, Small, small_coordinator

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def ask(client: Client) -> None:
    client.call("GET", "/x", reply=Taken)


def saying(answer: bytes, times: int = 1_000_000) -> Play:
    """Answer so many requests, and hang up."""

    def play(peer: Peer) -> None:
        with peer.tls() as line:
            for _ in range(times):
                read_head(line)
                line.sendall(answer)

    return play


# ---- kept and dropped ---------------------------------------------------------------


def test_connection_is_used_again(tmp_path: Path) -> None:
    with scripted(tmp_path, saying(OK)) as server:
        client = server.client()
        for _ in range(3):
            ask(client)
        client.close()
    assert server.count == 1


def test_idle_connection_that_was_closed_is_not_used_again(tmp_path: Path) -> None:
    gone = threading.Event()

    def once(peer: Peer) -> None:
        saying(OK, times=1)(peer)
        peer.raw.close()
        gone.set()

    with scripted(tmp_path, once) as server:
        client = server.client()
        for _ in range(3):
            gone.clear()
            ask(client)
            assert gone.wait(5)
        client.close()
    assert server.count == 3


def test_old_connection_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", -1.0)
    with scripted(tmp_path, saying(OK)) as server:
        client = server.client()
        ask(client)
        ask(client)
        client.close()
    assert server.count == 2


def test_connection_is_kept_after_a_refusal(tmp_path: Path) -> None:
    refusal = b'HTTP/1.1 404 No\r\nContent-Length: 31\r\n\r\n{"code": "E0819", "detail": ""}'
    with scripted(tmp_path, saying(refusal)) as server:
        client = server.client()
        for _ in range(2):
            with pytest.raises(ConsortiumError):
                ask(client)
        client.close()
    assert server.count == 1


def test_connection_is_dropped_when_its_user_fails(tmp_path: Path) -> None:
    """By an error of the user's own: the line had none."""

    def fail(client: Client) -> None:
        with client.open(client.prepare("GET", "/x")) as response:
            response.read_all(10)
            raise OSError("disk full")

    with scripted(tmp_path, saying(OK)) as server:
        client = server.client()
        with pytest.raises(OSError, match="disk full"):
            fail(client)
        ask(client)
        client.close()
    assert server.count == 2


def test_connection_is_dropped_with_a_body_that_nobody_read(tmp_path: Path) -> None:
    with scripted(tmp_path, saying(OK)) as server:
        client = server.client()
        with client.open(client.prepare("GET", "/x")):
            pass
        ask(client)
        client.close()
    assert server.count == 2


# ---- half answers -------------------------------------------------------------------


def dropping(answer: bytes) -> Play:
    """Answer, and cut the line without the end that TLS has."""

    def play(peer: Peer) -> None:
        line = peer.tls()
        read_head(line)
        line.sendall(answer)
        with suppress(OSError):
            socket.socket.shutdown(line, socket.SHUT_RDWR)
        line.close()

    return play


def closing(answer: bytes) -> Play:
    """Answer, and end the line as TLS does."""

    def play(peer: Peer) -> None:
        line = peer.tls()
        read_head(line)
        line.sendall(answer)
        with suppress(OSError):
            line.unwrap()
        line.close()

    return play


@pytest.mark.parametrize("ending", [dropping, closing])
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}",
        b"\x1b[2Jgarbage\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n{}",
    ],
)
def test_half_an_answer_is_none(
    tmp_path: Path, ending: Callable[[bytes], Play], answer: bytes
) -> None:
    with scripted(tmp_path, ending(answer)) as server:
        client = server.client()
        with pytest.raises(UnreachableError) as caught:
            ask(client)
        client.close()
    assert caught.value.message.isprintable()


def test_answer_in_chunks_is_taken(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
    with scripted(tmp_path, saying(answer)) as server:
        client = server.client()
        ask(client)
        ask(client)
        client.close()
    assert server.count == 1


def test_answer_that_is_too_long_is_refused(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b" " * 100
    with scripted(tmp_path, saying(answer)) as server:
        client = server.client()
        with (
            pytest.raises(WireError, match="too long"),
            client.open(client.prepare("GET", "/x")) as response,
        ):
            response.read_all(99)
        client.close()


def test_silence_is_unreachable(tmp_path: Path) -> None:
    def silent(peer: Peer) -> None:
        with peer.tls() as line:
            read_head(line)
            peer.over.wait(10)

    with scripted(tmp_path, silent) as server:
        client = server.client()
        with pytest.raises(UnreachableError, match=r"timed out$"):
            client.call("GET", "/x", reply=Taken, read_s=0.05)
        client.close()


# ---- requests -----------------------------------------------------------------------


def test_small_request_leaves_in_one_piece(tmp_path: Path) -> None:
    pieces: list[bytes] = []

    def play(peer: Peer) -> None:
        with peer.tls() as line:
            pieces.append(line.recv(1 << 16))
            line.sendall(OK)

    with scripted(tmp_path, play) as server:
        client = server.client()
        client.call("POST", "/x", b"body", reply=Taken)
        client.close()
    head, _, body = pieces[0].partition(b"\r\n\r\n")
    assert body == b"body"
    lines = {line.lower() for line in head.split(b"\r\n")}
    assert lines >= {b"content-length: 4", b"accept-encoding: identity", b"user-agent: consortium"}
    assert b"host: " + server.url.removeprefix("https://").encode() in lines


def test_refusal_of_who_does_not_read_the_whole_request_is_heard(tmp_path: Path) -> None:
    body = json.dumps({"code": TooLargeError.code, "detail": "much too large"}).encode()
    answer = b"HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)

    def refuse(peer: Peer) -> None:
        with peer.tls() as line:
            read_head(line)
            line.sendall(answer + body)

    with scripted(tmp_path, refuse) as server:
        client = server.client()
        with pytest.raises(TooLargeError, match="much too large"):
            client.call("POST", "/x", bytes(64 << 20), reply=Taken)
        client.close()


def test_threads_share_a_client(tmp_path: Path) -> None:
    def echo(heard: Heard) -> tuple[int, dict[str, object]]:
        return 200, {"heard": heard.body.decode()}

    wrong: list[object] = []

    def talk(client: Client, name: str) -> None:
        for number in range(40):
            told = f"{name} {number} " * (1 + 500 * (number % 3))
            request = client.prepare("POST", "/echo", told.encode())
            with client.open(request) as response:
                if json.loads(response.read_all(1 << 20)) != {"heard": told}:
                    wrong.append(told)

    with small_coordinator(tmp_path) as small:
        small.routes["POST", "/echo"] = echo
        client = client_of(small)
        threads = [threading.Thread(target=talk, args=(client, f"t{n}")) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        assert len(small.heard) == 12 * 40
    assert wrong == []


def client_of(small: Small) -> Client:
    return Client(small.url, verified_context(small.authority.pem()))


# ---- cut ----------------------------------------------------------------------------


def in_handshake(peer: Peer) -> None:
    peer.raw.recv(1)
    peer.over.wait(10)


def before_the_answer(peer: Peer) -> None:
    with peer.tls() as line:
        read_head(line)
        peer.over.wait(10)


def in_the_body(peer: Peer) -> None:
    """Of a connection that is not to be kept: http.client has let go of its socket."""
    with peer.tls() as line:
        read_head(line)
        line.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n{}")
        peer.over.wait(10)


def while_sending(peer: Peer) -> None:
    with peer.tls() as line:
        read_head(line)
        peer.over.wait(10)


@pytest.mark.parametrize(
    ("play", "body"),
    [
        (in_handshake, b""),
        (before_the_answer, b""),
        (in_the_body, b""),
        (while_sending, bytes(64 << 20)),
    ],
)
def test_cut_ends_a_request_wherever_it_is(tmp_path: Path, play: Play, body: bytes) -> None:
    arrived, found = threading.Event(), list[BaseException]()

    def first(peer: Peer) -> None:
        arrived.set()
        play(peer)

    def run(client: Client) -> None:
        try:
            client.call("POST", "/x", body, reply=Taken, read_s=30)
        except ConsortiumError as error:
            found.append(error)

    with scripted(tmp_path, first, saying(OK)) as server:
        client = server.client()
        thread = threading.Thread(target=run, args=(client,))
        thread.start()
        assert arrived.wait(5)
        time.sleep(0.2)  # until it is where it is to be cut; if it is not, the test is kinder
        client.cut()
        thread.join(5)
        assert not thread.is_alive()
        assert [type(error) for error in found] == [UnreachableError]
        ask(client)  # a client that was cut can be used
        client.close()


# ---- where to -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address", "netloc"),
    [
        ("https://example.org", Address("example.org", 443), "example.org"),
        ("https://example.org:8443/", Address("example.org", 8443), "example.org:8443"),
        ("https://example.org/a/b/", Address("example.org", 443, "/a/b"), "example.org"),
        ("https://[::1]:8443", Address("::1", 8443), "[::1]:8443"),
        ("https://bücher.example", Address("xn--bcher-kva.example", 443), "xn--bcher-kva.example"),
    ],
)
def test_address_is_what_the_url_says(url: str, address: Address, netloc: str) -> None:
    assert read_address(url) == address
    assert address.netloc == netloc


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "http://example.org",
        "https://",
        "https://[::1",
        "https://example.org:x",
        "https://example.org:99999",
        "https://a..b",
        f"https://{'a' * 70}.org",
        "https://a b",
        "https://a\x7fb",
    ],
)
def test_what_is_no_https_address_is_a_mistake_of_whoever_wrote_it(
    url: str, tmp_path: Path
) -> None:
    with scripted(tmp_path, saying(OK)) as server:
        client = Client(url, verified_context(server.authority.pem()))
        with pytest.raises(UsageError, match="not an https address"):
            ask(client)
        client.close()


def test_header_that_http_does_not_allow_is_not_sent(tmp_path: Path) -> None:
    with scripted(tmp_path, saying(OK)) as server:
        client = server.client()
        request = client.prepare("GET", "/x")
        with (
            pytest.raises(UsageError, match="HTTP does not allow"),
            client.open(request, more={"Authorization": "a\r\nb: c"}),
        ):
            pass
        client.close()


def test_ipv6_address_is_reached(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with scripted(tmp_path, saying(OK), host="::1") as server:
        client = server.client()
        ask(client)
        client.close()


# ---- through a proxy ----------------------------------------------------------------


def test_proxy_is_asked_to_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        scripted(tmp_path, saying(OK)) as server,
        connect_proxy(int(server.url.rpartition(":")[2])) as (place, heads),
    ):
        set_proxy(monkeypatch, f"http://anna:p%40ss@{place}")
        client = Client("https://coordinator.test:4433", verified_context(server.authority.pem()))
        ask(client)
        ask(client)
        client.close()
    (head,) = heads
    assert head.startswith(b"CONNECT coordinator.test:4433 HTTP/1.")
    assert b"\r\nHost: coordinator.test:4433\r\n" in head
    assert b"\r\nProxy-Authorization: Basic YW5uYTpwQHNz\r\n" in head


def test_proxy_that_refuses_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(tmp_path, saying(OK)) as server, connect_proxy(9) as (place, _):
        set_proxy(monkeypatch, place)
        client = Client("https://[2001:db8::1]:4433", verified_context(server.authority.pem()))
        with pytest.raises(UnreachableError, match="403") as caught:
            ask(client)
        client.close()
    assert caught.value.message.isprintable()


def test_proxy_is_not_for_this_machine_nor_for_exceptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(tmp_path, saying(OK)) as server, connect_proxy(9) as (place, heads):
        set_proxy(monkeypatch, place)
        monkeypatch.setenv("no_proxy", "coordinator.test")
        client = server.client()
        ask(client)
        client.close()
        other = Client("https://coordinator.test:4433", verified_context(server.authority.pem()))
        with pytest.raises(UnreachableError):  # there is no such name
            ask(other)
        other.close()
    assert heads == []


@pytest.mark.parametrize("told", ["socks5://proxy:1", "https://proxy", "http://", "http://h:x"])
def test_proxy_that_cannot_be_used_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    set_proxy(monkeypatch, told)
    with scripted(tmp_path, saying(OK)) as server:
        client = Client("https://coordinator.test", verified_context(server.authority.pem()))
        with pytest.raises(UsageError, match="HTTPS_PROXY"):
            ask(client)
        client.close()


def set_proxy(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    for name in ("HTTPS_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", told)

"""TLS on the loop: handshakes, back pressure, what OpenSSL keeps to itself, every end."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import pytest

from consortium.coordinator import tls
from consortium.coordinator.tls import Acceptor, Transport
from consortium.crypto.authority import Authority
from consortium.drive.clock import SystemClock

from .wired import until

SLOWLY = 3  # other work may have the machine's two cores
PIECE = 64 << 10

Result = TypeVar("Result")


class Peer(asyncio.Protocol):
    """What the server's side of one connection saw. `on_data` may answer."""

    def __init__(self, port: Port) -> None:
        self.port, self.seen = port, bytearray()
        self.lost: list[Exception | None] = []
        self.eofs = self.pauses = self.resumes = 0
        self.most = 0  # bytes in one piece
        port.peers.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.seen += data
        self.most = max(self.most, len(data))
        self.port.on_data(self)

    def eof_received(self) -> None:
        self.eofs += 1

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.resumes += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Port:
    """An acceptor in a loop of its own."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.number = self.listener.getsockname()[1]
        self.peers: list[Peer] = []
        self.on_data: Callable[[Peer], None] = lambda _: None
        self.troubles: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _, told: self.troubles.append(told["message"]))
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.acceptor = self.do(lambda: Acceptor(self.listener, context, lambda: Peer(self)))

    def do(self, work: Callable[[], Result]) -> Result:
        """Run it in the loop."""

        async def run() -> Result:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), 10)

    def open(self, sock: socket.socket | None = None) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(sock or self.connect(), suppress_ragged_eofs=False)

    def peer(self) -> Peer:
        until(lambda: bool(self.peers))
        return self.peers[-1]

    def close(self) -> None:
        self.do(self.acceptor.close)
        self.do(lambda: [peer.transport.abort() for peer in self.peers])
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()
        self.listener.close()


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    now_ms = SystemClock().now_ms()
    made = Authority.make(now_ms).issue_server(["localhost"], now_ms)
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    file.write_bytes(made.key.reveal() + made.chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(file)
    return context


@pytest.fixture
def port(context: ssl.SSLContext) -> Iterator[Port]:
    port = Port(context)
    yield port
    port.close()
    assert all(len(peer.lost) == 1 for peer in port.peers)  # however it ended


def everything(line: socket.socket) -> bytes:
    """Until the peer hangs up."""
    found = bytearray()
    with suppress(ConnectionError):
        while piece := line.recv(1 << 16):
            found += piece
    return bytes(found)


# ---- handshakes ---------------------------------------------------------------------


def test_silent_handshake_ends(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.3)
    with port.connect() as line:
        begun = time.monotonic()
        assert everything(line) == b""
        assert 0.2 < time.monotonic() - begun < SLOWLY
    assert not port.peers


@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_half_a_handshake_that_is_closed_leaves_nothing(port: Port, count: int) -> None:
    with port.connect() as line:
        line.sendall(client_hello()[:count])
    with port.open() as line:  # others are served
        line.sendall(b"x")
        until(lambda: bool(port.peer().seen))
    assert len(port.peers) == 1


def client_hello() -> bytes:
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


def test_what_is_not_tls_is_refused(port: Port) -> None:
    with port.connect() as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 100_000)
        begun = time.monotonic()
        assert not everything(line).startswith(b"HTTP")
        assert time.monotonic() - begun < SLOWLY
    assert not port.peers


def test_closed_acceptor_ends_handshakes_and_no_connections(port: Port) -> None:
    with port.connect() as half, port.open() as whole:
        whole.sendall(b"a")
        until(lambda: bool(port.peer().seen))
        port.do(port.acceptor.close)
        assert everything(half) == b""
        whole.sendall(b"b")
        until(lambda: port.peer().seen == b"ab")


def test_three_hundred_connections(port: Port) -> None:
    port.on_data = lambda peer: peer.transport.write(bytes(peer.seen))
    lines = [port.open() for _ in range(300)]
    for number, line in enumerate(lines):
        line.sendall(b"%03d" % number)
    for number, line in enumerate(lines):
        assert line.recv(10) == b"%03d" % number
        line.close()
    until(lambda: all(peer.lost for peer in port.peers))


def test_no_more_files_is_not_the_end(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tls, "PAUSE_S", 0.5)
    port.on_data = lambda peer: peer.transport.write(bytes(peer.seen))
    with port.open() as early, few_files():
        late = OUTSIDE.pop()
        late.connect(("127.0.0.1", port.number))
        before = port.do(time.thread_time)
        time.sleep(0.3)
        assert port.do(time.thread_time) - before < 0.1  # the loop does not spin
        early.sendall(b"x")
        assert early.recv(10) == b"x"
    assert "Too many open files" in caplog.text
    late.settimeout(10)
    with port.open(late) as line:
        line.sendall(b"y")
        assert line.recv(10) == b"y"


OUTSIDE: list[socket.socket] = []


@contextmanager
def few_files() -> Iterator[None]:
    """No file can be opened in this process; `OUTSIDE` has a socket that is already open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    OUTSIDE.append(socket.socket())
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    filled = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, before[1]))
        with suppress(OSError):
            while True:
                filled.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for handle in filled:
            os.close(handle)


# ---- reading ------------------------------------------------------------------------


@pytest.mark.parametrize("read_bytes", [1000, 16 << 10, 20_000, tls.READ_BYTES])
def test_bytes_that_openssl_holds_are_not_stuck(port: Port, read_bytes: int) -> None:
    port.on_data = lambda peer: setattr(peer.transport, "read_bytes", read_bytes)
    sent = os.urandom(1_000_003)
    with port.open() as line:
        line.sendall(b"!")  # from here on, so much at a time
        until(lambda: bool(port.peer().seen))
        line.sendall(sent[:16_384])  # one full record, then silence
        until(lambda: len(port.peer().seen) == 1 + 16_384)
        line.sendall(sent[16_384:])
        until(lambda: len(port.peer().seen) == 1 + len(sent))
        assert hashlib.sha256(port.peer().seen[1:]).digest() == hashlib.sha256(sent).digest()
        assert port.peer().most <= read_bytes


def test_bytes_that_openssl_holds_come_after_a_pause(port: Port) -> None:
    def pause(peer: Peer) -> None:
        peer.transport.read_bytes = 5000
        peer.transport.pause_reading()
        port.loop.call_later(0.01, peer.transport.resume_reading)

    port.on_data = pause
    with port.open() as line:
        line.sendall(b"!")
        until(lambda: bool(port.peer().seen))
        line.sendall(bytes(16_384))
        until(lambda: len(port.peer().seen) == 1 + 16_384)


def test_paused_peer_is_not_read(port: Port) -> None:
    port.on_data = lambda peer: peer.transport.pause_reading()
    with port.open() as line:
        line.sendall(b"a")
        until(lambda: bool(port.peer().seen))
        line.sendall(b"b" * 1000)
        time.sleep(0.1)
        assert port.peer().seen == b"a"
        port.on_data = lambda _: None
        port.do(port.peer().transport.resume_reading)
        until(lambda: len(port.peer().seen) == 1001)


def test_many_tiny_records_do_not_keep_the_loop(port: Port) -> None:
    turns: list[int] = []
    port.on_data = lambda peer: turns.append(len(peer.seen))
    with port.open() as line:
        for _ in range(1000):
            line.send(b"x")
        until(lambda: len(port.peer().seen) == 1000)
    assert len(turns) >= 1000 // tls.RECORDS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="nobody else changes keys on demand")
def test_peer_changes_its_keys(port: Port) -> None:
    port.on_data = lambda peer: peer.transport.write(b"<%d>" % len(peer.seen))
    client = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port.number}"],  # K: change keys
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert client.stdin is not None and client.stdout is not None
    for number, line in enumerate([b"one\n", b"K\n", b"two\n", b"K\n", b"three\n"]):
        client.stdin.write(line)
        client.stdin.flush()
        time.sleep(0.2 if number else 0.5)
    until(lambda: port.peer().seen == b"one\ntwo\nthree\n")
    client.stdin.close()
    told = client.stdout.read()
    assert client.wait(10) == 0 and b"KEYUPDATE" in told and b"<14>" in told
    client.stdout.close()


# ---- writing ------------------------------------------------------------------------


def test_peer_that_does_not_read_is_waited_for_in_little_memory(port: Port) -> None:
    sent = hashlib.sha256()
    with port.open(small_window(port)) as line:
        line.sendall(b"x")
        peer = port.peer()
        until(lambda: bool(peer.seen))

        def send_until_full() -> int:
            count = 0
            while peer.pauses == peer.resumes:
                piece = os.urandom(PIECE)
                peer.transport.write(piece)
                sent.update(piece)
                count += 1
            return count

        count = port.do(send_until_full)
        assert 0 < port.do(peer.transport.get_write_buffer_size) <= tls.HIGH_BYTES + PIECE
        found = b""
        while len(found) < count * PIECE:
            found += line.recv(1 << 16)
        assert hashlib.sha256(found).digest() == sent.digest()
        until(lambda: peer.resumes == 1)


def small_window(port: Port) -> socket.socket:
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.settimeout(10)
    line.connect(("127.0.0.1", port.number))
    return line


def test_little_things_travel_together(port: Port) -> None:
    def answer(peer: Peer) -> None:
        for piece in (b"head ", b"", b"body ", bytearray(b"end")):
            peer.transport.write(piece)

    port.on_data = answer
    with port.open() as line:
        line.sendall(b"x")
        assert line.recv(100) == b"head body end"


def test_limits_that_make_no_sense_are_refused(port: Port) -> None:
    with port.open() as line:
        line.sendall(b"x")
        until(lambda: bool(port.peer().seen))
        with pytest.raises(ValueError):
            port.peer().transport.set_write_buffer_limits(high=1, low=2)


# ---- ends ---------------------------------------------------------------------------


def test_last_answer_is_read_though_the_peer_still_sends(port: Port) -> None:
    def refuse(peer: Peer) -> None:
        peer.transport.write(b"no" * 1000)
        peer.transport.close()
        peer.transport.write(b"never")

    port.on_data = refuse
    with port.open() as line:
        for _ in range(64):
            line.sendall(bytes(1 << 16))  # nobody resets the connection
        assert everything(line) == b"no" * 1000  # and a goodbye, or this would raise
        assert not port.peer().lost or port.peer().lost == [None]
    until(lambda: port.peer().lost == [None])


def test_peer_that_stays_after_a_goodbye_is_hung_up_on(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LINGER_S", 0.3)
    port.on_data = lambda peer: peer.transport.close()
    with port.open() as line:
        line.sendall(b"x")
        begun = time.monotonic()
        until(lambda: port.peer().lost == [None])
        assert time.monotonic() - begun < SLOWLY


def test_last_words_are_not_waited_for_longer_than_promised(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "FLUSH_S", 0.3)

    def answer(peer: Peer) -> None:
        peer.transport.write(bytes(32 << 20))
        peer.transport.close()

    port.on_data = answer
    with port.open(small_window(port)) as line:
        line.sendall(b"x")
        begun = time.monotonic()
        until(lambda: port.peer().lost == [None])
        assert time.monotonic() - begun < SLOWLY


def test_last_words_are_sent_though_they_wait(port: Port) -> None:
    def answer(peer: Peer) -> None:
        peer.transport.write(bytes(8 << 20))
        peer.transport.close()

    port.on_data = answer
    with port.open(small_window(port)) as line:
        line.sendall(b"x")
        time.sleep(0.2)
        assert len(everything(line)) == 8 << 20


def test_clean_end_of_the_peer(port: Port) -> None:
    with port.open() as line:
        line.sendall(b"x")
        until(lambda: bool(port.peer().seen))
        line.unwrap()
    until(lambda: port.peer().lost == [None])
    assert port.peer().eofs == 1


def test_ragged_end_of_the_peer(port: Port) -> None:
    with port.open() as line:
        line.sendall(b"x")
        until(lambda: bool(port.peer().seen))
        line.shutdown(socket.SHUT_WR)  # of TCP; without a goodbye of TLS
        until(lambda: port.peer().lost == [None])
    assert port.peer().eofs == 1


def test_reset_by_the_peer(port: Port) -> None:
    line = port.open()
    line.sendall(b"x")
    until(lambda: bool(port.peer().seen))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    line.close()
    until(lambda: len(port.peer().lost) == 1)  # an end like others, before Python 3.13


def test_reset_while_we_write(port: Port) -> None:
    with port.open(small_window(port)) as line:
        line.sendall(b"x")
        until(lambda: bool(port.peer().seen))
        port.do(lambda: port.peer().transport.write(bytes(32 << 20)))
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(lambda: len(port.peer().lost) == 1)


def test_bytes_that_are_not_tls_any_more_end_it(port: Port) -> None:
    line = port.open()
    line.sendall(b"x")
    until(lambda: bool(port.peer().seen))
    with socket.socket(fileno=line.detach()) as plain:
        plain.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        until(lambda: len(port.peer().lost) == 1)
    assert isinstance(port.peer().lost[0], ssl.SSLError) and port.peer().seen == b"x"


def test_protocol_that_fails_loses_its_connection_only(port: Port) -> None:
    def fail(peer: Peer) -> None:
        if peer.seen == b"fail":
            raise RuntimeError("planted")
        peer.transport.write(bytes(peer.seen))

    port.on_data = fail
    with port.open() as good, port.open() as bad:
        bad.sendall(b"fail")
        with pytest.raises(ssl.SSLEOFError):
            bad.recv(1)
        good.sendall(b"x")
        assert good.recv(10) == b"x"
    assert port.troubles == ["a protocol failed"]
    lost = [peer.lost for peer in port.peers if peer.seen == b"fail"]
    assert isinstance(lost[0][0], RuntimeError)


@pytest.mark.parametrize("twice", ["abort", "close"])
def test_an_end_that_is_asked_for_twice_is_one(port: Port, twice: str) -> None:
    def end(peer: Peer) -> None:
        peer.transport.close()
        getattr(peer.transport, twice)()
        peer.transport.abort()

    port.on_data = end
    with port.open() as line:
        line.sendall(b"x")
        until(lambda: port.peer().lost == [None])
        assert port.peer().transport.is_closing()


def test_transport_says_what_it_is(port: Port) -> None:
    with port.open() as line:
        line.sendall(b"x")
        until(lambda: bool(port.peer().seen))
        transport = port.peer().transport
        told = {name: transport.get_extra_info(name) for name in ("peername", "sockname")}
        assert told == {"peername": line.getsockname(), "sockname": line.getpeername()}
        assert transport.get_protocol() is port.peer()
        assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert transport.get_extra_info("sslcontext") is not None
        assert not transport.can_write_eof() and transport.get_extra_info("nothing", 7) == 7

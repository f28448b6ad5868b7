"""The port of a site that listens, against peers that begin and do not go on."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from consortium.crypto.authority import Authority, request_certificate
from consortium.drive.clock import SystemClock
from consortium.site import port as port_module
from consortium.site.home import SiteHome
from consortium.site.lines import Lines
from consortium.site.port import MOST_UNPROVEN, Port
from consortium.wire.messages import ClientTrain, ClientTrained
from tests.site.homes import WHO

PROVE_S = 0.6
SLOWLY_S = 3.0  # other work may have the machine's two cores
PATIENT_S = 60.0  # longer than any test
HEAD = b"POST /federated/client/train HTTP/1.1\r\nHost: site\r\nContent-Length: 100\r\n\r\n"
TRAIN = b'{"round": 1, "model_weights": "%s"}' % (b"ab" * 32)


def trained(asked: ClientTrain) -> ClientTrained:
    return ClientTrained(client_id="counting.north", model_weights=asked.model_weights)


@dataclass
class Door:
    """A port at work, and a way in for the coordinator."""

    port: Port
    context: ssl.SSLContext

    def knock(self) -> socket.socket:
        """A connection, and not a word."""
        return socket.create_connection(("127.0.0.1", self.port.port), PATIENT_S)

    def enter(self) -> ssl.SSLSocket:
        """A connection of the coordinator's."""
        return self.context.wrap_socket(self.knock())

    def train(self) -> int:
        """What an honest call is answered with."""
        line = http.client.HTTPSConnection(
            "127.0.0.1", self.port.port, context=self.context, timeout=SLOWLY_S
        )
        try:
            line.request("POST", "/federated/client/train", TRAIN)
            return line.getresponse().status
        finally:
            line.close()


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    now_ms = SystemClock().now_ms()
    authority, home = Authority.make(now_ms), SiteHome.prepare(tmp_path / "home")
    certificate = authority.issue_site(request_certificate(home.key), WHO.site, now_ms)
    home.enrol(WHO, certificate.decode(), authority.pem().decode())
    (tmp_path / "caller.pem").write_bytes(authority.issue_caller(now_ms).pem().reveal())
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tmp_path / "caller.pem")
    port = Port(home, "127.0.0.1", 0, Lines(), trained)
    thread = threading.Thread(target=port.run)
    thread.start()
    yield Door(port, context)
    port.close()
    thread.join(SLOWLY_S)
    assert not thread.is_alive()
    until(lambda: not _calls())  # no connection keeps its thread


def _calls() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "call"]


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + SLOWLY_S
    while not holds():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def hello() -> bytes:
    """The first words of TLS."""
    out, context = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="site").do_handshake()
    return out.read()


def is_closed(line: socket.socket) -> bool:
    """Now, without waiting. What it says before it hangs up is not looked at."""
    line.setblocking(False)
    try:
        while line.recv(1 << 16):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        pass
    return True


# ---- peers that do not go on --------------------------------------------------------


def _says_nothing(door: Door) -> socket.socket:
    return door.knock()


def _half_a_hello(door: Door) -> socket.socket:
    line = door.knock()
    line.sendall(hello()[:100])
    return line


def _a_hello_alone(door: Door) -> socket.socket:
    line = door.knock()
    line.sendall(hello())
    return line


def _no_request(door: Door) -> socket.socket:
    return door.enter()


def _half_a_head(door: Door) -> socket.socket:
    line = door.enter()
    line.sendall(HEAD[:60])
    return line


def _half_a_body(door: Door) -> socket.socket:
    line = door.enter()
    line.sendall(HEAD + TRAIN[:10])
    return line


KINDS = [_says_nothing, _half_a_hello, _a_hello_alone, _no_request, _half_a_head, _half_a_body]


@pytest.mark.parametrize("kind", KINDS)
def test_half_open_connection_is_closed_in_time_and_others_are_answered(
    door: Door, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Door], socket.socket]
) -> None:
    monkeypatch.setattr(port_module, "PROVE_S", PROVE_S)
    begun_s = time.monotonic()
    with kind(door) as line:
        assert door.train() == 200
        until(lambda: is_closed(line))
        assert time.monotonic() - begun_s > PROVE_S / 2  # it had its time
    until(lambda: not door.port._unproven)
    assert door.train() == 200


@pytest.mark.parametrize("kind", [_half_a_hello, _half_a_head])
def test_drips_do_not_buy_time(
    door: Door, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Door], socket.socket]
) -> None:
    monkeypatch.setattr(port_module, "PROVE_S", PROVE_S)

    def drips(line: socket.socket) -> bool:
        """Whether it may go on."""
        if is_closed(line):
            return False
        with suppress(OSError):
            line.send(b"x")
        return True

    with kind(door) as line:
        until(lambda: not drips(line))


def test_who_came_first_does_not_keep_others_out(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "PROVE_S", PATIENT_S)
    lines = [door.knock() for _ in range(2 * MOST_UNPROVEN)]
    try:
        assert door.train() == 200
        assert len(door.port._unproven) <= MOST_UNPROVEN
        until(lambda: sum(is_closed(line) for line in lines) > MOST_UNPROVEN)
        assert not is_closed(lines[-1])  # whoever waits for longest makes room
        assert door.train() == 200
    finally:
        for line in lines:
            line.close()


def test_port_that_closes_hangs_up_on_everybody(door: Door) -> None:
    with door.knock() as silent, _half_a_head(door) as known:
        until(lambda: len(door.port._unproven) == 2)
        door.port.close()
        until(lambda: is_closed(silent) and is_closed(known))

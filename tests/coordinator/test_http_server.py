"""The port: TLS, signals, renewal, logs, connections that say nothing."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from consortium.coordinator import protocol
from consortium.coordinator.chains import load_chain
from consortium.coordinator.logs import JsonLines, PlainLines, start_logging
from consortium.coordinator.office import Office
from consortium.coordinator.serve import Identity, Server, names_of
from consortium.drive.clock import ManualClock, SystemClock
from consortium.errors import StoreFailedError, UsageError
from tests.coordinator.wired import Wired, study, until, wire

SLOWLY = 3  # other work may have the machine's two cores
RUN = """
import sys
from pathlib import Path
from consortium.coordinator.logs import start_logging
from consortium.coordinator.office import Office
from consortium.coordinator.serve import Server
from consortium.drive.clock import SystemClock

folder, plan = Path(sys.argv[1]), Path(sys.argv[2])
start_logging(as_json=True, file=folder / "log")
office = Office(folder / "data", SystemClock(), url="https://127.0.0.1:1")
office.host(plan)
office.start(lambda error: None)
print(office.registry.new_operator("admin", "tests", office.clock.now_ms(), 86_400_000))
Server(office, on_ready=lambda port: print(port, flush=True)).run()
office.close()
print("closed", flush=True)
"""


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    with wire(tmp_path) as found:
        yield found


# ---- the end ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_process_in_two_seconds(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path), str(study())], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        token, port = process.stdout.readline().strip(), int(process.stdout.readline())
        idle = [tls(port) for _ in range(5)]
        busy = tls(port)
        busy.sendall(
            f"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n".encode()
        )
        start_s = time.monotonic()
        process.send_signal(number)
        assert process.wait(30) == 0
        assert time.monotonic() - start_s < SLOWLY * 2
        assert process.stdout.read() == "closed\n"
        for line in [*idle, busy]:
            line.close()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[0]["message"] == "listening" and lines[0]["port"] == port
    assert not any(line["level"] == "error" for line in lines)
    assert token not in (tmp_path / "log").read_text()


def tls(port: int) -> ssl.SSLSocket:
    line = any_context().wrap_socket(socket.create_connection(("127.0.0.1", port)))
    line.settimeout(10)
    return line


def any_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_server_ends_while_a_download_stands_still(
    wired: Wired, caplog: pytest.LogCaptureFixture
) -> None:
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that it does stand still
    plain.connect(("127.0.0.1", wired.port))
    line = any_context().wrap_socket(plain)
    head = (
        "GET /v1/federations/counting/models/0/file HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
    )
    asked = f"{head}{wired.operator_token}\r\n\r\n".encode()
    line.sendall(asked * 20)  # 24 MB, more than the system's buffers hold
    assert line.recv(10) == b"HTTP/1.1 2"
    start_s = time.monotonic()
    wired.server.stop()
    until(lambda: wired.server.is_over)
    assert 0.5 < time.monotonic() - start_s < SLOWLY * 2
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    line.close()


# ---- the port -----------------------------------------------------------------------


def test_port_that_is_taken_is_told(wired: Wired) -> None:
    with pytest.raises(UsageError) as refused:
        Server(wired.office, port=wired.port)
    assert str(wired.port) in refused.value.message


def test_host_that_is_not_here_is_told(wired: Wired) -> None:
    with pytest.raises(UsageError):
        Server(wired.office, host="203.0.113.7", port=0)


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost:"])
def test_connection_that_says_nothing_ends(
    wired: Wired, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "FIRST_S", 1.0)
    monkeypatch.setattr(protocol, "HEAD_S", 1.0)
    line = tls(wired.port)
    line.sendall(sent)
    start_s = time.monotonic()
    assert line.recv(100) == b""
    assert 0.5 < time.monotonic() - start_s < SLOWLY * 2
    line.close()


def test_small_answers_are_sent_at_once(wired: Wired) -> None:
    """Nagle's algorithm, with the peer's delayed acknowledgement, would cost 40 ms each."""
    connection = wired.connect()
    start_s = time.monotonic()
    for _ in range(50):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
    connection.close()
    assert time.monotonic() - start_s < 50 * 0.04


def test_peer_that_uploads_for_ever_is_hung_up_on(wired: Wired) -> None:
    line = tls(wired.port)
    line.sendall(b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    with line, pytest.raises(OSError):
        send_for_ever(line)


def send_for_ever(line: ssl.SSLSocket) -> None:
    ends_s = time.monotonic() + SLOWLY * 3
    while time.monotonic() < ends_s:
        line.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")


# ---- the certificate ----------------------------------------------------------------


def test_certificate_is_renewed_while_the_server_runs(tmp_path: Path) -> None:
    clock = ManualClock(SystemClock().now_ms())
    office = Office(tmp_path, clock, url="https://fl.example.org:8443")
    identity = Identity(office, names_of("0.0.0.0", office.url))
    listener = socket.create_server(("127.0.0.1", 0))
    first = shown(identity.context, listener)
    assert not identity.renew_if_due()
    assert shown(identity.context, listener) == first
    clock.advance_to(clock.now_ms() + int(timedelta(days=61).total_seconds() * 1000))
    assert identity.renew_if_due()
    assert shown(identity.context, listener) != first
    assert not identity.renew_if_due()
    listener.close()
    office.close()
    assert not list(tmp_path.glob("*.pem.*")) and [
        file.name for file in tmp_path.glob("*.pem")
    ] == ["authority.pem"]


def shown(context: ssl.SSLContext, listener: socket.socket) -> bytes:
    """The certificate that a new connection sees."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = any_context().wrap_bio(incoming, outgoing)
    ours = context.wrap_bio(outgoing, incoming, server_side=True)
    for _ in range(3):
        for side in (theirs, ours):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    found = theirs.getpeercert(binary_form=True)
    assert found
    return found


def test_names_of_a_server() -> None:
    here = ("localhost", "127.0.0.1", "::1")
    assert names_of("0.0.0.0", "https://FL.example.org:8443") == ("fl.example.org", *here)
    assert names_of("::", "") == here
    assert names_of("10.0.0.5", "https://10.0.0.5") == ("10.0.0.5", *here)


def test_house_is_kept(wired: Wired) -> None:
    site = wired.enrol("site-0")
    assert site.call("POST", "/v1/report", {"report": {}}).status == 200
    wired.server.keep_house()
    registry, now_ms = wired.office.registry, wired.office.clock.now_ms()
    old = registry.keep_answer(site.row.id, "f" * 32, "x", 200, b"old", now_ms - 8 * 86_400_000)
    assert old.body == b"old"
    wired.server.keep_house()
    assert registry.answer(site.row.id, "f" * 32) is None


# ---- logs ---------------------------------------------------------------------------


@pytest.fixture
def loggers() -> Iterator[None]:
    names = ("consortium", "uvicorn", "asyncio")
    before = [(logging.getLogger(name), logging.getLogger(name).__dict__.copy()) for name in names]
    yield
    for logger, state in before:
        for handler in logger.handlers:
            handler.close()
        logger.__dict__.update(state)
        logger.manager._clear_cache()  # type: ignore[attr-defined]  # levels are remembered


def test_lines_for_machines_are_json(tmp_path: Path, loggers: None) -> None:
    start_logging(as_json=True, file=tmp_path / "log")
    log = logging.getLogger("consortium.coordinator.x")
    log.info("refused %s", "GET", extra={"code": "E0814", "status": 401, "secret": "x"})
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed")
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert first.pop("at").endswith("Z")
    assert first == {
        "level": "info",
        "from": "consortium.coordinator.x",
        "message": "refused GET",
        "code": "E0814",
        "status": 401,
    }
    assert "ValueError: why" in second["traceback"]


def test_lines_for_people_are_short() -> None:
    record = logging.LogRecord("consortium.x", logging.WARNING, "", 1, "slow", None, None)
    record.code = "E0604"
    line = PlainLines().format(record)
    assert line[8:] == " warning: slow [E0604]"
    assert json.loads(JsonLines().format(record))["code"] == "E0604"


def test_log_that_cannot_be_written_is_told(tmp_path: Path, loggers: None) -> None:
    with pytest.raises(StoreFailedError):
        start_logging(file=tmp_path / "no" / "log")


def test_refusal_is_logged_without_secrets(wired: Wired, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="consortium")
    wired.request("GET", "/metrics", headers={"Authorization": "Bearer s3cret"})
    (record,) = [record for record in caplog.records if getattr(record, "code", "") == "E0812"]
    assert record.levelno == logging.INFO
    assert "s3cret" not in caplog.text and os.environ.get("HOME", "/root") not in record.message


def test_order_is_logged_with_who_gave_it(wired: Wired, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="consortium")
    (held,) = wired.office.federations()
    viewer = {"label": "ben", "role": "viewer", "federations": [held.name], "days": 1}
    token = wired.order("POST", "/v1/tokens", viewer).json["token"]
    wired.order("GET", "/v1/status")
    path = f"/v1/federations/{held.name}/hold"
    wired.request("POST", path, headers={"Authorization": f"Bearer {token}"})
    wired.order("POST", path)
    told = [record for record in caplog.records if hasattr(record, "operator")]
    lines = [JsonLines().format(record) for record in told]
    assert [
        (line["operator"], line["role"], line["status"]) for line in map(json.loads, lines)
    ] == [
        ("tests", "admin", 200),
        ("ben", "viewer", 403),
        ("tests", "admin", 200),
    ]
    assert path in told[2].getMessage() and token not in caplog.text


def test_key_that_cannot_be_written_is_trouble_with_the_disk(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(StoreFailedError):
        load_chain(context, b"", tmp_path / "gone")
    with pytest.raises(ssl.SSLError):
        load_chain(context, b"no key", tmp_path)
    assert list(tmp_path.iterdir()) == []

"""A site that listens remembers it, and its doctor looks at what this way needs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from consortium.cli import agent as agent_command
from consortium.cli.agent import way_in_one_line, way_of
from consortium.cli.checkup import Check, Verdict
from consortium.cli.patients import examine
from consortium.cli.site_checkup import called
from consortium.crypto.authority import Authority, request_certificate
from consortium.drive.clock import SystemClock
from consortium.errors import CorruptStoreError, UsageError
from consortium.site.agent import Agent
from consortium.site.home import SiteHome
from consortium.site.lines import Lines
from consortium.site.port import Port
from consortium.site.way import heard_ms, keep_way, listens_at, note_heard
from tests.site.homes import WHO
from tests.site.test_port import trained

NOWHERE = "https://coordinator.invalid:8443"  # a name that has no address
HERE = ("127.0.0.1", 8444)


@pytest.fixture
def home(tmp_path: Path) -> SiteHome:
    now_ms = SystemClock().now_ms()
    authority, made = Authority.make(now_ms), SiteHome.prepare(tmp_path / "home")
    certificate = authority.issue_site(request_certificate(made.key), WHO.site, now_ms)
    who = WHO.model_copy(update={"url": NOWHERE, "data": str(tmp_path)})
    made.enrol(who, certificate.decode(), authority.pem().decode())
    made.log.close()
    return SiteHome.open(made.path)


# ---- what is remembered -------------------------------------------------------------


def test_agent_without_an_address_listens_where_the_last_one_did(home: SiteHome) -> None:
    assert way_of(home, None) is None
    keep_way(home, HERE)
    assert way_of(home, None) == HERE
    assert way_of(home, "[::1]:9000") == ("::1", 9000)
    assert way_of(home, "none") is None
    with pytest.raises(UsageError):
        way_of(home, "nowhere")


def test_way_back_is_remembered_too(home: SiteHome) -> None:
    keep_way(home, HERE)
    keep_way(home, None)
    assert listens_at(SiteHome.open(home.path)) is None


def test_first_lines_tell_the_way_and_the_true_command(
    home: SiteHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = way_in_one_line(home, HERE)
    assert "127.0.0.1:8444" in told
    assert f"consortium agent --home {home.path} --listen none" in told
    assert NOWHERE in way_in_one_line(home, None)
    monkeypatch.setattr(agent_command, "DEFAULT_HOME", home.path)
    assert agent_command.agent_command(home) == "consortium agent"


def test_what_is_as_it_was_is_not_written_again(home: SiteHome) -> None:
    keep_way(home, None)
    assert not (home.path / "listen.json").exists()
    keep_way(home, HERE)
    before = (home.path / "listen.json").stat()
    keep_way(home, HERE)
    assert (home.path / "listen.json").stat().st_ino == before.st_ino


def test_a_killed_writer_leaves_the_way_as_it_was(home: SiteHome) -> None:
    keep_way(home, HERE)
    (home.path / "listen.json.4194305.new").write_text('{"host": "0.0')  # nobody has this number
    assert listens_at(home) == HERE
    home.lock()
    assert not list(home.path.glob("*.new"))
    home.close()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"host": 1, "port": 2}', "7"])
def test_a_way_that_cannot_be_read_is_not_taken_for_the_way_out(home: SiteHome, text: str) -> None:
    (home.path / "listen.json").write_text(text)
    with pytest.raises(CorruptStoreError):
        listens_at(home)
    keep_way(home, HERE)
    assert listens_at(home) == HERE


def test_agent_keeps_the_port_that_it_has_and_only_when_it_is_the_one(home: SiteHome) -> None:
    other = SiteHome.open(home.path)
    agent = Agent(home, on_event=lambda _: None, listen=("127.0.0.1", 0))
    assert listens_at(other) is None  # it does not work yet: another one may
    agent.stop()
    agent.run()
    found = listens_at(other)
    assert found is not None
    assert found[0] == "127.0.0.1" and found[1] > 0
    outward = Agent(SiteHome.open(home.path), on_event=lambda _: None)
    outward.stop()
    outward.run()
    assert listens_at(other) is None


# ---- the doctor ---------------------------------------------------------------------


@dataclass
class Working:
    """A home with a port that is taken, as by its agent."""

    home: SiteHome
    port: Port

    def found(self) -> dict[str, Check]:
        return {check.name: check for check in examine(None, self.home.path)}


@pytest.fixture
def working(home: SiteHome) -> Iterator[Working]:
    port = Port(home, "127.0.0.1", 0, Lines(), trained)
    keep_way(home, ("127.0.0.1", port.port))
    thread = threading.Thread(target=port.run)
    thread.start()
    home.lock()
    yield Working(home, port)
    home.close()
    port.close()
    thread.join(5.0)


def test_doctor_of_a_site_that_listens_does_not_look_outward(working: Working) -> None:
    note_heard(working.home)
    found = working.found()
    assert not {"name", "tls", "answer"} & set(found)
    assert (found["port"].verdict, found["calls"].verdict) == (Verdict.OK, Verdict.OK)
    assert f"127.0.0.1:{working.port.port}" in found["port"].found
    failed = [one for one in found.values() if one.verdict is Verdict.FAIL]
    assert not failed, failed


def test_doctor_of_a_site_that_connects_looks_outward(home: SiteHome) -> None:
    keep_way(home, HERE)
    keep_way(home, None)
    found = {check.name: check for check in examine(None, home.path)}
    assert found["name"].verdict is Verdict.FAIL


def test_coordinator_that_does_not_call_fails(working: Working) -> None:
    assert heard_ms(working.home) is None
    found = working.found()["calls"]
    assert found.verdict is Verdict.FAIL
    assert "never" in found.found and "firewall" in found.todo
    assert called(1_000_000, 1_000_000 + 60_000, is_running=True).verdict is Verdict.OK
    assert called(1_000_000, 1_000_000 + 180_000, is_running=True).verdict is Verdict.FAIL
    assert called(None, 1_000_000, is_running=False).verdict is Verdict.WARN


def test_agent_that_runs_elsewhere_is_seen(working: Working) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        keep_way(working.home, ("127.0.0.1", other.getsockname()[1]))
        other.close()
        assert working.found()["port"].verdict is Verdict.FAIL


def test_port_of_somebody_else_is_seen(working: Working, tmp_path: Path) -> None:
    now_ms = SystemClock().now_ms()
    elsewhere = SiteHome.prepare(tmp_path / "elsewhere")
    authority = Authority.make(now_ms)
    issued = authority.issue_site(request_certificate(elsewhere.key), WHO.site, now_ms)
    elsewhere.enrol(WHO, issued.decode(), authority.pem().decode())
    stranger = Port(elsewhere, "127.0.0.1", 0, Lines(), trained)
    thread = threading.Thread(target=stranger.run)
    thread.start()
    keep_way(working.home, ("127.0.0.1", stranger.port))
    try:
        found = working.found()["port"]
    finally:
        stranger.close()
        thread.join(5.0)
    assert found.verdict is Verdict.FAIL
    assert "somebody else" in found.found


def test_without_an_agent_the_port_must_be_free(home: SiteHome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        keep_way(home, ("127.0.0.1", other.getsockname()[1]))
        taken = {check.name: check for check in examine(None, home.path)}
        assert taken["port"].verdict is Verdict.FAIL
    free = {check.name: check for check in examine(None, home.path)}
    assert (free["port"].verdict, free["calls"].verdict) == (Verdict.WARN, Verdict.WARN)
    assert "consortium agent" in free["port"].todo

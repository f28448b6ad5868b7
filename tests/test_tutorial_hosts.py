"""docs/tutorial/between-hosts.md, typed as it is written: each host is a network namespace of
its own where that can be had, else all are this machine under the one address."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "tutorial" / "between-hosts.md"
ADDRESSES = {"lead": "10.77.0.1", "north": "10.77.0.2", "south": "10.77.0.3"}
_TYPED = re.compile(r"^(lead|north|south)\$ (.+)$", re.MULTILINE)
_TOKEN = "cj1.…"


def typed() -> list[tuple[str, str]]:
    """(host, command) in the order of the page."""
    return [(match[1], match[2]) for match in _TYPED.finditer(PAGE.read_text())]


@dataclass
class Host:
    """One machine of the tutorial: its folder, and how a command gets there."""

    name: str
    folder: Path
    prefix: tuple[str, ...]
    started: list[tuple[subprocess.Popen[bytes], int]] = field(default_factory=list)

    def words(self, command: str) -> list[str]:
        program, *rest = command.split()
        assert program == "consortium"
        return [*self.prefix, sys.executable, "-m", "consortium", *rest]

    def run(self, command: str) -> str:
        done = subprocess.run(
            self.words(command), cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{self.name}$ {command}: {done.stderr}"
        return done.stdout

    def start(self, command: str) -> Screen:
        """Start a command that goes on, on a terminal of its own."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            self.words(command),
            cwd=self.folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "80"},
        )
        os.close(theirs)
        os.set_blocking(ours, False)
        self.started.append((process, ours))
        return Screen(process, ours)

    def stop(self) -> None:
        for process, terminal in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()
            os.close(terminal)


@dataclass
class Screen:
    """What a person sees and types."""

    process: subprocess.Popen[bytes]
    terminal: int
    seen: str = ""

    def wait_for(self, text: str, timeout_s: float = 60.0) -> None:
        ends = time.monotonic() + timeout_s
        while text not in self.seen:
            with suppress(BlockingIOError, OSError):
                self.seen += os.read(self.terminal, 65536).decode(errors="replace")
            assert time.monotonic() < ends, f"{text!r} did not appear in:\n{self.seen}"
            assert self.process.poll() is None or text in self.seen, self.seen
            time.sleep(0.05)

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode() + b"\n")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _namespaces_work() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"ct-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True, check=False)
    return done.returncode == 0


class Hosts:
    """Three namespaces on one bridge; everything is taken down again."""

    def __init__(self) -> None:
        self._tag = str(os.getpid() % 10_000)

    def name(self, host: str) -> str:
        return f"ct{self._tag}-{host}"

    def up(self) -> None:
        bridge = f"ctb{self._tag}"
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for host, address in ADDRESSES.items():
            space, here, there = self.name(host), f"ct{self._tag}{host[0]}", "eth0"
            _ip("netns", "add", space)
            _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
            _ip("link", "set", here, "master", bridge, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", there)
            _ip("-n", space, "link", "set", there, "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def down(self) -> None:
        for host in ADDRESSES:
            subprocess.run(
                ["ip", "netns", "delete", self.name(host)], capture_output=True, check=False
            )
        subprocess.run(
            ["ip", "link", "delete", f"ctb{self._tag}"], capture_output=True, check=False
        )


@pytest.fixture
def spaces() -> Iterator[Callable[[str], tuple[str, ...]]]:
    """How to get into each host's network."""
    if not _namespaces_work():
        yield lambda host: ()
        return
    hosts = Hosts()
    try:
        hosts.up()
        yield lambda host: ("ip", "netns", "exec", hosts.name(host))
    finally:
        hosts.down()


def test_tutorial_between_hosts_as_it_is_written(
    tmp_path: Path, spaces: Callable[[str], tuple[str, ...]]
) -> None:
    is_apart = bool(spaces("lead"))
    hosts = {name: Host(name, tmp_path / name, spaces(name)) for name in ADDRESSES}
    _prepare(hosts, tmp_path)
    commands = typed()
    setting_up = [command.split()[1] for _, command in commands[:5]]
    assert setting_up == ["serve", "invite", "invite", "join", "join"]
    lines: dict[str, str] = {}
    try:
        for host, command in commands:
            if not is_apart:
                command = command.replace("10.77.0.1:8443", "127.0.0.1:0")
            _type(hosts[host], command, lines)
    finally:
        for one in hosts.values():
            one.stop()


def _prepare(hosts: dict[str, Host], tmp_path: Path) -> None:
    """The study of the page's beginning, and the sites' records."""
    for host in hosts.values():
        host.folder.mkdir()
    hosts["lead"].run("consortium init study")
    study = hosts["lead"].folder / "study"
    for site in ("north", "south"):
        shutil.copy(study / "data" / f"{site}.csv", tmp_path / site)
    hosts["lead"].folder = study
    plan = (study / "consortium.toml").read_text()
    shorter = plan.replace("quorum = 3", "quorum = 2").replace("rounds = 10", "rounds = 3")
    assert shorter != plan
    (study / "consortium.toml").write_text(shorter)


def _type(host: Host, command: str, lines: dict[str, str]) -> None:
    word = command.split()[1]
    if word == "serve":
        host.start(command).wait_for("consortium invite")
    elif word == "invite":
        lines[command.split()[2]] = host.run(command).strip()
    elif word == "join":
        assert command == f"consortium join {_TOKEN}"
        screen = host.start(lines[host.name])  # pasted
        screen.wait_for("own records?")
        screen.type(f"{host.name}.csv")
        screen.wait_for("Approve? [y/N]")
        assert "LEAVES" in screen.seen and "STAYS" in screen.seen
        screen.type("y")
        screen.wait_for("connected")
        if host.name == "south":
            screen.wait_for("the federation is over", 90.0)
    else:
        assert host.run(command).strip()

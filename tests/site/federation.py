"""A coordinator and sites as real processes on loopback, for the tests of the agent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consortium.cli.operator import Operator
from consortium.core import site_facts as s
from consortium.core.participant import Approve
from consortium.drive.clock import SystemClock
from consortium.drive.lock import make_lock, write_lock
from consortium.drive.study import load_study
from consortium.errors import NotEnrolledError, UnreachableError
from consortium.site.enrol import connect, join
from consortium.site.home import SiteHome
from consortium.site.machine import Machine
from consortium.site.studies import Studies
from consortium.site.transfer import Transfer
from consortium.wire.token import read_token

# Writes a line for every training; slow while a file of that name lies beside the records.
TASK = """
from pathlib import Path
import time
import numpy as np
import consortium as co

def start(rng):
    return {"w": np.zeros(3, np.float32)}

def evaluate(site, shared):
    return {"loss": float(np.square(shared["w"] - 1).sum())}, 4

@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss"])
def study(site, shared):
    print(f"trained {site.round}", flush=True)
    while Path(site.data).read_text() == "slow":
        time.sleep(0.02)
    return {"w": shared["w"] + np.float32(0.5) * (1 - shared["w"])}, 10
"""
PLAN = """
[task]
entry = "task.py:study"
[federation]
name = "small"
rounds = {rounds}
quorum = {quorum}
[selection]
{selection}
wait_for = {wait_for}
[round]
duration = "{duration}"
retry = "1s"
max_extensions = 0
[training]
epochs = 1
batch_size = 8
"""
_COORDINATOR = """
import sys
from pathlib import Path
from consortium.coordinator.office import Office
from consortium.coordinator.serve import Server
from consortium.drive.clock import SystemClock
folder, plan, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
office = Office(folder, SystemClock(), seed=1, url=f"https://127.0.0.1:{port}")
office.host(plan)
office.start(lambda error: print(error.code, error.message, file=sys.stderr))
office.write_operator_file()
Server(office, port=port).run()
office.close()
"""


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What comes true within this time."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not come true")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@dataclass
class Process:
    """A process of ours; what it said is in a file."""

    arguments: list[str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.running = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "NO_COLOR": "1"},
            )

    def kill(self) -> None:
        """As a power cut would, but for the disk."""
        assert self.running is not None
        self.running.kill()
        self.running.wait()

    def end(self, seconds: float = 5.0) -> int:
        """Ask it to end, and wait; its exit code."""
        assert self.running is not None
        self.running.send_signal(signal.SIGTERM)
        return self.running.wait(seconds)

    def wait(self, seconds: float = 60.0) -> int:
        assert self.running is not None
        return self.running.wait(seconds)

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if "kind" in event]

    def told(self, kind: str, number: int | None = None) -> bool:
        return any(
            event["kind"] == kind and number in (None, event["round"]) for event in self.events()
        )


@dataclass
class Site:
    """A site with its own home, records and agent."""

    name: str
    home: Path
    data: Path
    agent: Process

    def trained(self) -> list[int]:
        """The rounds in which training began, once each time that it did."""
        path = self.home / "child.log"  # a task can write to nothing else that lasts
        lines = path.read_text().splitlines() if path.exists() else []
        begun = [line.split() for line in lines if line.startswith("trained ")]
        return [int(number) for _, number in begun]

    def slow_down(self) -> None:
        self.data.write_text("slow")

    def go_on(self) -> None:
        self.data.write_text("x\n1\n")

    def facts(self) -> list[s.SiteFact]:
        home = SiteHome.open(self.home)
        found = [fact for _, fact in Machine(home.log, SystemClock()).facts()]
        home.close()
        return found

    def has(self, kind: type[Any], number: int) -> bool:
        return any(isinstance(fact, kind) and fact.round == number for fact in self.facts())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "consortium", *arguments, "--home", str(self.home)],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "NO_COLOR": "1"},
        )


@dataclass
class Small:
    """The federation."""

    folder: Path
    coordinator: Process
    sites: dict[str, Site] = field(default_factory=dict)
    others: list[Process] = field(default_factory=list)  # to be ended with it

    @property
    def data(self) -> Path:
        return self.folder / "coordinator"

    def status(self) -> dict[str, Any]:
        """What the operator sees."""
        operator = Operator(self.data)
        try:
            found = operator.get(operator.federation(None))
        finally:
            operator.close()
        assert isinstance(found, dict)
        return found

    def ask(self, path: str) -> Any:
        operator = Operator(self.data)
        try:
            return operator.get(f"{operator.federation(None)}/{path}")
        finally:
            operator.close()

    def order(self, what: str) -> None:
        """What the lead says: hold, resume."""
        operator = Operator(self.data)
        try:
            operator.post(f"{operator.federation(None)}/{what}", {})
        finally:
            operator.close()

    def start_coordinator(self) -> None:
        self.coordinator.start()
        wait_for(self._is_there)

    def _is_there(self) -> bool:
        try:
            return bool(self.status())
        except (UnreachableError, NotEnrolledError):
            return False

    def add(self, name: str, *, is_approved: bool = True, options: tuple[str, ...] = ()) -> Site:
        """Invite a site and let it join; its agent is not started."""
        operator = Operator(self.data)
        path = f"{operator.federation(None)}/invites"
        token = operator.post(path, {"name": name})["token"]
        operator.close()
        data, home = self.folder / f"{name}.csv", self.folder / name
        data.write_text("x\n1\n")
        joined = join(read_token(token), home, data=data, clock=SystemClock(), seed=7)
        _look_at_study(joined.home, is_approved=is_approved)
        arguments = [sys.executable, "-m", "consortium", "--json", "agent", "--home", str(home)]
        agent = Process([*arguments, *options], self.folder / f"{name}.log")
        self.sites[name] = Site(name, home, data, agent)
        return self.sites[name]

    def end(self) -> None:
        """Whatever still runs, ends."""
        agents = [site.agent for site in self.sites.values()]
        for process in (*agents, *self.others, self.coordinator):
            if process.running is not None and process.running.poll() is None:
                process.kill()

    def copy(self, name: str, source: Path) -> Path:
        target = self.folder / name
        shutil.copytree(source, target)
        return target


def _look_at_study(home: SiteHome, *, is_approved: bool) -> None:
    clock = SystemClock()
    client = connect(home, clock)
    study = Studies(home, client, Transfer(client, home.blobs, home.path / "incoming")).fetch()
    client.close()
    machine = Machine(home.log, clock)
    if is_approved:
        machine.feed(Approve(study.task_hash, study.plan_digest, clock.now_ms()))
    home.close()


def found(
    folder: Path,
    *,
    rounds: int = 3,
    quorum: int = 3,
    duration: str = "30s",
    sites: int = 0,  # that must be there before a round begins; 0: the quorum
    selection: str = "fraction = 1.0",
    more: str = "",
    task: str = TASK,
    prelude: str = "",
) -> Small:
    """A locked study and a coordinator that hosts it, started. `more` is for the plan's end;
    `prelude` runs in the coordinator's process before anything else."""
    study = folder / "study"
    study.mkdir()
    (study / "task.py").write_text(task)
    plan = study / "consortium.toml"
    times = {"duration": duration, "wait_for": sites or quorum, "selection": selection}
    plan.write_text(PLAN.format(rounds=rounds, quorum=quorum, **times) + more)
    sample = folder / "sample.csv"
    sample.write_text("x\n1\n")
    write_lock(study, *make_lock(load_study(plan, sample), seed=1))
    script = prelude + _COORDINATOR
    arguments = [sys.executable, "-c", script, str(folder / "coordinator"), str(plan)]
    process = Process([*arguments, str(free_port())], folder / "coordinator.log")
    small = Small(folder, process)
    small.start_coordinator()
    return small

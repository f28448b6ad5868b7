"""A federation of real processes on this machine, for campaigns that look from outside: they
start, kill and ask it by its commands alone.

The study is made so that the sum shows who was counted: site number i adds one to number i
of the model, and nothing else, so after n rounds number i says in how many rounds site i was
counted, exactly.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

TASK = '''"""Site number i adds one to number i of the model: the sum shows who was counted."""

import time
from pathlib import Path

import numpy as np

import consortium as co

SIZE = {size}
PACE_S = {pace_s}


def start(rng):
    return {{"counts": np.zeros(SIZE, np.float32)}}


def evaluate(site, shared):
    return {{"loss": 1.0}}, 1


@co.numpy_task(start=start, evaluate=evaluate)
def study(site, shared):
    number, *own_pace_s = Path(site.data).read_text().split()
    time.sleep(float(own_pace_s[0]) if own_pace_s else PACE_S)
    shared["counts"][int(number)] += 1
    return shared, 1
'''

PLAN = """[task]
entry = "task.py:study"

[federation]
name = "counting"
rounds = {rounds}
quorum = {quorum}

[selection]
{selection}
wait_for = {wait_for}

[round]
duration = "{duration}"
retry = "1s"

[strategy]
weight = "uniform"

[evaluation]
enabled = false
"""

# Nobody waits for anybody; what is old counts in full, so that the sum shows who was counted.
ASYNCHRONOUS = """
[asynchronous]
buffer = {buffer}
max_staleness = {max_staleness}
discount = 0.0
"""


_ROUND_LINE = re.compile(r"^ +(\d+) +\d+ +\d+ ", re.MULTILINE)


class ProcessesError(Exception):
    """A command failed, or something did not happen in time."""


def free_port() -> int:
    """A port that nobody has now. Between this and its use somebody could take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run(arguments: Sequence[str], folder: Path, timeout_s: float = 60.0) -> str:
    """Run a command to its end; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "consortium", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        raise ProcessesError(f"{' '.join(arguments)[:60]}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def wait_until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until it holds; raises when it does not in time."""
    ends = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > ends:
            raise ProcessesError(f"not in {timeout_s:.0f} s: {what}")
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a counting study is."""

    sites: int = 3
    rounds: int = 5
    size: int = 1000  # float32 numbers of the model
    pace_s: float = 0.0  # how long training takes
    quorum: int = 2
    wait_for: int = 0  # 0: all sites
    target: int = 0  # 0: all that are there
    duration: str = "60s"
    buffer: int = 0  # 0: rounds wait for their sites
    max_staleness: int = 20
    slow: Mapping[str, float] = field(default_factory=dict)  # seconds of training, by site
    more: str = ""  # further sections of the plan

    @property
    def name(self) -> str:
        return "counting"

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "task.py").write_text(TASK.format(size=self.size, pace_s=self.pace_s))
        values = {"rounds": self.rounds, "quorum": self.quorum, "duration": self.duration}
        selection = f"target = {self.target}" if self.target else "fraction = 1.0"
        wait_for = self.wait_for or self.sites
        plan = PLAN.format(wait_for=wait_for, selection=selection, **values)
        if self.buffer:
            plan += ASYNCHRONOUS.format(buffer=self.buffer, max_staleness=self.max_staleness)
        (folder / "consortium.toml").write_text(f"{plan}\n{self.more}")
        (folder / "sample.txt").write_text("0")
        run(["lock", "consortium.toml", "--seed", "1", "--sample", "sample.txt"], folder)


@dataclass
class Network:
    """A coordinator and its sites, each a process. Leaving the block ends them all."""

    folder: Path
    shape: Shape
    port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    site_port: int | None = None  # where sites are told to connect; None: the coordinator

    def __enter__(self) -> Network:
        self.shape.write(self.study)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self.processes):
            self.kill(name)

    @property
    def study(self) -> Path:
        return self.folder / "study"

    @property
    def data(self) -> Path:
        return self.study / "coordinator"

    def site_names(self) -> list[str]:
        return [f"site-{number}" for number in range(self.shape.sites)]

    def home(self, name: str) -> Path:
        return self.folder / name

    # ---- starting and killing -------------------------------------------------------

    def start_coordinator(self) -> None:
        listen = ["--listen", f"127.0.0.1:{self.port}", "--name", "localhost"]
        self._start("coordinator", ["serve", "consortium.toml", *listen], self.study)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Until the coordinator takes connections."""

        def is_there() -> bool:
            if self.processes["coordinator"].poll() is not None:
                raise ProcessesError(f"the coordinator has ended: {self.tail('coordinator')}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return True
            return False

        wait_until(is_there, 30.0, "the coordinator listens")

    def join(self, name: str) -> None:
        """Invite a site, and let it join and begin."""
        token = json.loads(self.ask("invite", name))["data"]["token"]
        own_pace_s = self.shape.slow.get(name, "")
        (self.folder / f"{name}.txt").write_text(f"{name.partition('-')[2]} {own_pace_s}")
        task = self.status()["task"]
        arguments = ["join", token, "--data", f"{name}.txt", "--home", name, "--approve", task]
        run([*arguments, "--no-start"], self.folder)
        if self.site_port is not None:
            self._redirect(name)
        self.start_site(name)

    def _redirect(self, name: str) -> None:
        """Send a site's connections through somebody in between."""
        path = self.home(name) / "site.toml"
        path.write_text(path.read_text().replace(f":{self.port}", f":{self.site_port}"))

    def start_site(self, name: str) -> None:
        self._start(name, ["agent", "--home", name], self.folder)

    def _start(self, name: str, arguments: list[str], folder: Path) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "consortium", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"NO_COLOR": "1"},
            )

    def kill(self, name: str) -> None:
        """Without warning, and until it is gone."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]

    # ---- asking ---------------------------------------------------------------------

    def ask(self, *arguments: str) -> str:
        return run(["--json", *arguments], self.study)

    def status(self) -> Any:
        return json.loads(self.ask("status"))["data"]["federations"][0]

    def rounds(self) -> Any:
        return json.loads(self.ask("round", "list"))["data"]["rounds"]

    def is_finished(self) -> bool:
        return self.status()["finished"] is not None

    def wait_for_rounds(self, count: int, timeout_s: float = 120.0) -> None:
        """Until so many rounds are over. Looks at what the coordinator prints, a line a round:
        to ask it again and again would load the machine more than the rounds do."""
        path = self.folder / "coordinator.log"

        def are_done() -> bool:
            return len(set(_ROUND_LINE.findall(path.read_text(errors="replace")))) >= count

        wait_until(are_done, timeout_s, f"{count} rounds are over")

"""The coordinator and the hospitals, started, killed and started again by their commands."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from consortium.cli.demo.processes import Process, Processes
from consortium.cli.demo.records import HOSPITALS
from consortium.cli.demo.show import Show
from consortium.cli.operator import DEFAULT_FOLDER
from consortium.errors import InternalError

SEED = "1"
# Below the ports that systems give to outgoing connections: while the coordinator is down,
# nobody takes its port.
_PORTS = range(20_000, 30_000)
_JOINED = "has joined"
COMMON, ADAPTERS = "common", "adapters"
_TEMPLATES = {COMMON: "numpy/common", ADAPTERS: "torch/adapters"}


def free_port() -> int:
    """A port of this machine that nobody has now."""
    for port in random.sample(_PORTS, 50):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise InternalError("no port is free on this machine")


@dataclass(frozen=True, slots=True)
class DemoStudy:
    """A study that has been locked: its plan file, and what its hospitals approve."""

    name: str
    task: str

    @property
    def plan(self) -> str:
        return f"{self.name}/consortium.toml"


@dataclass(slots=True)
class Network:
    """Five processes and how they were started."""

    folder: Path
    processes: Processes
    show: Show
    port: int = field(default_factory=free_port)
    studies: list[DemoStudy] = field(default_factory=list)
    coordinator: Process | None = None
    hospitals: dict[str, Process] = field(default_factory=dict)
    simulations: dict[str, Process] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.folder / DEFAULT_FOLDER

    # ---- studies --------------------------------------------------------------------

    def lock(self, names: list[str]) -> None:
        """Write the studies of these names and lock them, side by side."""
        started = []
        for name in names:
            _write_study(self.folder / name, name)
            arguments = ["lock", f"{name}/consortium.toml", "--seed", SEED]
            self.show.command(arguments)
            started.append(self.processes.start(f"lock-{name}", ["--json", *arguments]))
        self.show.doing("pinning the task and the first model")
        for name, process in zip(names, started, strict=True):
            self.studies.append(DemoStudy(name, self.processes.result(process)["task"]))

    # ---- the coordinator ------------------------------------------------------------

    def serve(self) -> None:
        """Start the coordinator, or start it again, and wait until it answers."""
        plans = [study.plan for study in self.studies]
        where = ["--data", str(DEFAULT_FOLDER), "--listen", f"127.0.0.1:{self.port}"]
        arguments = ["serve", *plans, *where, "--seed", SEED]
        is_again = self.coordinator is not None
        self.show.command(["serve", "…   (as before)"] if is_again else arguments)
        self.show.doing("the coordinator starts")
        self.coordinator = self.processes.start_lasting("coordinator", arguments)
        self.processes.wait_for(self._is_open, "the coordinator listens")

    def _is_open(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def kill_coordinator(self) -> None:
        assert self.coordinator is not None
        self.processes.kill(self.coordinator)

    def stop_coordinator(self) -> None:
        assert self.coordinator is not None
        self.processes.stop(self.coordinator)

    # ---- hospitals ------------------------------------------------------------------

    def invite(self, study: DemoStudy) -> list[str]:
        """A token for each hospital. The first command is shown; the others are like it."""
        started: list[Process] = []
        for hospital in HOSPITALS:
            arguments = ["invite", hospital.name, "--federation", study.name]
            if hospital is HOSPITALS[0] and study is self.studies[0]:
                self.show.command(arguments)
            name = f"invite-{study.name}-{hospital.name}"
            started.append(self.processes.start(name, ["--json", *arguments]))
        self.show.doing("inviting four hospitals")
        return [self.processes.result(process)["token"] for process in started]

    def join(self, study: DemoStudy, name: str, token: str) -> str:
        """Let a hospital join and begin; the words that both sides compare by phone."""
        home = _home(study, name)
        told = [f"records/{name}.csv", "--home", home, "--seed", SEED, "--until-finished"]
        arguments = ["join", token, "--data", *told, "--approve", study.task]
        if name == HOSPITALS[0].name and study is self.studies[0]:
            shown = ["TOKEN" if word == token else word for word in arguments[:-1]]
            self.show.command([*shown, f"{study.task[:8]}…"])
        self.show.doing(f"{name} makes a key and joins")
        process = self.processes.start_lasting(f"{study.name}-{name}", arguments)
        self.hospitals[name] = process
        self.processes.wait_for(lambda: _JOINED in process.text() or process.is_over, "joining")
        if process.is_over:
            raise process.trouble()
        self.processes.wait_for(lambda: bool(process.printed.read_text().strip()), "its words")
        return process.printed.read_text().splitlines()[0].strip()

    def kill_hospital(self, name: str) -> None:
        self.processes.kill(self.hospitals[name])

    def restart_hospital(self, study: DemoStudy, name: str) -> None:
        """What its people would do: start the agent again."""
        arguments = ["agent", "--home", _home(study, name), "--until-finished"]
        self.show.command(arguments)
        process = self.processes.start_lasting(f"{study.name}-{name}", arguments)
        self.hospitals[name] = process

    def wait_for_hospitals(self) -> None:
        """Until each has the last model and has ended."""
        self.show.doing("the hospitals fetch the last model")
        running = self.hospitals.values()
        self.processes.wait_for(lambda: all(one.is_over for one in running), "the hospitals end")

    # ---- afterwards -----------------------------------------------------------------

    def start_simulations(self) -> None:
        """Every study once more, in one process each, and each hospital alone."""
        for study in self.studies:
            # The plain engine: it does what a real site does, bit by bit.
            command = [
                "--json",
                "simulate",
                study.plan,
                "--seed",
                SEED,
                "--engine",
                "loop",
                "--cross-site",
            ]
            options = ["--workers", "0"]  # the cores have enough to do
            process = self.processes.start(f"simulate-{study.name}", [*command, *options])
            self.simulations[study.name] = process

    def simulated(self, study: DemoStudy) -> Any:
        """What the simulation of a study gave."""
        process = self.simulations[study.name]
        self.show.command(process.arguments[1:])
        self.show.doing("simulating, and training each hospital alone")
        return self.processes.result(process)

    def audit(self) -> Any:
        """Verify the coordinator's folder, with every receipt that a hospital holds."""
        receipts = sorted((self.folder / "sites").glob("*/receipts/*"))
        found = [str(path.relative_to(self.folder)) for path in receipts]
        if not found:
            raise InternalError("no hospital has a receipt")
        verify = ["audit", "verify", str(DEFAULT_FOLDER)]
        self.show.command([*verify, "--receipt", "FILE", "…"])
        options = [word for path in found for word in ("--receipt", path)]
        self.show.doing("every fact, sum, signature and receipt is checked again")
        return self.processes.run("audit", [*verify, *options])


def _home(study: DemoStudy, name: str) -> str:
    return f"sites/{name}-{study.name}"


def _write_study(folder: Path, name: str) -> None:
    folder.mkdir()
    source = files("consortium.cli") / "study" / _TEMPLATES[name]
    for file in ("task.py", "consortium.toml"):
        (folder / file).write_text((source / file).read_text())

"""The processes of a campaign's federation: forked from a warm one, broken by strace."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from consortium.errors import ConsortiumError
from consortium.testing.crash_network import coordinator, site
from consortium.testing.crash_network.coordinator import Coordinator
from consortium.testing.crash_network.line import (
    GoneError,
    Notes,
    Words,
    hear,
    listening,
    pair,
    say,
)
from consortium.testing.crash_network.plants import plant
from consortium.testing.crash_network.site import Site
from consortium.testing.crash_network.study import sites_of
from consortium.testing.warm import attach, wait_for_tracer

COORDINATOR = "coordinator"
_TRACEBACK = 70


@dataclass
class Part:
    """One process. It does what is said, and is gone when its line is cut."""

    name: str
    pid: int
    line: socket.socket
    err: Path
    tracer: subprocess.Popen[bytes] | None = None

    def ask(self, **words: object) -> Words:
        """Say something, and hear what came of it; raises `GoneError` when nobody is there."""
        say(self.line, words)
        return hear(self.line)[0]

    def reap(self) -> tuple[int, str]:
        """How it ended, and what it said last. Waits for it."""
        self.line.close()
        _, status = os.waitpid(self.pid, 0)
        if self.tracer is not None:
            self.tracer.wait()
            assert self.tracer.stderr is not None
            self.tracer.stderr.close()
        return os.waitstatus_to_exitcode(status), self.err.read_text()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.reap()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a federation lies: its folder, its study's plan, a bug to plant."""

    folder: Path
    plan: Path
    planted: str = ""
    notes: Notes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", Notes(self.folder / "notes"))

    @property
    def sites(self) -> tuple[str, ...]:
        return sites_of(self.plan)

    @property
    def line(self) -> Path:
        return self.folder / "line"

    @property
    def data(self) -> Path:
        return self.folder / COORDINATOR

    def home(self, name: str) -> Path:
        return self.folder / name

    def start(self, name: str, now_ms: int, tracing: list[str] | None = None) -> Part:
        """Start a part; under strace when `tracing` has options."""
        ours, theirs = pair()
        asked = listening(self.line) if name == COORDINATOR else None
        ready, gate = os.pipe()
        err = self.folder / f"{name}.err"
        child = os.fork()
        if child == 0:
            ours.close()
            os.close(gate)
            _be_child(self._main(name, now_ms, theirs, asked), ready, err, self.planted)
        for held in (theirs, asked):
            if held is not None:
                held.close()
        os.close(ready)
        tracer = None if tracing is None else attach(child, tracing, self.folder)
        os.close(gate)  # the child waits for this
        return Part(name, child, ours, err, tracer)

    def _main(
        self, name: str, now_ms: int, told: socket.socket, asked: socket.socket | None
    ) -> Callable[[], None]:
        def be_coordinator() -> None:
            assert asked is not None
            coordinator.serve(lambda: Coordinator(self.data, self.plan, now_ms), told, asked)

        def be_site() -> None:
            records = self.plan.parent / f"{name}.txt"
            site.serve(lambda: Site(self.home(name), records, self.notes, self.line), told)

        return be_coordinator if name == COORDINATOR else be_site


def _be_child(run: Callable[[], None], ready: int, err: Path, planted: str) -> None:
    """Never returns. Ends as the command line would: 0, or a code and its message."""
    code, said = _TRACEBACK, ""
    err.write_text("")
    sys.stdout = sys.stderr = io.StringIO()  # what is printed is no durable call
    try:
        plant(planted)
        wait_for_tracer(ready)
        run()
        code = 0
    except ConsortiumError as error:
        code, said = error.exit_code, f"error {error.code}: {error.message}"
    except GoneError:
        code = 0  # whoever says what is next has gone
    except BaseException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = "" if frame is None else f" in {frame.tb_frame.f_code.co_qualname}"
        said = f"unexpected {type(error).__name__}: {error}{where}"
    finally:
        handle = os.open(err, os.O_WRONLY | os.O_APPEND)
        os.writev(handle, [said.encode()])
        os._exit(code)

"""The demo's processes: each a `consortium` command. Whatever happens, all of them end.

Their output goes to files in `logs/`, not through pipes: nothing is lost when somebody is
killed, and no thread is needed here, so that starting a process can run code of ours in it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from consortium.cli.demo.interrupts import Interrupts
from consortium.errors import InternalError

_DIES_WITH_PARENT, _ADOPTS_ORPHANS = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_LOOK_S = 0.02
_REAP_S = 3.0
_PATIENCE_S = 180.0  # on a machine that is busy with something else
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Process:
    """One command at work."""

    name: str
    arguments: tuple[str, ...]
    popen: subprocess.Popen[bytes]
    printed: Path  # its stdout
    said: Path  # its stderr

    @property
    def is_over(self) -> bool:
        return self.popen.poll() is not None

    def text(self) -> str:
        """What it has said up to now."""
        return self.said.read_text(errors="replace")

    def trouble(self) -> InternalError:
        """That it ended, and its last words."""
        words = [*self.text().splitlines(), _told_error(self.printed)]
        last = "\n    ".join([word for word in words if word][-_LAST_LINES:])
        command = " ".join(self.arguments)[:60]
        return InternalError(
            f"consortium {command} ended with {self.popen.returncode}:\n    {last}",
            hint="consortium demo --folder DIR keeps the logs",
        )


class Processes:
    """All that the demo has started. Leaving the block kills and reaps what still runs."""

    def __init__(self, folder: Path, interrupts: Interrupts, on_wait: Callable[[], None]) -> None:
        self._folder, self._interrupts, self._on_wait = folder, interrupts, on_wait
        self._logs, self._temporary = folder / "logs", folder / "tmp"
        self._all: list[Process] = []
        self._lasting: list[Process] = []
        self._prctl = _prctl()

    def __enter__(self) -> Processes:
        self._logs.mkdir(parents=True)
        self._temporary.mkdir()
        if self._prctl is not None:  # a killed agent's task process comes to us to be reaped
            self._prctl(_ADOPTS_ORPHANS, 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._interrupts.ignore()
        for process in self._all:
            if not process.is_over:
                with suppress(ProcessLookupError):
                    os.killpg(process.popen.pid, signal.SIGKILL)
        for process in self._all:
            process.popen.wait()
        _reap_orphans()
        if self._prctl is not None:
            self._prctl(_ADOPTS_ORPHANS, 0)

    def _die_with_us(self) -> None:
        """In the new process: if the demo is killed without warning, nothing stays either."""
        if self._prctl is not None:
            self._prctl(_DIES_WITH_PARENT, signal.SIGKILL)

    # ---- starting and ending --------------------------------------------------------

    def start(self, name: str, arguments: Sequence[str]) -> Process:
        """A command that is looked after later, or waited for with `result`."""
        printed, said = self._logs / f"{name}.out", self._logs / f"{name}.log"
        with self._interrupts.held(), printed.open("ab") as out, said.open("ab") as err:
            popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "consortium", *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment() | {"TMPDIR": str(self._temporary)},  # torch leaves a folder
                start_new_session=True,  # Ctrl-C is for the demo, which ends them itself
                preexec_fn=self._die_with_us,  # safe: Python has one thread here
            )
            process = Process(name, tuple(arguments), popen, printed, said)
            self._all.append(process)
        return process

    def start_lasting(self, name: str, arguments: Sequence[str]) -> Process:
        """A command that should be running: when it fails, whoever waits hears of it."""
        process = self.start(name, arguments)
        self._lasting.append(process)
        return process

    def result(self, process: Process) -> Any:
        """Wait until a `--json` command is done; the data in its envelope."""
        self.wait_for(lambda: process.is_over, " ".join(process.arguments)[:40])
        if process.popen.returncode != 0:
            raise process.trouble()
        return json.loads(process.printed.read_text().splitlines()[-1])["data"]

    def run(self, name: str, arguments: Sequence[str]) -> Any:
        """Run a command to its end; the data in its envelope."""
        return self.result(self.start(name, ["--json", *arguments]))

    def kill(self, process: Process) -> None:
        """kill -9, as a power cut would."""
        self._lasting.remove(process)
        process.popen.kill()
        process.popen.wait()

    def stop(self, process: Process) -> None:
        """Ask it to end, as Ctrl-C in its terminal would, and wait until it has."""
        self._lasting.remove(process)
        process.popen.send_signal(signal.SIGINT)
        self.wait_for(lambda: process.is_over, f"{process.name} ends")

    # ---- waiting --------------------------------------------------------------------

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until it holds. Raises when it does not in time, or when a command that should
        be running has failed."""
        ends = time.monotonic() + _PATIENCE_S
        while not holds():
            self._interrupts.check()
            for process in self._lasting:
                if process.popen.poll():
                    raise process.trouble()
            if time.monotonic() > ends:
                raise InternalError(f"waited {_PATIENCE_S:.0f} s in vain: {what}")
            self._on_wait()
            time.sleep(_LOOK_S)


def _environment() -> dict[str, str]:
    """Ours, without what would lead a command to another federation of the viewer's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CONSORTIUM_")}
    return kept | {"NO_COLOR": "1"}


def _prctl() -> Callable[[int, int], int] | None:
    """Linux has it. Elsewhere, a killed agent's task process sees that its pipe is closed."""
    if not sys.platform.startswith("linux"):
        return None
    found: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    return found


def _reap_orphans() -> None:
    ends = time.monotonic() + _REAP_S
    while time.monotonic() < ends:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(_LOOK_S)


def _told_error(printed: Path) -> str:
    """The message in a `--json` command's envelope."""
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        error = json.loads(printed.read_text().splitlines()[-1])["error"]
        return f"{error['code']}: {error['message']}"
    return ""

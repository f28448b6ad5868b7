"""Many runs of the crash scenario in little time: a warm process that forks them.

Importing costs more than the scenario does, so a worker imports once and forks a child
for each run. To break a run, `strace` attaches to the child before it begins, so that
every system call that it counts is the scenario's own. Workers are processes of their
own, with one thread each, and take jobs as JSON lines.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from consortium.testing import crash_scenario

Job = dict[str, Any]  # JSON: numbers, texts and lists
Handle = Callable[[Job], Job]

_PR_SET_PTRACER, _ANYBODY = 0x59616D61, -1
_ATTACHED = b"attached"
_MEMORY = "/dev/shm"


class NoStraceError(Exception):
    """The campaigns cannot run without strace, and must not pass without running."""


def strace() -> str:
    """The path of strace; raises with what to do when there is none."""
    found = shutil.which("strace")
    if found is None:
        raise NoStraceError("strace is missing. hint: apt-get install strace")
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: its exit code, or minus the signal that ended it."""

    code: int
    out: str
    err: str


def run_warm(arguments: list[str], folder: Path, tracing: list[str] | None = None) -> Outcome:
    """Run the scenario in a fork of this process; under strace when `tracing` has options."""
    out, err = folder / "out", folder / "err"
    ready, gate = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(gate)
        _be_child(arguments, ready, out, err)
    os.close(ready)
    tracer = attach(child, tracing, folder) if tracing is not None else None
    os.close(gate)  # the child waits for this
    _, status = os.waitpid(child, 0)
    if tracer is not None:
        tracer.wait()
        assert tracer.stderr is not None
        tracer.stderr.close()
    return Outcome(os.waitstatus_to_exitcode(status), out.read_text(), err.read_text())


def _be_child(arguments: list[str], ready: int, out: Path, err: Path) -> None:
    code = 70
    try:
        for path, handle in ((out, 1), (err, 2)):
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, handle)
            os.close(opened)
        wait_for_tracer(ready)
        code = crash_scenario.main(arguments)
    except BaseException as error:
        os.writev(2, [f"Traceback: {type(error).__name__}: {error}\n".encode()])
    finally:
        os._exit(code)


def wait_for_tracer(ready: int) -> None:
    """In a child: let strace in, and wait until somebody closes the other end of `ready`."""
    # Where a process may trace only its children, let strace in all the same.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
    os.read(ready, 1)
    os.close(ready)


def attach(child: int, tracing: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """strace at a child of ours; what it sees is written to `trace` in the folder."""
    command = [strace(), "-f", "-p", str(child), "-o", str(folder / "trace"), *tracing]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    line = tracer.stderr.readline()
    if _ATTACHED not in line:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise NoStraceError(f"strace cannot attach here: {line.decode().strip()}")
    return tracer


# ---- workers ------------------------------------------------------------------------


def serve(handle: Handle) -> None:
    """A worker: one job a line on standard input, one result a line on standard output."""
    for line in sys.stdin:
        print(json.dumps(handle(json.loads(line))), flush=True)


class Workers:
    """Processes of `python -m module --serve`, warm until the block ends."""

    def __init__(self, module: str, count: int) -> None:
        self._count = count
        self._idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        self._started = [_start(module) for _ in range(count)]
        for worker in self._started:
            self._idle.put(worker)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._started:
            worker.communicate()  # the end of its input ends it

    def run(self, jobs: Iterable[Job]) -> list[Job]:
        """The results, in the order of the jobs."""
        with ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(self._ask, jobs))

    def _ask(self, job: Job) -> Job:
        worker = self._idle.get()
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(job) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        finally:
            self._idle.put(worker)
        if not line:
            raise RuntimeError(f"a worker died of {job}")
        result: Job = json.loads(line)
        return result


def _start(module: str) -> subprocess.Popen[str]:
    # One thread: a fork takes along only the thread that forks.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    # In memory: what a killed process leaves does not depend on the disk, and hundreds of
    # folders are made and removed.
    if os.access(_MEMORY, os.W_OK):
        environment.setdefault("TMPDIR", _MEMORY)
    return subprocess.Popen(
        [sys.executable, "-B", "-m", module, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for one run."""
    return tempfile.TemporaryDirectory(prefix="consortium-crash-")

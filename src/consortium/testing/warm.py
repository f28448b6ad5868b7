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
from collections.abc import Callable, Iterable, Iterator
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
    tracer = _attach(child, tracing, folder) if tracing is not None else None
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
        # Where a process may trace only its children, let strace in all the same.
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
        os.read(ready, 1)
        os.close(ready)
        code = crash_scenario.main(arguments)
    except BaseException as error:
        os.writev(2, [f"Traceback: {type(error).__name__}: {error}\n".encode()])
    finally:
        os._exit(code)


def _attach(child: int, tracing: list[str], folder: Path) -> subprocess.Popen[bytes]:
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


def run_jobs(module: str, jobs: Iterable[Job], workers: int) -> Iterator[Job]:
    """The results of all jobs, in order, from `workers` processes of `module --serve`."""
    idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
    started = [_start(module) for _ in range(workers)]
    for worker in started:
        idle.put(worker)

    def ask(job: Job) -> Job:
        worker = idle.get()
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker died of {job}")
        idle.put(worker)
        result: Job = json.loads(line)
        return result

    try:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(ask, jobs)
    finally:
        for worker in started:
            worker.communicate()


def _start(module: str) -> subprocess.Popen[str]:
    # One thread: a fork takes along only the thread that forks.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-B", "-m", module, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def scratch(*, in_memory: bool = True) -> tempfile.TemporaryDirectory[str]:
    """A folder for one run: in memory where that can be had, because what a killed process
    leaves does not depend on the disk, and hundreds of folders are made and removed."""
    has_memory = in_memory and os.access(_MEMORY, os.W_OK)
    return tempfile.TemporaryDirectory(
        prefix="consortium-crash-", dir=_MEMORY if has_memory else None
    )

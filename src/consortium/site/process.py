"""A child process of the agent, and the file that what it prints goes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO

from consortium.errors import StoreFailedError
from consortium.site.isolation.cell import Cell
from consortium.site.isolation.environment import environment

MAX_LOG_BYTES = 1 << 20  # of one file; there are two: the newest and the one before
_READ_BYTES = 1 << 16
_END_S = 5.0


class ChildLog:
    """What a task prints, the newest of it. It may show records, so it is the owner's alone."""

    def __init__(self, path: Path, *, is_echoed: bool = False) -> None:
        self._path, self._is_echoed = path, is_echoed

    def add(self, text: bytes) -> None:
        """Write it down if that can be done: a full disk must not stop the task."""
        if self._is_echoed:
            sys.stderr.write(text.decode(errors="replace"))
            sys.stderr.flush()
        with suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "ab") as file:
                file.write(text)
                is_full = file.tell() >= MAX_LOG_BYTES
            if is_full:
                self._path.replace(self._path.with_name(self._path.name + ".1"))


class ChildProcess:
    """One process and the pipe to it. It is started and waited for in a thread of its own:
    Linux ends a process that asked to die with its parent when the *thread* that started it
    ends."""

    def __init__(self, cell: Cell, log: ChildLog) -> None:
        self._cell, self._log = cell, log
        self.pipe, self._theirs = Pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()
        self._errors: list[OSError] = []  # that starting it met
        self._is_started, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._host, daemon=True)
        self._thread.start()
        self._is_started.wait()
        for error in self._errors:
            self.pipe.close()
            raise StoreFailedError(f"cannot start a process: {error.strerror}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def kill(self) -> None:
        """End it now, with whatever it has started. May be called from any thread, twice."""
        with self._guard:
            if self._process is not None and self._process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, and wait until it is gone."""
        self.kill()
        self._is_over.wait(_END_S)
        self.pipe.close()

    def ending(self) -> int | None:
        """Its exit code, or the number of the signal that ended it, below zero; None while it
        is there."""
        self._is_over.wait(_END_S)
        return None if self._process is None else self._process.returncode

    def _host(self) -> None:
        """Start it, keep what it prints, and reap it."""
        try:
            process = self._process = self._start(self._theirs)
        except OSError as error:
            self._errors.append(error)
            return
        finally:
            self._theirs.close()
            self._is_started.set()
        assert process.stdout is not None
        printing = threading.Thread(target=self._copy, args=(process.stdout,), daemon=True)
        printing.start()
        if hasattr(os, "waitid"):  # not on every macOS
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.kill()  # what it started may live on, and keep the pipe that it printed to
        with self._guard:  # only now can its number become another process's
            process.wait()
        printing.join(_END_S)
        self._is_over.set()

    def _start(self, theirs: Connection) -> subprocess.Popen[bytes]:
        # -P: the folder that the process starts in is no place to import ours from.
        command = [sys.executable, "-P", "-m", "consortium.site.child"]
        return subprocess.Popen(
            [*command, str(theirs.fileno()), str(os.getpid()), self._cell.text()],
            cwd=self._cell.folder,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the agent, which ends its children itself
        )

    def _copy(self, printed: IO[bytes]) -> None:
        with printed:
            while text := os.read(printed.fileno(), _READ_BYTES):
                self._log.add(text)

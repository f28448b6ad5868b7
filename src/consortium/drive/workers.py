"""Sites side by side: one single-threaded process a core.

Workers are forked, so that they have the task and every site's data as this process has
them, without a copy and without pickling anything. Models and rows pass through shared
memory; small messages are JSON with the site's state behind them. Results come in the order
in which they were asked for, and have the same bits as the loop's: a site's random stream
is its own, and every site trains in one thread.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium import errors
from consortium.core.facts import Failure
from consortium.core.ids import Seat
from consortium.drive.engine import LoopEngine, SimulatedSite, Training, Trial
from consortium.drive.local import SEE_MORE, Contribution, Scores
from consortium.errors import ConsortiumError, InternalError
from consortium.model import Vector

_AHEAD = 2  # jobs a worker: one that it does, one that waits for it
_AHEAD_BYTES = 32_768  # of such a waiting job: what a socket takes although nobody reads it
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def can_fork() -> bool:
    """Only Linux is known to fork safely with torch and BLAS loaded."""
    return sys.platform == "linux"


def default_workers() -> int:
    """One process a core that we may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0


@dataclass(slots=True)
class _Worker:
    pid: int
    pipe: Connection


class WorkerEngine:
    """Trains and evaluates the sites of a simulation in forked processes."""

    def __init__(self, loop: LoopEngine, workers: int) -> None:
        self._loop = loop
        form = loop.local.plan.strategy.form(loop.local.layout)
        self._size, self._dtype = loop.local.layout.size, form.dtype
        slots = workers * _AHEAD
        self._models = _shared((2, self._size), self._dtype)
        self._rows = _shared((slots, form.size), self._dtype)
        self._free = deque(range(slots))
        self._workers: list[_Worker] = []
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else each child would have our unwritten text, and write it too
        try:
            for _ in range(workers):
                self._workers.append(self._fork())
        except OSError:  # no more processes: end those that there are
            self.close()
            raise

    @property
    def sites(self) -> Sequence[SimulatedSite]:
        return self._loop.sites

    def train(self, seats: Sequence[Seat], work: Training) -> Generator[Contribution, None, None]:
        self._models[0] = work.base
        if work.variate is not None:
            self._models[1] = work.variate
        order = {"do": "train", "round": work.round, "variate": work.variate is not None}
        for reply, row, state in self._ask(seats, order, work.states):
            failure = Failure(reply["failure"]) if reply["failure"] else None
            kept = state if reply["kept"] else None
            yield Contribution(row, int(reply["records"]), kept, failure)

    def evaluate(self, seats: Sequence[Seat], work: Trial) -> Generator[Scores, None, None]:
        self._models[0] = work.model
        order = {"do": "evaluate", "round": work.round, "variate": False}
        for reply, _, _ in self._ask(seats, order, work.states):
            yield reply["sums"], int(reply["records"])

    def close(self) -> None:
        """End the workers. They hold nothing that is needed."""
        for worker in self._workers:
            worker.pipe.close()
            with suppress(ProcessLookupError, ChildProcessError):  # somebody else reaped it
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        self._workers = []

    def _ask(
        self, seats: Sequence[Seat], order: dict[str, Any], states: Any
    ) -> Generator[tuple[dict[str, Any], Vector, bytes], None, None]:
        """Keep every worker busy, and give results in the order of the seats."""
        waiting, running = deque(enumerate(seats)), dict[int, tuple[int, int]]()
        load = dict.fromkeys(range(len(self._workers)), 0)
        ready: dict[int, tuple[dict[str, Any], int, bytes]] = {}
        try:
            for place in range(len(seats)):
                while place not in ready:
                    self._hand_out(waiting, running, load, order, states)
                    self._take_in(running, load, ready)
                reply, slot, state = ready.pop(place)
                if "error" in reply:  # in the order of the seats, as the loop meets it
                    raise _revived(reply)
                row = self._rows[slot].copy()
                self._free.append(slot)
                yield reply, row, state
        except GeneratorExit:  # nobody wants the rest; the workers go on to the next question
            self._free.extend(slot for _, slot, _ in ready.values())
            self._drain(running, load)
            raise
        except BaseException:
            self.close()  # nobody will ask again: do not wait for what the others are doing
            raise

    def _hand_out(
        self,
        waiting: deque[tuple[int, Seat]],
        running: dict[int, tuple[int, int]],
        load: dict[int, int],
        order: dict[str, Any],
        states: Any,
    ) -> None:
        while waiting and self._free:
            number = min(load, key=lambda known: load[known])
            if load[number] >= _AHEAD:
                return
            place, seat = waiting[0]
            state = states(seat)
            if load[number] and len(state or b"") > _AHEAD_BYTES:
                return  # it would wait for us to take its result, and we for it to take this
            waiting.popleft()
            slot = self._free.popleft()
            job = {**order, "place": place, "seat": int(seat), "slot": slot}
            job["has_state"] = state is not None
            try:
                self._workers[number].pipe.send_bytes(_packed(job, state or b""))
            except OSError:
                raise _death() from None
            running[place] = number, slot
            load[number] += 1

    def _take_in(
        self,
        running: dict[int, tuple[int, int]],
        load: dict[int, int],
        ready: dict[int, tuple[dict[str, Any], int, bytes]],
    ) -> None:
        """Wait for at least one result."""
        pipes = {worker.pipe: number for number, worker in enumerate(self._workers)}
        for pipe in wait([pipe for pipe, number in pipes.items() if load[number]]):
            assert isinstance(pipe, Connection)
            try:
                reply, state = _unpacked(pipe.recv_bytes())
            except (EOFError, OSError):
                raise _death() from None
            place = int(reply["place"])
            _, slot = running.pop(place)
            load[pipes[pipe]] -= 1
            ready[place] = reply, slot, state

    def _drain(self, running: dict[int, tuple[int, int]], load: dict[int, int]) -> None:
        """Results that nobody wants any more must be gone before the next question."""
        for number, worker in enumerate(self._workers):
            while load[number]:
                try:
                    reply, _ = _unpacked(worker.pipe.recv_bytes())
                except (EOFError, OSError):
                    break
                load[number] -= 1
                _, slot = running.pop(int(reply["place"]))
                self._free.append(slot)

    # ---- the worker's side ----------------------------------------------------------

    def _fork(self) -> _Worker:
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn of threads at a fork. The child touches none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            theirs.close()
            return _Worker(pid, ours)
        try:
            ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
            ours.close()
            self._serve(theirs)
        except BaseException:
            traceback.print_exc()  # the parent only sees that we are gone
        finally:
            os._exit(0)  # never run the parent's clean-up

    def _serve(self, pipe: Connection) -> None:
        while True:
            try:
                job, state = _unpacked(pipe.recv_bytes())
            except EOFError:
                return
            try:
                reply, kept = self._work(job, state if job["has_state"] else None)
            except ConsortiumError as error:
                reply = {"error": type(error).__name__, "message": error.message}
                reply["hint"] = error.hint
                kept = b""
            for stream in (sys.stdout, sys.stderr):
                stream.flush()  # what a task prints must not be lost when we are ended
            pipe.send_bytes(_packed({**reply, "place": job["place"]}, kept))

    def _work(self, job: dict[str, Any], state: bytes | None) -> tuple[dict[str, Any], bytes]:
        seat, number = Seat(job["seat"]), job["round"]
        model = self._models[0].copy()  # a task may keep what it is given
        if job["do"] == "evaluate":
            sums, records = self._loop.evaluate_one(seat, number, model, state)
            return {"sums": sums, "records": records}, b""
        variate = self._models[1].copy() if job["variate"] else None
        result = self._loop.train_one(seat, number, model, variate, state)
        self._rows[job["slot"]] = result.row
        told = {"records": result.records, "kept": result.state is not None}
        told["failure"] = 0 if result.failure is None else int(result.failure)
        return told, result.state or b""


def _shared(shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array that this process and its children see; pages cost memory once touched."""
    count = shape[0] * shape[1]
    buffer = mmap.mmap(-1, max(1, count * dtype.itemsize))
    return np.frombuffer(buffer, dtype, count=count).reshape(shape)


def _packed(message: dict[str, Any], more: bytes) -> bytes:
    return json.dumps(message).encode() + b"\0" + more


def _unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    text, _, more = data.partition(b"\0")
    return json.loads(text), more


def _death() -> InternalError:
    return InternalError("a worker process died", hint="--workers 0 shows where, in this process")


def _revived(reply: dict[str, Any]) -> ConsortiumError:
    """The error that a worker met, as one of ours: by a name on our own page of errors."""
    kind = getattr(errors, reply["error"], None)
    if not (isinstance(kind, type) and issubclass(kind, ConsortiumError)):
        return InternalError(reply["message"])
    # The traceback stays in the process that had it.
    hint = reply["hint"].replace(SEE_MORE, f"{SEE_MORE}; simulate with --workers 0 for that")
    return kind(reply["message"], hint=hint)

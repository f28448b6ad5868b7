"""Sites side by side: one single-threaded process a core.

Workers are forked, so that they have the task and every site's data as this process has
them, without a copy and without pickling anything. A job is some sites that are trained side
by side, or one. Models and rows pass through shared memory; small messages are JSON with the
sites' states behind them. Results come in the order in which they were asked for, and have the
same bits as in this process: a site's random stream is its own, and every site trains in one
thread. Of the jobs that lie ahead the one with the most records is begun first.

Where many sites train side by side a job takes a few milliseconds. To send it, to be woken and to
read the answer takes a part of that, so this process trains as well, and one less is forked.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium import errors
from consortium.aggregate.block import sum_of
from consortium.core.facts import Failure
from consortium.core.ids import Seat
from consortium.drive.contribution import Contributions, Summed
from consortium.drive.engine import (
    Job,
    LocalEngine,
    SimulatedSite,
    States,
    Training,
    Trial,
    in_parts,
    jobs_of,
)
from consortium.drive.local import SEE_MORE, Scores
from consortium.drive.tuning import keep_freed_memory
from consortium.errors import ConsortiumError, InternalError

_AHEAD = 2  # jobs a worker: one that it does, one that waits for it
_AHEAD_BYTES = 32_768  # of such a waiting job: what a socket takes although nobody reads it
_MOST_SLOTS, _SLOTS_BYTES = 32, 64 << 20  # results that wait for earlier ones to be taken
_EVALUATED_AT_ONCE = 16  # small sites: a message costs more than one of them
_LOOKED_FOR_S = 0.002  # a message, before somebody sleeps until it comes: see `_look_for`
_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def can_fork() -> bool:
    """Only Linux is known to fork safely with torch and BLAS loaded."""
    return sys.platform == "linux"


def default_workers() -> int:
    """One process a core that we may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0


_HERE = -1  # in place of a worker's number: this process
# What was told of a job, where its rows are, and what its sites keep with what they send packed.
_Done = tuple[dict[str, Any], int, list[bytes | None]]


@dataclass(slots=True)
class _Worker:
    pid: int
    pipe: Connection


class WorkerEngine:
    """Trains and evaluates the sites of a simulation in forked processes."""

    def __init__(
        self, local: LocalEngine, workers: int, get_ready: Callable[[], None] | None = None
    ) -> None:
        """`get_ready` is called in each worker: what it makes lies in memory of the worker's own.
        What was made before the fork is copied page by page when a worker first touches it."""
        self._local, self._get_ready = local, get_ready
        layout = local.local.layout
        form = local.local.plan.row_form(layout, local.local.reported)
        job_bytes = local.at_once * form.size * form.dtype.itemsize
        slots = max(workers * _AHEAD, min(_MOST_SLOTS, _SLOTS_BYTES // max(job_bytes, 1)))
        self._models = _shared((2, layout.size), layout.dtype)
        self._rows = _shared((slots, local.at_once * form.size), form.dtype)
        self._sums = _shared((slots, form.size), np.dtype(np.float64))
        self._free, self._used = deque(range(slots)), dict[int, int]()  # the latter by worker
        self._records: dict[Seat, int] = {}  # of each site, once it has trained
        self._workers: list[_Worker] = []
        self._helps = local.at_once > 1  # this process does jobs, too
        self._looks = self._helps and workers <= default_workers()  # each has a core of its own
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else each child would have our unwritten text, and write it too
        try:
            for _ in range(workers - self._helps):
                self._workers.append(self._fork())
        except OSError:  # no more processes: end those that there are
            self.close()
            raise
        if self._helps:
            self._settle_in()

    @property
    def sites(self) -> Sequence[SimulatedSite]:
        return self._local.sites

    @property
    def at_once(self) -> int:
        return self._local.at_once

    def train(self, seats: Sequence[Seat], work: Training) -> Generator[Contributions, None, None]:
        """The rows may be read until the next ones are asked for."""
        self._models[0] = work.base
        if work.variate is not None:
            self._models[1] = work.variate
        order = {"do": "train", "round": work.round, "variate": work.variate is not None}
        jobs = jobs_of(seats, work, self._local.at_once)
        for job, reply, slot, both in self._ask(jobs, order, work.states):
            records: list[int] = reply["records"]
            self._records.update(zip((job.seats[at] for at in job.wanted), records, strict=True))
            rows = self._rows[slot].reshape(self._local.at_once, -1)[: len(records)]
            failures = list[Failure | None]([None] * len(records))
            for at, code in reply["failed"]:
                failures[at] = Failure(code)
            both = both or [None] * (2 * len(records))
            states, packed = both[: len(records)], both[len(records) :]
            made = rows, records, reply["weights"], states, failures, packed
            first = reply["summed"]
            yield Contributions(*made, None if first is None else Summed(first, self._sums[slot]))

    def evaluate(self, seats: Sequence[Seat], work: Trial) -> Generator[Scores, None, None]:
        self._models[0] = work.model
        order = {"do": "evaluate", "round": work.round, "variate": False}
        most = 1 if self._local.at_once == 1 else _EVALUATED_AT_ONCE
        jobs = [Job(part, range(len(part))) for part in in_parts(seats, most)]
        for _, reply, _, _ in self._ask(jobs, order, work.states):
            yield from zip(reply["sums"], reply["records"], strict=True)

    def close(self) -> None:
        """End the workers. They hold nothing that is needed."""
        for worker in self._workers:
            worker.pipe.close()
            with suppress(ProcessLookupError, ChildProcessError):  # somebody else reaped it
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
        self._workers = []

    def _ask(
        self, jobs: Sequence[Job], order: dict[str, Any], states: States
    ) -> Generator[tuple[Job, dict[str, Any], int, list[bytes | None]], None, None]:
        """Keep every worker busy, and give results in the order of the jobs."""
        waiting, running = dict(enumerate(jobs)), dict[int, tuple[int, int]]()
        load = dict.fromkeys(range(len(self._workers)), 0)
        ready: dict[int, _Done] = {}
        slots = len(self._free)
        try:
            for place, job in enumerate(jobs):
                while place not in ready:
                    # Each job up to here has a slot, so that none waits for a later one's.
                    self._hand_out(waiting, place + slots, running, load, order, states)
                    mine = self._own_place(waiting, place + slots)
                    if mine is None:
                        self._take_in(running, load, ready)
                        continue
                    ready[mine] = self._done_here(waiting.pop(mine), order, states)
                    if waiting:  # somebody may be done, and have nothing to do
                        self._take_in(running, load, ready, timeout_s=0.0)
                reply, slot, both = ready.pop(place)
                if "error" in reply:  # in the order of the seats, as the loop meets it
                    raise _revived(reply)
                yield job, reply, slot, both
                self._free.append(slot)
        except GeneratorExit:  # nobody wants the rest; the workers go on to the next question
            self._free.extend(slot for _, slot, _ in ready.values())
            self._free.append(slot)
            self._drain(running, load)
            raise
        except BaseException:
            self.close()  # nobody will ask again: do not wait for what the others are doing
            raise

    def _hand_out(
        self,
        waiting: dict[int, Job],
        before: int,
        running: dict[int, tuple[int, int]],
        load: dict[int, int],
        order: dict[str, Any],
        states: States,
    ) -> None:
        while load and self._free:
            number = min(load, key=lambda known: load[known])
            # Nobody gets a second job while this process has none.
            is_enough = load[number] >= _AHEAD or (load[number] and len(waiting) <= self._helps)
            place = None if is_enough else self._next_of(waiting, before)
            if place is None:
                return
            kept = [states(seat) for seat in waiting[place].seats]
            if load[number] and sum(len(state or b"") for state in kept) > _AHEAD_BYTES:
                return  # it would wait for us to take its result, and we for it to take this
            slot = self._slot_for(number)
            job = {**_job(waiting.pop(place), order, slot), "place": place}
            job["lengths"] = _lengths(kept)
            try:
                self._workers[number].pipe.send_bytes(_packed(job, kept))
            except OSError:
                raise _death() from None
            running[place] = number, slot
            load[number] += 1

    def _next_of(self, waiting: dict[int, Job], before: int) -> int | None:
        """The place of the job to hand out next, if there is one and a slot for it: that with the
        most records; of the same, the first. If this process begins with those, the last."""
        places = [place for place in islice(waiting, len(self._free)) if place < before]
        sign = 1 if self._helps else -1
        return max(places, key=lambda at: (self._work_in(waiting[at]), sign * at), default=None)

    def _own_place(self, waiting: dict[int, Job], before: int) -> int | None:
        """The place of a job to do here: the first, so that its result is taken while others are
        at work on later ones."""
        first = next(iter(waiting), before) if self._helps and self._free else before
        return first if first < before else None

    def _done_here(self, asked: Job, order: dict[str, Any], states: States) -> _Done:
        """One job in this process."""
        slot = self._slot_for(_HERE)
        kept = [states(seat) for seat in asked.seats]
        try:
            reply, both = self._work(_job(asked, order, slot), kept)
        except ConsortiumError as error:
            reply, both = {"error": error}, []
        return reply, slot, both

    def _slot_for(self, worker: int) -> int:
        """The one that it used last, if that is free: the memory is in its cache."""
        last = self._used.get(worker)
        if last is not None and last in self._free:
            self._free.remove(last)
        else:
            last = self._free.popleft()
        self._used[worker] = last
        return last

    def _work_in(self, job: Job) -> int:
        """Records of its sites, as far as they are known."""
        return sum(self._records.get(seat, 0) for seat in job.seats)

    def _take_in(
        self,
        running: dict[int, tuple[int, int]],
        load: dict[int, int],
        ready: dict[int, _Done],
        timeout_s: float | None = None,
    ) -> None:
        """Wait for at least one result, so long."""
        pipes = {self._workers[number].pipe: number for number, jobs in load.items() if jobs}
        # To wait for one of several takes longer than to read from it.
        is_one = len(pipes) == 1 and timeout_s is None
        for pipe in pipes if is_one else wait(list(pipes), timeout_s):
            assert isinstance(pipe, Connection)
            try:
                if is_one and self._looks:
                    _look_for(pipe)
                reply, kept = _unpacked(pipe.recv_bytes())
            except (EOFError, OSError):
                raise _death() from None
            place = int(reply["place"])
            _, slot = running.pop(place)
            load[pipes[pipe]] -= 1
            ready[place] = reply, slot, _parted(kept, reply.get("lengths", []))

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
            _give_way()
            self._settle_in()
            gc.freeze()  # what was there before is neither looked at nor copied for it
            self._serve(theirs)
        except BaseException:
            traceback.print_exc()  # the parent only sees that we are gone
        finally:
            os._exit(0)  # never run the parent's clean-up

    def _settle_in(self) -> None:
        """Before the first job of this process."""
        keep_freed_memory()
        if self._get_ready is not None:
            self._get_ready()

    def _serve(self, pipe: Connection) -> None:
        while True:
            try:
                if self._looks:
                    _look_for(pipe)
                job, state = _unpacked(pipe.recv_bytes())
            except EOFError:
                return
            try:
                states = _parted(state, job["lengths"]) or [None] * len(job["seats"])
                reply, kept = self._work(job, states)
            except ConsortiumError as error:
                reply = {"error": type(error).__name__, "message": error.message}
                reply["hint"] = error.hint
                kept = []
            for stream in (sys.stdout, sys.stderr):
                stream.flush()  # what a task prints must not be lost when we are ended
            reply = {**reply, "place": job["place"], "lengths": _lengths(kept)}
            pipe.send_bytes(_packed(reply, kept))

    def _work(
        self, job: dict[str, Any], states: list[bytes | None]
    ) -> tuple[dict[str, Any], list[bytes | None]]:
        seats, number = [Seat(seat) for seat in job["seats"]], job["round"]
        model = self._models[0]  # tasks are given copies of it, as tensors
        if job["do"] == "evaluate":
            scores = [
                self._local.evaluate_one(seat, number, model, state)
                for seat, state in zip(seats, states, strict=True)
            ]
            return {"sums": [one[0] for one in scores], "records": [one[1] for one in scores]}, []
        variate = self._models[1] if job["variate"] else None
        slot = self._rows[job["slot"]].reshape(self._local.at_once, -1)
        whole = self._local.train_some(seats, number, model, variate, states, slot[: len(seats)])
        made = whole if job["wanted"] is None else whole.at(job["wanted"])
        if not np.may_share_memory(made.rows, slot):
            slot[: len(made)] = made.rows
        told = {
            "records": list(made.records),
            "weights": list(made.weights),
            "failed": [(at, int(code)) for at, code in enumerate(made.failures) if code],
            "summed": self._summed(made, job),
        }
        both = [*made.states, *made.packed]
        return told, both

    def _summed(self, made: Contributions, job: dict[str, Any]) -> int | None:
        """Add up the rows of a block that begins with them, so that the parent need not, while
        the workers wait for it. From which of them on; None, if there is none, or one failed."""
        first: int | None = job["first_of_block"]
        if first is None or any(made.failures[first:]):
            return None
        sum_of(made.rows[first:], made.weights[first:], out=self._sums[job["slot"]])
        return first


def _give_way() -> None:
    """A worker that is given a job does not push aside who gives it: the next worker would get
    its own only when this one is done."""
    with suppress(OSError, AttributeError):  # where there is no such thing, it is only slower
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _job(asked: Job, order: dict[str, Any], slot: int) -> dict[str, Any]:
    """A job as a worker is told of it: in few words, because both sides wait for them."""
    wanted = list(asked.wanted)
    is_whole = wanted == list(range(len(asked.seats)))
    which = {"wanted": None if is_whole else wanted, "first_of_block": asked.first_of_block}
    return {**order, **which, "slot": slot, "seats": list(asked.seats)}


def _lengths(parts: Sequence[bytes | None]) -> list[int]:
    """Of what is joined, -1 for nothing; none at all where there is nothing but that."""
    if not any(part is not None for part in parts):
        return []
    return [-1 if part is None else len(part) for part in parts]


def _parted(data: memoryview, lengths: Sequence[int]) -> list[bytes | None]:
    """What was joined, by its lengths."""
    states, at = list[bytes | None](), 0
    for length in lengths:
        states.append(None if length < 0 else bytes(data[at : at + length]))
        at += max(length, 0)
    return states


def _shared(shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array that this process and its children see; pages cost memory once touched."""
    count = shape[0] * shape[1]
    buffer = mmap.mmap(-1, max(1, count * dtype.itemsize))
    return np.frombuffer(buffer, dtype, count=count).reshape(shape)


def _packed(message: dict[str, Any], states: Sequence[bytes | None]) -> bytes:
    return b"".join([json.dumps(message).encode(), b"\0", *(state or b"" for state in states)])


def _unpacked(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """The message, and the states behind it: they may be long, so they are not copied here."""
    end = data.index(b"\0")
    return json.loads(data[:end]), memoryview(data)[end + 1 :]


def _look_for(pipe: Connection) -> None:
    """Return when there is something to read, or after a while. Who sleeps is woken some time
    after a message is there: of a round of small models that is a part that counts."""
    known = select.poll()
    known.register(pipe.fileno(), select.POLLIN)
    end = time.perf_counter() + _LOOKED_FOR_S
    while not known.poll(0) and time.perf_counter() < end:
        pass


def _death() -> InternalError:
    return InternalError("a worker process died", hint="--workers 0 shows where, in this process")


def _revived(reply: dict[str, Any]) -> ConsortiumError:
    """The error that a worker met, as one of ours: by a name on our own page of errors. One that
    was met in this process is there as it is."""
    if isinstance(reply["error"], ConsortiumError):
        return reply["error"]
    kind = getattr(errors, reply["error"], None)
    if not (isinstance(kind, type) and issubclass(kind, ConsortiumError)):
        return InternalError(reply["message"])
    # The traceback stays in the process that had it.
    hint = reply["hint"].replace(SEE_MORE, f"{SEE_MORE}; simulate with --workers 0 for that")
    return kind(reply["message"], hint=hint)

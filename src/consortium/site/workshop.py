"""Where the task runs: the agent's handle on the process that does the work.

One call at a time; each blocks until its work is done. The process is started when it is
first needed and stays for the next round. If it dies, the call that waited for it raises, and
the next one starts a new process. `failure_of(error)` says which code leaves the site.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from consortium import errors
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.errors import (
    ConsortiumError,
    InternalError,
    OnHoldError,
    ResourceLimitError,
    SiteDataError,
    TaskResultError,
)
from consortium.site import jobs as j
from consortium.site.cells import cell_of, longest_s, refuse_if_open
from consortium.site.failures import failure_of, marked
from consortium.site.home import SiteHome
from consortium.site.isolation.warden import TOO_MANY_PROCESSES, TOO_MUCH_MEMORY
from consortium.site.policy import read_policy, update_bytes
from consortium.site.process import ChildLog, ChildProcess
from consortium.site.review import ReviewedStudy, printable
from consortium.site.scratch import Scratch
from consortium.site.transfer import Marks
from consortium.tasks import Inventory
from consortium.tensors import TensorSpec

__all__ = ["MadeScores", "MadeUpdate", "Workshop", "failure_of"]

Told = TypeVar("Told", bound=j.Answer)
NO_SEAT = Seat(0)
_MOST_ANSWER_BYTES = 16 << 20  # a list of tensors; whatever is larger lies in a file
_LIMITS = {
    TOO_MUCH_MEMORY: "the task used more memory than this site gives it",
    TOO_MANY_PROCESSES: "the task started more processes than this site gives it",
}


@dataclass(frozen=True, slots=True)
class MadeUpdate:
    """The update lies among the home's blobs, and what stays is pending among its states."""

    update: Digest
    marks: Marks
    records: int
    private_state: Digest | None

    @property
    def size_bytes(self) -> int:
        return max(self.marks)


@dataclass(frozen=True, slots=True)
class MadeScores:
    """Sums over the site's test records, of candidate and base."""

    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """A model to be used here: a version's digest, the round that made it, and what this site
    keeps with it."""

    model: Digest
    model_round: int
    private_state: Digest | None
    seat: Seat = NO_SEAT


class Workshop:
    """Runs one approved study's task on this site's records."""

    def __init__(self, home: SiteHome, study: ReviewedStudy, *, is_echoed: bool = False) -> None:
        self._home, self._study = home, study
        self._log = ChildLog(home.child_log, is_echoed=is_echoed)
        self._turn = threading.Lock()  # one job at a time
        self._guard = threading.Lock()  # over what follows
        self._child: ChildProcess | None = None
        self._scratch: Scratch | None = None
        self._also: tuple[Path, ...] = ()  # what the process may read for its job
        self._records: tuple[int, int] | None = None  # which file the process knows as these
        self._is_busy = False
        self._cancelled: ConsortiumError | None = None

    @property
    def study(self) -> ReviewedStudy:
        return self._study

    @property
    def pid(self) -> int | None:
        """Of the process that is there now."""
        child = self._child
        return None if child is None else child.pid

    # ---- work -----------------------------------------------------------------------

    def check(self, seat: Seat = NO_SEAT) -> Inventory:
        """What leaves and what stays here. Raises where this site's model is not the one that
        was approved, or its records are not fit."""
        stock = self._ask(j.Check(seat=seat), j.Stock)
        return Inventory(_specs(stock.leaves), _specs(stock.private), _specs(stock.frozen))

    def train(
        self,
        number: int,
        seat: Seat,
        base: Digest,
        server_state: Digest | None = None,
        private_state: Digest | None = None,
    ) -> MadeUpdate:
        """Train in round `number` from `base`. Both digests of models are blobs of the home;
        `private_state` is what the site's log says that it keeps."""
        job = j.Train(
            round=number,
            seat=seat,
            base=base.hex(),
            server_state=_hex(server_state),
            kept=_hex(private_state),
        )
        taken: list[tuple[Digest, Marks]] = []

        def take(scratch: Scratch, _: j.Made) -> None:
            most = update_bytes(self._study.plan, self._study.layout, self._study.reported)
            taken.append(scratch.move_to(self._home.blobs, j.UPDATE, most))

        made = self._ask(job, j.Made, take)
        kept = None if made.kept is None else _digest(made.kept)
        return MadeUpdate(*taken[0], made.records, kept)

    def evaluate(
        self,
        number: int,
        seat: Seat,
        model: Digest,
        base: tuple[Digest, int],
        states: tuple[Digest | None, Digest | None],
    ) -> MadeScores:
        """Try the candidate of round `number`, and the base: (its digest, the round that made
        it). `states` are those of the log: (private, pending)."""
        job = j.Evaluate(
            round=number,
            seat=seat,
            model=model.hex(),
            base=base[0].hex(),
            base_round=base[1],
            kept=_hex(states[0]),
            pending=_hex(states[1]),
        )
        told = self._ask(job, j.Scores)
        named = len(self._study.reported)
        if (len(told.candidate), len(told.base)) != (named, named):
            # More numbers than were approved could carry anything.
            raise TaskResultError(f"the task gave other scores than its {named} metrics")
        return MadeScores(told.samples, tuple(told.candidate), tuple(told.base))

    def predict(self, use: Use, records: Path, out: Path) -> None:
        """What the complete model says of new records, a CSV file, into another one."""
        job = j.Predict(
            seat=use.seat,
            model=use.model.hex(),
            model_round=use.model_round,
            kept=_hex(use.private_state),
            records=str(records.resolve()),
            out=out.name,
        )
        self._use(job, out, also=(records.resolve(),))

    def export(self, use: Use, out: Path) -> None:
        """The complete model as a file: `.onnx`, or else safetensors. It is for this site."""
        job = j.Export(
            seat=use.seat,
            model=use.model.hex(),
            model_round=use.model_round,
            kept=_hex(use.private_state),
            out=out.name,
        )
        self._use(job, out)

    def _use(self, job: j.Job, out: Path, also: tuple[Path, ...] = ()) -> None:
        def take(scratch: Scratch, _: j.Done) -> None:
            scratch.copy_to(out.resolve())

        with self._turn:
            if not set(also) <= set(self._also):  # a process never gets to read more
                self._end()
                self._also = also
        self._ask(job, j.Done, take)

    def cancel(self, why: ConsortiumError | None = None) -> bool:
        """End the work under way, from another thread: the call that waits for it raises
        `why`. Whether there was any."""
        with self._guard:
            if not self._is_busy:
                return False
            self._cancelled = why or OnHoldError("the work was given up")
            if self._child is not None:
                self._child.kill()
            return True

    def close(self) -> None:
        """End the process. The workshop may be used again: then another one is started."""
        self.cancel()
        with self._turn:
            self._end()

    # ---- the process ----------------------------------------------------------------

    def _ask(
        self,
        job: j.Job,
        kind: type[Told],
        take: Callable[[Scratch, Told], None] | None = None,
    ) -> Told:
        """Have a job done, and take what was made before the process goes on."""
        with self._turn:
            with self._guard:
                self._is_busy, self._cancelled = True, None
            try:
                answer = self._answered(job)
                if take is not None and isinstance(answer, kind):
                    assert self._scratch is not None
                    take(self._scratch, answer)
            finally:
                with self._guard:
                    self._is_busy = False
            self._raise_if_cancelled()  # it may have been, when the answer had just come
        if isinstance(answer, j.Failed):
            raise _revived(answer)
        if not isinstance(answer, kind):
            raise InternalError("the task's process gave an answer to another question")
        return answer

    def _answered(self, job: j.Job) -> j.Answer:
        ends = self._ends(job)
        if self._child is not None and self._child.is_over:
            self._end()  # it died while nobody needed it
        records = _identity(self._home.enrolment.data)
        if records != self._records:
            self._end()  # it was let in to the file that was there, not to its successor
            self._records = records
        if self._child is None:
            opened = self._start(ends)
            if isinstance(opened, j.Failed):
                self._end()
                return opened
        return self._told(job, ends)

    def _ends(self, job: j.Job) -> float | None:
        """When, by the monotonic clock, the job must be done; None: somebody waits for it."""
        policy = read_policy(self._home.policy_file)
        if isinstance(job, j.Predict | j.Export) and policy.time is None:
            return None
        return time.monotonic() + longest_s(policy, self._study.plan)

    def _start(self, ends: float | None) -> j.Answer:
        """A new process with the task loaded."""
        home, study = self._home, self._study
        if not home.enrolment.data:
            raise SiteDataError(
                "this site has not said where its records are", hint="consortium agent --data FILE"
            )
        folder = home.unpack(study.bundle, study.task_hash)
        home.blobs  # noqa: B018  # its folders are there before the process needs them
        policy = read_policy(home.policy_file)
        scratch = Scratch.new(home.path)
        try:
            child = ChildProcess(cell_of(home, policy, folder, scratch, self._also), self._log)
        except ConsortiumError:
            scratch.remove()
            raise
        with self._guard:
            self._child, self._scratch = child, scratch
            if self._cancelled is not None:  # while it was being started
                child.kill()
        confined = self._told(None, ends)
        try:
            assert isinstance(confined, j.Confined), "it says this before anything else"
            refuse_if_open(policy, confined.has, confined.why)
        except ConsortiumError:
            self._end()
            raise
        return self._told(self._opening(folder, scratch), ends)

    def _opening(self, folder: Path, scratch: Scratch) -> j.Open:
        home, study, who = self._home, self._study, self._home.enrolment
        return j.Open(
            blobs=str(home.blobs_folder),
            states=str(home.states_folder),
            made=str(scratch.made),
            folder=str(folder),
            entry=study.lock.entry,
            metrics=[(metric.name, metric.higher_is_better) for metric in study.lock.metrics],
            plan=study.sheet.plan,
            layout=study.sheet.layout,
            pinned=_hex(study.lock.pinned),
            site=who.name,
            data=who.data,
            seed=who.seed,
            own_seed=home.own_seed(),
        )

    def _told(self, job: j.Job | None, ends: float | None) -> j.Answer:
        """What the process says, to a job or by itself."""
        child = self._child
        assert child is not None
        try:
            if job is not None:
                child.pipe.send_bytes(j.written(job))
            if not child.pipe.poll(None if ends is None else max(ends - time.monotonic(), 0)):
                self._end()
                raise ResourceLimitError(
                    "the task took longer than this site or the round gives it, and was ended",
                    hint="consortium site policy --set time=4h    # no longer than a round",
                )
            return j.read_answer(child.pipe.recv_bytes(_MOST_ANSWER_BYTES))
        except (EOFError, OSError, ValidationError) as error:
            if not isinstance(error, EOFError | ConnectionError):
                child.kill()  # it is there, and talks nonsense
            how = child.ending()
            self._raise_if_cancelled()
            self._end()
            raise self._ended(how) from None

    def _ended(self, code: int | None) -> ConsortiumError:
        """Why the process ended before its work was done, in words."""
        if code in _LIMITS:
            return ResourceLimitError(
                f"{_LIMITS[code]}, and was ended",
                hint="consortium site policy --set memory=16GB    # if there is so much",
            )
        how = "it does not answer" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {-code}"
        error = InternalError(
            f"the task's process ended before its work was done: {how}",
            hint=f"see {self._home.child_log}; for want of memory the system kills it",
        )
        return marked(error, Failure.RESOURCES)

    def _raise_if_cancelled(self) -> None:
        with self._guard:
            why = self._cancelled
        if why is not None:
            self._end()
            raise why from None

    def _end(self) -> None:
        with self._guard:
            child, self._child = self._child, None
            scratch, self._scratch = self._scratch, None
        if child is not None:
            with suppress(OSError):
                child.close()
        if scratch is not None:
            scratch.remove()


def _revived(answer: j.Failed) -> ConsortiumError:
    """The error that the process met, as one of ours: by a name on our own page of errors."""
    kind = getattr(errors, answer.error, None)
    if not (isinstance(kind, type) and issubclass(kind, ConsortiumError)):
        kind = InternalError
    # Its words may be the task's own: no terminal may be told anything by them.
    error = kind(printable(answer.message), hint=printable(answer.hint))
    return marked(error, Failure[answer.failure])


def _identity(path: str) -> tuple[int, int] | None:
    """Which file has this name now: another one, once it was replaced."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _specs(tensors: list[j.Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(known.name, tuple(known.shape), known.dtype) for known in tensors)


def _hex(digest: Digest | None) -> str | None:
    return None if digest is None else digest.hex()


def _digest(text: str) -> Digest:
    return Digest(bytes.fromhex(text))

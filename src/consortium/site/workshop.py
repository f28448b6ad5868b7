"""Where the task runs: the agent's handle on the process that does the work.

One call at a time; each blocks until its work is done. The process is started when it is
first needed and stays for the next round. If it dies, the call that waited for it raises, and
the next one starts a new process. `failure_of(error)` says which code leaves the site.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from consortium import errors
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.errors import ConsortiumError, InternalError, OnHoldError, SiteDataError
from consortium.site import jobs as j
from consortium.site.failures import failure_of, marked
from consortium.site.home import SiteHome
from consortium.site.process import ChildLog, ChildProcess
from consortium.site.review import ReviewedStudy
from consortium.tasks import Inventory
from consortium.tensors import TensorSpec

__all__ = ["MadeScores", "MadeUpdate", "Workshop", "failure_of"]

Told = TypeVar("Told", bound=j.Answer)
NO_SEAT = Seat(0)


@dataclass(frozen=True, slots=True)
class MadeUpdate:
    """The update lies among the home's blobs, and what stays is pending among its states."""

    update: Digest
    size_bytes: int
    records: int
    private_state: Digest | None


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
        made = self._ask(job, j.Made)
        kept = None if made.kept is None else _digest(made.kept)
        return MadeUpdate(_digest(made.update), made.size_bytes, made.records, kept)

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
        return MadeScores(told.samples, tuple(told.candidate), tuple(told.base))

    def predict(self, use: Use, records: Path, out: Path) -> None:
        """What the complete model says of new records, a CSV file, into another one."""
        job = j.Predict(
            seat=use.seat,
            model=use.model.hex(),
            model_round=use.model_round,
            kept=_hex(use.private_state),
            records=str(records.resolve()),
            out=str(out.resolve()),
        )
        self._ask(job, j.Done)

    def export(self, use: Use, out: Path) -> None:
        """The complete model as a file: `.onnx`, or else safetensors. It is for this site."""
        job = j.Export(
            seat=use.seat,
            model=use.model.hex(),
            model_round=use.model_round,
            kept=_hex(use.private_state),
            out=str(out.resolve()),
        )
        self._ask(job, j.Done)

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

    def _ask(self, job: j.Job, kind: type[Told]) -> Told:
        with self._turn:
            with self._guard:
                self._is_busy, self._cancelled = True, None
            try:
                answer = self._answered(job)
            finally:
                with self._guard:
                    self._is_busy = False
            self._raise_if_cancelled()  # it may have been, when the answer had just come
        if isinstance(answer, j.Failed):
            raise _revived(answer)
        assert isinstance(answer, kind)
        return answer

    def _answered(self, job: j.Job) -> j.Answer:
        if self._child is not None and self._child.is_over:
            self._end()  # it died while nobody needed it
        if self._child is None:
            opened = self._start()
            if isinstance(opened, j.Failed):
                self._end()
                return opened
        return self._told(job)

    def _start(self) -> j.Answer:
        """A new process with the task loaded."""
        home, study = self._home, self._study
        who = home.enrolment
        if not who.data:
            raise SiteDataError(
                "this site has not said where its records are", hint="consortium agent --data FILE"
            )
        folder = home.unpack(study.bundle, study.task_hash)
        home.blobs  # noqa: B018  # its folders are there before the process needs them
        opening = j.Open(
            blobs=str(home.blobs_folder),
            states=str(home.states_folder),
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
        child = ChildProcess(folder, self._log)
        with self._guard:
            self._child = child
            if self._cancelled is not None:  # while it was being started
                child.kill()
        return self._told(opening)

    def _told(self, job: j.Job) -> j.Answer:
        child = self._child
        assert child is not None
        try:
            child.pipe.send_bytes(j.written(job))
            return j.read_answer(child.pipe.recv_bytes())
        except (EOFError, OSError):
            how = child.ending()
            self._raise_if_cancelled()
            self._end()
            raise marked(
                InternalError(
                    f"the task's process ended before its work was done: {how}",
                    hint=f"see {self._home.child_log}; for want of memory the system kills it",
                ),
                Failure.RESOURCES,
            ) from None

    def _raise_if_cancelled(self) -> None:
        with self._guard:
            why = self._cancelled
        if why is not None:
            self._end()
            raise why from None

    def _end(self) -> None:
        with self._guard:
            child, self._child = self._child, None
        if child is not None:
            with suppress(OSError):
                child.close()


def _revived(answer: j.Failed) -> ConsortiumError:
    """The error that the process met, as one of ours: by a name on our own page of errors."""
    kind = getattr(errors, answer.error, None)
    if not (isinstance(kind, type) and issubclass(kind, ConsortiumError)):
        kind = InternalError
    return marked(kind(answer.message, hint=answer.hint), Failure[answer.failure])


def _specs(tensors: list[j.Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(known.name, tuple(known.shape), known.dtype) for known in tensors)


def _hex(digest: Digest | None) -> str | None:
    return None if digest is None else digest.hex()


def _digest(text: str) -> Digest:
    return Digest(bytes.fromhex(text))

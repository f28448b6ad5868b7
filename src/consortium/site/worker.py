"""The agent's hands: do what the site's machine says is owed, one thing at a time.

Downloads and answers that fail on the way are tried again for as long as they are owed. What
fails in the task's own code is told to the coordinator as a code; the text stays here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core.ids import Digest
from consortium.errors import (
    ConsortiumError,
    CorruptBlobError,
    InternalError,
    OnHoldError,
    RestoredBackupError,
)
from consortium.site.answers import Answers
from consortium.site.clock import Patience
from consortium.site.events import Event, Kind
from consortium.site.failures import failure_of
from consortium.site.review import ReviewedStudy
from consortium.site.studies import held_model
from consortium.site.tools import Situation, Tools, Trouble
from consortium.site.troubles import Notice
from consortium.site.workshop import Workshop

_REST_S = 1.0  # the longest without a look at what is owed


class Worker:
    """Works until it is told to stop."""

    def __init__(self, tools: Tools, situation: Situation) -> None:
        self._tools, self._situation = tools, situation
        self._patience, self._trouble = Patience(), Trouble(tools, "work")
        self._failure = Notice(tools.home, "task")
        self._answers = Answers(tools, self._patience.reset)
        self._lock = threading.Lock()
        self._current: p.SiteWork | None = None  # what the task's process is doing
        self._workshop: Workshop | None = None
        self._checked: ReviewedStudy | None = None
        self._held = held_model(tools.home)
        self._passing: set[Digest] = set()  # models that were needed for a round

    def run(self) -> None:
        tools = self._tools
        while not tools.stop.is_set():
            tools.wake.clear()
            try:
                is_moving = self._situation.may_work and self._step()
            except RestoredBackupError:
                raise  # the agent ends: it does not know what was spent
            except ConsortiumError as error:
                self._trouble.tell(error)
                self._patience.wait(tools.stop)
                continue
            self._trouble.is_over()
            if is_moving:
                self._patience.reset()
            else:
                tools.wake.wait(_REST_S)

    def give_up_what_is_not_wanted(self) -> None:
        """End what the task's process does, if the site has been put on hold or the round is
        over; to be called from another thread."""
        with self._lock:
            current, workshop = self._current, self._workshop
            if current is not None and workshop is not None and not self._is_wanted(current):
                workshop.cancel(OnHoldError("the work is not wanted any more"))

    def close(self) -> None:
        """End the task's process."""
        with self._lock:
            if self._workshop is not None:
                self._workshop.close()

    # ---- what is owed ---------------------------------------------------------------

    def _step(self) -> bool:
        """Whether anything was done."""
        work = self._tools.machine.owed()
        if work is not None and not self._is_wanted(work):
            work = None  # after a restart, the next answer says what is asked for
        match work:
            case p.TrainHere():
                return self._train(work)
            case p.EvaluateHere():
                return self._evaluate(work)
            case p.SendUpdate() | p.SendScore() | p.TellFailure():
                self._answers.give(work)
                return True
            case p.SendKeys() | p.SendShares() | p.SendConsent() | p.SendAnswer():
                self._answers.give(work)
                return True
            case None:
                return self._fetch_newest() or self._warm_up()

    def _is_wanted(self, work: p.SiteWork) -> bool:
        """Whether the machine still says so, and the coordinator still asks for it."""
        duty, tools = self._situation.duty, self._tools
        if tools.stop.is_set() or not self._situation.may_work or tools.machine.owed() != work:
            return False
        if isinstance(work, p.TrainHere):
            asked = isinstance(duty, d.Train) and (duty.round, duty.base, duty.task, duty.plan)
            return asked == (work.round, work.base, *self._study_of_round())
        if isinstance(work, p.EvaluateHere):
            tried = isinstance(duty, d.Evaluate) and (duty.round, duty.model)
            return tried == (work.round, work.model)
        return self._situation.may_send

    def _study_of_round(self) -> tuple[Digest | None, Digest | None]:
        """Task and plan that the machine has taken the round with: those that were approved,
        whatever an invitation says since."""
        with self._tools.machine.lock:
            state = self._tools.machine.state
            return state.task, state.plan

    # ---- the task's work ------------------------------------------------------------

    def _train(self, work: p.TrainHere) -> bool:
        tools, duty = self._tools, self._situation.duty
        if not isinstance(duty, d.Train):
            return False
        task, plan = self._study_of_round()
        assert task is not None and plan is not None
        study = tools.studies.of(task, plan)
        self._fetch(work.base, study)
        state = duty.server_state if study.plan.strategy.has_variates else None
        if state is not None:
            self._fetch(state, study)
        with self._doing(work, study) as workshop:
            tools.progress(f"training in round {work.round}", 0, 0)
            make = partial(workshop.train, work.round, duty.seat, work.base, state)
            made = tools.ledger.pay_for(
                work.round, study.plan, lambda: make(private_state=work.private_state)
            )
            update = self._masked(work.round, study, made.update)
            tools.transfer.mark(made.update, made.marks)
            now_ms = tools.clock.now_ms()
            item = p.Trained(work.round, update, made.private_state, made.size_bytes, now_ms)
            if tools.machine.feed(item):
                among = ", scores among them" if study.plan.has_scored_sums else ""
                text = f"round {work.round}: trained; {made.size_bytes:,} bytes are to leave{among}"
                tools.tell(Event(Kind.TRAINED, text, work.round))
        return True

    def _masked(self, number: int, study: ReviewedStudy, update: Digest) -> Digest:
        """What leaves of what was made: where the sum is secret, the same under masks."""
        if not study.plan.is_masked:
            return update
        with self._tools.machine.lock:
            sharing = self._tools.machine.state.sharing
        if sharing is None:
            raise InternalError("an update of a masked plan must not leave without masks")
        form = study.plan.form(study.layout, number, study.reported)
        return self._tools.secrets.masked(number, sharing, update, form)

    def _evaluate(self, work: p.EvaluateHere) -> bool:
        tools, duty = self._tools, self._situation.duty
        if not isinstance(duty, d.Evaluate):
            return False
        with tools.machine.lock:
            state = tools.machine.state
            states = (state.private_state, state.pending_state)
            task, plan = self._study_of_round()
        assert task is not None and plan is not None
        study = tools.studies.of(task, plan)
        self._fetch(work.base, study)
        self._fetch(work.model, study)
        with self._doing(work, study) as workshop:
            if study.plan.is_masked:
                raise InternalError("scores of a masked plan must not leave by themselves")
            tools.progress(f"trying the model of round {work.round}", 0, 0)
            base = (work.base, duty.base_round)
            told = workshop.evaluate(work.round, duty.seat, work.model, base, states)
            now_ms = tools.clock.now_ms()
            item = p.Scored(work.round, told.samples, told.candidate, told.base, now_ms)
            tools.machine.feed(item)
        return True

    @contextmanager
    def _doing(self, work: p.SiteWork, study: ReviewedStudy) -> Iterator[Workshop]:
        """The workshop for a job. Where the job fails, the machine is told with which code;
        unless it failed because it was given up."""
        with self._lock:
            self._current, workshop = work, self._workshop_of(study)
        try:
            yield workshop
            self._failure.remove()
        except RestoredBackupError:
            raise
        except ConsortiumError as error:
            if self._is_wanted(work):
                assert isinstance(work, p.TrainHere | p.EvaluateHere)
                self._broke(work.round, error)
        finally:
            with self._lock:
                self._current = None

    def _broke(self, number: int, error: ConsortiumError) -> None:
        tools, failure = self._tools, failure_of(error)
        now_ms = tools.clock.now_ms()
        if not tools.machine.feed(p.Broke(number, failure, now_ms)):
            return  # given up at the same moment: that has been told
        self._failure.write(error, now_ms, round=number)
        log = tools.home.child_log
        more = f"; more in {log}" if log.exists() else ""
        tools.tell(Event(Kind.FAILED, f"{error.message}{more}", number, error.code))

    def _workshop_of(self, study: ReviewedStudy) -> Workshop:
        if self._workshop is None or self._workshop.study.sheet != study.sheet:
            if self._workshop is not None:
                self._workshop.close()
            self._workshop = Workshop(self._tools.home, study)
        return self._workshop

    def _warm_up(self) -> bool:
        """Start the task's process before it is needed, once somebody has approved the study:
        what is wrong with the records is then told before the first round."""
        study, machine = self._situation.study or self._tools.studies.newest, self._tools.machine
        if study is None or study == self._checked:
            return False
        with machine.lock:
            if (study.task_hash, study.plan_digest) not in machine.state.approved:
                return False
        self._checked = study
        with self._lock:
            workshop = self._workshop_of(study)
        workshop.check()
        return True

    # ---- models ---------------------------------------------------------------------

    def _fetch(self, digest: Digest, study: ReviewedStudy) -> None:
        tools, blobs = self._tools, self._tools.home.blobs
        if digest not in self._passing and blobs.has(digest):
            try:
                blobs.check(digest)  # from before a restart: the task does not compare it again
            except CorruptBlobError:
                blobs.drop(digest)
        if not blobs.has(digest):
            on_progress = partial(tools.progress, "fetching a model")
            tools.studies.fetch_tensors(digest, study.layout, on_progress)
        self._passing.add(digest)

    def _fetch_newest(self) -> bool:
        """Have the newest model, so that it can be used here without a network."""
        tools, newest = self._tools, self._situation.newest
        held = self._held
        if newest is None or (held is not None and held.version == newest.version):
            return False
        study = self._situation.study or tools.studies.newest or tools.studies.fetch()
        self._fetch(newest.digest, study)
        if held is not None:
            self._passing.add(held.digest)
            newest = newest.model_copy(update={"seat": newest.seat or held.seat})
        tools.studies.keep_model(newest)
        self._held = newest
        tools.tell(Event(Kind.MODEL, f"model version {newest.version} is here"))
        self._drop_passing(newest.digest)
        return True

    def _drop_passing(self, newest: Digest) -> None:
        """Models of rounds that are over are not kept: the coordinator has them."""
        with self._tools.machine.lock:
            state = self._tools.machine.state
            needed = {newest, state.base, state.model}
        for digest in self._passing - needed:
            self._tools.home.blobs.drop(digest)
        self._passing &= needed

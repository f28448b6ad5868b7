"""The agent's ear: asks the coordinator what there is to do, and believes only what holds.

An answer is taken in a fixed order. Is our own log the one that we had? Does the coordinator's
log contain what we have seen of it? Then how our last round ended; then the invitation: its
signature, the study it is for, the site's own policy, and only then the machine.
"""

from __future__ import annotations

import time

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.tables import Stage
from consortium.drive.directory import SIGNER_NAME
from consortium.errors import (
    ConsortiumError,
    DeadlineExpiredError,
    ImpossiblePlanError,
    NotApprovedError,
    OnHoldError,
    PolicyError,
    PrivacyBudgetExceededError,
    RestoredBackupError,
    StoreFailedError,
    UnreachableError,
    VerificationError,
    WireError,
    WrongRoundError,
)
from consortium.ledger.merkle import EMPTY_ROOT
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Checkpoint, Signer, Verifier
from consortium.ledger.witness import Offer, endorse, examine
from consortium.site.clock import Patience
from consortium.site.enrol import renew
from consortium.site.events import Event, Kind
from consortium.site.policy import read_policy
from consortium.site.report import Reported, meets_all, own_report
from consortium.site.review import ReviewedStudy
from consortium.site.studies import NewestModel
from consortium.site.tools import Situation, Tools, Trouble
from consortium.site.transport import READ_S
from consortium.site.troubles import Notice
from consortium.site.way import note_heard
from consortium.wire.invitation import Invitation, open_invitation
from consortium.wire.messages import Answer, Ask, Report, SettledRound, Signature, Taken, WireOffer

WAIT_MS = 25_000
_SLOWLY_S = 5.0  # between questions while this site refuses to work
_REPORT_S, _RENEW_S = 1800.0, 86_400.0
# Nothing is sent yet whose end the machine must know; but what is kept for the round can go then.
_IN_ROUND = (Stage.KEYING, Stage.KEYED, Stage.SHARING, Stage.SHARED, Stage.TRAINING)


class Listener:
    """Asks until it is told to stop. `run` raises what the agent cannot go on after."""

    def __init__(self, tools: Tools, situation: Situation) -> None:
        self._tools, self._situation = tools, situation
        self._patience, self._trouble = Patience(), Trouble(tools, "way")
        self._refusal, self._unpaid = Notice(tools.home, "log"), Notice(tools.home, "budget")
        self._have = ""
        self._cosignature = ""
        self._reported: Reported | None = None
        self._report_due = self._renew_due = 0.0
        self._is_connected = self._is_settled = False
        self._unmoved: s.RoundSettled | None = None  # settled in the log, not yet on the disk
        self._forbidden, self._secret = Notice(tools.home, "policy"), Notice(tools.home, "others")
        self._declined = 0  # a round that this site will not go on with, because of the others
        self._told_early = 0  # a round whose end was told before our update was made

    def run(self) -> None:
        stop = self._tools.stop
        while not stop.is_set():
            try:
                # Nothing is written before an answer has shown that our log is the newest.
                if self._situation.is_clear:
                    self._do_chores()
                is_taken = self.ask()
            except RestoredBackupError:
                raise
            except ConsortiumError as error:
                # Whoever answers next may not be the one who answered before: ask for all.
                self._is_connected, self._have = False, ""
                self._situation.is_current = False
                self._trouble.tell(error)
                self._patience.wait(stop)
                continue
            self._trouble.is_over()
            if is_taken:
                self._patience.reset()
            elif self._situation.objection is not None:
                stop.wait(_SLOWLY_S)
            else:  # it is to be told again, and not in a hot loop
                self._patience.wait(stop)

    # ---- before asking --------------------------------------------------------------

    def _do_chores(self) -> None:
        tools, now = self._tools, time.monotonic()
        if not self._is_settled:
            tools.ledger.settle()
            self._is_settled = True
        report = own_report(tools.home)
        if now >= self._report_due or report != self._reported:
            told = tuple(sorted(report.items()))
            tools.machine.feed(p.Describe(told, tools.clock.now_ms()))  # before it leaves
            tools.client.call("POST", "/v1/report", Report(report=report), reply=Taken)
            self._reported, self._report_due = report, now + _REPORT_S
        if now >= self._renew_due:
            if renew(tools.home, tools.client, tools.clock):
                tools.tell(Event(Kind.RENEWED, "the site's certificate was renewed"))
            self._renew_due = now + _RENEW_S

    # ---- one question, one answer ---------------------------------------------------

    def ask(self) -> bool:
        """One question; whether its answer was taken whole, else it must be told again."""
        self._move_states()
        client, ask = self._tools.client, self._question()
        read_s = ask.wait_ms / 1000 + READ_S
        answer = client.call("POST", "/v1/ask", ask, reply=Answer, read_s=read_s)
        note_heard(self._tools.home)
        self._tools.clock.observe(answer.now_ms)
        self._cosignature = ""
        if not self._is_connected:
            self._tools.tell(Event(Kind.CONNECTED, client.way))
            self._is_connected = True
        self._refuse_old_copies(answer.own_size)
        is_taken = self._take(answer)
        self._have = answer.mark if is_taken else ""
        return is_taken

    def _question(self) -> Ask:
        machine, situation = self._tools.machine, self._situation
        with machine.lock:
            machine.catch_up()
            state, size = machine.state, machine.size
            seen_size, unsettled, is_held = state.seen_size, state.unsettled, state.is_held
            is_early = bool(unsettled) and unsettled == self._told_early
            if state.stage in _IN_ROUND and state.round != self._told_early:
                unsettled = unsettled or state.round  # it may be over when this is answered
        objection = None if situation.objection is None else situation.objection.code
        if objection is None and situation.waiting is not None:
            objection = NotApprovedError.code
        if objection is None and is_held:
            objection = OnHoldError.code
        have = "" if is_early else self._have
        if is_early:
            self._told_early = 0  # once is enough
        return Ask(
            seen_size=seen_size,
            own_size=size,
            unsettled=unsettled,
            have=have,
            wait_ms=WAIT_MS if have else 0,
            cosignature=self._cosignature,
            objection=objection,
        )

    def _refuse_old_copies(self, told: int) -> None:
        """Our log is older than what we told, or our ledger than our log: an old backup was put
        back, and this site does not know what it has spent."""
        size = self._tools.machine.size
        try:
            if told > size:
                raise RestoredBackupError(
                    f"this site's log has {size} facts, and it has told of {told}"
                )
            self._tools.ledger.check()
        except RestoredBackupError as error:
            self._situation.objection = error
            self._refusal.write(error, self._tools.clock.now_ms())
            self._tools.client.call("POST", "/v1/ask", self._question(), reply=Answer)
            raise

    def _take(self, answer: Answer) -> bool:
        situation = self._situation
        try:
            self._witness(answer.offer)
        except WrongRoundError:
            return False  # a proof from elsewhere: ask for another
        except VerificationError as error:
            if situation.objection is None:
                self._tools.tell(Event.of(Kind.REFUSED, error))
                self._refusal.write(error, self._tools.clock.now_ms())
            situation.objection, situation.duty = error, None
            return False
        situation.objection, situation.is_clear, situation.is_current = None, True, True
        self._refusal.remove()
        is_settled = answer.settled is None or self._settle(answer.settled)
        self._note_model(answer)
        is_taken = self._take_invitation(answer.invitation) and is_settled
        situation.is_finished = answer.is_finished and is_taken
        self._tools.wake.set()
        return is_taken

    # ---- the coordinator's log ------------------------------------------------------

    def _witness(self, told: WireOffer) -> None:
        """Cosign, once it is durable that we have seen it."""
        tools = self._tools
        held, state, now_ms = tools.home.enrolment, tools.machine.state, tools.clock.now_ms()
        root = state.seen_root or EMPTY_ROOT
        seen = Checkpoint(origin_of(held.federation), state.seen_size, root)
        offer = Offer(told.since, tuple(bytes.fromhex(part) for part in told.path), told.note)
        shown = examine(offer, seen, _log_keys(held.log_key), now_ms)
        if tools.machine.feed(shown):
            signer = Signer(held.site, tools.home.key)
            self._cosignature = endorse(offer, signer, now_ms // 1000)

    # ---- how our last round ended ---------------------------------------------------

    def _settle(self, told: SettledRound) -> bool:
        """Whether the machine knows it now, or has no use for it: then the coordinator is asked
        again, should there be one."""
        tools, now_ms = self._tools, self._tools.clock.now_ms()
        self._look_for_the_receipt(told.round)
        facts = tools.machine.feed(p.Settled(told.round, told.is_counted, now_ms))
        self._told_early = 0 if facts else told.round
        if told.round == tools.machine.state.round:
            tools.secrets.forget()  # nobody masks, or answers for others, in a round that is over
        for fact in facts:
            assert isinstance(fact, s.RoundSettled)
            self._unmoved = fact
            word = "counted" if fact.is_counted else "did not count"
            text = f"round {fact.round} is over: this site's update {word}"
            tools.tell(Event(Kind.SETTLED, text, fact.round))
        self._move_states()
        return tools.machine.state.unsettled != told.round

    def _look_for_the_receipt(self, number: int) -> None:
        """Before the round is over for this site as well: then nothing asks for it any more."""
        try:
            self._tools.receipts.make_up_for_a_lost_one(number)
        except (UnreachableError, StoreFailedError):
            raise  # the end is told again
        except ConsortiumError:
            pass  # it has not arrived there, or nobody can prove that it has

    def _move_states(self) -> None:
        """Do what the log says of what this site keeps. A disk may fail at it: the log has no
        more to say then, and the next round needs it, so it is tried before the next question.
        A restart does it as well."""
        if self._unmoved is not None:
            self._tools.home.settle(self._unmoved.round, self._unmoved.is_counted)
            self._unmoved = None

    def _note_model(self, answer: Answer) -> None:
        if answer.model is None or answer.version == 0:
            return  # version 0 is where the study starts: nobody has trained it
        duty = self._situation.duty
        seat = int(duty.seat) if duty is not None else 0
        self._situation.newest = NewestModel(version=answer.version, model=answer.model, seat=seat)

    # ---- the invitation -------------------------------------------------------------

    def _take_invitation(self, signed: Signature | None) -> bool:
        situation = self._situation
        if signed is None:
            with situation.lock:
                situation.duty = situation.waiting = None
            return True
        held = self._tools.home.enrolment
        invitation = open_invitation(signed, [bytes.fromhex(held.log_key)])
        if (invitation.federation, invitation.site) != (held.federation, held.site):
            raise WireError("the invitation is for another site")
        return self.consider(invitation)

    def consider(self, invitation: Invitation) -> bool:
        """Put an invitation to the machine, if the policy lets it; whether it is dealt with.
        It is put again when somebody has approved its study meanwhile."""
        situation, duty = self._situation, invitation.duty
        with situation.lock:
            situation.waiting = None
            if isinstance(duty, d.Invitation) and not self._is_allowed(invitation, duty):
                situation.duty = None
                return True
            if not self._is_verified(duty):
                situation.duty = None
                return True
            try:
                facts = self._tools.machine.feed(p.Asked(duty, self._tools.clock.now_ms()))
            except NotApprovedError:
                self._wait_for_approval(invitation)
                return True
            except WrongRoundError:
                return False  # how our last round ended is asked for first
            except DeadlineExpiredError:
                situation.duty = None
                return True
            if isinstance(duty, d.Evaluate) and not self._may_score(duty.round):
                situation.duty = None
                return True
            situation.duty = duty
            self._tell_taken(facts)
            self._tools.wake.set()
            return True

    def _is_verified(self, duty: d.SiteDuty) -> bool:
        """Whether what the coordinator says of the others in a secret sum holds, and this site's
        people would have it. It drops out where they would not."""
        tools = self._tools
        with tools.machine.lock:
            state = tools.machine.state
            task, plan = state.task, state.plan
            is_new = state.round == duty.round and _is_to_be_pinned(duty, state)
        if not is_new or task is None or plan is None:
            return True  # the machine says what it thinks of that
        study = tools.studies.of(task, plan)
        try:
            tools.secrets.look_at(duty, study.plan)
        except PolicyError as error:
            now_ms = tools.clock.now_ms()
            self._secret.write(error, now_ms, round=duty.round)
            tools.machine.feed(p.Broke(duty.round, Failure.POLICY, now_ms))
            if self._declined != duty.round:  # once, however often it is asked
                tools.tell(Event.of(Kind.DECLINED, error, round=duty.round))
            self._declined = duty.round
            return False
        self._secret.remove()
        return True

    def _is_allowed(self, invitation: Invitation, duty: d.Invitation) -> bool:
        """Fetch and verify the study; decline what the site's policy or its machine forbids."""
        tools = self._tools
        study = self._situation.study = tools.studies.of(duty.task, duty.plan)
        _check_same(invitation, study)
        _check_masks(duty, study)
        policy = read_policy(tools.home.policy_file)
        objections = [
            *_too_late(study, duty.round),
            *policy.objections(study.plan, study.layout, study.reported),
        ]
        if objections:
            error = PolicyError(objections[0])
            self._forbidden.write(error, tools.clock.now_ms(), round=duty.round)
            self._decline(duty, Failure.POLICY, objections[0])
            return False
        self._forbidden.remove()
        # A round that was begun goes on: requirements are for who begins one.
        is_new = duty.round > tools.machine.state.round
        conditions = study.plan.terms(study.lock.metrics).conditions
        if is_new and not meets_all(own_report(tools.home), conditions):
            self._decline(duty, Failure.REQUIREMENTS, "the plan's requirements are not met here")
            return False
        if is_new and not self._is_paid(study, duty):
            return False
        if policy.approves(duty.task) and not self._drops_masks(study):
            tools.machine.feed(p.Approve(duty.task, duty.plan, tools.clock.now_ms()))
        return True

    def _drops_masks(self, study: ReviewedStudy) -> bool:
        """Whether a plan shows what earlier ones have hidden: that is nothing to be approved by a
        list that was made before."""
        return not study.plan.is_masked and self._tools.machine.newest(s.SumJoined) is not None

    def _is_paid(self, study: ReviewedStudy, duty: d.Invitation) -> bool:
        """Whether this site's own ledger can pay. One that cannot sits the round out; what a
        round that was begun costs is held ready already."""
        try:
            self._tools.ledger.demand(study.plan)
        except PrivacyBudgetExceededError as error:
            self._unpaid.write(error, self._tools.clock.now_ms(), round=duty.round)
            self._decline(duty, Failure.BUDGET, error.message, error.code)
            return False
        except ImpossiblePlanError as error:  # it promises more than its noise keeps
            self._decline(duty, Failure.POLICY, error.message, error.code)
            return False
        self._unpaid.remove()
        return True

    def _decline(self, duty: d.Invitation, failure: Failure, why: str, code: str = "") -> None:
        """Also a round that was begun: the policy may have become stricter since."""
        machine, now_ms = self._tools.machine, self._tools.clock.now_ms()
        is_new = machine.feed(p.Decline(duty, failure, now_ms))
        if is_new or machine.feed(p.Broke(duty.round, failure, now_ms)):
            self._tools.tell(Event(Kind.DECLINED, f"declined: {why}", duty.round, code))

    def _may_score(self, number: int) -> bool:
        """Whether scores of round `number` may leave; where not, the coordinator is told so
        instead of waiting for them. Asked when the machine has taken the evaluation."""
        tools = self._tools
        with tools.machine.lock:
            state = tools.machine.state
            task, plan = state.task, state.plan
            if state.stage is not Stage.EVALUATING:
                return True  # nothing is to be made
        assert task is not None and plan is not None
        study = tools.studies.of(task, plan)
        objections = read_policy(tools.home.policy_file).objections(
            study.plan, study.layout, study.reported
        )
        if not study.plan.evaluation.enabled:
            objections.insert(0, "scores are not part of the plan")
        elif study.plan.is_masked:  # they left inside the masked update
            objections.insert(0, "scores of one site are not part of a plan with masks")
        if objections:
            tools.machine.feed(p.Broke(number, Failure.POLICY, tools.clock.now_ms()))
            tools.tell(Event(Kind.DECLINED, f"the model is not tried: {objections[0]}", number))
        return not objections

    def _wait_for_approval(self, invitation: Invitation) -> None:
        situation, number = self._situation, invitation.duty.round
        situation.waiting, situation.duty = invitation, None
        text = f"round {number} waits for approval: consortium site review"
        self._tools.tell(Event(Kind.APPROVAL, text, number, NotApprovedError.code))

    def _tell_taken(self, facts: p.SiteFacts) -> None:
        for fact in facts:
            match fact:
                case s.SumJoined():
                    text = f"round {fact.round}: invited to train; the sum is secret"
                    self._tools.tell(Event(Kind.TAKEN, text, fact.round))
                case s.InvitationTaken():
                    text = f"round {fact.round}: invited to train"
                    self._tools.tell(Event(Kind.TAKEN, text, fact.round))
                case s.InvitationDeclined():
                    text = f"round {fact.round}: declined, this site is on hold"
                    self._tools.tell(Event(Kind.DECLINED, text, fact.round))
                case s.EvaluationTaken():
                    text = f"round {fact.round}: asked to try the new model"
                    self._tools.tell(Event(Kind.TAKEN, text, fact.round))
                case _:
                    pass


def _log_keys(key: str) -> list[Verifier]:
    """Whom this site believes about the coordinator's log."""
    return [Verifier(SIGNER_NAME, bytes.fromhex(key))]


def _too_late(study: ReviewedStudy, number: int) -> list[str]:
    """Who approved a plan approved as many rounds as it has."""
    most = study.plan.federation.rounds
    return [f"round {number} of a plan for {most} rounds"] if number > most else []


def _check_same(invitation: Invitation, study: ReviewedStudy) -> None:
    """What the invitation says of the plan must be what the plan says."""
    plan = study.plan
    told = (invitation.requirements, invitation.epochs, invitation.batch_size)
    if told != (plan.selection.require, plan.training.epochs, plan.training.batch_size):
        raise VerificationError("the invitation says otherwise than the plan that it is for")


def _is_to_be_pinned(duty: d.SiteDuty, state: p.Participant) -> bool:
    """Whether the machine is about to agree to what others are said to have done in a secret sum;
    to a second such thing it will not."""
    match duty:
        case d.Share():
            return state.session is None
        case d.Agree():
            return state.split is None
        case d.Unmask():
            return state.split is None or state.stage in (Stage.AGREEING, Stage.AGREED)
        case d.Train():
            return duty.sharing is not None and state.sharing is None
        case _:
            return False


def _check_masks(duty: d.Invitation, study: ReviewedStudy) -> None:
    """Who approved a plan whose sums are secret did not approve of showing what is summed."""
    is_masked = isinstance(duty, d.JoinSum) or duty.sharing is not None
    if is_masked is not study.plan.is_masked:
        word = "without the masks that its plan has" if study.plan.is_masked else "with masks"
        raise VerificationError(f"the coordinator asks for an update {word}")

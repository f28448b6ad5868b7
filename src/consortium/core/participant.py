"""The site's half of the protocol, as a machine like the coordinator's.

`decide`, `evolve` and `owed` mean what they mean in `federation`: the site's log is folded
into a `Participant`, and what the site must be doing is derived from it, so a site that
is killed at any moment goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortium.core import duties as d
from consortium.core import site_facts as s
from consortium.core import site_secagg as secret
from consortium.core.facts import Failure
from consortium.core.roster import encoded_report
from consortium.core.site_inputs import (
    Approve,
    Asked,
    Broke,
    Decline,
    Describe,
    EvaluateHere,
    Heard,
    HoldSite,
    Reserved,
    ResumeSite,
    Scored,
    SendAnswer,
    SendConsent,
    SendKeys,
    SendScore,
    SendShares,
    SendUpdate,
    Settled,
    Shown,
    SiteInput,
    SiteWork,
    Spool,
    TellFailure,
    Trained,
    TrainHere,
    TurnedAway,
    Withdraw,
)
from consortium.core.site_state import Participant, SiteFacts
from consortium.core.tables import PARTICIPANT, Stage
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    NotApprovedError,
    WitnessError,
    WrongRoundError,
)

__all__ = [
    "Approve",
    "Asked",
    "Broke",
    "Decline",
    "Describe",
    "EvaluateHere",
    "Heard",
    "HoldSite",
    "Participant",
    "Reserved",
    "ResumeSite",
    "Scored",
    "SendAnswer",
    "SendConsent",
    "SendKeys",
    "SendScore",
    "SendShares",
    "SendUpdate",
    "Settled",
    "Shown",
    "SiteFacts",
    "SiteInput",
    "SiteWork",
    "Spool",
    "TellFailure",
    "TrainHere",
    "Trained",
    "TurnedAway",
    "Withdraw",
    "decide",
    "evolve",
    "owed",
]

_GIVING = (Stage.KEYING, Stage.SHARING, Stage.AGREEING, Stage.UNMASKING)  # to a secret sum
_LEAVING = (Stage.SENDING, Stage.SCORING, *_GIVING)
# Between the keys and the training of a secret sum: whoever falls out here is not in it.
_IN_SECRET = (Stage.KEYING, Stage.KEYED, Stage.SHARING, Stage.SHARED)


# ---- rules --------------------------------------------------------------------------


def decide(state: Participant, item: SiteInput) -> SiteFacts:
    """The facts that `item` brings about, or a refusal. `state` is left as it was."""
    return _RULES[type(item)](state, item)


def _approve(state: Participant, item: Approve) -> SiteFacts:
    if (item.task, item.plan) in state.approved:
        return ()
    return (s.TaskApproved(item.task, item.plan, item.now_ms),)


def _withdraw(state: Participant, item: Withdraw) -> SiteFacts:
    if (item.task, item.plan) not in state.approved:
        return ()
    withdrawn = s.ApprovalWithdrawn(item.task, item.plan, item.now_ms)
    is_present = (item.task, item.plan) == (state.task, state.plan)
    return (withdrawn, *(_stopped(state, item.now_ms) if is_present else ()))


def _hold(state: Participant, item: HoldSite) -> SiteFacts:
    if state.is_held:
        return ()
    return (s.SiteHeld(item.now_ms), *_stopped(state, item.now_ms))


def _stopped(state: Participant, now_ms: int) -> SiteFacts:
    """Work under way is given up, and only the code of why leaves."""
    if state.stage not in (*_IN_SECRET, Stage.TRAINING, Stage.EVALUATING):
        return ()
    return (s.WorkFailed(state.round, Failure.POLICY, now_ms),)


def _resume(state: Participant, item: ResumeSite) -> SiteFacts:
    return (s.SiteResumed(item.now_ms),) if state.is_held else ()


def _asked(state: Participant, item: Asked) -> SiteFacts:
    # Work that would come too late is not begun. What a secret sum asks for costs nothing, its time
    # is short, and clocks differ: whether it comes in time, the coordinator says.
    is_work = isinstance(item.duty, d.Train | d.Evaluate)
    if is_work and item.now_ms > item.duty.deadline_ms:
        raise DeadlineExpiredError("the invitation's deadline is over")
    match item.duty:
        case d.Train() if item.duty.sharing is not None:
            return secret.asked_to_mask(state, item.duty, item.now_ms)
        case d.Train() | d.JoinSum():
            return _invited(state, item.duty, item.now_ms)
        case d.Evaluate():
            return _asked_to_evaluate(state, item.duty, item.now_ms)
        case d.Share():
            return secret.asked_to_share(state, item.duty, item.now_ms)
        case d.Agree():
            return secret.asked_to_agree(state, item.duty, item.now_ms)
        case _:
            return secret.asked_to_unmask(state, item.duty, item.now_ms)


def _invited(state: Participant, duty: d.Invitation, now_ms: int) -> SiteFacts:
    is_secret = isinstance(duty, d.JoinSum)
    is_again = _is_at(state, duty.round, Stage.KEYING if is_secret else Stage.TRAINING)
    if duty.round <= state.round and not is_again:
        return ()  # dealt with already: a round is trained once
    present = (state.task, state.plan, state.base)
    if is_again and (duty.task, duty.plan, duty.base) != present:
        # What was looked at when the round was taken is what runs in it.
        raise AlreadySubmittedError(f"round {duty.round} was begun with another task, plan or base")
    if is_again and state.sharing is not None:
        raise AlreadySubmittedError(f"round {duty.round} was begun as one whose sum is secret")
    if state.is_held:
        return (s.InvitationDeclined(duty.round, Failure.POLICY, now_ms),)
    if (duty.task, duty.plan) not in state.approved:
        raise NotApprovedError("nobody at this site has approved this task under this plan")
    if is_again:
        is_moved = not is_secret and duty.deadline_ms != state.deadline_ms
        return (s.DeadlineMoved(duty.round, duty.deadline_ms, now_ms),) if is_moved else ()
    if state.unsettled:
        raise WrongRoundError(f"how round {state.unsettled} ended has not been told")
    kind = s.SumJoined if is_secret else s.InvitationTaken
    return (kind(duty.round, duty.base, duty.task, duty.plan, duty.deadline_ms, now_ms),)


def _decline(state: Participant, item: Decline) -> SiteFacts:
    if item.duty.round <= state.round:
        return ()
    return (s.InvitationDeclined(item.duty.round, item.failure, item.now_ms),)


def _settled(state: Participant, item: Settled) -> SiteFacts:
    if item.round != state.unsettled:
        return ()
    return (s.RoundSettled(item.round, item.is_counted, item.now_ms),)


def _asked_to_evaluate(state: Participant, duty: d.Evaluate, now_ms: int) -> SiteFacts:
    """Only a member is asked, and a member has sent an update: its receipt may be lost. A round
    has one candidate: scores of a second one would tell more than was agreed to."""
    if duty.round != state.round:
        raise WrongRoundError(f"this site took no part in round {duty.round}")
    if state.stage not in (Stage.SENDING, Stage.SENT) or state.model is not None:
        return ()
    if state.is_held or (state.task, state.plan) not in state.approved:
        return (s.WorkFailed(duty.round, Failure.POLICY, now_ms),)
    taken = s.EvaluationTaken(duty.round, duty.model, duty.base, duty.deadline_ms, now_ms)
    return (taken,)


def _describe(state: Participant, item: Describe) -> SiteFacts:
    if encoded_report(item.report) == encoded_report(state.report):
        return ()
    return (s.ReportSpooled(item.report, item.now_ms),)


def _reserved(state: Participant, item: Reserved) -> SiteFacts:
    is_new = item.position > state.account_position
    if not is_new or not _is_at(state, item.round, Stage.TRAINING):
        return ()
    return (s.SpendingHeld(item.round, item.position, item.now_ms),)


def _spool(state: Participant, item: Spool) -> SiteFacts:
    """One note a step: seeds give the same again, and whatever else would be a second story."""
    if not _is_at(state, item.round, *_GIVING):
        return ()
    if state.note is not None:
        return secret.pinned(
            item.note == state.note, "gives one answer to each step of a secret sum"
        )
    return (s.NoteSpooled(item.round, item.note, item.size_bytes, item.now_ms),)


def _trained(state: Participant, item: Trained) -> SiteFacts:
    if not _is_at(state, item.round, Stage.TRAINING):
        return ()
    spooled = s.UpdateSpooled(
        item.round, item.update, item.private_state, item.size_bytes, item.now_ms
    )
    return (spooled,)


def _scored(state: Participant, item: Scored) -> SiteFacts:
    if not _is_at(state, item.round, Stage.EVALUATING):
        return ()
    assert state.model is not None
    spooled = s.ScoreSpooled(
        item.round, state.model, item.samples, item.candidate, item.base, item.now_ms
    )
    return (spooled,)


def _broke(state: Participant, item: Broke) -> SiteFacts:
    # An update that is spooled may get lost before it was sent, or be forbidden meanwhile.
    stages = (Stage.TRAINING, Stage.SENDING, Stage.EVALUATING, Stage.AGREED)
    if not _is_at(state, item.round, *_IN_SECRET, *_GIVING, *stages):
        return ()
    return (s.WorkFailed(item.round, item.failure, item.now_ms),)


def _heard(state: Participant, item: Heard) -> SiteFacts:
    if item.work != owed(state):
        return ()
    match item.work:
        case SendUpdate():
            return (s.ReceiptKept(item.work.round, item.work.update, item.now_ms),)
        case SendScore():
            return (s.ScoreTold(item.work.score.round, item.now_ms),)
        case TellFailure():
            return (s.FailureTold(item.work.round, item.now_ms),)
        case SendKeys():
            return (s.KeysTold(item.work.round, item.now_ms),)
        case SendShares():
            return (s.SharesTold(item.work.round, item.now_ms),)
        case SendConsent():
            return (s.ConsentTold(item.work.round, item.now_ms),)
        case SendAnswer():
            return (s.AnswerTold(item.work.round, item.now_ms),)
        case _:
            return ()  # training and evaluating are the site's own affair


def _turned_away(state: Participant, item: TurnedAway) -> SiteFacts:
    is_own = isinstance(item.work, TrainHere | EvaluateHere)
    if item.work != owed(state) or is_own:
        return ()
    return (s.RoundLeft(state.round, item.now_ms),)


def _shown(state: Participant, item: Shown) -> SiteFacts:
    """Refuse a log that shrank or forked; an old backup that was put back is one."""
    if item.size < state.seen_size:
        raise WitnessError(
            f"the coordinator's log has {item.size} facts; this site has seen {state.seen_size}"
        )
    if item.since != state.seen_size:
        raise WrongRoundError("the proof does not start at what this site has seen")
    if item.size == state.seen_size:
        if item.root != state.seen_root:
            raise WitnessError("the coordinator's log has two roots at one size")
        return ()
    if not item.is_consistent:
        raise WitnessError("the coordinator's log does not contain what this site has seen")
    return (s.CheckpointWitnessed(item.size, item.root, item.now_ms),)


def _is_at(state: Participant, number: int, *stages: Stage) -> bool:
    return state.round == number and state.stage in stages


_RULES: dict[type[Any], Callable[[Participant, Any], SiteFacts]] = {
    Approve: _approve,
    Withdraw: _withdraw,
    HoldSite: _hold,
    ResumeSite: _resume,
    Asked: _asked,
    Decline: _decline,
    Settled: _settled,
    Describe: _describe,
    Reserved: _reserved,
    Spool: _spool,
    Trained: _trained,
    Scored: _scored,
    Broke: _broke,
    Heard: _heard,
    TurnedAway: _turned_away,
    Shown: _shown,
}


# ---- bookkeeping and duties ---------------------------------------------------------


def evolve(state: Participant, fact: s.SiteFact) -> None:
    """Record `fact`."""
    match fact:
        case s.TaskApproved():
            state.approved.add((fact.task, fact.plan))
        case s.ApprovalWithdrawn():
            state.approved.discard((fact.task, fact.plan))
        case s.SiteHeld() | s.SiteResumed():
            state.is_held = isinstance(fact, s.SiteHeld)
        case s.InvitationTaken() | s.SumJoined():
            _begin(state, fact.round)
            state.base, state.deadline_ms = fact.base, fact.deadline_ms
            state.task, state.plan = fact.task, fact.plan
        case s.InvitationDeclined():
            _begin(state, fact.round)
            state.failure = fact.failure
        case s.DeadlineMoved():
            state.deadline_ms = fact.deadline_ms
        case s.UpdateSpooled():
            state.update, state.pending_state = fact.update, fact.private_state
            state.unsettled = fact.round
        case s.RoundSettled():
            if fact.is_counted and state.pending_state is not None:
                state.private_state = state.pending_state
            state.pending_state, state.unsettled = None, 0
        case s.WorkFailed():
            state.failure = fact.failure
        case s.EvaluationTaken():
            state.model, state.base = fact.model, fact.base
            state.deadline_ms = fact.deadline_ms
        case s.ScoreSpooled():
            state.score = fact
        case s.ReportSpooled():
            state.report = fact.report
        case s.SpendingHeld():
            state.account_position = fact.position
        case s.NoteSpooled():
            state.note = fact.note
        case s.SessionPinned():
            state.session, state.note = fact.session, None
        case s.SharersPinned():
            state.sharing, state.deadline_ms = fact.sharing, fact.deadline_ms
        case s.SplitPinned():
            state.split, state.note = fact.split, None
        case s.AgreementSeen():
            state.note = None
        case s.CheckpointWitnessed():
            state.seen_size, state.seen_root = fact.size, fact.root
    # For what was told, kept and left, the table's move is all.
    state.stage = PARTICIPANT.get((state.stage, type(fact)), state.stage)


def _begin(state: Participant, number: int) -> None:
    state.round = number
    state.base = state.update = state.model = state.score = state.failure = None
    state.session = state.sharing = state.split = state.note = None


def owed(state: Participant) -> SiteWork | None:
    """What the site must be doing now; None while it waits to be asked, and while it is on
    hold and has something to send: then nothing leaves."""
    if state.is_held and state.stage in _LEAVING:
        return None
    match state.stage:
        case Stage.TRAINING:
            assert state.base is not None
            return TrainHere(state.round, state.base, state.private_state)
        case Stage.SENDING:
            assert state.update is not None
            return SendUpdate(state.round, state.update)
        case Stage.EVALUATING:
            assert state.model is not None and state.base is not None
            return EvaluateHere(state.round, state.model, state.base)
        case Stage.SCORING:
            assert state.score is not None
            return SendScore(state.score)
        case Stage.REPORTING:
            assert state.failure is not None
            return TellFailure(state.round, state.failure)
        case Stage.KEYING:
            return SendKeys(state.round)
        case Stage.SHARING:
            assert state.session is not None
            return SendShares(state.round, state.session)
        case Stage.AGREEING:
            assert state.split is not None
            return SendConsent(state.round, state.split)
        case Stage.UNMASKING:
            assert state.split is not None
            return SendAnswer(state.round, state.split)
        case _:
            return None

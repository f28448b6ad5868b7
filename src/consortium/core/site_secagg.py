"""A site's rules in a round whose sum is secret: it agrees to one session, one list of those who
shared and one split, and gives its shares of the others when enough of them signed the same split.

What it is shown is verified before the machine is told of it: see `site.secret_sums`.
"""

from __future__ import annotations

from consortium.core import duties as d
from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.site_state import Participant, SiteFacts
from consortium.core.tables import Stage
from consortium.errors import AlreadySubmittedError, WrongRoundError


def asked_to_share(state: Participant, duty: d.Share, now_ms: int) -> SiteFacts:
    _check_own_round(state, duty.round)
    if state.session is not None:
        return pinned(duty.session == state.session, "masks with one list of sites")
    if state.stage not in (Stage.KEYING, Stage.KEYED):
        return ()
    session = s.SessionPinned(duty.round, duty.session, now_ms)
    return _unless_forbidden(state, session, now_ms)


def asked_to_mask(state: Participant, duty: d.Train, now_ms: int) -> SiteFacts:
    """Under masks a site trains once it has shared its seeds, and is told who else has."""
    _check_own_round(state, duty.round)
    if (duty.task, duty.plan, duty.base) != (state.task, state.plan, state.base):
        raise AlreadySubmittedError(f"round {duty.round} was begun with another task, plan or base")
    assert duty.sharing is not None
    if state.sharing is not None:
        pinned(duty.sharing == state.sharing, "masks with one list of sites")
        is_moved = state.stage is Stage.TRAINING and duty.deadline_ms != state.deadline_ms
        return (s.DeadlineMoved(duty.round, duty.deadline_ms, now_ms),) if is_moved else ()
    if state.stage not in (Stage.SHARING, Stage.SHARED):
        return ()
    sharers = s.SharersPinned(duty.round, duty.sharing, duty.deadline_ms, now_ms)
    return _unless_forbidden(state, sharers, now_ms)


def asked_to_agree(state: Participant, duty: d.Agree | d.Unmask, now_ms: int) -> SiteFacts:
    """To one split a round: whoever got answers to two of them could read what a site sent."""
    _check_own_round(state, duty.round)
    if state.split is not None:
        return pinned(duty.split == state.split, "agrees to one split")
    if state.sharing is None or state.stage not in (Stage.SENDING, Stage.SENT):
        return ()
    return _unless_forbidden(state, s.SplitPinned(duty.round, duty.split, now_ms), now_ms)


def asked_to_unmask(state: Participant, duty: d.Unmask, now_ms: int) -> SiteFacts:
    """Enough others have signed the split. Who was not there to sign it agrees to it now."""
    agreeing = asked_to_agree(state, duty, now_ms)
    is_agreed = state.stage in (Stage.AGREEING, Stage.AGREED)
    if not is_agreed and not any(isinstance(fact, s.SplitPinned) for fact in agreeing):
        return agreeing
    seen = _unless_forbidden(state, s.AgreementSeen(duty.round, now_ms), now_ms)
    return (*agreeing, *seen)


def _check_own_round(state: Participant, number: int) -> None:
    if number != state.round:
        raise WrongRoundError(f"this site took no part in round {number}")


def pinned(is_same: bool, what: str) -> SiteFacts:
    """Old news, or another story than the one that this site was told first."""
    if not is_same:
        raise AlreadySubmittedError(f"in a round this site {what}, and has done so")
    return ()


def _unless_forbidden(state: Participant, fact: s.SiteFact, now_ms: int) -> SiteFacts:
    if state.is_held or (state.task, state.plan) not in state.approved:
        return (s.WorkFailed(state.round, Failure.POLICY, now_ms),)
    return (fact,)

"""The rules of a federation without a barrier: invitations that outlive their round.

A round sums as many updates as the buffer holds and ends; who is still training then, or has
sent and was not counted, goes on by the same invitation (Nguyen et al. 2022, FedBuff). When
the next round opens, a fact says whose invitations still hold. An update counts once: the
closing of a round takes its members out of the buffer, whatever becomes of that round.
"""

from __future__ import annotations

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.ending import Facts
from consortium.core.ids import Seat
from consortium.core.state import Federation, Invitation
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    Refusal,
    TooStaleError,
    WrongRoundError,
)


def keep(state: Federation, now_ms: int) -> Facts:
    """With the opening of a round: whose invitations still hold in it."""
    if not state.passing:
        return ()
    seats = [seat for seat, made in state.passing.items() if _holds(state, made, now_ms)]
    return (f.InvitationsKept(state.next_number, tuple(sorted(seats)), now_ms),)


def _holds(state: Federation, made: Invitation, now_ms: int) -> bool:
    """What came in time stays in the buffer; what has not come can still come in time."""
    is_in_time = made.update is not None or now_ms <= made.deadline_ms
    return is_in_time and is_fresh(state, made)


def is_fresh(state: Federation, made: Invitation) -> bool:
    """Whether its model is not too old for the next round."""
    assert state.terms is not None
    return state.current - made.version <= state.terms.max_staleness


def outlived(state: Federation, number: int, seat: Seat) -> Invitation | None:
    """The invitation of round `number` that the seat answers, if it is in no open round."""
    for pool in (state.passing, state.lapsed):
        made = pool.get(seat)
        if made is not None and made.round == number:
            return made
    return None


def is_passing(state: Federation, seat: Seat, made: Invitation) -> bool:
    """Whether an invitation that has outlived its round may go on in the next."""
    return state.passing.get(seat) == made


def why_over(state: Federation, seat: Seat, made: Invitation, now_ms: int) -> Refusal | None:
    """Why nothing is taken by an invitation that has outlived its round; None if it is."""
    if now_ms > made.deadline_ms:
        return DeadlineExpiredError(f"the invitation of round {made.round} is over")
    if not is_fresh(state, made):
        age = state.current - made.version
        return TooStaleError(f"the update is of a model {age} versions old: too old")
    if not is_passing(state, seat, made):
        return WrongRoundError(f"the invitation of round {made.round} was withdrawn")
    return None


def submit(state: Federation, made: Invitation, item: i.Submit) -> Facts:
    """An update arrives by an invitation that has outlived its round, while none is open or
    when no round has kept it."""
    if made.update is not None:
        if made.update == item.update:
            return ()
        raise AlreadySubmittedError("this site has already answered the invitation")
    refusal = why_over(state, item.seat, made, item.now_ms)
    if refusal is not None:
        raise refusal
    return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)


def drop(state: Federation, made: Invitation, item: i.Fail) -> Facts:
    """A site says between rounds that it cannot train."""
    if made.update is not None or not is_passing(state, item.seat, made):
        return ()
    return (f.SiteDropped(item.round, item.seat, item.failure, item.envelope, item.now_ms),)

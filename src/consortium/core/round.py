"""The rules of a round from its opening to its closing: whom to invite, what to take in,
what to do about those who drop out, when to stop waiting.

Every rule reads the state and returns facts; none changes anything. `_Tally` is the
round as it will be once the facts decided so far are recorded, so that a closing can be
decided together with the update that brings it about.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

from consortium.core import budget, buffer
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.ending import Facts, fail
from consortium.core.ids import Seat
from consortium.core.roster import eligible
from consortium.core.selection import choice, choose_backups
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.core.terms import Close, Terms
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    InvalidInputError,
    UnauthorizedClientError,
    WrongRoundError,
)

SEED_BYTES = 32
# Below three norms there is no majority that could call one of them an outlier.
_MIN_NORMS = 3


# ---- selection ----------------------------------------------------------------------


def draw(state: Federation, terms: Terms, item: i.Drawn) -> Facts:
    """The seed is on record; invite at once if enough sites are there."""
    open_round = state.round
    if open_round is None or open_round.number != item.round:
        return ()
    if open_round.step is not Step.INITIALIZED:
        return ()  # the first seed stands: a second draw would let one choose
    if len(item.seed) != SEED_BYTES:
        raise InvalidInputError(f"a selection seed has {SEED_BYTES} bytes")
    started = f.SelectionStarted(open_round.number, item.seed, item.now_ms)
    return (started, *_invite(state, terms, open_round, item.seed, item.now_ms))


def select(state: Federation, terms: Terms, open_round: Round, now_ms: int) -> Facts:
    """While SELECTING: look again whether enough sites are eligible; give up at the deadline."""
    facts = _invite(state, terms, open_round, open_round.seed, now_ms)
    if not facts and now_ms > open_round.deadline_ms:
        return fail(open_round, terms, f.RoundEnd.NO_ELIGIBLE_SITES, now_ms)
    return facts


def _invite(state: Federation, terms: Terms, open_round: Round, seed: bytes, now_ms: int) -> Facts:
    if len(state.roster) < terms.wait_for:
        return ()
    found = choice(terms, state.roster, open_round, seed, now_ms)
    if found.eligible < terms.wait_for:
        return ()
    if terms.is_buffered and open_round.remaining + len(found.seats) < terms.quorum:
        return ()  # some are there, but have just answered the round that they could fill
    deadline_ms = now_ms + (terms.masking.phase_ms if terms.masking else terms.duration_ms)
    sizes = found.eligible, found.target
    invited = f.SitesInvited(open_round.number, found.seats, *sizes, deadline_ms, now_ms)
    return (invited, *budget.charge(terms, open_round, now_ms, at_sites=True))


# ---- updates ------------------------------------------------------------------------


def submit(state: Federation, terms: Terms, item: i.Submit) -> Facts:
    """An update has arrived and its bytes are durable."""
    made = buffer.outlived(state, item.round, item.seat)
    if made is not None:
        return buffer.submit(state, made, item)
    asked = invited_round(state, item.round, item.seat)
    held = asked.submitted.get(item.seat)
    if held == item.update:
        return ()  # the same again: the answer is on record, and stays the same
    if held is not None or item.seat in asked.fallen:
        raise AlreadySubmittedError("this site has already answered the round")
    is_open = _takes_answers(terms, asked)
    if not is_open or item.now_ms > asked.invitation(item.seat).deadline_ms:
        raise DeadlineExpiredError(f"round {item.round} takes no more updates")
    return (f.UpdateReceived(item.round, item.seat, item.update, item.envelope, item.now_ms),)


def invited_round(state: Federation, number: int, seat: Seat) -> Round:
    """The round that a site speaks of, open or just ended, if the site has a place in it. It
    speaks of the round that made its invitation, which may have been an earlier one."""
    if seat not in state.roster:
        raise UnauthorizedClientError("this site is not on the roster")
    known = [one for one in (state.round, state.ended) if one is not None]
    for one in known:
        if one.has_invited(seat, number):
            return one
    if any(one.number == number for one in known):
        raise UnauthorizedClientError(f"this site was not invited to round {number}")
    raise WrongRoundError(f"round {number} is not open")


def _takes_answers(terms: Terms, asked: Round) -> bool:
    """Without a barrier, whatever the open round does just now."""
    return asked.step is Step.TRAINING or (terms.is_buffered and not asked.is_over)


def check(state: Federation, terms: Terms, item: i.Checked) -> Facts:
    """The six checks of one update are done."""
    open_round = state.round
    if open_round is None or open_round.number != item.round:
        return ()
    if open_round.step is not Step.TRAINING or item.seat not in open_round.unchecked:
        return ()
    if open_round.submitted[item.seat] != item.update:
        return ()
    tally = _Tally.of(open_round)
    if item.fault is not None:
        rejected = f.UpdateRejected(item.round, item.seat, item.fault, item.now_ms)
        tally = replace(tally, unchecked=tally.unchecked - 1)
        return (rejected, *_settle(state, terms, tally, item.now_ms, lost=True))
    accepted = f.UpdateAccepted(item.round, item.seat, item.weight, item.norm, item.now_ms)
    tally = tally.with_accepted(item.seat, item.norm)
    return (accepted, *_settle(state, terms, tally, item.now_ms))


def train_cohort(state: Federation, terms: Terms, item: i.TrainedCohort) -> Facts:
    """Simulated sites answered side by side."""
    open_round = state.round
    if open_round is None or open_round.number != item.round:
        return ()
    if open_round.step is not Step.TRAINING:
        return ()
    if terms.is_screened or terms.is_buffered or terms.is_masked:
        raise InvalidInputError("this plan takes updates one by one, no sums of many")
    if item.seats and all(seat in open_round.accepted for seat in item.seats):
        return ()
    if not item.seats or not all(
        seat in open_round.waiting and state.roster.is_simulated(seat) for seat in item.seats
    ):
        raise InvalidInputError("a trained cohort names sites that are not waiting in it")
    if item.now_ms > open_round.deadline_ms:
        raise DeadlineExpiredError(f"round {item.round} takes no more updates")
    trained = f.CohortTrained(item.round, item.seats, item.weight, item.partial, item.now_ms)
    tally = _Tally.of(open_round)
    tally = replace(
        tally,
        waiting=tally.waiting - len(item.seats),
        accepted=tally.accepted + len(item.seats),
        newly=item.seats,
    )
    return (trained, *_settle(state, terms, tally, item.now_ms))


# ---- dropout ------------------------------------------------------------------------


def drop(state: Federation, terms: Terms, item: i.Fail) -> Facts:
    """A site says that it cannot train."""
    made = buffer.outlived(state, item.round, item.seat)
    if made is not None:
        return buffer.drop(state, made, item)
    open_round = invited_round(state, item.round, item.seat)
    if not _takes_answers(terms, open_round) or item.seat not in open_round.waiting:
        return ()  # it has answered already: what counts is the first answer
    dropped = f.SiteDropped(item.round, item.seat, item.failure, item.envelope, item.now_ms)
    if open_round.step is not Step.TRAINING:
        return (dropped,)
    tally = _Tally.of(open_round)
    tally = replace(tally, waiting=tally.waiting - 1)
    return (dropped, *_settle(state, terms, tally, item.now_ms, lost=True))


def depart(state: Federation, terms: Terms, seat: Seat, now_ms: int) -> Facts:
    """What follows for an open round in TRAINING when a site is taken off the roster."""
    open_round = state.round
    assert open_round is not None
    if seat not in open_round.invited or seat in open_round.fallen:
        return ()
    return _settle(state, terms, _Tally.of(open_round).without(seat), now_ms, lost=True)


def tick(state: Federation, terms: Terms, open_round: Round, item: i.Tick) -> Facts:
    """While TRAINING: time has passed. Checks that are still running at the deadline get the
    grace, counted from when the coordinator was there to make them: what was received in
    time is not lost because it was down."""
    grace_ends_ms = max(open_round.deadline_ms, item.awake_ms) + terms.grace_ms
    tally = replace(_Tally.of(open_round), is_overdue=item.now_ms > grace_ends_ms)
    return _settle(state, terms, tally, item.now_ms)


# ---- closing ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tally:
    """How an open round will stand when the facts decided so far are recorded."""

    open_round: Round
    waiting: int
    unchecked: int
    accepted: int
    newly: tuple[Seat, ...] = ()  # accepted by this very input
    new_norm: float | None = None
    gone: Seat | None = None  # taken out by this very input
    is_overdue: bool = False  # checks have had their grace

    @classmethod
    def of(cls, open_round: Round) -> _Tally:
        return cls(
            open_round,
            len(open_round.waiting),
            len(open_round.unchecked),
            len(open_round.accepted),
        )

    def with_accepted(self, seat: Seat, norm: float | None) -> _Tally:
        return replace(
            self,
            unchecked=self.unchecked - 1,
            accepted=self.accepted + 1,
            newly=(seat,),
            new_norm=norm,
        )

    def without(self, seat: Seat) -> _Tally:
        return replace(
            self,
            waiting=self.waiting - (seat in self.open_round.waiting),
            unchecked=self.unchecked - (seat in self.open_round.unchecked),
            accepted=self.accepted - (seat in self.open_round.accepted),
            gone=seat,
        )

    def norms(self) -> list[float]:
        """The norms of the accepted, ascending."""
        norms = self.open_round.norms
        gone = None if self.gone is None else self.open_round.accepted.get(self.gone)
        if self.new_norm is None and gone is None:
            return norms
        norms = norms.copy()
        if self.new_norm is not None:
            norms.insert(bisect_right(norms, self.new_norm), self.new_norm)
        if gone is not None:
            del norms[bisect_left(norms, gone)]
        return norms

    def limit(self, factor: int) -> float | None:
        """The largest norm that counts: `factor` times the median of the round."""
        norms = self.norms()
        if factor == 0 or len(norms) < _MIN_NORMS:
            return None
        middle = len(norms) // 2
        median = norms[middle] if len(norms) % 2 else (norms[middle - 1] + norms[middle]) / 2
        return factor * median

    def countable(self, factor: int) -> int:
        """Accepted updates that would be in the sum if the round closed now."""
        limit = self.limit(factor)
        if limit is None:
            return self.accepted
        norms = self.norms()
        return self.accepted - (len(norms) - bisect_right(norms, limit))


def _settle(
    state: Federation, terms: Terms, tally: _Tally, now_ms: int, *, lost: bool = False
) -> Facts:
    """What follows: close, call backups, extend the deadline, give up, or nothing."""
    open_round = tally.open_round
    is_late = now_ms > open_round.deadline_ms
    if not (lost or is_late or _may_close(terms, tally)):
        return ()
    count = tally.countable(terms.norm_factor)
    pending = tally.waiting + tally.unchecked
    if count >= open_round.quorum and _is_enough(terms, tally, count, now_ms):
        return _close(terms, tally, now_ms)
    if is_late and tally.unchecked and not tally.is_overdue:
        return ()  # these came in time: their checks are still running
    in_sight = count if is_late else count + pending
    missing = open_round.quorum - in_sight
    backups = _backups(state, terms, open_round, missing, now_ms)
    facts: list[f.Fact] = [backups] if backups else []
    is_thin = lost and 2 * in_sight < _goal(terms, open_round)
    if (is_thin or is_late) and open_round.extensions < terms.max_extensions:
        extended_ms = max(now_ms, open_round.deadline_ms) + terms.extension_ms
        facts.append(f.DeadlineExtended(open_round.number, extended_ms, now_ms))
    elif is_late:
        return fail(open_round, terms, f.RoundEnd.NO_QUORUM, now_ms)
    if count + pending + (len(backups.seats) if backups else 0) < open_round.quorum:
        return fail(open_round, terms, f.RoundEnd.NO_QUORUM, now_ms)
    return tuple(facts)


def _may_close(terms: Terms, tally: _Tally) -> bool:
    """A cheap test that spares the common case, one update among many, the rest."""
    if terms.close is Close.QUORUM:
        return tally.accepted >= tally.open_round.quorum
    is_answered = tally.waiting + tally.unchecked == 0
    return is_answered or tally.accepted >= _goal(terms, tally.open_round)


def _goal(terms: Terms, open_round: Round) -> int:
    """The updates with which nobody else is waited for: those that the buffer holds, or of all
    who are to train."""
    return terms.buffer or open_round.target


def _is_enough(terms: Terms, tally: _Tally, count: int, now_ms: int) -> bool:
    """Given a quorum: whether to stop waiting for more."""
    open_round = tally.open_round
    if terms.close is Close.QUORUM or count >= _goal(terms, open_round):
        return True
    if tally.waiting + tally.unchecked == 0:
        return True
    is_late = now_ms > open_round.deadline_ms
    return is_late and (tally.unchecked == 0 or tally.is_overdue)


def _backups(
    state: Federation, terms: Terms, open_round: Round, missing: int, now_ms: int
) -> f.BackupsInvited | None:
    """Urgent invitations, as many as are missing and can be had."""
    if missing <= 0 or terms.is_masked:  # who has not shared its seeds cannot come in
        return None
    pool = [
        seat for seat in eligible(state.roster, terms, now_ms) if seat not in open_round.invited
    ]
    seats = choose_backups(pool, missing, open_round.seed, open_round.backup_calls)
    return f.BackupsInvited(open_round.number, seats, now_ms) if seats else None


def _close(terms: Terms, tally: _Tally, now_ms: int) -> Facts:
    """Exclude the outliers and fix the members. A budget is charged in the same commit."""
    open_round = tally.open_round
    norms = {**open_round.accepted, **dict.fromkeys(tally.newly, tally.new_norm)}
    if tally.gone is not None:
        norms.pop(tally.gone, None)
    limit = tally.limit(terms.norm_factor)
    loud = [
        seat
        for seat, norm in norms.items()
        if limit is not None and norm is not None and norm > limit
    ]
    excluded = [
        f.UpdateExcluded(open_round.number, seat, f.Fault.MAGNITUDE, now_ms)
        for seat in sorted(loud)
    ]
    members = tuple(sorted(norms.keys() - loud))
    closed = f.RoundClosed(open_round.number, members, now_ms)
    return (*excluded, closed, *budget.charge(terms, open_round, now_ms, at_sites=False))

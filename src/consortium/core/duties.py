"""Duties: what must be going on now, derived from state and never queued.

A duty may be done twice: whoever performs it reports with an input that names what was
done, and old news makes no facts. A duty says all that its performer must know: it may be
done while the state moves on. The first group is the coordinator's own work; from `Train` on they
are what one site is asked for when it comes to ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.secagg_facts import KeysReceived
from consortium.core.terms import Budget, Terms


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` once the clock has reached `at_ms`."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw the round's public seed from the system's source; report `Drawn`."""

    round: int


@dataclass(frozen=True, slots=True)
class Check:
    """Run the six checks on one update; report `Checked`. `base` is its own invitation's."""

    round: int
    seat: Seat
    update: Digest
    base: Digest  # what it must have been trained from


@dataclass(frozen=True, slots=True)
class Screen:
    """Compare what the members sent and find what stands out; report `Screened`.

    Who cannot compare them excludes nobody: what is wrong shows in the sum. `updates` are
    in the order of summation: see `Round.invited`.
    """

    round: int
    count: int
    base: Digest
    updates: tuple[tuple[Seat, int, Digest], ...]  # (seat, rank, update)


@dataclass(frozen=True, slots=True)
class Lifting:
    """What it takes to take the masks off a sum: who agreed on which keys, who masked, who is in
    the sum, and what members answered for each other."""

    federation: str
    seed: bytes  # of the round, and public
    quorum: int
    keys: tuple[tuple[SiteId, KeysReceived], ...]
    sharers: tuple[SiteId, ...]
    members: tuple[SiteId, ...]  # in the order of the updates
    answers: tuple[tuple[SiteId, Digest], ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Sum what the members sent and step the model; report `Summed` or `NotSummed`.

    `updates` and `partials` are in the fixed order of summation: see `Round.rank`.
    """

    round: int
    count: int
    eligible: int  # when the round's members were chosen
    base: Digest
    server_state: Digest | None
    updates: tuple[tuple[int, Digest], ...]  # (rank, update)
    partials: tuple[tuple[int, float, Digest], ...]  # (lowest rank, weight, partial sum)
    # Without a barrier: of each update, how many versions its base is older than `base`.
    staleness: tuple[int, ...] = ()
    discount_ppm: int = 0  # a: an update counts (1 + staleness)^-a of itself
    lifting: Lifting | None = None  # where the updates are masked


@dataclass(frozen=True, slots=True)
class Judge:
    """Weigh candidate against base; report `Verdict`. Means over all samples."""

    round: int
    model: Digest
    evaluations: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    recent: tuple[float, ...]  # scores of the last published versions, newest last
    terms: Terms  # the gate's, as they are in this round


@dataclass(frozen=True, slots=True)
class Release:
    """Make sure that the model can be fetched; report `Released`."""

    round: int
    model: Digest


@dataclass(frozen=True, slots=True)
class Reserve:
    """Have the account hold a round's costs ready; report `Granted` or `Denied`. An account that
    knows nothing of round `after` has forgotten it: an old backup was put back."""

    federation: str
    round: int
    budget: Budget
    after: int = 0  # the newest round that this account has held costs ready for; 0: none


@dataclass(frozen=True, slots=True)
class Settle:
    """Tell the account what became of a round's costs; report `AccountTold`."""

    federation: str
    round: int
    account: str
    is_charged: bool  # else they are returned


@dataclass(frozen=True, slots=True)
class Train:
    """A site's invitation."""

    round: int
    seat: Seat
    base: Digest
    server_state: Digest | None
    plan: Digest
    task: Digest
    deadline_ms: int
    is_urgent: bool
    sharing: Digest | None = None  # names those who mask with each other; None: nobody does


@dataclass(frozen=True, slots=True)
class JoinSum:
    """A site's invitation to a round whose sum is secret: it is asked for keys."""

    round: int
    seat: Seat
    base: Digest
    server_state: Digest | None
    plan: Digest
    task: Digest
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Share:
    """A site is asked to share its seeds among the session's sites."""

    round: int
    seat: Seat
    session: Digest
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Agree:
    """A member is asked to sign who is in the sum, by this split."""

    round: int
    seat: Seat
    split: Digest
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Unmask:
    """A member is asked for its shares of the others, by this split, which others have signed."""

    round: int
    seat: Seat
    split: Digest
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A member is asked for the metrics of candidate and base on its own test data."""

    round: int
    seat: Seat
    model: Digest
    base: Digest
    base_round: int  # the round that made the base; 0: it came from outside
    deadline_ms: int


Duty = WakeAt | Draw | Check | Screen | Aggregate | Judge | Release | Reserve | Settle
Invitation = Train | JoinSum  # to train, in the end
SiteDuty = Train | Evaluate | JoinSum | Share | Agree | Unmask

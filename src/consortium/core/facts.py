"""Facts: what happened. The log of a federation is a sequence of these and nothing else.

House rules: past tense; small; frozen; no tensors (they live in the blob store under their digest),
no names of people or places, no secrets. `KIND` numbers are for ever: to change a meaning, add a
new fact with a new number. 64–71 are those of a privacy account, 80–95 those of secret sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from consortium.core.budget_facts import BudgetAdopted as BudgetAdopted
from consortium.core.budget_facts import BudgetAsked as BudgetAsked
from consortium.core.budget_facts import BudgetCharged as BudgetCharged
from consortium.core.budget_facts import BudgetFact
from consortium.core.budget_facts import BudgetRefused as BudgetRefused
from consortium.core.budget_facts import BudgetReserved as BudgetReserved
from consortium.core.budget_facts import BudgetSettled as BudgetSettled
from consortium.core.ids import Digest, Seat, Seats, SiteId
from consortium.core.score_facts import BaseScored as BaseScored
from consortium.core.score_facts import ScoringAdopted as ScoringAdopted
from consortium.core.secagg_facts import MaskedRoundFact
from consortium.core.secagg_facts import MaskingAdopted as MaskingAdopted
from consortium.core.terms import ReportValue, Terms


class Fault(IntEnum):
    """Why an update was not counted: the six checks of an update, then what the screen of
    all updates together finds."""

    FORMAT = 1
    DIMENSIONS = 2
    MAGNITUDE = 3
    STALENESS = 4
    SIGNATURE = 5
    PRIVACY = 6
    NORM = 7  # stands out by its size
    DIRECTION = 8  # points away from the others
    DISTANCE = 9  # lies far from the others


# What only the screen can find: it takes the others to tell.
ANOMALIES = frozenset({Fault.NORM, Fault.DIRECTION, Fault.DISTANCE})


class Failure(IntEnum):
    """Why a site fell out of a round. Only this code leaves a site, never its error text."""

    TRAINING = 1
    DATA_QUALITY = 2
    POLICY = 3
    BUDGET = 4
    RESOURCES = 5
    REQUIREMENTS = 6
    MODEL = 7
    NO_TEST_DATA = 8
    REVOKED = 9
    ABSENT = 10  # it did not answer in time while keys, or shares, were exchanged


class Departure(IntEnum):
    """How a seat came to be empty."""

    REVOKED = 1
    LEFT = 2


class Outcome(IntEnum):
    """What became of a completed round's candidate."""

    ACCEPTED = 1
    KEPT = 2  # worse than the gate allows: the base stays
    UNJUDGED = 3  # too few evaluations to tell: the base stays


class RoundEnd(IntEnum):
    """Why a round failed."""

    NO_QUORUM = 1
    NO_ELIGIBLE_SITES = 2
    NOT_FINITE = 3
    AGGREGATION = 4
    CANCELLED = 5
    MEMBER_REVOKED = 6
    NOT_AGREED, NOT_ANSWERED = 7, 8  # too few members signed the split of a secret sum; answered


class Finish(IntEnum):
    """Why a federation ended."""

    ROUNDS_DONE = 1
    CONVERGED = 2
    NO_IMPROVEMENT = 3
    STOPPED = 4
    BUDGET_SPENT = 5  # no window will ever pay for another round


# ---- the federation -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FederationFounded:
    KIND = 1
    federation: str  # a random id; its name is in the directory
    at_ms: int


@dataclass(frozen=True, slots=True)
class PlanAdopted:
    KIND = 2
    plan: Digest
    task: Digest
    layout: Digest
    terms: Terms
    at_ms: int


@dataclass(frozen=True, slots=True)
class ModelInstalled:
    """A model from outside: the first one, or a warm start."""

    KIND = 3
    version: int
    model: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class SiteAdmitted:
    KIND = 4
    seat: Seat
    site: SiteId  # a random id
    key: bytes  # the site's public key; empty where nothing is signed (simulation)
    at_ms: int


@dataclass(frozen=True, slots=True)
class CohortAdmitted:
    """`count` simulated sites took the seats from `first` on."""

    KIND = 5
    first: Seat
    count: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SiteReported:
    """What a site said of itself; written when it changed, or an hour after the last."""

    KIND = 6
    seat: Seat
    report: tuple[tuple[str, ReportValue], ...]  # sorted by name
    at_ms: int


@dataclass(frozen=True, slots=True)
class SiteDeparted:
    KIND = 7
    seat: Seat
    departure: Departure
    at_ms: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    KIND = 8
    version: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class FederationHeld:
    KIND = 9
    at_ms: int


@dataclass(frozen=True, slots=True)
class FederationResumed:
    KIND = 10
    at_ms: int


@dataclass(frozen=True, slots=True)
class FederationFinished:
    KIND = 11
    reason: Finish
    at_ms: int


@dataclass(frozen=True, slots=True)
class LogKeyAdopted:
    """From here on checkpoints are signed with this key; the first one that covers this
    fact is signed with the key before it too."""

    KIND = 12
    key: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class BufferingAdopted:
    """The plan that was just adopted has no barrier: a round sums `buffer` updates, of models
    that are at most `max_staleness` versions old, each scaled by (1 + staleness)^-a."""

    KIND = 13
    buffer: int
    max_staleness: int
    discount_ppm: int  # a, in parts per million
    at_ms: int


# ---- a round ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoundOpened:
    KIND = 16
    round: int
    version: int
    base: Digest
    server_state: Digest | None
    quorum: int
    target: int  # 0: decided with the invitations
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SelectionStarted:
    """The seed is on record before anybody is chosen with it."""

    KIND = 17
    round: int
    seed: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class SitesInvited:
    KIND = 18
    round: int
    seats: Seats
    eligible: int
    target: int
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class BackupsInvited:
    KIND = 19
    round: int
    seats: Seats
    at_ms: int


@dataclass(frozen=True, slots=True)
class DeadlineExtended:
    KIND = 20
    round: int
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """The bytes are durable under `update`; from here on the receipt is owed."""

    KIND = 21
    round: int
    seat: Seat
    update: Digest
    envelope: Digest | None  # the signed request, kept for auditors; None in simulation
    at_ms: int


@dataclass(frozen=True, slots=True)
class UpdateAccepted:
    KIND = 22
    round: int
    seat: Seat
    weight: float | None  # None where it is private
    norm: float | None  # None where a clip bounds it or masks hide it
    at_ms: int


@dataclass(frozen=True, slots=True)
class UpdateRejected:
    KIND = 23
    round: int
    seat: Seat
    fault: Fault
    at_ms: int


@dataclass(frozen=True, slots=True)
class UpdateExcluded:
    """An update that passed its own checks stands out among the others: at closing, or when
    the closed round is screened."""

    KIND = 24
    round: int
    seat: Seat
    fault: Fault
    at_ms: int


@dataclass(frozen=True, slots=True)
class SiteDropped:
    KIND = 25
    round: int
    seat: Seat
    failure: Failure
    envelope: Digest | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class CohortTrained:
    """Simulated sites trained side by side; `partial` is their weighted sum."""

    KIND = 26
    round: int
    seats: Seats
    weight: float
    partial: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class RoundClosed:
    KIND = 27
    round: int
    members: Seats
    at_ms: int


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """Revoked between closing and the sum: its update is not in the aggregate."""

    KIND = 28
    round: int
    seat: Seat
    at_ms: int


@dataclass(frozen=True, slots=True)
class Aggregated:
    KIND = 29
    round: int
    count: int
    model: Digest
    server_state: Digest | None
    evaluate_by_ms: int  # 0: not evaluated
    at_ms: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Sums over `samples` test records, in the order of `Terms.metrics`."""

    KIND = 30
    round: int
    seat: Seat
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    envelope: Digest | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class CohortEvaluated:
    KIND = 31
    round: int
    seats: Seats
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    at_ms: int


@dataclass(frozen=True, slots=True)
class EvaluationClosed:
    KIND = 32
    round: int
    evaluations: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict with its evidence: means over all samples, empty without evaluation."""

    KIND = 33
    round: int
    outcome: Outcome
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    is_improvement: bool
    at_ms: int


@dataclass(frozen=True, slots=True)
class ModelPublished:
    KIND = 34
    round: int
    version: int
    model: Digest
    server_state: Digest | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class RoundCompleted:
    KIND = 35
    round: int
    outcome: Outcome
    at_ms: int


@dataclass(frozen=True, slots=True)
class RoundFailed:
    KIND = 36
    round: int
    reason: RoundEnd
    at_ms: int


@dataclass(frozen=True, slots=True)
class UpdatesScreened:
    """The members that are left after the screen's exclusions may be summed."""

    KIND = 37
    round: int
    count_left: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class InvitationsKept:
    """Of the invitations that outlived their round, these still hold in the one that opens;
    the others are over."""

    KIND = 38
    round: int
    seats: Seats
    at_ms: int


FederationFact = (
    FederationFounded
    | PlanAdopted
    | ModelInstalled
    | SiteAdmitted
    | CohortAdmitted
    | SiteReported
    | SiteDeparted
    | RolledBack
    | FederationHeld
    | FederationResumed
    | FederationFinished
    | LogKeyAdopted
    | BufferingAdopted
    | MaskingAdopted
    | ScoringAdopted
    | BudgetFact
)
RoundFact = (
    RoundOpened
    | SelectionStarted
    | SitesInvited
    | BackupsInvited
    | DeadlineExtended
    | UpdateReceived
    | UpdateAccepted
    | UpdateRejected
    | UpdateExcluded
    | SiteDropped
    | CohortTrained
    | RoundClosed
    | MemberRemoved
    | Aggregated
    | Evaluated
    | CohortEvaluated
    | EvaluationClosed
    | Judged
    | ModelPublished
    | RoundCompleted
    | RoundFailed
    | UpdatesScreened
    | InvitationsKept
    | BaseScored
    | MaskedRoundFact
)
Fact = FederationFact | RoundFact

"""Inputs: what somebody claims or asks. `decide` turns one into facts, or refuses it.

Time and public randomness arrive in inputs. Signatures, prices and the bytes of an
update were judged outside; an input carries the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core.facts import Departure, Failure, Fault, Outcome, RoundEnd
from consortium.core.ids import Digest, Seat, Seats, SiteId
from consortium.core.terms import ReportValue, Terms

# ---- from the lead or the administrator ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    federation: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class AdoptPlan:
    plan: Digest
    task: Digest
    layout: Digest
    terms: Terms
    now_ms: int


@dataclass(frozen=True, slots=True)
class InstallModel:
    model: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class Admit:
    site: SiteId
    key: bytes
    now_ms: int


@dataclass(frozen=True, slots=True)
class AdmitCohort:
    count: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    seat: Seat
    departure: Departure
    now_ms: int


@dataclass(frozen=True, slots=True)
class OpenRound:
    now_ms: int


@dataclass(frozen=True, slots=True)
class CancelRound:
    round: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class RollBack:
    version: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    now_ms: int


@dataclass(frozen=True, slots=True)
class Resume:
    now_ms: int


@dataclass(frozen=True, slots=True)
class Stop:
    now_ms: int


@dataclass(frozen=True, slots=True)
class AdoptLogKey:
    key: bytes
    now_ms: int


# ---- from sites ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    seat: Seat
    report: tuple[tuple[str, ReportValue], ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Submit:
    round: int
    seat: Seat
    update: Digest
    envelope: Digest | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class Fail:
    round: int
    seat: Seat
    failure: Failure
    envelope: Digest | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class Score:
    round: int
    seat: Seat
    model: Digest
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    envelope: Digest | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class GiveKeys:
    """A site's public keys for a secret sum. Signature and keys were looked at."""

    round: int
    seat: Seat
    mask_key: bytes
    seal_key: bytes
    commitment: bytes
    signature: bytes
    now_ms: int


@dataclass(frozen=True, slots=True)
class GiveShares:
    """A site's seeds, in shares that are sealed for their holders."""

    round: int
    seat: Seat
    shares: Digest
    envelope: Digest | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class GiveConsent:
    """A member's signature on the split that is on record."""

    round: int
    seat: Seat
    signature: bytes
    now_ms: int


@dataclass(frozen=True, slots=True)
class GiveAnswer:
    """A member's shares of the others, by the split that is on record."""

    round: int
    seat: Seat
    answer: Digest
    envelope: Digest | None
    now_ms: int


# ---- from those who perform duties --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    now_ms: int
    awake_ms: int = 0  # since when somebody has been there to perform duties


@dataclass(frozen=True, slots=True)
class Drawn:
    round: int
    seed: bytes
    now_ms: int


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict of the six checks; `fault` is None when all passed."""

    round: int
    seat: Seat
    update: Digest
    fault: Fault | None
    weight: float | None
    norm: float | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class TrainedCohort:
    round: int
    seats: Seats
    weight: float
    partial: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class Screened:
    """The members' updates were compared; `excluded` are those that stand out, by seat.

    `count` names the set that was compared, as in `Summed`.
    """

    round: int
    count: int
    excluded: tuple[tuple[Seat, Fault], ...]  # ascending seats; faults of `ANOMALIES`
    now_ms: int


@dataclass(frozen=True, slots=True)
class Summed:
    """Members only ever leave a closed round, so `count` names the set that was summed."""

    round: int
    count: int
    model: Digest
    server_state: Digest | None
    now_ms: int
    # What was in the sum besides: of the round's base, over so many test records.
    samples: int = 0
    scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class NotSummed:
    round: int
    count: int
    reason: RoundEnd
    now_ms: int


@dataclass(frozen=True, slots=True)
class ScoredCohort:
    round: int
    seats: Seats
    model: Digest
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    round: int
    model: Digest
    outcome: Outcome
    now_ms: int


@dataclass(frozen=True, slots=True)
class Released:
    round: int
    model: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class Granted:
    """The account holds a round's costs ready, since its fact of this position."""

    round: int
    position: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Denied:
    """The account cannot pay for a round before `frees_ms`; None: never."""

    round: int
    frees_ms: int | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class AccountTold:
    """The account knows what became of a round's costs."""

    round: int
    now_ms: int


Input = (
    Found
    | AdoptPlan
    | InstallModel
    | Admit
    | AdmitCohort
    | Dismiss
    | OpenRound
    | CancelRound
    | RollBack
    | Hold
    | Resume
    | Stop
    | AdoptLogKey
    | Report
    | Submit
    | Fail
    | Score
    | GiveKeys
    | GiveShares
    | GiveConsent
    | GiveAnswer
    | Tick
    | Drawn
    | Checked
    | TrainedCohort
    | Screened
    | Summed
    | NotSummed
    | ScoredCohort
    | Verdict
    | Released
    | Granted
    | Denied
    | AccountTold
)

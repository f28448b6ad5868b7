"""What a site's machine is told, and what it must do: its inputs and its work."""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core import duties as d
from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.core.terms import ReportValue

# ---- inputs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Approve:
    task: Digest
    plan: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    task: Digest
    plan: Digest
    now_ms: int


@dataclass(frozen=True, slots=True)
class HoldSite:
    now_ms: int


@dataclass(frozen=True, slots=True)
class ResumeSite:
    now_ms: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The coordinator's signed request, verified."""

    duty: d.SiteDuty
    now_ms: int


@dataclass(frozen=True, slots=True)
class Decline:
    """The site's own policy forbids what an invitation asks for. Only the code leaves."""

    duty: d.Invitation
    failure: Failure
    now_ms: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The coordinator says how a round ended that this site sent an update to."""

    round: int
    is_counted: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class Describe:
    """What the site is about to say of itself."""

    report: tuple[tuple[str, ReportValue], ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The site's own account holds ready what a round costs, since its fact of this position."""

    round: int
    position: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Spool:
    """What is about to leave in the present step of a secret sum."""

    round: int
    note: Digest
    size_bytes: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Trained:
    round: int
    update: Digest
    private_state: Digest | None
    size_bytes: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Scored:
    round: int
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Broke:
    """Training or evaluation failed here. The code leaves, the error text stays."""

    round: int
    failure: Failure
    now_ms: int


@dataclass(frozen=True, slots=True)
class Heard:
    """The coordinator has acknowledged `work`. A reply belongs to its request: it says
    nothing about what the site does now."""

    work: SiteWork
    now_ms: int


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The coordinator will never take `work`: too late, cancelled or superseded."""

    work: SiteWork
    now_ms: int


@dataclass(frozen=True, slots=True)
class Shown:
    """A checkpoint of the coordinator's log whose signature and proof have been verified:
    `is_consistent` says whether it contains what this site saw at `since` records."""

    since: int
    size: int
    root: Digest
    is_consistent: bool
    now_ms: int


SiteInput = (
    Approve
    | Withdraw
    | HoldSite
    | ResumeSite
    | Asked
    | Decline
    | Settled
    | Describe
    | Reserved
    | Spool
    | Trained
    | Scored
    | Broke
    | Heard
    | TurnedAway
    | Shown
)


# ---- duties -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainHere:
    round: int
    base: Digest
    private_state: Digest | None


@dataclass(frozen=True, slots=True)
class SendUpdate:
    round: int
    update: Digest


@dataclass(frozen=True, slots=True)
class EvaluateHere:
    round: int
    model: Digest
    base: Digest


@dataclass(frozen=True, slots=True)
class SendScore:
    score: s.ScoreSpooled


@dataclass(frozen=True, slots=True)
class TellFailure:
    round: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class SendKeys:
    """Make the round's seeds, unless they are there, and give the keys."""

    round: int


@dataclass(frozen=True, slots=True)
class SendShares:
    round: int
    session: Digest


@dataclass(frozen=True, slots=True)
class SendConsent:
    """Sign who is in the sum."""

    round: int
    split: Digest


@dataclass(frozen=True, slots=True)
class SendAnswer:
    round: int
    split: Digest


SiteWork = (
    TrainHere
    | SendUpdate
    | EvaluateHere
    | SendScore
    | TellFailure
    | SendKeys
    | SendShares
    | SendConsent
    | SendAnswer
)

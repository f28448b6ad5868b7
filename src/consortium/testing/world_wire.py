"""What sites and coordinators say to each other in a `World`.

A request has an id, so that a reply belongs to a request. `key` stands for a signature:
nobody has another site's key, but anybody may send again what once went by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consortium.core import duties as d
from consortium.core.answers import Receipt
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.core.site_facts import ScoreSpooled
from consortium.core.terms import ReportValue
from consortium.ledger.proof import Proof
from consortium.ledger.witness import Offer

if TYPE_CHECKING:
    from consortium.testing.world_masks import Sheet


@dataclass(frozen=True, slots=True)
class Ask:
    """What is there to do? The site has seen `since` facts of the log, and must know how
    round `unsettled` ended; 0: none."""

    since: int
    unsettled: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    """An update with its bytes."""

    round: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Scores:
    score: ScoreSpooled


@dataclass(frozen=True, slots=True)
class Failing:
    round: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class About:
    """What the site reports of itself."""

    report: tuple[tuple[str, ReportValue], ...]


@dataclass(frozen=True, slots=True)
class Keys:
    """Public keys for a secret sum; who sends a request has signed all of it."""

    round: int
    mask_key: bytes
    seal_key: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True)
class Shares:
    """Seeds in sealed shares, by the session of this name."""

    round: int
    by: Digest
    data: bytes


@dataclass(frozen=True, slots=True)
class Consents:
    """A signature on the split of this name."""

    round: int
    by: Digest
    signature: bytes


@dataclass(frozen=True, slots=True)
class Answers:
    """Shares of the others, by the split of this name."""

    round: int
    by: Digest
    data: bytes


Body = Ask | Send | Scores | Failing | About | Keys | Shares | Consents | Answers


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    seat: Seat
    key: bytes
    sent_ms: int  # by the site's own clock, which proves nothing
    body: Body

    def __str__(self) -> str:
        body = type(self.body).__name__.lower()
        number = getattr(self.body, "round", "")
        return f"#{self.id} {body}{f' of round {number}' if number else ''} from seat {self.seat}"


@dataclass(frozen=True, slots=True)
class Reply:
    """`code` says why not; it is empty when the request was taken."""

    id: int
    code: str = ""
    duty: d.SiteDuty | None = None
    offer: Offer | None = None
    receipt: Receipt | None = None
    proof: Proof | None = None
    settled: tuple[int, bool] | None = None  # a round that is over, whether the update counted
    model: tuple[int, Digest] | None = None  # the present version and its model
    sheet: Sheet | None = None  # what must be seen before the duty is taken on

    def __str__(self) -> str:
        return f"#{self.id} {self.code or 'ok'}" + (f" {_duty(self.duty)}" if self.duty else "")


def _duty(duty: d.SiteDuty) -> str:
    return f"asks to {type(duty).__name__.lower()} in round {duty.round}"

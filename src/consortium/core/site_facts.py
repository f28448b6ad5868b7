"""The facts of a site's own log: what it approved, took on, spooled and sent.

The site keeps this log, not the coordinator; its outbox is the list of `UpdateSpooled`,
`ScoreSpooled`, `ReportSpooled`, `NoteSpooled` and the codes of failures. Kind numbers start at
128, so that the two logs cannot be mixed up.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.core.terms import ReportValue


@dataclass(frozen=True, slots=True)
class TaskApproved:
    """Somebody at the site has looked at what would leave, and agreed."""

    KIND = 128
    task: Digest
    plan: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class ApprovalWithdrawn:
    KIND = 129
    task: Digest
    plan: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class SiteHeld:
    KIND = 130
    at_ms: int


@dataclass(frozen=True, slots=True)
class SiteResumed:
    KIND = 131
    at_ms: int


@dataclass(frozen=True, slots=True)
class InvitationTaken:
    KIND = 136
    round: int
    base: Digest
    task: Digest
    plan: Digest
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class InvitationDeclined:
    KIND = 137
    round: int
    failure: Failure
    at_ms: int


@dataclass(frozen=True, slots=True)
class DeadlineMoved:
    KIND = 138
    round: int
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class UpdateSpooled:
    """The update's bytes are durable at the site and may leave from now on: a retry sends the
    spool and never trains again. What the site keeps of that training, `private_state`, is
    durable too, and pending until the round is settled."""

    KIND = 139
    round: int
    update: Digest
    private_state: Digest | None
    size_bytes: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class WorkFailed:
    KIND = 140
    round: int
    failure: Failure
    at_ms: int


@dataclass(frozen=True, slots=True)
class ReceiptKept:
    KIND = 141
    round: int
    update: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class FailureTold:
    KIND = 142
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class EvaluationTaken:
    KIND = 143
    round: int
    model: Digest
    base: Digest
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ScoreSpooled:
    KIND = 144
    round: int
    model: Digest
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]
    at_ms: int


@dataclass(frozen=True, slots=True)
class ScoreTold:
    KIND = 145
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class RoundLeft:
    """The coordinator will not take this site's answer any more."""

    KIND = 146
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class CheckpointWitnessed:
    """The newest state of the coordinator's log that this site has seen and cosigned. It
    refuses any log that is shorter or that does not contain this one."""

    KIND = 147
    size: int
    root: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class RoundSettled:
    """How the round of the newest update ended: whether it published a model that this
    site's update is in. Only then does what the site kept in that round become its own."""

    KIND = 148
    round: int
    is_counted: bool
    at_ms: int


@dataclass(frozen=True, slots=True)
class ReportSpooled:
    """What the site says of itself from now on; it stands here before it leaves."""

    KIND = 149
    report: tuple[tuple[str, ReportValue], ...]  # sorted by name
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpendingHeld:
    """The site's own privacy account holds ready what this round costs, since its fact of this
    position. An account that is shorter than that is an old backup."""

    KIND = 150
    round: int
    position: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SumJoined:
    """An invitation to a round whose sum is secret was taken. The seeds of that round are durable
    before its keys leave, and lie beside this log, sealed."""

    KIND = 151
    round: int
    base: Digest
    task: Digest
    plan: Digest
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class KeysTold:
    KIND = 152
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SessionPinned:
    """The sites that this one masks with, by their keys: one session a round. Its shares, sealed
    for those sites, may leave from now on."""

    KIND = 153
    round: int
    session: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class SharesTold:
    KIND = 154
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SharersPinned:
    """Those who shared their seeds: one list a round. What this site trains is masked by it."""

    KIND = 155
    round: int
    sharing: Digest
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SplitPinned:
    """Who is in the sum, and who dropped out: one split a round, and this site signs no other."""

    KIND = 156
    round: int
    split: Digest
    at_ms: int


@dataclass(frozen=True, slots=True)
class AnswerTold:
    """From now on the seeds of the round are of no use, and are gone."""

    KIND = 157
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class NoteSpooled:
    """What this site gives in the present step of a secret sum, keys, shares, a signature or an
    answer: it may leave from now on, and nothing else in its place."""

    KIND = 158
    round: int
    note: Digest
    size_bytes: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ConsentTold:
    KIND = 159
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class AgreementSeen:
    """Two thirds of all who gave keys have signed the split that this site agreed to. Its shares of
    the others, one of two for each, may leave from now on, and never any other."""

    KIND = 160
    round: int
    at_ms: int


SiteFact = (
    TaskApproved
    | ApprovalWithdrawn
    | SiteHeld
    | SiteResumed
    | InvitationTaken
    | InvitationDeclined
    | DeadlineMoved
    | UpdateSpooled
    | WorkFailed
    | ReceiptKept
    | FailureTold
    | EvaluationTaken
    | ScoreSpooled
    | ScoreTold
    | RoundLeft
    | CheckpointWitnessed
    | RoundSettled
    | ReportSpooled
    | SpendingHeld
    | SumJoined
    | KeysTold
    | SessionPinned
    | SharesTold
    | SharersPinned
    | SplitPinned
    | AnswerTold
    | NoteSpooled
    | ConsentTold
    | AgreementSeen
)

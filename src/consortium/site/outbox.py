"""Everything that ever left this site, read from its own log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from consortium.core import site_facts as s
from consortium.core.ids import Digest
from consortium.core.terms import ReportValue
from consortium.errors import UsageError
from consortium.model import digest_of
from consortium.plan.values import Plan
from consortium.privacy.budget import Price
from consortium.site.home import SiteHome
from consortium.site.machine import Machine
from consortium.wire.messages import FailureNote, Report, ScoreNote

Reported = tuple[tuple[str, ReportValue], ...]


class Sort(Enum):
    """What it is that leaves."""

    UPDATE = "update"
    SCORE = "score"
    FAILURE = "failure"
    REPORT = "report"
    KEYS = "keys"  # for a secret sum, as the next three
    SHARES = "shares"
    CONSENT = "consent"
    ANSWER = "answer"


_OF_TWO_THIRDS = (Sort.CONSENT, Sort.ANSWER)  # others' are enough: see docs/adr/0051


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """One thing that was made to leave. From `at_ms` on it may have left, whether the
    coordinator has acknowledged it or not. A report belongs to no round, and is not waited
    for."""

    kind: Sort
    round: int
    digest: Digest  # of the bytes that left
    size_bytes: int
    at_ms: int
    told: bool = False  # the coordinator has acknowledged it
    is_late: bool = False  # for a secret sum, and the coordinator did not wait for it any more
    # ε of the round, at δ; None: no mechanism covers it. One reservation pays for an update and the
    # scores of its round: it stands with the update, and noised scores cost nothing beside it.
    cost: float | None = None
    delta: float | None = None
    has_scores: bool = False  # an update whose masked numbers have scores among them


def entries(machine: Machine) -> list[OutboxEntry]:
    """All of it, oldest first."""
    found: list[OutboxEntry] = []
    newest: dict[tuple[Sort, int], int] = {}  # where the last of this kind and round stands
    step = Sort.KEYS  # of a secret sum
    for _, fact in machine.facts():
        step = _STEPS.get(type(fact), step)
        made = _made(fact, step)
        if made is not None:
            newest[made.kind, made.round] = len(found)
            found.append(made)
        ended = _acknowledged(fact)
        if ended in newest:
            at = newest[ended]
            found[at] = replace(found[at], told=True)
        at = newest.get((step, fact.round), -1) if isinstance(fact, s.RoundLeft) else -1
        if at >= 0 and step in _OF_TWO_THIRDS:
            found[at] = replace(found[at], is_late=not found[at].told)
    return found


def priced(
    found: Sequence[OutboxEntry], home: SiteHome, machine: Machine, price: Price
) -> list[OutboxEntry]:
    """The same with what each cost and has in it, by the plan that its round was taken with."""
    taken = {
        fact.round: fact.plan
        for _, fact in machine.facts()
        if isinstance(fact, s.InvitationTaken | s.SumJoined)
    }
    bills = {plan: _bill(home, plan, price) for plan in set(taken.values())}
    return [
        _priced(entry, bills[taken[entry.round]]) if entry.round in taken else entry
        for entry in found
    ]


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a round of a plan costs; None: nothing, and it promises nothing."""

    epsilon: float | None
    delta: float
    covers_scores: bool
    has_scored_sums: bool


def _bill(home: SiteHome, digest: Digest, price: Price) -> _Bill:
    plan = Plan.from_canonical(home.blobs.get(digest))
    delta, budget = plan.privacy.delta, plan.budget
    epsilon = None if budget is None else price(budget.costs, delta)
    return _Bill(epsilon, delta, plan.has_noised_scores, plan.has_scored_sums)


def _priced(entry: OutboxEntry, bill: _Bill) -> OutboxEntry:
    if entry.kind is Sort.UPDATE:
        entry = replace(entry, has_scores=bill.has_scored_sums)
        is_paid = bill.epsilon is not None
        return replace(entry, cost=bill.epsilon, delta=bill.delta) if is_paid else entry
    if bill.covers_scores and entry.kind is Sort.SCORE:
        return replace(entry, cost=0.0, delta=bill.delta)
    return entry


def total_bytes(found: Sequence[OutboxEntry]) -> int:
    return sum(entry.size_bytes for entry in found)


def update_file(home: SiteHome, machine: Machine, number: int) -> Path:
    """The very bytes of the update of round `number`."""
    for entry in entries(machine):
        if entry.kind is Sort.UPDATE and entry.round == number:
            return home.blobs.path(entry.digest)
    raise UsageError(f"no update was made here in round {number}", hint="consortium site outbox")


def score_body(fact: s.ScoreSpooled) -> bytes:
    """The bytes that tell a score."""
    note = ScoreNote(
        model=fact.model.hex(),
        samples=fact.samples,
        candidate=list(fact.candidate),
        base=list(fact.base),
    )
    return note.model_dump_json().encode()


def failure_body(fact: s.WorkFailed | s.InvitationDeclined) -> bytes:
    """The bytes that tell a failure: its code, and nothing else."""
    return FailureNote(failure=fact.failure.name).model_dump_json().encode()


def report_body(report: Reported) -> bytes:
    """The bytes that tell what a site says of itself."""
    return Report(report=dict(report)).model_dump_json().encode()


_STEPS = {
    s.SumJoined: Sort.KEYS,
    s.SessionPinned: Sort.SHARES,
    s.SplitPinned: Sort.CONSENT,
    s.AgreementSeen: Sort.ANSWER,
}


def _made(fact: s.SiteFact, step: Sort) -> OutboxEntry | None:
    match fact:
        case s.NoteSpooled():
            return OutboxEntry(step, fact.round, fact.note, fact.size_bytes, fact.at_ms)
        case s.UpdateSpooled():
            return OutboxEntry(Sort.UPDATE, fact.round, fact.update, fact.size_bytes, fact.at_ms)
        case s.ScoreSpooled():
            return _note(Sort.SCORE, fact.round, score_body(fact), fact.at_ms)
        case s.WorkFailed() | s.InvitationDeclined():
            return _note(Sort.FAILURE, fact.round, failure_body(fact), fact.at_ms)
        case s.ReportSpooled():
            return replace(_note(Sort.REPORT, 0, report_body(fact.report), fact.at_ms), told=True)
        case _:
            return None


def _note(kind: Sort, number: int, body: bytes, at_ms: int) -> OutboxEntry:
    return OutboxEntry(kind, number, digest_of(body), len(body), at_ms)


def _acknowledged(fact: s.SiteFact) -> tuple[Sort, int] | None:
    match fact:
        # Only whose update counted is asked to try the model, or to answer for the others.
        case s.ReceiptKept() | s.EvaluationTaken() | s.SplitPinned():
            return Sort.UPDATE, fact.round
        case s.KeysTold() | s.SessionPinned():
            return Sort.KEYS, fact.round
        case s.SharesTold() | s.SharersPinned():
            return Sort.SHARES, fact.round
        case s.ConsentTold():
            return Sort.CONSENT, fact.round
        case s.AnswerTold():
            return Sort.ANSWER, fact.round
        case s.ScoreTold():
            return Sort.SCORE, fact.round
        case s.FailureTold():
            return Sort.FAILURE, fact.round
        case _:
            return None

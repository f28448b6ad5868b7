"""The state that facts fold into. Only `evolve` changes it; rules and duties read it.

State is mutable and owned by the fold, and holds the indexes that keep every question
cheap: what is open costs, what is over does not. One ended round is kept, so that a site
that never saw the answer can ask again and get the same one.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from enum import IntEnum

from consortium.core.facts import (
    Evaluated,
    Failure,
    Fault,
    Finish,
    Judged,
    RoundClosed,
    RoundEnd,
)
from consortium.core.ids import Digest, Seat, Seats, SiteId
from consortium.core.roster import Roster
from consortium.core.score_facts import BaseScored
from consortium.core.secagg_facts import (
    ConsentReceived,
    KeysClosed,
    KeysReceived,
    SharesClosed,
)
from consortium.core.tables import FINAL_STEPS, Standing, Step
from consortium.core.terms import Terms


@dataclass(slots=True)
class Sums:
    """What a simulated cohort evaluated, already added up."""

    seats: Seats
    samples: int
    candidate: tuple[float, ...]
    base: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Invitation:
    """What one seat was asked to train, and its answer if that is in. Where there is no barrier,
    it outlives the round that made it."""

    round: int  # that made it: the site knows the invitation by this number
    version: int
    base: Digest
    server_state: Digest | None
    deadline_ms: int
    update: Digest | None = None


@dataclass(slots=True)
class Round:
    """One round. Every invited seat is in exactly one of `waiting`, `unchecked`,
    `accepted` and `fallen`."""

    number: int
    version: int
    base: Digest
    server_state: Digest | None
    quorum: int
    target: int
    opened_ms: int
    deadline_ms: int
    step: Step = Step.INITIALIZED
    seed: bytes = b""
    extensions: int = 0
    backup_calls: int = 0
    eligible: int = 0  # sites that could have been invited
    first_backup: int = 0  # ranks from here on were invited as urgent backups
    invited: dict[Seat, int] = field(default_factory=dict)  # rank: the order of summation
    waiting: dict[Seat, None] = field(default_factory=dict)
    submitted: dict[Seat, Digest] = field(default_factory=dict)
    unchecked: dict[Seat, None] = field(default_factory=dict)
    accepted: dict[Seat, float | None] = field(default_factory=dict)  # the update's norm
    norms: list[float] = field(default_factory=list)  # of the accepted, ascending
    fallen: dict[Seat, Fault | Failure] = field(default_factory=dict)
    partials: list[tuple[Seats, float, Digest]] = field(default_factory=list)
    members: dict[Seat, None] = field(default_factory=dict)
    scored: BaseScored | None = None  # what the sum says of the base
    model: Digest | None = None
    model_state: Digest | None = None  # the server state that goes with the candidate
    evaluate_by_ms: int = 0
    unheard: dict[Seat, None] = field(default_factory=dict)  # members yet to evaluate
    evaluations: dict[Seat, Evaluated] = field(default_factory=dict)
    cohort_evaluations: list[Sums] = field(default_factory=list)
    judged: Judged | None = None
    reason: RoundEnd | None = None
    kept: dict[Seat, Invitation] = field(default_factory=dict)  # that an earlier round made
    # Of a secret sum. A site that has left is named still: others masked with it.
    keys: dict[Seat, KeysReceived] = field(default_factory=dict)
    named: dict[Seat, SiteId] = field(default_factory=dict)  # of those who gave keys
    keyed: KeysClosed | None = None
    session: Digest | None = None  # names those whose keys count, and all their keys
    shares: dict[Seat, Digest] = field(default_factory=dict)
    sharers: dict[Seat, None] = field(default_factory=dict)  # whose shares are with the holders
    shared: SharesClosed | None = None
    sharing: Digest | None = None  # names them
    closed: RoundClosed | None = None
    split: Digest | None = None  # names the members: the others of the sharers have dropped out
    consents: dict[Seat, ConsentReceived] = field(default_factory=dict)
    agreed: dict[Seat, None] = field(default_factory=dict)  # whose signatures are shown to members
    answers: dict[Seat, Digest] = field(default_factory=dict)
    lifters: dict[Seat, None] = field(default_factory=dict)  # whose answers take the masks off

    def invitation(self, seat: Seat) -> Invitation:
        """What an invited seat was asked for, and what it sent."""
        update = self.submitted.get(seat)
        made = self.kept.get(seat)
        if made is not None:
            return replace(made, update=update)
        ground = self.version, self.base, self.server_state
        return Invitation(self.number, *ground, self.deadline_ms, update)

    def base_of(self, seat: Seat) -> Digest:
        """The model that the seat trains from."""
        made = self.kept.get(seat)
        return self.base if made is None else made.base

    def staleness(self, seat: Seat) -> int:
        """How many versions that model is older than the round's own."""
        made = self.kept.get(seat)
        return 0 if made is None else self.version - made.version

    def has_invited(self, seat: Seat, number: int) -> bool:
        """Whether the seat takes part by its invitation of round `number`."""
        return seat in self.invited and self.number_of(seat) == number

    def number_of(self, seat: Seat) -> int:
        """The round that made the seat's invitation: what its site calls this round."""
        made = self.kept.get(seat)
        return self.number if made is None else made.round

    @property
    def is_over(self) -> bool:
        return self.step in FINAL_STEPS

    @property
    def remaining(self) -> int:
        """Sites whose update is in or can still come."""
        return len(self.waiting) + len(self.unchecked) + len(self.accepted)

    @property
    def evaluation_count(self) -> int:
        cohorts = sum(len(sums.seats) for sums in self.cohort_evaluations)
        return len(self.evaluations) + cohorts

    def fall(self, seat: Seat, why: Fault | Failure) -> None:
        """Move an invited seat to the fallen; a seat that was not invited is left alone."""
        if seat in self.accepted:
            norm = self.accepted.pop(seat)
            if norm is not None:
                del self.norms[bisect_left(self.norms, norm)]
        elif seat in self.waiting:
            del self.waiting[seat]
            if self.step is Step.KEYING:  # afterwards it is part of the session
                self.keys.pop(seat, None)
            elif self.step is Step.SHARING:  # afterwards others hold its shares
                self.shares.pop(seat, None)
        elif seat in self.unchecked:
            del self.unchecked[seat]
        else:
            return
        self.fallen[seat] = why

    def clone(self) -> Round:
        """A copy that shares nothing mutable."""
        copy = Round(
            self.number,
            self.version,
            self.base,
            self.server_state,
            self.quorum,
            self.target,
            self.opened_ms,
            self.deadline_ms,
        )
        for name in _SCALARS:
            setattr(copy, name, getattr(self, name))
        for name in _CONTAINERS:
            setattr(copy, name, getattr(self, name).copy())
        return copy


_SCALARS = (
    "step",
    "seed",
    "extensions",
    "backup_calls",
    "eligible",
    "first_backup",
    "scored",
    "model",
    "model_state",
    "evaluate_by_ms",
    "judged",
    "reason",
    "keyed",
    "session",
    "shared",
    "sharing",
    "closed",
    "split",
)
_CONTAINERS = (
    "invited",
    "waiting",
    "submitted",
    "unchecked",
    "accepted",
    "norms",
    "fallen",
    "partials",
    "members",
    "unheard",
    "evaluations",
    "cohort_evaluations",
    "kept",
    "keys",
    "named",
    "shares",
    "sharers",
    "consents",
    "agreed",
    "answers",
    "lifters",
)


@dataclass(frozen=True, slots=True)
class Version:
    """A model that every site may fetch."""

    model: Digest
    server_state: Digest | None
    round: int  # 0: it came from outside


class Payment(IntEnum):
    """What became of a round's costs."""

    HELD = 1  # the account holds them ready
    CHARGED = 2  # spent, and the account is yet to be told
    RETURNED = 3  # not needed, and the account is yet to be told


@dataclass(slots=True)
class Federation:
    """One federation: one stream of facts."""

    id: str = ""
    standing: Standing = Standing.FOUNDED
    is_held: bool = False
    plan: Digest | None = None
    task: Digest | None = None
    layout: Digest | None = None
    terms: Terms | None = None
    roster: Roster = field(default_factory=Roster)
    versions: dict[int, Version] = field(default_factory=dict)
    current: int = 0  # the version that the next round starts from
    round: Round | None = None
    ended: Round | None = None
    last_number: int = 0
    next_due_ms: int = 0
    scores: list[float] = field(default_factory=list)  # of published versions, newest last
    best_score: float | None = None
    stale_rounds: int = 0  # judged rounds since the best score
    finished: Finish | None = None
    log_keys: list[bytes] = field(default_factory=list)  # oldest first; the last one signs
    # Without a barrier. Between rounds: invitations that the next round may keep.
    passing: dict[Seat, Invitation] = field(default_factory=dict)
    # The newest of a seat that no round kept: for a site that answers it after all.
    lapsed: dict[Seat, Invitation] = field(default_factory=dict)
    asked: int = 0  # the round that an account is asked to pay for; 0: none
    named: int = 0  # the newest that an account was ever asked to pay for
    voided: int = 0  # the newest of these that was never opened, and never will be
    frees_ms: int = 0  # before this time no round can be paid for, as was last heard
    positions: dict[str, int] = field(default_factory=dict)  # facts that accounts have at least
    newest_paid: dict[str, int] = field(default_factory=dict)  # round, by account
    # Rounds of which an account is yet to be told what became of their costs.
    unsettled: dict[int, tuple[str, Payment]] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """Of the round that opens next."""
        return max(self.last_number, self.voided) + 1

    @property
    def due_ms(self) -> int:
        """When the next round may open by itself."""
        return max(self.next_due_ms, self.frees_ms)

    def clone(self) -> Federation:
        """A copy that shares nothing mutable."""
        copy = Federation(
            self.id, self.standing, self.is_held, self.plan, self.task, self.layout, self.terms
        )
        copy.roster = self.roster.clone()
        copy.versions = self.versions.copy()
        copy.current = self.current
        copy.round = self.round.clone() if self.round else None
        copy.ended = self.ended  # over: nothing changes it any more
        copy.last_number = self.last_number
        copy.next_due_ms = self.next_due_ms
        copy.scores = self.scores.copy()
        copy.best_score = self.best_score
        copy.stale_rounds = self.stale_rounds
        copy.finished = self.finished
        copy.log_keys = self.log_keys.copy()
        copy.passing, copy.lapsed = self.passing.copy(), self.lapsed.copy()
        copy.asked, copy.named, copy.voided = self.asked, self.named, self.voided
        copy.frees_ms, copy.positions = self.frees_ms, self.positions.copy()
        copy.newest_paid = self.newest_paid.copy()
        copy.unsettled = self.unsettled.copy()
        return copy

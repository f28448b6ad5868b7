"""What a site knows of itself in one federation: the fold of its own log. See `participant`."""

from __future__ import annotations

from dataclasses import dataclass, field

from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.core.tables import Stage
from consortium.core.terms import ReportValue

SiteFacts = tuple[s.SiteFact, ...]


@dataclass(slots=True)
class Participant:
    """One site in one federation."""

    approved: set[tuple[Digest, Digest]] = field(default_factory=set)  # (task, plan)
    is_held: bool = False
    stage: Stage = Stage.IDLE
    round: int = 0  # the newest round that this site has dealt with
    task: Digest | None = None
    plan: Digest | None = None
    base: Digest | None = None
    deadline_ms: int = 0
    private_state: Digest | None = None  # what the site keeps with the present model
    pending_state: Digest | None = None  # what the newest update's training made of it
    unsettled: int = 0  # the round of the newest update, until its end is known; 0: none
    update: Digest | None = None
    failure: Failure | None = None
    model: Digest | None = None
    score: s.ScoreSpooled | None = None
    seen_size: int = 0  # of the coordinator's log
    seen_root: Digest | None = None
    report: tuple[tuple[str, ReportValue], ...] = ()  # what the site says of itself
    account_position: int = 0  # facts that the site's own privacy account has at least
    # What this site agreed to in a round whose sum is secret: once each, whatever it is told later.
    session: Digest | None = None
    sharing: Digest | None = None
    split: Digest | None = None
    note: Digest | None = None  # what it gives in the present step

"""What happened, round by round, for people: a view of the log, rebuilt from it at will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from consortium.core import facts as f
from consortium.core.terms import Metric, Terms
from consortium.drive.absences import Absences


@dataclass(slots=True)
class RoundRecord:
    """One row of the round table."""

    number: int
    version: int
    opened_ms: int
    invited: int = 0
    counted: int = 0
    dropped: int = 0
    rejected: int = 0
    silent: int = 0  # invited and never heard of
    lost: list[tuple[str, str]] = field(default_factory=list)  # (site, why) of those
    backups: int = 0
    extensions: int = 0
    outcome: str = ""  # accepted, kept, unjudged, failed; empty while the round is open
    reason: str = ""
    samples: int = 0  # test records behind the metrics
    metrics: dict[str, float] = field(default_factory=dict)
    base_metrics: dict[str, float] = field(default_factory=dict)
    sites: dict[str, dict[str, float]] = field(default_factory=dict)  # means at each member
    worst: dict[str, tuple[str, float]] = field(default_factory=dict)  # (site, its mean)
    model: str = ""
    ended_ms: int = 0
    updates_sent: int = 0  # whatever became of them
    bytes_sent: int = 0  # of their files, where somebody has looked: they are not in the log
    kept: int = 0  # invitations of earlier rounds that still held, where there is no barrier
    passed_on: int = 0  # invited, not counted, and free to answer in the next round
    published: int | None = None  # the version that came out
    # Where scores come inside sums: of the model that the round began from. Then `metrics` are
    # known when the next sum is, and those of the last round never.
    base_samples: int = 0
    has_late_scores: bool = False

    @property
    def told(self) -> tuple[dict[str, float], int | None]:
        """What the round itself tells, and of which version: of the one that came out, or, where
        scores come inside sums, of the one that it began from. None is a candidate's."""
        if self.has_late_scores:
            return self.base_metrics, self.version
        return self.metrics, self.published


class History:
    """Folds facts into round records."""

    def __init__(self, name_of: Callable[[int], str] = str) -> None:
        self._name_of = name_of  # the directory of names is not in the log
        self.rounds: list[RoundRecord] = []
        self.finished: str = ""
        self._terms: Terms | None = None
        self._is_buffered = False
        self._absences = Absences()

    def add(self, fact: f.Fact) -> RoundRecord | None:
        """Record one fact; the round's record when this fact ended it."""
        for seat, lacking in self._absences.add(fact):
            self._lose(seat, f"{lacking} in time")
        match fact:
            case f.PlanAdopted():
                self._terms, self._is_buffered = fact.terms, False
            case f.FederationFinished():
                self.finished = fact.reason.name.lower()
            case f.RoundOpened():
                self.rounds.append(RoundRecord(fact.round, fact.version, fact.at_ms))
            case f.InvitationsKept():
                self.rounds[-1].kept += len(fact.seats)
            case f.BufferingAdopted():
                self._is_buffered = True
            case f.SitesInvited():
                self.rounds[-1].invited += len(fact.seats)
            case f.BackupsInvited():
                self.rounds[-1].backups += len(fact.seats)
            case f.DeadlineExtended():
                self.rounds[-1].extensions += 1
            case f.SiteDropped():
                self.rounds[-1].dropped += 1
                self._lose(fact.seat, fact.failure.name)
            case f.UpdateRejected() | f.UpdateExcluded():
                self.rounds[-1].rejected += 1
                self.rounds[-1].counted -= fact.fault in f.ANOMALIES  # found after the closing
                self._lose(fact.seat, fact.fault.name)
            case f.UpdateReceived():
                self.rounds[-1].updates_sent += 1
            case f.CohortTrained():
                self.rounds[-1].updates_sent += len(fact.seats)
            case f.RoundClosed():
                self.rounds[-1].counted = len(fact.members)
            case f.MemberRemoved():
                self.rounds[-1].counted -= 1
            case f.Judged():
                self._judged(fact)
            case f.BaseScored():
                self._scored(fact)
            case f.ModelPublished():
                self.rounds[-1].model = fact.model.hex()
                self.rounds[-1].published = fact.version
            case f.RoundCompleted():
                return self._end(fact.outcome.name.lower(), "", fact.at_ms)
            case f.RoundFailed():
                return self._end("failed", fact.reason.name.lower(), fact.at_ms)
            case _:
                pass
        return None

    def _lose(self, seat: int, why: str) -> None:
        self.rounds[-1].lost.append((self._name_of(seat), why.lower().replace("_", " ")))

    def _judged(self, fact: f.Judged) -> None:
        assert self._terms is not None
        names = [metric.name for metric in self._terms.metrics]
        record = self.rounds[-1]
        if record.has_late_scores:
            return  # a verdict without evidence
        record.samples = fact.samples
        record.metrics = dict(zip(names, fact.candidate, strict=False))
        record.base_metrics = dict(zip(names, fact.base, strict=False))

    def _scored(self, fact: f.BaseScored) -> None:
        """What a sum says of the model that its round began from: noted here, and with the round
        that the model came out of."""
        assert self._terms is not None
        means = dict(zip([metric.name for metric in self._terms.metrics], fact.means, strict=False))
        record = self.rounds[-1]
        record.base_metrics, record.base_samples = means, fact.samples
        record.has_late_scores = True
        for made in reversed(self.rounds[:-1]):
            if made.published == fact.version:
                if made.has_late_scores:  # else its members have tried it, by another plan
                    made.metrics, made.samples = means, fact.samples
                break

    def _end(self, outcome: str, reason: str, at_ms: int) -> RoundRecord:
        record = self.rounds[-1]
        record.outcome, record.reason, record.ended_ms = outcome, reason, at_ms
        asked = record.invited + record.backups + record.kept
        left = asked - record.counted - record.dropped - record.rejected
        record.silent, record.passed_on = (0, max(0, left)) if self._is_buffered else (left, 0)
        return record


def worst_of(
    sites: dict[str, dict[str, float]], metrics: tuple[Metric, ...]
) -> dict[str, tuple[str, float]]:
    """The site with the worst mean of each metric, and that mean."""
    found = {}
    for metric in metrics if sites else ():
        pick = min if metric.higher_is_better else max
        value, site = pick((means[metric.name], name) for name, means in sites.items())
        found[metric.name] = site, value
    return found

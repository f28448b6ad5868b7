"""The roster: who sits where, what sites said of themselves, who may be invited now."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from consortium.core.ids import Seat, SiteId
from consortium.core.terms import HOUR_MS, Comparison, Condition, ReportValue, Terms

# A report that says nothing new is written down again after this long: often enough for
# "seen within a day", seldom enough that heartbeats do not fill the log.
SEEN_GRAIN_MS = HOUR_MS

# As many as one fact can name (`codec.MAX_ITEMS`).
MAX_COHORT = 1 << 20

# What one site may make everybody remember about it.
MAX_REPORT = 64
MAX_REPORT_TEXT = 200  # characters of name and value
MAX_REPORT_NUMBER = 1e15  # this also keeps out what is not finite

Pool = Sequence[Seat]  # seats to choose from, ascending

_COMPARE: dict[Comparison, Callable[[ReportValue, ReportValue], bool]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.UNEQUAL: operator.ne,
    Comparison.LESS: operator.lt,
    Comparison.AT_MOST: operator.le,
    Comparison.GREATER: operator.gt,
    Comparison.AT_LEAST: operator.ge,
}


@dataclass(slots=True)
class Member:
    """One admitted site."""

    site: SiteId
    key: bytes
    seen_ms: int
    report: tuple[tuple[str, ReportValue], ...] = ()


@dataclass(slots=True)
class Roster:
    """State. `members` are the real sites that have not left; a simulated cohort is a range
    of seats, so that a hundred thousand of them cost nothing."""

    next_seat: int = 1
    members: dict[Seat, Member] = field(default_factory=dict)
    seat_of: dict[SiteId, Seat] = field(default_factory=dict)
    cohorts: list[tuple[int, int]] = field(default_factory=list)  # (first, one past the last)
    cohort_size: int = 0
    taken_part: dict[Seat, int] = field(default_factory=dict)  # rounds counted, for FAIR

    def __len__(self) -> int:
        return len(self.members) + self.cohort_size

    def __contains__(self, seat: Seat) -> bool:
        return seat in self.members or self.is_simulated(seat)

    def is_simulated(self, seat: Seat) -> bool:
        for first, end in self.cohorts:  # noqa: SIM110  # asked for every seat of a cohort
            if first <= seat < end:
                return True
        return False

    def attributes(self, seat: Seat) -> dict[str, ReportValue]:
        member = self.members.get(seat)
        return dict(member.report) if member else {}

    def clone(self) -> Roster:
        """A copy that shares nothing mutable: members are replaced, never changed in place."""
        return Roster(
            self.next_seat,
            self.members.copy(),
            self.seat_of.copy(),
            self.cohorts.copy(),
            self.cohort_size,
            self.taken_part.copy(),
        )


def eligible(roster: Roster, terms: Terms, now_ms: int) -> Pool:
    """The seats that may be invited now, ascending.

    A condition on something that a site does not report makes the site ineligible.
    Simulated sites are always there but report nothing. Where nobody else is there, they
    are a range, so that a round costs what it invites and not what there is.
    """
    if not roster.members and len(roster.cohorts) == 1 and not terms.conditions:
        return cast(Pool, range(*roster.cohorts[0]))
    seats = [
        seat
        for seat, member in roster.members.items()
        if now_ms - member.seen_ms <= terms.seen_within_ms and meets(member, terms.conditions)
    ]
    if not terms.conditions:
        for first, end in roster.cohorts:
            seats.extend(Seat(seat) for seat in range(first, end))
        seats.sort()
    return seats


def meets(member: Member, conditions: tuple[Condition, ...]) -> bool:
    """Whether what the site reported satisfies every condition."""
    if not conditions:
        return True
    reported = dict(member.report)
    return all(_holds(condition, reported.get(condition.name)) for condition in conditions)


def is_reportable(entry: tuple[str, ReportValue]) -> bool:
    """Whether a site may report this name and value: short, and with one encoding."""
    name, value = entry
    if isinstance(value, str):
        return len(name) + len(value) <= MAX_REPORT_TEXT
    return len(name) <= MAX_REPORT_TEXT and abs(value) <= MAX_REPORT_NUMBER


def encoded_report(report: tuple[tuple[str, ReportValue], ...]) -> list[tuple[str, str, str]]:
    """A form in which `1`, `1.0` and `true` differ, as they do for conditions."""
    return [(name, type(value).__name__, repr(value)) for name, value in report]


def _holds(condition: Condition, value: ReportValue | None) -> bool:
    if value is None or _is_number(value) != _is_number(condition.value):
        return False
    if not _is_number(value) and type(value) is not type(condition.value):
        return False
    return _COMPARE[condition.comparison](value, condition.value)


def _is_number(value: ReportValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""A story's state and words: what the sentences of a scenario act upon and speak with."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode, encode
from consortium.core.federation import decide, evolve
from consortium.core.ids import Seat
from consortium.core.state import Federation, Round
from consortium.core.terms import DAY_MS, HOUR_MS, MINUTE_MS
from consortium.errors import Refusal

TIME = r"\d\d:\d\d(?: on day \d+)?"


class StoryError(AssertionError):
    """A sentence is unknown or not true; the message has file, line and sentence."""


@dataclass
class Story:
    """A federation as a story tells it. Sites have names; facts have seats."""

    state: Federation = field(default_factory=Federation)
    records: list[bytes] = field(default_factory=list)
    seats: dict[str, Seat] = field(default_factory=dict)
    now_ms: int = 8 * HOUR_MS
    lot: int = 0
    news: tuple[f.Fact, ...] = ()  # what the last act brought about
    refusal: Refusal | None = None

    def give(self, item: i.Input) -> None:
        """What every driver does: decide, write down, record."""
        try:
            self.news = decide(self.state, item)
        except Refusal as refusal:
            self.news, self.refusal = (), refusal
        for fact in self.news:
            self.records.append(encode(fact))
            evolve(self.state, decode(self.records[-1]))

    @property
    def round(self) -> Round:
        """The open round, or the one that ended last."""
        found = self.state.round or self.state.ended
        if found is None:
            raise StoryError("there has been no round")
        return found

    def names(self, seats: Container[Seat]) -> str:
        return list_text(sorted(name for name, seat in self.seats.items() if seat in seats))

    def seat(self, name: str) -> Seat:
        if name not in self.seats:
            raise StoryError(f"nobody introduced {name}")
        return self.seats[name]

    def expect(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise StoryError(f"{what}: expected {expected}, found {found}")


# ---- the tables of sentences --------------------------------------------------------

Sentence = Callable[..., None]
Table = list[tuple[re.Pattern[str], Sentence]]
ACTS: Table = []
LOOKS: Table = []


def act(pattern: str) -> Callable[[Sentence], Sentence]:
    """A sentence for `Given` and `When`; the groups of the pattern become arguments."""
    return _into(ACTS, pattern)


def look(pattern: str) -> Callable[[Sentence], Sentence]:
    """A sentence for `Then`."""
    return _into(LOOKS, pattern)


def _into(table: Table, pattern: str) -> Callable[[Sentence], Sentence]:
    def register(sentence: Sentence) -> Sentence:
        table.append((re.compile(pattern), sentence))
        return sentence

    return register


# ---- words --------------------------------------------------------------------------


def read_time(text: str) -> int:
    clock, _, day = text.partition(" on day ")
    hours, _, minutes = clock.partition(":")
    return (int(day or 1) - 1) * DAY_MS + int(hours) * HOUR_MS + int(minutes) * MINUTE_MS


def clock_text(at_ms: int) -> str:
    day, rest = divmod(at_ms, DAY_MS)
    return f"{rest // HOUR_MS:02}:{rest % HOUR_MS // MINUTE_MS:02} on day {day + 1}"


def read_list(text: str) -> list[str]:
    return re.split(r", | and ", text)


def list_text(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "nobody"

"""What is wrong at a site now, for `consortium site status`: written down by the agent, and
taken away by it when that is over. It is for people alone: nothing is decided by it, so that
nothing is lost with it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass

from consortium.errors import ConsortiumError
from consortium.site.home import SiteHome
from consortium.store.files import write_durably

# What can be wrong at the same time, each with a file of its own: the way to the coordinator,
# its log, the agent's own work, the task, the site's privacy budget, what its policy forbids, who
# else is in a secret sum.
SORTS = ("way", "log", "work", "task", "budget", "policy", "others")


@dataclass(frozen=True, slots=True)
class Noted:
    """One trouble that is not over; `at_ms` is when it began."""

    code: str
    text: str
    at_ms: int
    round: int = 0


class Notice:
    """One sort of trouble of one home. A disk that fails must not make it worse."""

    def __init__(self, home: SiteHome, sort: str) -> None:
        assert sort in SORTS
        self._path = home.path / _name(sort)
        self._is_there = self._path.exists()  # of an agent before

    def write(self, error: ConsortiumError, at_ms: int, *, round: int = 0) -> None:
        noted = Noted(error.code, error.message, at_ms, round)
        self._is_there = True
        with suppress(ConsortiumError):
            write_durably(self._path, json.dumps(asdict(noted)).encode())

    def remove(self) -> None:
        if self._is_there:
            self._is_there = False
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


def noted(home: SiteHome) -> list[Noted]:
    """Everything that is not over, newest first."""
    found = []
    for sort in SORTS:
        # It may go while we look; and one that cannot be read says nothing.
        with suppress(OSError, ValueError, TypeError):
            found.append(Noted(**json.loads((home.path / _name(sort)).read_bytes())))
    return sorted(found, key=lambda one: -one.at_ms)


def _name(sort: str) -> str:
    return f"trouble-{sort}.json"

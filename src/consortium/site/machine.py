"""The site's machine on its durable log: decide, append, record, for as many threads and
processes as like. The agent and commands such as `consortium site hold` each have one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TypeVar

from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.codec import decode, encode, site_kinds
from consortium.drive.clock import Clock
from consortium.errors import ConflictError, InternalError
from consortium.store.ports import Log

STREAM = "site"
_MAX_ATTEMPTS = 100

Kind = TypeVar("Kind", bound=s.SiteFact)


class Machine:
    """A `Participant`, folded from the log. Whoever reads several things of `state` that must
    belong together does so under `lock`, which every decision holds."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self.state = p.Participant()
        self._log = log
        self._size = 0
        self.catch_up()

    @property
    def size(self) -> int:
        """Facts of the site's own log that the state has seen."""
        return self._size

    def feed(self, item: p.SiteInput) -> p.SiteFacts:
        """Decide `item` by all that is in the log, make its facts durable, record them. A
        `Refusal` passes through, and nothing was written then."""
        with self.lock:
            for _ in range(_MAX_ATTEMPTS):
                self.catch_up()  # also before "nothing new": others may have decided otherwise
                facts = p.decide(self.state, item)
                if not facts:
                    return ()
                try:
                    self._append(facts)
                except ConflictError:
                    continue
                return facts
        raise InternalError(f"{_MAX_ATTEMPTS} others were faster to append")

    def _append(self, facts: p.SiteFacts) -> None:
        records = [encode(fact) for fact in facts]
        size = self._log.append(STREAM, self._size, records)
        for fact in facts:
            p.evolve(self.state, fact)
        self._size = size

    def owed(self) -> p.SiteWork | None:
        """What the site must be doing now."""
        with self.lock:
            return p.owed(self.state)

    def catch_up(self) -> bool:
        """Fold what was appended since; whether there was anything. Recovery is no more."""
        with self.lock:
            before = self._size
            for record in self._log.read(STREAM, self._size):
                p.evolve(self.state, decode(record, site_kinds))
                self._size += 1
            return self._size > before

    def wait(self, timeout_s: float) -> bool:
        """Wait until the log is longer than now, by whoever's doing, or the time is over;
        whether it is longer. What is new has been recorded."""
        start = self._size
        is_longer = self._log.follow(STREAM, start, timeout_s) > start
        self.catch_up()
        return is_longer

    def facts(self) -> Iterator[tuple[int, s.SiteFact]]:
        """(position, fact) of all that is in the log, oldest first."""
        for position, record in enumerate(self._log.read(STREAM)):
            yield position, decode(record, site_kinds)

    def newest(self, kind: type[Kind]) -> Kind | None:
        """The newest fact of a kind."""
        found = None
        for _, fact in self.facts():
            if isinstance(fact, kind):
                found = fact
        return found

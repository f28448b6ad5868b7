"""A privacy account as a `World` keeps it: every fact of its log is judged as it is committed.

Nothing here asks the account's own machine: a book is kept from the encoded facts alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core import account_facts as a
from consortium.core.account_facts import Costs, Limits
from consortium.core.codec import account_kinds, decode
from consortium.core.terms import DAY_MS
from consortium.testing.world_purse import price
from consortium.testing.world_violation import must

Key = tuple[str, int]  # who spends, in which round
_RULE = "I-P1"


@dataclass(slots=True)
class Entry:
    """One spending; `since_ms` is None until it is charged."""

    costs: Costs
    at: int = 0  # where the account's log says that it is held ready
    since_ms: int | None = None
    is_returned: bool = False


class Book:
    """One account, and what its owners allow, whatever is written in it."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name, self._limits = name, limits
        self.entries: dict[Key, Entry] = {}
        self.facts = 0
        self._last_ms = 0

    def add(self, record: bytes) -> a.AccountFact:
        """The next fact of the account's log."""
        fact: a.AccountFact = decode(record, account_kinds)
        self.facts += 1
        must(fact.at_ms >= self._last_ms, _RULE, f"{self.name}: its time goes back")
        self._last_ms = fact.at_ms
        match fact:
            case a.SpendingReserved():
                self._reserve((fact.federation, fact.round), fact)
            case a.SpendingCharged():
                entry = self.entries.get((fact.federation, fact.round))
                is_held = entry is not None and entry.since_ms is None and not entry.is_returned
                must(is_held, _RULE, f"{self.name}: what was not held ready is charged")
                assert entry is not None
                entry.since_ms = fact.at_ms
                self._check(fact.at_ms)
            case a.SpendingReturned():
                key = fact.federation, fact.round
                entry = self.entries.setdefault(key, Entry(()))
                must(entry.since_ms is None, _RULE, f"{self.name}: what was charged is returned")
                entry.is_returned = True
            case _:
                pass
        return fact

    def counts(self, key: Key) -> bool:
        """Whether a spending counts: held ready or charged."""
        entry = self.entries.get(key)
        return entry is not None and not entry.is_returned

    def is_charged(self, key: Key) -> bool:
        entry = self.entries.get(key)
        return entry is not None and entry.since_ms is not None

    def costs(self, key: Key) -> Costs:
        """What counts for this key."""
        return self.entries[key].costs if self.counts(key) else ()

    def _reserve(self, key: Key, fact: a.SpendingReserved) -> None:
        must(not self.counts(key), _RULE, f"{self.name}: {key} is held ready twice")
        self.entries[key] = Entry(fact.costs, self.facts - 1)
        self._check(fact.at_ms)

    def _check(self, now_ms: int) -> None:
        """Every window that ends now: what is held ready is in all of them."""
        limits = self._limits
        windows = ((7, limits.weekly), (30, limits.monthly), (None, limits.lifetime))
        for days, limit in windows:
            if limit is None:
                continue
            begins_ms = -1 if days is None else now_ms - days * DAY_MS
            there = [
                cost
                for entry in self.entries.values()
                if not entry.is_returned and (entry.since_ms is None or entry.since_ms > begins_ms)
                for cost in entry.costs
            ]
            epsilon = price(there, limits.delta) if there else 0.0
            span = "ever" if days is None else f"in {days} days"
            must(
                epsilon <= limit, _RULE, f"{self.name}: ε of {epsilon:.3f} {span}, not {limit:.3f}"
            )

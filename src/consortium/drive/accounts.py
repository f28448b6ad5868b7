"""A privacy account on a log: what is asked of it is priced, decided and made durable.

The same at a coordinator, which pays for rounds, and at a site, which pays for what it sends.
Several may use one account at once, in threads or processes: an append says which position it
was decided at, and whoever was slower looks again, at a new price.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from consortium.core import account as acc
from consortium.core.account_facts import Costs, Limits
from consortium.core.codec import account_kinds, decode, encode
from consortium.core.terms import Budget
from consortium.drive.clock import Clock
from consortium.errors import ConflictError, InternalError, Refusal, WrongPhaseError
from consortium.privacy.budget import Gauge, Price, Quote, Spent, gauges, quote, spent
from consortium.store.ports import Log

_MAX_ATTEMPTS = 100
STREAMS = "account/"  # what the names of their logs begin with


class Ledger:
    """One account, folded from its stream."""

    def __init__(self, log: Log, account: str, clock: Clock, price: Price, owner: str = "") -> None:
        self._log, self._stream = log, stream_of(account, owner)
        self._clock, self._price = clock, price
        self._id, self._lock = account, threading.RLock()
        self.state = acc.Account()
        self.catch_up()

    def catch_up(self) -> None:
        """Fold what was appended since."""
        with self._lock:
            for record in self._log.read(self._stream, self.state.position):
                acc.evolve(self.state, decode(record, account_kinds))

    def open(self, unit: str, limits: Limits) -> None:
        """Open the account and set its limits; the same again changes nothing."""
        self._feed(lambda now_ms: acc.OpenAccount(self._id, unit, now_ms))
        self._feed(lambda now_ms: acc.SetLimits(limits, now_ms))

    def tighten(self, unit: str, limits: Limits) -> None:
        """Open the account; of each limit that it has already, the lower one stays."""
        self._feed(lambda now_ms: acc.OpenAccount(self._id, unit, now_ms))

        def lower(now_ms: int) -> acc.SetLimits:
            held = self.state.limits  # as of the position at which this is decided
            return acc.SetLimits(limits if held is None else stricter(held, limits), now_ms)

        self._feed(lower)

    def quote(self, costs: Costs) -> Quote:
        """What another round of these costs would come to now."""
        with self._lock:
            self.catch_up()
            return quote(self.state, costs, self._clock.now_ms(), self._price)

    def gauges(self, costs: Costs) -> tuple[Gauge, ...]:
        """All windows for people, with and without another round of these costs."""
        with self._lock:
            self.catch_up()
            return gauges(self.state, costs, self._clock.now_ms(), self._price)

    def spent(self) -> tuple[Spent, ...]:
        """What each window holds now."""
        with self._lock:
            self.catch_up()
            return spent(self.state, self._clock.now_ms(), self._price)

    def knows(self, federation: str, number: int) -> bool:
        """Whether costs of this round were ever held ready here."""
        with self._lock:
            self.catch_up()
            held = self.state.spent.get((federation, number))
        return held is not None and bool(held.costs)

    def reserve(self, federation: str, number: int, costs: Costs) -> int:
        """Hold a round's costs ready; the position of the account's log after that. Raises
        `PrivacyBudgetExceededError`, which says when it frees."""

        def reserve(now_ms: int) -> acc.Reserve:
            offer = quote(self.state, costs, now_ms, self._price)
            return offer.reserving(federation, number, costs, now_ms)

        self._feed(reserve)
        return self.state.position

    def charge(self, federation: str, number: int) -> None:
        """What was reserved is spent."""
        self._feed(lambda now_ms: acc.Charge(federation, number, now_ms))

    def give_back(self, federation: str, number: int) -> None:
        """What was reserved is not needed."""
        self._feed(lambda now_ms: acc.Return(federation, number, now_ms))

    def settle(self, federation: str, number: int, *, is_charged: bool) -> None:
        """Either, whatever a crash left undone."""
        if is_charged:
            self.charge(federation, number)
            return
        self.give_back(federation, number)

    def _feed(self, make: Callable[[int], acc.AccountInput]) -> None:
        """Decide, append, record. An answer without facts, or a refusal, stands only if there is
        nothing new in the log."""
        for _ in range(_MAX_ATTEMPTS):
            with self._lock:
                before = self.state.position
                try:
                    if self._decided(make(self._clock.now_ms())):
                        return
                except ConflictError:
                    self.catch_up()
                    continue
                except Refusal:
                    if not self._has_news(before):
                        raise
                    continue
                if not self._has_news(before):
                    return
        raise InternalError(f"{_MAX_ATTEMPTS} others were faster to spend")

    def _decided(self, item: acc.AccountInput) -> bool:
        """Whether there were facts; they are durable, then recorded."""
        facts = acc.decide(self.state, item)
        if facts:
            records = [encode(fact) for fact in facts]
            self._log.append(self._stream, self.state.position, records)
        for fact in facts:
            acc.evolve(self.state, fact)
        return bool(facts)

    def _has_news(self, position: int) -> bool:
        self.catch_up()
        return self.state.position > position


class Accounts:
    """The accounts of one owner on a log, by name. Owners know nothing of each other."""

    def __init__(self, log: Log, clock: Clock, price: Price, owner: str = "") -> None:
        self._log, self._clock, self._price, self._owner = log, clock, price, owner
        self._ledgers: dict[str, Ledger] = {}
        self._lock = threading.Lock()

    def of(self, account: str) -> Ledger:
        with self._lock:
            if account not in self._ledgers:
                parts = self._log, account, self._clock, self._price, self._owner
                self._ledgers[account] = Ledger(*parts)
            return self._ledgers[account]

    def open(self, budget: Budget, limits: Limits) -> Ledger:
        """The account of a plan. Limits that it has already become stricter by a plan, never
        looser: others spend from it too."""
        ledger = self.of(budget.account)
        ledger.tighten(budget.unit, limits)
        return ledger


def stricter(held: Limits, new: Limits) -> Limits:
    """The lower of each two limits. They are all at one δ, so that they can be compared."""
    if held.delta != new.delta:
        raise WrongPhaseError(
            f"the account counts at delta {held.delta:g}, and the plan at {new.delta:g}",
            hint=f"delta = {held.delta:g} in [privacy], or another dataset",
        )
    pairs = (
        (held.weekly, new.weekly),
        (held.monthly, new.monthly),
        (held.lifetime, new.lifetime),
    )
    lower = [min((one for one in pair if one is not None), default=None) for pair in pairs]
    return Limits(held.delta, *lower)


def stream_of(account: str, owner: str = "") -> str:
    """The name of an account's log."""
    return f"{STREAMS}{owner}/{account}" if owner else f"{STREAMS}{account}"

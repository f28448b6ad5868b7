"""What an account can still pay for, and when.

Windows slide: at every moment the last 7 and the last 30 days are looked at, so no two weeks can
meet in one night. They limit how fast is spent, and promise nothing by themselves: what was told
is told for ever, and the lifetime total never resets. All ε are at the account's one δ, of
everything in a window together: they are not sums of ε.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consortium.core.account import Account, Reserve, Standing
from consortium.core.account_facts import Cost, Costs, Limits
from consortium.core.terms import DAY_MS
from consortium.errors import WrongPhaseError

WEEK_MS, MONTH_MS = 7 * DAY_MS, 30 * DAY_MS
Price = Callable[[Sequence[Cost], float], float]  # ε of these together, at this δ


@dataclass(frozen=True, slots=True)
class Window:
    """One limit: how long it looks back (None: for ever), and the most ε in it."""

    name: str
    length_ms: int | None
    limit: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What a window has spent of its limit."""

    window: Window
    epsilon: float


@dataclass(frozen=True, slots=True)
class Quote:
    """What would be spent in each window with one more cost, by a log of `position` facts."""

    position: int
    after: tuple[Spent, ...]
    # When all windows could pay, or from when on it is worth to ask again, because it depends on
    # what others return; None: never.
    frees_ms: int | None

    @property
    def is_affordable(self) -> bool:
        return all(one.epsilon <= one.window.limit for one in self.after)

    def reserving(self, federation: str, number: int, costs: Costs, now_ms: int) -> Reserve:
        """The request that this quote is for."""
        fits = self.is_affordable
        return Reserve(federation, number, costs, self.position, fits, self.frees_ms, now_ms)


def windows_of(limits: Limits) -> tuple[Window, ...]:
    """The limits that there are, the shortest window first."""
    given = (
        ("weekly", WEEK_MS, limits.weekly),
        ("monthly", MONTH_MS, limits.monthly),
        ("lifetime", None, limits.lifetime),
    )
    return tuple(Window(name, ms, limit) for name, ms, limit in given if limit is not None)


def spent(account: Account, now_ms: int, price: Price) -> tuple[Spent, ...]:
    """What each window of the account holds now. A clock that went back changes nothing."""
    limits, now_ms = _limits(account), max(now_ms, account.last_ms)
    return tuple(
        Spent(window, _epsilon(_costs(account, window, now_ms), limits.delta, price))
        for window in windows_of(limits)
    )


def quote(account: Account, costs: Costs, now_ms: int, price: Price) -> Quote:
    """What another round of these costs would come to now, and from when on it could be paid."""
    limits, now_ms = _limits(account), max(now_ms, account.last_ms)
    after, frees = [], [now_ms]
    for window in windows_of(limits):
        there = _costs(account, window, now_ms)
        epsilon = _epsilon([*there, *costs], limits.delta, price)
        after.append(Spent(window, epsilon))
        if not epsilon <= window.limit:  # what is no number is too much
            frees.append(_frees(account, window, costs, now_ms, price))
    latest = None if _NEVER in frees else max(frees)
    return Quote(account.position, tuple(after), latest)


@dataclass(frozen=True, slots=True)
class Gauge:
    """A window for people: what it holds now, and with one more round. No limit: None."""

    window: str
    limit: float | None
    spent: float
    after_next: float


def gauges(account: Account, costs: Costs, now_ms: int, price: Price) -> tuple[Gauge, ...]:
    """All three windows, whether they have a limit or not: the lifetime total always stands
    beside the others."""
    limits, now_ms = _limits(account), max(now_ms, account.last_ms)
    named = ("weekly", WEEK_MS, limits.weekly), ("monthly", MONTH_MS, limits.monthly)
    found = []
    for name, length_ms, limit in (*named, ("lifetime", None, limits.lifetime)):
        there = _costs(account, Window(name, length_ms, 0.0), now_ms)
        now, then = (_epsilon(some, limits.delta, price) for some in (there, [*there, *costs]))
        found.append(Gauge(name, limit, now, then))
    return tuple(found)


def can_train(account: Account, costs: Costs, now_ms: int, price: Price) -> bool:
    """Whether another round of these costs is within every limit."""
    return quote(account, costs, now_ms, price).is_affordable


_NEVER = -1


def _frees(account: Account, window: Window, costs: Costs, now_ms: int, price: Price) -> int:
    """When enough has left the window. Later is never worse, so halving finds it. Nothing leaves
    a lifetime: there it helps only if somebody returns what is reserved."""
    length_ms, delta = window.length_ms, _limits(account).delta
    if length_ms is None:
        charged = [one for one in account.counting() if one.standing is Standing.CHARGED]
        certain = [cost for one in charged for cost in one.costs]
        is_hope = _epsilon([*certain, *costs], delta, price) <= window.limit
        return now_ms if is_hope else _NEVER
    since = sorted({one.counts_since(now_ms) for one in account.counting()})
    moments = [at + length_ms for at in since if at > now_ms - length_ms]

    def fits(moment: int) -> bool:
        """With nothing new until then; what is reserved now is charged now, at the earliest."""
        there = _after(account, moment - length_ms, now_ms)
        return _epsilon([*there, *costs], delta, price) <= window.limit

    if not moments or not fits(moments[-1]):
        return _NEVER  # it does not fit into an empty window
    low, high = 0, len(moments) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(moments[middle]) else (middle + 1, high)
    return moments[low]


def _costs(account: Account, window: Window, now_ms: int) -> list[Cost]:
    """What counts in a window that ends now."""
    begins_ms = -1 if window.length_ms is None else now_ms - window.length_ms
    return _after(account, begins_ms, now_ms)


def _after(account: Account, begins_ms: int, now_ms: int) -> list[Cost]:
    counting = (one for one in account.counting() if one.counts_since(now_ms) > begins_ms)
    return [cost for one in counting for cost in one.costs]


def _epsilon(costs: Sequence[Cost], delta: float, price: Price) -> float:
    return price(costs, delta) if costs else 0.0


def _limits(account: Account) -> Limits:
    if account.limits is None:
        raise WrongPhaseError("set the account's limits first")
    return account.limits

"""Epsilon over time: what each window of an account held, as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from consortium.core.account_facts import Cost, Costs
from consortium.errors import UsageError

if TYPE_CHECKING:
    from consortium.cli.told import Budget

_MOST_MOMENTS = 64  # of a plot: each may take a price for each window
_GRID = 1e-3  # of prices: a plot need not be finer, and it never shows too little


@dataclass(frozen=True, slots=True)
class Spendings:
    """What an account paid for, the oldest first, and its limits by window."""

    name: str
    unit: str
    delta: float
    limits: dict[str, float | None]
    paid: tuple[tuple[int, Costs], ...]  # (when, in milliseconds, what)


def spendings_of(told: Budget) -> Spendings:
    """Of an account that a coordinator tells of."""
    if told.spendings is None or told.delta is None or told.account is None:
        raise UsageError(
            "this coordinator does not tell what was spent when",
            hint="it may be older than this command: consortium budget show, without --plot",
        )
    paid = [
        (one.at_ms, tuple(Cost(part.sigma, part.releases, part.rate) for part in one.costs))
        for one in told.spendings
    ]
    limits = {one.window: one.limit for one in told.windows}
    return Spendings(told.account, told.unit, told.delta, limits, tuple(sorted(paid)))


def epsilon_by_time(spendings: Spendings, length_ms: int | None) -> list[tuple[int, float]]:
    """What a window of this length held, at each moment at which something came into it or left."""
    from consortium.privacy.accountant import epsilon

    price = partial(epsilon, grid=_GRID)
    found = []
    for moment in _moments(spendings, length_ms):
        begins = -1 if length_ms is None else moment - length_ms
        costs = [cost for at, some in spendings.paid if begins < at <= moment for cost in some]
        found.append((moment, price(costs, spendings.delta) if costs else 0.0))
    return found


def _moments(spendings: Spendings, length_ms: int | None) -> list[int]:
    """When the window changes, until the last spending. Of very many, some."""
    came = [at for at, _ in spendings.paid]
    last = max(came, default=0)
    left = [] if length_ms is None else [at + length_ms for at in came if at + length_ms < last]
    every = sorted({*came, *left})
    return _some(every)


def _some(moments: Sequence[int]) -> list[int]:
    step = -(-len(moments) // _MOST_MOMENTS) or 1
    return list(moments[::-1][::step][::-1])  # the last one is always there


def draw_spending(spendings: Spendings, path: Path) -> None:
    """One stepped line a window, and its limit."""
    from consortium.cli.gauges import place
    from consortium.cli.plot import Line, draw_lines
    from consortium.privacy.budget import MONTH_MS, WEEK_MS

    if not spendings.paid:
        raise UsageError("nothing was spent yet: there is nothing to draw")
    lengths = {"weekly": WEEK_MS, "monthly": MONTH_MS, "lifetime": None}
    lines = []
    for name, length_ms in lengths.items():
        points = epsilon_by_time(spendings, length_ms)
        dated = [(datetime.fromtimestamp(at / 1000), value) for at, value in points]
        lines.append(Line(place(name), dated, spendings.limits.get(name)))
    about = f"{spendings.name}: per {spendings.unit}, delta {spendings.delta:g}"
    draw_lines(lines, path, title=about, across="time", is_stepped=True)

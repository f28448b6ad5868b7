"""A privacy budget for people: bars, and sentences in which no epsilon stands alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from consortium.cli import words
from consortium.cli.sheet import Grid, Sheet

if TYPE_CHECKING:
    from consortium.cli.told import Budget

WINDOWS = {"weekly": "7 days", "monthly": "30 days", "lifetime": "ever"}
_WIDTH = 24


class Gauge(Protocol):
    """A window, as a coordinator tells it or a site's own ledger has it."""

    @property
    def window(self) -> str: ...
    @property
    def limit(self) -> float | None: ...
    @property
    def spent(self) -> float: ...
    @property
    def after_next(self) -> float: ...


def bar(gauge: Gauge) -> str:
    """What is spent, what another round would add (░), and what is left (·); empty where there
    is no limit."""
    if gauge.limit is None:
        return ""
    spent, after = (_cells(value, gauge.limit) for value in (gauge.spent, gauge.after_next))
    return "█" * spent + "░" * (after - spent) + "·" * (_WIDTH - after)


def _cells(value: float, limit: float) -> int:
    """Whoever has spent anything has one cell, and only what is full looks full."""
    if not value < limit:
        return _WIDTH
    return min(_WIDTH - 1, math.ceil(value / limit * _WIDTH))


def gauges_grid(gauges: Sequence[Gauge]) -> Grid:
    """The windows as a table, with their bars."""
    rows = [
        (
            WINDOWS.get(one.window, one.window),
            epsilon(one.spent),
            "none" if one.limit is None else f"{one.limit:g}",
            epsilon(one.after_next),
            bar(one),
        )
        for one in gauges
    ]
    header = ("in any", "epsilon", "limit", "with another round", "")
    return Grid(header, rows, frozenset(header[1:4]), frozenset({"in any", ""}))


def in_one_line(told: Budget, now_ms: int) -> str:
    """A budget on one line of a larger screen."""
    parts = [
        f"{epsilon(one.spent)} of {one.limit:g} {place(one.window)}"
        if one.limit is not None
        else f"{epsilon(one.spent)} {place(one.window)}"
        for one in told.windows
        if one.limit is not None or one.window == "lifetime"
    ]
    delta = "" if told.delta is None else f" at delta {told.delta:g}"
    line = f"epsilon {', '.join(parts)}; per {told.unit}{delta}, {told.accountant}"
    if told.is_affordable:
        return line
    return f"{line}; the next round {frees(False, told.frees_ms, now_ms)}"


def place(window: str) -> str:
    """A window behind a number: `in 7 days`, `ever`."""
    name = WINDOWS.get(window, window)
    return name if window == "lifetime" else f"in {name}"


def epsilon(value: float) -> str:
    """Four digits, rounded upwards: what is shown is never less than what is spent."""
    if not math.isfinite(value):
        return "∞"
    if value == 0:
        return "0"
    digits = max(0, 3 - math.floor(math.log10(value)))
    scale = 10.0**digits
    return f"{math.ceil(value * scale - 1e-9) / scale:.{min(digits, 6)}f}"


def promise_pairs(unit: str, delta: float | None, accountant: str) -> list[tuple[str, str]]:
    """What an epsilon of this unit means: it is never told without."""
    from consortium.plan.promises import ADJACENCY, AGAINST, HIDDEN

    if unit not in HIDDEN:
        return [("unit", unit)]
    at = "" if delta is None else f"at delta {delta:g}; "
    return [
        ("hides", f"{HIDDEN[unit]}: {ADJACENCY[unit]}"),
        ("against", AGAINST[unit]),
        ("epsilon", f"{at}accountant: {accountant}"),
    ]


def budget_sheet(told: Budget, now_ms: int, whose: str = "privacy account") -> Sheet:
    """One account on one screen."""
    if told.account is None:
        return Sheet(f"{told.federation}: no differential privacy, so there is nothing to spend")
    pairs = promise_pairs(told.unit, told.delta, told.accountant)
    if told.noise_multiplier is not None:
        pairs.append(("noise", f"multiplier {told.noise_multiplier:g}"))
    after = [("next round", frees(told.is_affordable, told.frees_ms, now_ms))]
    after.append(("rounds", _paid(told)))
    sheet = Sheet(f"{told.federation}: {whose} {told.account}", [pairs])
    sheet.parts += [gauges_grid(told.windows), after]
    return sheet


def _paid(told: Budget) -> str:
    """A coordinator tells the rounds of one federation; others may spend from the account too."""
    if not told.rounds and told.spendings is not None:
        return f"{len(told.spendings)} paid from it"
    held = sum(one.standing == "reserved" for one in told.rounds)
    more = f", {held} more reserved" if held else ""
    return f"{len(told.rounds) - held} of this federation paid from it{more}"


def frees(is_affordable: bool, frees_ms: int | None, now_ms: int) -> str:
    """Whether another round can be paid, and from when on."""
    if is_affordable:
        return "can be paid now"
    if frees_ms is None:
        return "cannot be paid any more: what is spent for ever leaves too little"
    return f"can be paid {moment(frees_ms, now_ms)} at the earliest"


def moment(frees_ms: int, now_ms: int) -> str:
    """When a budget frees, in words."""
    if frees_ms <= now_ms:
        return "soon, when somebody returns what is reserved,"
    return f"from {words.moment(frees_ms)} on ({words.until(frees_ms, now_ms)})"

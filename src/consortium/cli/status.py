"""`consortium status`: one screen that says where a federation is, and who is waited for."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli import words
from consortium.cli.gauges import in_one_line
from consortium.cli.happenings import UNNAMED, folded
from consortium.cli.operator import DEFAULT_FOLDER, Folder, Named, Operator, operator
from consortium.cli.report import at_once, command, data, envelope
from consortium.cli.sheet import Grid, Sheet, show, terminal
from consortium.errors import UnreachableError

if TYPE_CHECKING:
    from consortium.cli.told import Budget, OpenRound, Site, Status
    from consortium.drive.history import RoundRecord

_MOST_NAMES = 8
_EVERY_S = 1.0
_PROMISE = "PROTECTED: "  # what the sentence of a private plan begins with
_WARNINGS = ("NOT PROTECTED: ", "WARNING: ")


@command
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Again every second, until it is over or Ctrl-C.")
    ] = False,
    sites: Annotated[
        bool, typer.Option("--sites", help="Each site: last seen, its words to compare by phone.")
    ] = False,
    coordinator: Folder = DEFAULT_FOLDER,
    federation: Named = None,
) -> None:
    """Show where a federation is: its round, who answered, who is waited for, the model."""
    with operator(coordinator) as found:
        view = _View(found, federation, sites)
        if watch:
            with suppress(KeyboardInterrupt):  # this is how one stops watching
                _watch(view)
            return
        told = view.read()
        for one in told:
            if one is not told[0]:
                data("")
            show(one.sheet())
        envelope("status", {"federations": [one.raw for one in told]})


@dataclass(frozen=True, slots=True)
class _Told:
    """One federation as it is now."""

    status: Status
    sites: list[Site] | None
    budget: Budget | None
    raw: dict[str, Any]

    def sheet(self) -> Sheet:
        sheet = status_sheet(self.status, self.budget)
        if self.sites:
            sheet.parts.append(sites_grid(self.sites, self.status.now_ms))
        return sheet


@dataclass(frozen=True, slots=True)
class _View:
    """What is asked for."""

    operator: Operator
    federation: str | None
    has_sites: bool

    def read(self) -> list[_Told]:
        wanted = self.federation
        names = self.operator.federations() if wanted is None else [wanted]
        return [self._read(self.operator.path_of(name)) for name in names]

    def _read(self, path: str) -> _Told:
        from consortium.cli.told import Site, Status, read_view

        raw = self.operator.get(path)
        told = read_view(Status, raw)
        budget = self._budget(path, raw) if is_private(told) else None
        if not self.has_sites:
            return _Told(told, None, budget, raw)
        raw["roster"] = self.operator.get(f"{path}/sites")
        return _Told(told, read_view(list[Site], raw["roster"]), budget, raw)

    def _budget(self, path: str, raw: dict[str, Any]) -> Budget:
        from consortium.cli.told import Budget, read_view

        raw["budget"] = self.operator.get(f"{path}/budget")
        return read_view(Budget, raw["budget"])


# ---- watching -----------------------------------------------------------------------


def _watch(view: _View) -> None:
    if terminal() is None:
        _watch_lines(view)
    else:
        _watch_screen(view)


def _watch_screen(view: _View) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    told = view.read()  # what is wrong at the start is an error; later it may be a restart
    with Live(console=terminal(), auto_refresh=False, vertical_overflow="crop") as live:
        trouble = ""
        while True:
            shown = Group(*(one.sheet().rich() for one in told))
            if _are_over(told):
                live.update(shown, refresh=True)
                return
            foot = Text(trouble or "Ctrl-C stops watching.", style="yellow" if trouble else "dim")
            live.update(Group(shown, Text(""), foot), refresh=True)
            time.sleep(_EVERY_S)
            try:
                told, trouble = view.read(), ""
            except UnreachableError as error:
                trouble = f"{error.message}; tried again every second"


def _watch_lines(view: _View) -> None:
    """One line a change, for pipes and files."""
    at_once()
    told, last = view.read(), None
    while True:
        lines = [status_line(one.status) for one in told]
        if lines != last:
            for line in lines:
                data(f"{time.strftime('%H:%M:%S')} {line}")
            last = lines
            envelope("status", {"federations": [one.raw for one in told]})
        if _are_over(told):
            return
        time.sleep(_EVERY_S)
        with suppress(UnreachableError):  # it may be starting again
            told = view.read()


def _are_over(told: list[_Told]) -> bool:
    return all(one.status.finished is not None for one in told)


# ---- the screen ---------------------------------------------------------------------


def status_sheet(told: Status, budget: Budget | None = None) -> Sheet:
    """One federation on one screen."""
    pairs = []
    if told.round is not None:
        pairs += round_pairs(told.round, told.now_ms)
    else:
        pairs += _between(told)
    pairs.append(("model", _model(told)))
    if told.last is not None and told.last.outcome:
        pairs.append(("last round", last_round(told.last)))
        pairs += late_scores(told.last)
    if budget is not None and budget.account is not None:
        pairs.append(("budget", in_one_line(budget, told.now_ms)))
    pairs.append(("sites", f"{told.sites} enrolled"))
    pairs.append(("log", f"{told.log.facts} facts, key {words.short(told.log.key)}"))
    pairs += [("not protected", sentence) for sentence in warnings(told.protects)]
    return Sheet(headline(told), [pairs])


def headline(told: Status) -> str:
    """Where the federation is, in a line."""
    of = "" if told.rounds.of is None else f" of {told.rounds.of}"
    held = ", on hold after this round" if told.standing == "on hold" else ""
    if told.round is not None:
        return f"{told.federation}: round {told.round.number}{of}, {told.round.phase}{held}"
    if told.finished is not None:
        why = words.plain(told.finished)
        return f"{told.federation}: finished after {told.rounds.done} rounds ({why})"
    return f"{told.federation}: {told.standing}, {told.rounds.done}{of} rounds done"


def round_pairs(told: OpenRound, now_ms: int) -> list[tuple[str, str]]:
    """The open round: what goes on, until when, and who is waited for."""
    answered = f"{len(told.received)} of {len(told.invited)}"
    pairs = [
        ("now", told.step),
        ("deadline", f"{words.until(told.deadline_ms, now_ms)}, quorum {told.quorum}"),
    ]
    if told.invited:
        pairs.append(("answered", f"{answered}{_listed(told.received)}"))
        pairs.append(("waited for", names(told.waiting_for) or "nobody"))
    if told.fallen:
        fallen = [f"{name} ({words.plain(why)})" for name, why in told.fallen.items()]
        pairs.append(("fallen", names(fallen)))
    return pairs


def _between(told: Status) -> list[tuple[str, str]]:
    if told.finished is not None:
        return []
    pairs = [] if told.waits is None else [("waits", told.waits)]
    if told.next_round_ms > told.now_ms:
        pairs.append(("next round", words.until(told.next_round_ms, told.now_ms)))
    return pairs


def _model(told: Status) -> str:
    return (
        "none yet" if told.model is None else f"version {told.version}, {words.short(told.model)}"
    )


def last_round(record: RoundRecord) -> str:
    """A round that has ended, in a line."""
    why = f" ({words.plain(record.reason)})" if record.reason else ""
    metrics = [] if record.has_late_scores else _values(record.metrics)
    parts = [f"{record.number}: {record.outcome}{why}", f"{record.counted} counted", *metrics]
    return ", ".join(parts)


def late_scores(record: RoundRecord) -> list[tuple[str, str]]:
    """Where scores come inside sums: the newest, and which version they are of."""
    if not record.has_late_scores:
        return []
    metrics, version = (record.metrics, record.published) if record.metrics else record.told
    return [("scores", f"of version {version}: {', '.join(_values(metrics))}")] if metrics else []


def _values(metrics: dict[str, float]) -> list[str]:
    return [f"{name} {words.number(value)}" for name, value in metrics.items()]


def is_private(told: Status) -> bool:
    """Whether rounds cost something, so that there is an account to ask for."""
    return any(sentence.startswith(_PROMISE) for sentence in told.protects)


def warnings(sentences: list[str]) -> list[str]:
    """What the plan does not protect, without the words that mark it."""
    return [
        sentence.removeprefix(mark)
        for sentence in sentences
        for mark in _WARNINGS
        if sentence.startswith(mark)
    ]


def names(listed: list[str]) -> str:
    """Names in a line, not more than fit."""
    listed = folded(listed)
    shown = listed[:_MOST_NAMES]
    more = len(listed) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def _listed(listed: list[str]) -> str:
    return f": {names(listed)}" if listed and UNNAMED not in listed else ""


def status_line(told: Status) -> str:
    """A federation in a line: what changes, and nothing that changes every second."""
    parts = [headline(told)]
    if told.round is not None:
        parts.append(f"{len(told.round.received)} of {len(told.round.invited)} answered")
        if told.round.waiting_for:
            parts.append(f"waits for {names(told.round.waiting_for)}")
    elif told.waits is not None and told.finished is None:
        parts.append(told.waits)
    return "; ".join([*parts, f"model {told.version}"])


def sites_grid(sites: list[Site], now_ms: int) -> Grid:
    """Who is there; the words are what both sides compare by phone."""
    rows = [(site.name, _seen(site, now_ms), " ".join(site.words) or "–") for site in sites]
    return Grid(("site", "last seen", "words"), rows, firm=frozenset({"site"}))


def _seen(site: Site, now_ms: int) -> str:
    if site.revoked_ms is not None:
        return words.plain(site.departure or "revoked")
    if site.seat is None:
        return "not yet joined"
    seen = words.ago(site.seen_ms, now_ms)
    if site.unreached is not None:
        since = words.span(now_ms - site.unreached.since_ms)
        seen = f"{seen}; cannot be called at {site.listens} for {since}: {site.unreached.why}"
    elif site.listens is not None:
        seen = f"{seen}, called at {site.listens}"
    return seen if site.objection is None else f"{seen}; {words.objection(site.objection)}"

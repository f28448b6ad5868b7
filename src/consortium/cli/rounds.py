"""The round table and the progress bar: how a run looks while it goes on."""

from __future__ import annotations

import sys

from consortium.cli.report import Voice, data
from consortium.core.terms import Metric
from consortium.drive.history import RoundRecord

_MOST_SHOWN = 3


class RoundTable:
    """One line a round. Scores that come inside sums are late, so a column says which version they
    are of: while rounds go on, the one that the round began from, of which its sum tells; in a
    table of rounds that were, the one that came out of it."""

    def __init__(
        self, metrics: tuple[Metric, ...], *, is_late: bool = False, is_past: bool = False
    ) -> None:
        self._metrics = [metric.name for metric in metrics]
        self._is_late, self._is_past = is_late and bool(metrics), is_past

    def header(self) -> str:
        columns = [f"{name:>10}" for name in [*(["scores of"] * self._is_late), *self._metrics]]
        return "".join(["round  invited  counted  dropped  ", *columns, "  outcome"])

    def row(self, record: RoundRecord) -> str:
        metrics, version = (record.metrics, record.published) if self._is_past else record.told
        values = [self._value(metrics, name) for name in self._metrics]
        if self._is_late:
            values.insert(0, f"{_owner(version) if metrics else '–':>10}")
        invited = f"{record.invited}{f'+{record.backups}' if record.backups else ''}"
        outcome = f"{record.outcome}{f' ({record.reason})' if record.reason else ''}"
        notes = "; deadline extended" if record.extensions else ""
        shown = [f"{site} ({why})" for site, why in record.lost[:_MOST_SHOWN]]
        if len(record.lost) > _MOST_SHOWN:
            shown.append(f"and {len(record.lost) - _MOST_SHOWN} more")
        notes += f"; lost {', '.join(shown)}" if shown else ""
        return (
            f"{record.number:>5}  {invited:>7}  {record.counted:>7}  {record.dropped:>7}  "
            f"{''.join(values)}  {outcome}{notes}"
        )

    @staticmethod
    def _value(metrics: dict[str, float], name: str) -> str:
        if name not in metrics:
            return f"{'–':>10}"
        value = metrics[name]
        return f"{value:>10.4f}" if abs(value) < 1e4 else f"{value:>10.3g}"


def _owner(version: int | None) -> str:
    return "candidate" if version is None else f"version {version}"


class Progress:
    """A bar on stderr, where there is a terminal; silent elsewhere. With a `metric`, the bar
    tells its last value too, for commands that print no line a round."""

    def __init__(self, rounds: int, title: str = "rounds", metric: str = "") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._is_shown = sys.stderr.isatty() and not Voice.json
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # rich would send our data to stderr
            redirect_stderr=False,
            disable=not self._is_shown,
        )
        self._title, self._metric = title, metric
        self._rounds = self._bar.add_task(title, total=rounds)
        self._sites = self._bar.add_task("sites", total=None)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def print(self, line: str) -> None:
        """A line of data, above the bar where the two share a terminal."""
        if self._is_shown and sys.stdout.isatty():
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            data(line)

    def on_work(self, number: int, what: str, done: int, total: int) -> None:
        self._bar.update(self._sites, description=f"{what} {number}", advance=done, total=total)

    def on_round(self, record: RoundRecord) -> None:
        value = record.told[0].get(self._metric)
        title = self._title if value is None else f"{self._title} · {self._metric} {value:.4f}"
        self._bar.update(self._rounds, completed=record.number, description=title)
        self._bar.reset(self._sites)

"""`consortium compare RUN RUN …`: runs side by side, as a table and as a plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.report import command, data, envelope, say
from consortium.cli.sweep import remarks
from consortium.cli.words import of_versions
from consortium.errors import UsageError

if TYPE_CHECKING:
    from consortium.drive.runs import PastRun, RunGroup

_BARS = "▁▂▃▄▅▆▇█"
_TREND_WIDTH = 20
_NAME_WIDTHS = 34, 100  # of the first column: the least, and the most


@command
def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders of studies.")
    ],
    metric: Annotated[
        str | None, typer.Option(help="Default: the one that the plan looks at.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the metric by round: a .svg, .png or .pdf file.")
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Every run by itself, also those of several seeds.")
    ] = False,
) -> None:
    """Show runs as a table, and as a plot; runs that differ in the seed alone, together."""
    from consortium.drive.runs import RunGroup, grouped, metrics_of

    runs = _told_apart(_read(folders))
    known = metrics_of(runs)
    if not known or (metric is not None and metric not in known):
        raise UsageError(
            f"not all of these runs measured `{metric or 'anything'}`",
            hint=f"they all have: {', '.join(known) or 'no metric'}",
        )
    metric = metric or _judged(runs, known)
    groups = [RunGroup(run.name, (run,)) for run in runs] if each else grouped(runs)
    rows = _tabled(groups, metric)
    if plot is not None:
        _draw(groups, metric, plot)
    envelope("compare", {"metric": metric, "runs": rows})


def _read(folders: list[Path]) -> list[tuple[PastRun, Path]]:
    """Every run that is meant, and where it lies."""
    from consortium.drive.runs import is_unstarted, read_runs

    found = []
    for folder in folders:
        if len(folders) > 1 and is_unstarted(folder):
            say(f"left out, because no round of it ended: {folder}")
            continue
        for run in read_runs(folder):
            is_part = run.label and len(folders) > 1  # several studies may have the same settings
            told = replace(run, label=f"{folder.name}: {run.label}") if is_part else run
            found.append((told, folder / run.name if run.label else folder))
    return found


def _tabled(groups: list[RunGroup], metric: str) -> list[dict[str, object]]:
    """Print the table; the rows for machines. Only where there are groups it has intervals."""
    has_groups = any(len(group.runs) > 1 for group in groups)
    least, most = _NAME_WIDTHS
    width = min(max([least, *(len(group.name) for group in groups)]), most)
    spread = f" {'± 95 %':>8} seeds" if has_groups else ""
    data(
        f"{'run':<{width}} {'strategy':<24} rounds {'last':>9}{spread} {'worst site':>11}  {metric}"
    )
    rows = []
    for group in groups:
        row, line = _row(group, metric, has_groups=has_groups)
        data(f"{group.name[:width]:<{width}} {line}")
        rows.append(row)
    for remark in remarks([len(group.runs) for group in groups if len(group.runs) > 1]):
        say(remark)
    return rows


def _draw(groups: list[RunGroup], metric: str, plot: Path) -> None:
    from consortium.cli.plot import draw_curves

    curves = {group.name: group.curve(metric) for group in groups}
    means = {name: [(at, one.mean) for at, one in curve] for name, curve in curves.items()}
    bands = {
        name: [(at, one.low, one.high) for at, one in curve if one.half_width is not None]
        for name, curve in curves.items()
    }
    draw_curves(means, metric, plot, bands)
    say(f"drawn: {plot}")


def _told_apart(found: list[tuple[PastRun, Path]]) -> list[PastRun]:
    """Runs of one name, from different places, by their paths: each keeps its own curve."""
    names = [run.name for run, _ in found]
    return [
        replace(run, name=str(folder)) if names.count(run.name) > 1 else run
        for run, folder in found
    ]


def _judged(runs: list[PastRun], known: list[str]) -> str:
    """The metric that the first plan looks at, if all runs have it."""
    wanted = runs[0].plan.evaluation.metric
    return wanted if wanted in known else known[0]


def _row(group: RunGroup, metric: str, *, has_groups: bool) -> tuple[dict[str, object], str]:
    """A row for machines, and the line for people but for the name."""
    runs, last = group.runs, group.last(metric)
    told = [run.summary.get("worst", {}).get(metric) for run in runs]
    worst = [one for one in told if one]
    lowest = sum(value for _, value in worst) / len(worst) if worst else None
    rounds = max(len(run.rounds) for run in runs)
    spread = ""
    if has_groups:
        half = last.half_width if last else None
        spread = f" {'–' if half is None else f'{half:.4f}':>8} {len(runs):>5}"
    value = _number(last.mean if last else None, 9)
    line = (
        f"{runs[0].strategy[:24]:<24} {rounds:>6} {value}{spread} {_number(lowest, 11)}  "
        f"{_trend([one.mean for _, one in group.curve(metric)])}"
    )
    late = group.late_versions(metric)
    line += f"  last is {of_versions(late)}" if late else ""
    row: dict[str, object] = {
        "run": group.name,
        "strategy": runs[0].strategy,
        "rounds": rounds,
        "last": last.mean if last else None,
        **({"last_of_versions": late} if late else {}),
    }
    if len(runs) == 1:
        site = worst[0][0] if worst else None
        return row | {"worst_site": {"site": site, "value": lowest} if worst else None}, line
    row |= {
        "half_width": last.half_width if last else None,
        "seeds": [run.summary["seed"] for run in runs],
        "runs": [run.name for run in runs],
        "worst_site": {"value": lowest} if worst else None,  # the mean over seeds: of many sites
    }
    return row, line


def _number(value: float | None, width: int) -> str:
    return f"{'–':>{width}}" if value is None else f"{value:>{width}.4f}"


def _trend(values: list[float]) -> str:
    """The metric by round as a row of bars; at most twenty of them."""
    if not values:
        return ""
    every = max(1, -(-len(values) // _TREND_WIDTH))
    shown = values[::-1][::every][::-1]  # the last round is always there
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)

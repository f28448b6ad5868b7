"""`consortium compare RUN RUN …`: runs side by side, as a table and as a plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.report import command, data, envelope, say
from consortium.errors import UsageError

if TYPE_CHECKING:
    from consortium.drive.runs import PastRun

_BARS = "▁▂▃▄▅▆▇█"
_TREND_WIDTH = 20
_NAME_WIDTH = 34


@command
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders.")],
    metric: Annotated[str | None, typer.Option(help="Default: the first that all have.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the metric by round: a .svg, .png or .pdf file.")
    ] = None,
) -> None:
    """Show runs as a table, and as a plot."""
    from consortium.drive.runs import metrics_of, read_run

    runs = _told_apart([read_run(folder) for folder in folders], folders)
    known = metrics_of(runs)
    if not known or (metric is not None and metric not in known):
        raise UsageError(
            f"not all of these runs measured `{metric or 'anything'}`",
            hint=f"they all have: {', '.join(known) or 'no metric'}",
        )
    metric = metric or _judged(runs, known)
    rows = [_row(run, metric) for run in runs]
    data(f"{'run':<{_NAME_WIDTH}} {'strategy':<24} rounds {'last':>9} {'worst site':>11}  {metric}")
    for row in rows:
        data(str(row["line"]))
    told = [{key: value for key, value in row.items() if key != "line"} for row in rows]
    if plot is not None:
        from consortium.cli.plot import draw_curves

        draw_curves({run.name: run.curve(metric) for run in runs}, metric, plot)
        say(f"drawn: {plot}")
    envelope("compare", {"metric": metric, "runs": told})


def _told_apart(runs: list[PastRun], folders: list[Path]) -> list[PastRun]:
    """Runs of one name, from different places, by their paths: each keeps its own curve."""
    names = [run.name for run in runs]
    return [
        replace(run, name=str(folder)) if names.count(run.name) > 1 else run
        for run, folder in zip(runs, folders, strict=True)
    ]


def _judged(runs: list[PastRun], known: list[str]) -> str:
    """The metric that the first plan looks at, if all runs have it."""
    wanted = runs[0].plan.evaluation.metric
    return wanted if wanted in known else known[0]


def _row(run: PastRun, metric: str) -> dict[str, object]:
    values = [value for _, value in run.curve(metric)]
    worst = run.summary.get("worst", {}).get(metric)
    last = values[-1] if values else float("nan")
    line = (
        f"{run.name[:_NAME_WIDTH]:<{_NAME_WIDTH}} {run.strategy[:24]:<24} "
        f"{len(run.rounds):>6} {last:>9.4f} {worst[1] if worst else float('nan'):>11.4f}  "
        f"{_trend(values)}"
    )
    return {
        "run": run.name,
        "strategy": run.strategy,
        "rounds": len(run.rounds),
        "last": last if values else None,
        "worst_site": {"site": worst[0], "value": worst[1]} if worst else None,
        "line": line,
    }


def _trend(values: list[float]) -> str:
    """The metric by round as a row of bars; at most twenty of them."""
    if not values:
        return ""
    every = max(1, -(-len(values) // _TREND_WIDTH))
    shown = values[::-1][::every][::-1]  # the last round is always there
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)

"""`consortium budget`: what privacy has cost so far, and what a plan's rounds will cost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli import budget_plan
from consortium.cli.gauges import budget_sheet
from consortium.cli.operator import DEFAULT_FOLDER, Folder, operator
from consortium.cli.report import command, data, envelope, say
from consortium.cli.sheet import show
from consortium.errors import UsageError

if TYPE_CHECKING:
    from consortium.cli.told import Budget

app = typer.Typer(help="Privacy budgets: what was spent, what rounds cost.", no_args_is_help=True)

Named = Annotated[
    str | None, typer.Argument(metavar="[FEDERATION]", help="Default: all that are there.")
]
Plot = Annotated[
    Path | None, typer.Option(help="Draw epsilon over time: a .svg, .png or .pdf file.")
]
Home = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A site's home: show the site's own ledger instead."),
]


@app.command("show")
@command
def show_budget(
    federation: Named = None,
    plot: Plot = None,
    home: Home = None,
    coordinator: Folder = DEFAULT_FOLDER,
) -> None:
    """Show what was spent in 7 days, in 30 days and ever, and whether another round can be paid."""
    if home is not None:
        if federation is not None:
            raise UsageError(
                "a site's ledger counts all federations together",
                hint=f"consortium budget show --home {home}",
            )
        from consortium.cli.budget_home import show_home

        show_home(home, plot)
        return
    with operator(coordinator) as found:
        names = found.federations() if federation is None else [federation]
        raw = [found.get(f"{found.path_of(name)}/budget") for name in names]
    told = [read_budget(one) for one in raw]
    now_ms = round(time.time() * 1000)
    for one in told:
        if one is not told[0]:
            data("")
        show(budget_sheet(one, now_ms))
    if plot is not None:
        _draw(told, plot)
    envelope("budget show", {"budgets": [with_meaning(one) for one in raw]})


app.command("plan")(budget_plan.plan_budget)


def read_budget(raw: dict[str, Any]) -> Budget:
    """A coordinator's answer."""
    from consortium.cli.told import Budget, read_view

    return read_view(Budget, raw)


def with_meaning(raw: dict[str, Any]) -> dict[str, Any]:
    """For machines too, no epsilon without what it means."""
    from consortium.plan.promises import ADJACENCY, AGAINST

    unit = raw.get("unit")
    if unit not in ADJACENCY:
        return raw
    return raw | {"adjacency": ADJACENCY[unit], "against": AGAINST[unit]}


def _draw(told: list[Budget], plot: Path) -> None:
    from consortium.cli.spending import draw_spending, spendings_of

    private = [one for one in told if one.account is not None]
    if len(private) != 1:
        raise UsageError(
            f"a plot is of one account, and there are {len(private)}",
            hint="consortium budget show FEDERATION --plot budget.svg",
        )
    draw_spending(spendings_of(private[0]), plot)
    say(f"drawn: {plot}")

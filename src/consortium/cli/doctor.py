"""`consortium doctor`: look at everything that a coordinator or a site needs to work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.report import command, envelope, say
from consortium.cli.sheet import Grid, Sheet, show

if TYPE_CHECKING:
    from consortium.cli.checkup import Check


@command
def doctor(
    coordinator: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="CONSORTIUM_COORDINATOR",
            help="A coordinator's folder. Default: ./coordinator, if it is there.",
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="CONSORTIUM_HOME",
            help="A site's folder. Default: ./site, if it is there.",
        ),
    ] = None,
) -> None:
    """Look at reachability, clock, disk, certificates, files, and what a task is kept from.

    Exit 1 if anything fails.
    """
    from consortium.cli.checkup import Verdict
    from consortium.cli.patients import examine

    checks = list(examine(coordinator, home))
    show(Sheet(parts=[checks_grid(checks)]))
    failed = sum(check.verdict is Verdict.FAIL for check in checks)
    told = [
        {"check": one.name, "verdict": one.verdict.value, "found": one.found, "todo": one.todo}
        for one in checks
    ]
    envelope("doctor", {"checks": told, "failed": failed}, is_ok=failed == 0)
    if failed:
        say(f"{failed} of {len(checks)} checks failed")
        sys.exit(1)


def checks_grid(checks: list[Check]) -> Grid:
    """One line a check, and below it what to do."""
    rows = []
    for check in checks:
        rows.append((check.verdict.value, check.name, check.found))
        if check.todo:
            rows.append(("", "", f"→ {check.todo}"))
    return Grid(("", "check", "found"), rows)

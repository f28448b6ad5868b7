"""`consortium site …`: what a site's own people do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from consortium.cli import site_control, site_model, site_review
from consortium.cli.report import command, data, envelope

app = typer.Typer(help="What a site's own people do.", no_args_is_help=True)


@app.callback()
def site() -> None:
    """What a site's own people do."""


@app.command("check")
@command
def check(
    file: Annotated[Path, typer.Argument(help="The site's records, a CSV file.")],
    label: Annotated[str, typer.Option(help="The column that is to be predicted.")],
    columns: Annotated[
        str | None, typer.Option(help="The columns to look at, with commas. Default: all.")
    ] = None,
    min_records: Annotated[int, typer.Option(min=1, help="Records that there must be.")] = 8,
    max_missing: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of a column that may be missing.")
    ] = 0.2,
) -> None:
    """Look at a site's data before anybody trains on it. The findings stay here."""
    from consortium.data.quality import Quality, check_quality
    from consortium.data.read import read_table

    rules = Quality(min_records=min_records, max_missing=max_missing)
    chosen = None if columns is None else [name.strip() for name in columns.split(",")]
    table = read_table(file, label=label, columns=chosen, missing="keep")
    report = check_quality(table, rules=rules)
    for line in report.lines():
        data(line)
    report.demand()
    envelope("site check", {"passed": report.passed, "code": report.code.value})


app.command("review")(site_review.review)
app.command("approve")(site_review.approve)
app.command("withdraw")(site_review.withdraw)
app.command("hold")(site_control.hold)
app.command("resume")(site_control.resume)
app.command("status")(site_control.status)
app.command("outbox")(site_control.outbox)
app.command("members")(site_control.members)
app.command("policy")(site_control.policy)
app.command("predict")(site_model.predict)
app.command("export")(site_model.export)
app.command("leave")(site_control.leave)

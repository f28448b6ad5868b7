"""The root command and its global flags."""

from __future__ import annotations

from typing import Annotated

import typer

from consortium.cli import (
    agent,
    audit,
    budget,
    compare,
    demo,
    doctor,
    explain,
    init,
    invite,
    join,
    lock,
    model,
    round,
    serve,
    simulate,
    site,
    status,
    token,
)
from consortium.cli.report import Voice

app = typer.Typer(
    name="consortium",
    help="Several sites train one model together, and no raw record leaves a site.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 bad config, 4 not enrolled, 5 refused, "
    "6 unreachable, 7 verification failed, 8 no quorum.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from consortium import __version__

        print(f"consortium {__version__}")
        raise typer.Exit


@app.callback()
def root(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object to stdout.")] = False,
    verbose: Annotated[
        int, typer.Option("-v", "--verbose", count=True, help="Say more; -vv shows tracebacks.")
    ] = 0,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    Voice.json, Voice.verbosity = as_json, verbose


app.command("init")(init.init)
app.command("lock")(lock.lock)
app.command("simulate")(simulate.simulate)
app.command("compare")(compare.compare)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("invite")(invite.invite)
app.command("revoke")(invite.revoke)
app.command("listens")(invite.listens)
app.command("join")(join.join)
app.command("agent")(agent.agent)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("explain")(explain.explain)
app.add_typer(round.app, name="round")
app.add_typer(model.app, name="model")
app.add_typer(budget.app, name="budget")
app.add_typer(audit.app, name="audit")
app.add_typer(site.app, name="site")
app.add_typer(token.app, name="token")


def main() -> None:
    """The entry point of the `consortium` command."""
    app()

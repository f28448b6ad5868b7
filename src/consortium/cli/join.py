"""`consortium join TOKEN`: take a place in a federation, look at its study, go on as the agent."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.agent import (
    DEFAULT_HOME,
    HomeFolder,
    Listen,
    Reports,
    UntilFinished,
    run_agent,
    way_of,
)
from consortium.cli.report import Voice, at_once, command, data, envelope, say
from consortium.errors import NoModelError, UnreachableError, UsageError

if TYPE_CHECKING:
    from consortium.site.enrol import Joined
    from consortium.site.home import SiteHome
    from consortium.site.review import ReviewedStudy

_ASK_AGAIN_S = 2.0
_Records = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FILE", help="This site's own records. They stay. Asked for if left out."
    ),
]


@command
def join(
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The line that the lead sent.")],
    records: _Records = None,
    home: HomeFolder = DEFAULT_HOME,
    approve: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", help="Approve the study of this task hash without being asked."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="For studies that must be repeatable. Default: drawn.")
    ] = None,
    report: Reports = None,
    until_finished: UntilFinished = False,
    listen: Listen = None,
    start: Annotated[
        bool, typer.Option("--start/--no-start", help="Go on as the agent, or end here.")
    ] = True,
) -> None:
    """Join a federation with one line from its lead, and go on as the agent.

    Nothing of the study runs before somebody here has approved it.
    """
    from consortium.drive.clock import SystemClock
    from consortium.site.enrol import join as take_place
    from consortium.site.report import add_to_report
    from consortium.site.way import keep_way
    from consortium.wire.token import read_token

    at_once()
    place = read_token(token)
    records = records or _ask_for_records()
    joined = take_place(place, home, data=records, clock=SystemClock(), seed=seed)
    if report:
        add_to_report(joined.home, report)
    _introduce(joined)
    study = _study(joined.home, is_patient=start)
    if study is not None:
        _look_at(joined.home, study, approve)
    if start:
        run_agent(joined.home, until_finished=until_finished, listen=listen)
    elif listen is not None:
        keep_way(joined.home, way_of(joined.home, listen))
    held = joined.home.enrolment
    told = {"site": held.name, "federation": held.federation_name, "words": list(held.words)}
    envelope("join", {**told, "home": str(joined.home.path)})


def _ask_for_records() -> Path:
    if not sys.stdin.isatty() or Voice.json:
        raise UsageError("where are this site's records?", hint="consortium join TOKEN --data FILE")
    text: str = typer.prompt("Where are this site's own records? They stay here. FILE", err=True)
    return Path(text).expanduser()


def _introduce(joined: Joined) -> None:
    held = joined.home.enrolment
    word = "has joined" if joined.is_new else "is already in"
    say(f"{held.name} {word} {held.federation_name} at {held.url}")
    for warning in joined.warnings:
        say(f"warning: {warning}")
    say("compare these words with the lead, by phone:")
    data(f"    {' '.join(held.words)}")
    say(f"this site's key and log are in {joined.home.path}: back it up, and show it to nobody")


def _study(home: SiteHome, *, is_patient: bool) -> ReviewedStudy | None:
    """The federation's study; waits for it, if the agent is to start anyway."""
    from consortium.drive.clock import SystemClock
    from consortium.site.agent import INCOMING
    from consortium.site.enrol import connect
    from consortium.site.studies import Studies
    from consortium.site.transfer import Transfer

    client = connect(home, SystemClock())
    studies = Studies(home, client, Transfer(client, home.blobs, home.path / INCOMING))
    is_told = False
    try:
        while True:
            try:
                return studies.fetch()
            except (NoModelError, UnreachableError) as error:
                if not is_patient:
                    return None
                if not is_told:
                    say(f"waiting for the study: {error.message}")
                is_told = True
                threading.Event().wait(_ASK_AGAIN_S)
    finally:
        client.close()


def _look_at(home: SiteHome, study: ReviewedStudy, approve: str | None) -> None:
    """Show the study; approve it if somebody says so."""
    from consortium.cli.site_review import approve_study, is_approved, remedy_of, show_review
    from consortium.site.policy import read_policy

    if is_approved(home, study):
        say("this study has been approved here")
        return
    is_free = show_review(home, study)
    if is_free and read_policy(home.policy_file).approves(study.task_hash):
        say("the site's policy lists this task: nobody needs to be asked")
        return
    if not is_free:
        say("the site's policy refuses this study: it will not run here")
        where = f"consortium site policy --home {home.path}"
        say(f"    {remedy_of(home, study).replace('consortium site policy', where)}")
    elif approve is not None:
        approve_study(home, study, approve)
    elif sys.stdin.isatty() and not Voice.json:
        if typer.confirm("Approve?", default=False, err=True):
            approve_study(home, study, study.task_hash.hex())
        else:
            _say_how(home, study)
    else:
        _say_how(home, study)


def _say_how(home: SiteHome, study: ReviewedStudy) -> None:
    say("not approved: nothing runs. To approve it later, also while the agent runs:")
    say(f"    consortium site approve --home {home.path} --task {study.task_hash.hex()}")

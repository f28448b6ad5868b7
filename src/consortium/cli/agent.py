"""`consortium agent`: a site at work, until it is told to stop."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consortium.cli.report import command, envelope, say
from consortium.errors import ConsortiumError, NotEnrolledError

if TYPE_CHECKING:
    from consortium.site.home import SiteHome
    from consortium.site.way import Where

HomeFolder = Annotated[
    Path,
    typer.Option(
        "--home", metavar="DIR", envvar="CONSORTIUM_HOME", help="Where this site keeps everything."
    ),
]
Reports = Annotated[
    list[str] | None,
    typer.Option(
        "--report", metavar="NAME=VALUE", help="Tell the coordinator this too; repeatable."
    ),
]
UntilFinished = Annotated[
    bool, typer.Option("--until-finished", help="End when the federation is over.")
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|none",
        envvar="CONSORTIUM_LISTEN",
        help="Connect to nobody: wait here for the coordinator's calls, from now on; "
        "none: connect outward again.",
    ),
]
DEFAULT_HOME = Path("site")
OUTWARD = "none"  # instead of an address to listen at


@command
def agent(
    home: HomeFolder = DEFAULT_HOME,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Other records than when it joined.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The coordinator's new address, if it moved.")
    ] = None,
    report: Reports = None,
    until_finished: UntilFinished = False,
    listen: Listen = None,
) -> None:
    """Go on as a site that has joined: listen, train, send. Ctrl-C ends it at any time."""
    from consortium.site.enrol import check_data
    from consortium.site.home import SiteHome
    from consortium.site.report import add_to_report

    found = SiteHome.open(home)
    if data is not None:
        check_data(data)
        found.change(data=data)
    if url is not None:
        found.change(url=url)
    if report:
        add_to_report(found, report)
    run_agent(found, until_finished=until_finished, listen=listen)
    envelope("agent", {"home": str(found.path), "site": found.enrolment.name})


def run_agent(home: SiteHome, *, until_finished: bool, listen: str | None = None) -> None:
    """Work until a signal comes, or the federation is over."""
    from consortium.cli.agent_voice import AgentVoice
    from consortium.site.agent import Agent, leave_marker

    held = home.enrolment
    if leave_marker(home).exists():
        raise NotEnrolledError(
            f"{held.name} has left {held.federation_name}", hint="consortium join TOKEN --home DIR"
        )
    interrupted, where = False, way_of(home, listen)
    with AgentVoice() as voice:
        made = Agent(
            home,
            on_event=voice.event,
            on_work=voice.work,
            until_finished=until_finished,
            listen=where,
        )

        def end(number: int, _: object) -> None:
            nonlocal interrupted
            interrupted = number == signal.SIGINT
            signal.signal(signal.SIGINT, signal.default_int_handler)  # twice means now
            made.stop()

        say(f"{held.name} in {held.federation_name}; Ctrl-C ends, {agent_command(home)} goes on")
        say(way_in_one_line(home, where))
        say(f"tasks here: {isolation_in_one_line(home)}")
        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            made.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if interrupted:
        raise KeyboardInterrupt


def way_of(home: SiteHome, listen: str | None) -> Where | None:
    """Where to wait for calls: as `--listen` says, else as before; None: connect outward."""
    from consortium.cli.listen import parse_listen
    from consortium.site.way import listens_at

    if listen is None:
        return listens_at(home)
    return None if listen == OUTWARD else parse_listen(listen)


def way_in_one_line(home: SiteHome, where: Where | None) -> str:
    """Who connects to whom, and how that is changed."""
    from consortium.site.way import written

    if where is None:
        return f"connects outward to {home.enrolment.url}"
    back = f"{agent_command(home)} --listen {OUTWARD}"
    return f"listens at {written(where)} and connects to nobody, also next time, until {back}"


def agent_command(home: SiteHome) -> str:
    """What starts the agent of this home, from here."""
    if home.path == DEFAULT_HOME.resolve():
        return "consortium agent"
    return f"consortium agent --home {shlex.quote(str(home.path))}"


def isolation_in_one_line(home: SiteHome) -> str:
    """What a task is kept from at this site, tried just now."""
    from consortium.site.cells import examine
    from consortium.site.isolation.findings import in_one_line

    try:
        return in_one_line(examine(home))
    except ConsortiumError as error:  # it is said again, and acted on, when a task is to run
        return error.message

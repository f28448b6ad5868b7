"""`consortium serve`: a coordinator for one or several locked plans, until it is stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli.operator import DEFAULT_FOLDER
from consortium.cli.report import Voice, at_once, command, data, envelope, say
from consortium.cli.sheet import Sheet, tell
from consortium.errors import ConsortiumError, RoundOpenError, UsageError

if TYPE_CHECKING:
    from consortium.cli.hosting import Address, Hosting
    from consortium.coordinator.office import Office

Talk = Callable[[str], None]
_PLAN = Path("consortium.toml")

_Plans = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PLAN", help="Plans. Default: consortium.toml, if it is here."),
]
_Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Default: coordinator/ beside the first plan."),
]
_Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="0.0.0.0:8443 lets other machines in.")
]
_Names = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="HOST", help="A name that sites reach it by; repeatable."),
]
_Tenant = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose federations new ones are. Default: their own."),
]
_Seed = Annotated[
    int | None, typer.Option(help="For selection, and for the first model of a new lock.")
]


@command
def serve(
    plans: _Plans = None,
    folder: _Data = None,
    listen: _Listen = "127.0.0.1:8443",
    names: _Names = None,
    tenant: _Tenant = None,
    seed: _Seed = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when every federation is finished.")
    ] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log lines as JSON, one object each.")
    ] = False,
) -> None:
    """Start a coordinator: sites join it, train, and get the common model. Ctrl-C ends it."""
    import logging

    from consortium.cli.hosting import Address
    from consortium.cli.listen import parse_listen
    from consortium.coordinator.logs import start_logging
    from consortium.coordinator.office import Office
    from consortium.drive.clock import SystemClock

    address = Address(*parse_listen(listen), names=tuple(names or ()))
    files = _plan_files(plans, folder)
    for file in files:
        _lock(file, seed)
    at_once()
    start_logging(as_json=log_json, verbose=Voice.verbosity > 0)
    place = folder or files[0].parent / DEFAULT_FOLDER
    talk = logging.getLogger("consortium").info if log_json else say
    is_new = _is_new(place)
    office = Office(place, SystemClock(), seed=seed)
    with closing(office):
        if is_new:
            talk(f"{place} was empty: this is a new coordinator, with keys and a log of its own")
        for file in files:
            _host(office, file, tenant, talk)
        _run(office, files, address, is_once=once, talk=talk)


def _plan_files(plans: list[Path] | None, folder: Path | None) -> list[Path]:
    if plans:
        return plans
    if _PLAN.is_file():
        return [_PLAN]
    if folder is not None and (folder / "log.sqlite").is_file():
        return []  # the federations that are there already
    raise UsageError(
        f"there is no {_PLAN} here", hint="consortium serve PLAN; consortium init makes a study"
    )


def _is_new(place: Path) -> bool:
    """Whether nothing is there yet. A path that leads nowhere is a slip, or a disk that is not
    mounted: sites would meet a stranger."""
    if not place.absolute().parent.is_dir():
        raise UsageError(
            f"--data {place}: there is no folder {place.parent}",
            hint=f"mkdir -p {place.parent}    # if a new coordinator is meant",
        )
    return not (place / "log.sqlite").exists()


def _host(office: Office, plan: Path, tenant: str | None, talk: Talk) -> None:
    """A round that is open goes on under the plan that it began with: nobody else could end it."""
    try:
        office.host(plan, tenant)
    except RoundOpenError as error:
        talk(f"{plan} has changed, but {error.message}: it goes on under the old plan. To adopt")
        talk("the new one: consortium round hold; when the round is over, start serve again")


def _lock(plan: Path, seed: int | None) -> None:
    """Make the lock that is missing, in another process: it runs the task, and loads torch."""
    from consortium.drive.lock import LOCK

    if (plan.parent / LOCK).exists():
        return
    say(f"{plan} is not locked yet: consortium lock {plan}")
    options = [] if seed is None else ["--seed", str(seed)]
    root = ["--json"] if Voice.json else []
    done = subprocess.run(
        [sys.executable, "-m", "consortium", *root, "lock", str(plan), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:  # it has told why on stderr, or in its JSON
        print(done.stdout, end="")
        sys.exit(done.returncode)
    say(done.stdout.rstrip())


def _run(office: Office, plans: list[Path], address: Address, *, is_once: bool, talk: Talk) -> None:
    from consortium.cli.hosting import Hosting
    from consortium.coordinator.serve import Server

    hosting = Hosting(office, talk)
    if address.port:  # whoever sees the port open finds the operator's file
        _announce(office, address, plans, address.port, talk)
    server = Server(
        office,
        host=address.host,
        port=address.port,
        names=address.certified(plans),
        on_ready=lambda _: _introduce(office, hosting, talk),
    )
    _announce(office, address, plans, server.port, talk)
    if address.is_guessed(plans):
        talk(f"sites are told to go to {office.url}; --name HOST says another name")
    office.start(_trouble)
    with hosting.watching(server.stop if is_once else None):
        server.run()
    if is_once:
        hosting.conclude()
    else:
        talk("stopped; the same command goes on where this one was")


def _announce(office: Office, address: Address, plans: list[Path], port: int, talk: Talk) -> None:
    """The operator of this machine is told of an address here; sites get the public one."""
    office.url, before = address.here(port), office.url_before()
    if before not in ("", office.url):
        talk(f"this coordinator was at {before} before; sites that have joined go on asking there")
    office.write_operator_file()
    office.url = address.url(plans, port)


def _trouble(error: ConsortiumError) -> None:
    import logging

    logging.getLogger("consortium").error("%s", error.message, extra={"code": error.code})


def _introduce(office: Office, hosting: Hosting, talk: Talk) -> None:
    """What is served, what it protects, and what to type next."""
    told = []
    for teller in office.tellers():
        status = teller.status()
        told.append({key: status[key] for key in ("federation", "plan", "task", "rounds", "log")})
        tell(_federation(status), talk)
    talk(f"serving at {office.url}, data in {office.folder}")
    talk(f"invite a site: consortium invite NAME{_where(office.folder)}")
    envelope("serve", {"url": office.url, "folder": str(office.folder), "federations": told})
    for line in hosting.headers():
        data(line)


def _federation(status: dict[str, Any]) -> Sheet:
    rounds = status["rounds"]
    pairs = [
        ("plan", status["plan"]),
        ("task", status["task"]),
        ("log key", status["log"]["key"]),
        ("", "Write the log key down: audits begin with it."),
    ]
    for sentence in status["protects"]:
        mark, colon, rest = sentence.partition(": ")
        pairs.append((mark, rest) if colon else ("", sentence))
    return Sheet(f"{status['federation']}: {rounds['done']} of {rounds['of']} rounds done", [pairs])


def _where(folder: Path) -> str:
    """The option that the operator's commands need to find this folder."""
    return "" if folder.resolve() == DEFAULT_FOLDER.resolve() else f" --coordinator {folder}"

"""`consortium invite` and `consortium revoke`: who may join, and who may not any more."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from consortium.cli import words
from consortium.cli.operator import DEFAULT_FOLDER, Folder, Named, operator
from consortium.cli.report import command, data, envelope, say
from consortium.errors import UsageError

SiteName = Annotated[str, typer.Argument(metavar="NAME", help="The site's name, such as charite.")]


_Listens = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Call the site there, because it may not connect: https://HOST:PORT.",
    ),
]


@command
def invite(
    name: SiteName,
    coordinator: Folder = DEFAULT_FOLDER,
    federation: Named = None,
    listens: _Listens = None,
) -> None:
    """Print one line for a site to paste. It is for this site, works once, and expires."""
    from consortium.wire.token import is_site_name

    if not is_site_name(name):
        raise UsageError(
            f"`{name}` cannot be a site's name",
            hint="1 to 64 letters, digits, dashes and underscores, such as charite",
        )
    with operator(coordinator) as found:
        place = f"{found.federation(federation)}/invites"
        told = found.post(place, {"name": name} | ({"listens": listens} if listens else {}))
    line = f"consortium join {told['token']}"
    say(f"For {name} alone: works once, until {words.moment(told['expires_ms'])}. Paste it there:")
    data(line)
    say("Then compare the words by phone: consortium status --sites")
    envelope("invite", {"name": name, "command": line, **told})


@command
def revoke(name: SiteName, coordinator: Folder = DEFAULT_FOLDER, federation: Named = None) -> None:
    """Put a site out, from its next request on, or void an invitation that nobody has used.
    An open round goes on without it."""
    with operator(coordinator) as found:
        path = f"{found.federation(federation)}/sites/{quote(name, safe='')}/revoke"
        told = found.post(path)
    has_joined = told.get("had_joined", True)
    data(f"{name} is out" if has_joined else f"{name} has not joined: its invitation is void")
    envelope("revoke", told)


@command
def listens(
    name: SiteName,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="https://HOST:PORT; none: it connects.")
    ] = None,
    coordinator: Folder = DEFAULT_FOLDER,
    federation: Named = None,
) -> None:
    """Say where a site listens for calls, or that it connects by itself again."""
    with operator(coordinator) as found:
        path = f"{found.federation(federation)}/sites/{quote(name, safe='')}/listens"
        told = found.post(path, {"url": url})
    data(f"{name} is called at {url}" if url else f"{name} is not called: it connects by itself")
    envelope("listens", told)

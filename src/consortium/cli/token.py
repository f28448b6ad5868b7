"""`consortium token`: who may look at a coordinator and give orders, for what, until when."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli import words
from consortium.cli.operator import DEFAULT_FOLDER, Folder, operator, read_access
from consortium.cli.report import command, data, envelope, say
from consortium.cli.sheet import Grid, Sheet, show
from consortium.core.ids import is_plain_id
from consortium.errors import UsageError

if TYPE_CHECKING:
    from consortium.cli.told import Token

app = typer.Typer(help="Tokens of operators: make, list, revoke.", no_args_is_help=True)

_ROLES = ("viewer", "officer", "lead", "admin")
Label = Annotated[str, typer.Argument(metavar="LABEL", help="The token's label.")]


@app.command("new")
@command
def new(
    label: Annotated[str, typer.Option(metavar="NAME", help="Whose it is, such as anna.")],
    role: Annotated[
        str, typer.Option(metavar="ROLE", help="viewer, officer, lead or admin: see the docs.")
    ],
    federation: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A federation that it is for; repeatable."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="For all federations of this tenant.")
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="For the whole coordinator.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=366, help="How long it holds.")] = 90,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: LABEL.operator.json.")
    ] = None,
    coordinator: Folder = DEFAULT_FOLDER,
) -> None:
    """Make a token, and write the file with which its owner uses these commands elsewhere.

    The file is a secret: give it to its owner alone, who names it with --operator FILE.
    """
    if role not in _ROLES:
        raise UsageError(f"there is no role `{role}`", hint=f"--role {', '.join(_ROLES)}")
    if not is_plain_id(label):
        raise UsageError("a label is 1 to 64 letters, digits, dashes and underscores")
    target = out or Path(f"{label}.operator.json")
    if target.exists():
        raise UsageError(f"{target} is there already", hint="--out FILE names another one")
    wanted: dict[str, object] = {"label": label, "role": role, "days": days}
    wanted |= {"everywhere": everywhere}
    if federation:
        wanted["federations"] = federation
    if tenant is not None:
        wanted["tenant"] = tenant
    with operator(coordinator) as found:
        told = found.post("/v1/tokens", wanted)
    _write(target, told, read_access(coordinator).authority)
    data(str(target))
    say(f"For {label}, until {words.moment(told['expires_ms'])}; it is not kept here. Then:")
    say(f"consortium status --operator {target.name}")
    envelope(
        "token new", {key: told[key] for key in told if key != "token"} | {"file": str(target)}
    )


def _write(target: Path, told: dict[str, Any], authority: str) -> None:
    import json

    from consortium.core.ids import Secret
    from consortium.crypto.keyfile import write_secret

    values = {"url": told["url"], "authority": authority, "token": told["token"]}
    write_secret(target, Secret(json.dumps(values).encode()))


@app.command("list")
@command
def list_tokens(coordinator: Folder = DEFAULT_FOLDER) -> None:
    """Show whose tokens there are. The tokens themselves are not kept."""
    from consortium.cli.told import Token, read_view

    with operator(coordinator) as found:
        raw = found.get("/v1/tokens")
    show(Sheet(parts=[tokens_grid(read_view(list[Token], raw), time.time_ns() // 1_000_000)]))
    envelope("token list", {"tokens": raw})


@app.command("revoke")
@command
def revoke(label: Label, coordinator: Folder = DEFAULT_FOLDER) -> None:
    """Void a token, from the next request on."""
    from urllib.parse import quote

    with operator(coordinator) as found:
        told = found.post(f"/v1/tokens/{quote(label, safe='')}/revoke")
    data(f"the token {label} is void")
    envelope("token revoke", told)


def tokens_grid(tokens: list[Token], now_ms: int) -> Grid:
    """One line a token."""
    rows = [
        (one.label, one.role, _scope(one), words.until(one.expires_ms, now_ms)) for one in tokens
    ]
    return Grid(("label", "role", "for", "expires"), rows, firm=frozenset({"label"}))


def _scope(token: Token) -> str:
    parts = [] if token.tenant is None else [f"tenant {token.tenant}"]
    if token.federations is not None:
        parts.append(", ".join(token.federations))
    return "; ".join(parts) or "everything"

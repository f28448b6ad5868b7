"""`consortium explain CODE`: what an error means and what to do about it."""

from __future__ import annotations

import difflib
import inspect
import re
from typing import Annotated

import typer

from consortium.cli.report import command, data, envelope
from consortium.errors import ConsortiumError, UnknownCodeError, every_error

_FAULT = {"ours": "ours (a bug or a broken disk)", "caller": "the caller's", "peer": "the sender's"}


@command
def explain(
    code: Annotated[str, typer.Argument(help="An error code, such as E0112; or `all`.")],
) -> None:
    """Explain an error code."""
    known = {kind.code: kind for kind in every_error()}
    wanted = code.strip().upper().removeprefix("ERROR").strip("[]:")
    number = re.fullmatch(r"E?(\d{1,4})", wanted)
    if number is not None:
        wanted = f"E{int(number[1]):04}"
    if wanted == "ALL":
        envelope("explain", {"errors": [_told(kind) for kind in known.values()]})
        for kind in known.values():
            data(f"{kind.code}  {kind.__name__}: {_meaning(kind).splitlines()[0]}")
        return
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, n=1)
        hint = f"consortium explain {close[0]}" if close else "consortium explain all"
        raise UnknownCodeError(f"there is no error code {code!r}", hint=hint)
    kind = known[wanted]
    envelope("explain", _told(kind))
    data(f"{kind.code} {kind.__name__}\n\n{_meaning(kind)}\n")
    data(f"Whose fault:  {_FAULT[kind.fault.value]}")
    data(f"Exit code:    {kind.exit_code}    HTTP status: {kind.http_status}")
    if kind.advice:
        data(f"What to do:   {kind.advice}")


def _meaning(kind: type[ConsortiumError]) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _told(kind: type[ConsortiumError]) -> dict[str, object]:
    return {
        "code": kind.code,
        "name": kind.__name__,
        "meaning": _meaning(kind),
        "fault": kind.fault.value,
        "exit_code": kind.exit_code,
        "http_status": kind.http_status,
        "advice": kind.advice,
    }

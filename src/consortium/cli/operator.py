"""How the operator's commands reach a coordinator: by the file that `serve` writes for them, or
`token new` for somebody on another machine.

    operator.json    {"url", "authority" (PEM), "token"}, readable by its owner alone

The authority in that file is the only one that is trusted, and the token goes nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from consortium.errors import NotEnrolledError, UnreachableError, UsageError, WireError

if TYPE_CHECKING:
    from consortium.site.response import Response

OPERATOR_FILE = "operator.json"
DEFAULT_FOLDER = Path("coordinator")
_MOST_BYTES = 64 << 20  # of an answer; a round of ten thousand sites has less

Folder = Annotated[
    Path,
    typer.Option(
        "--coordinator",
        "--operator",
        metavar="DIR|FILE",
        envvar=["CONSORTIUM_COORDINATOR", "CONSORTIUM_OPERATOR"],
        help="The coordinator's folder, or a file that `consortium token new` wrote.",
    ),
]
Named = Annotated[
    str | None, typer.Option("--federation", metavar="NAME", help="Default: the only one.")
]


@dataclass(frozen=True, slots=True)
class Access:
    """What operator.json says."""

    url: str
    authority: str  # PEM
    token: str = field(repr=False)


def read_access(place: Path) -> Access:
    """The access in a coordinator's folder, or in a file for somebody elsewhere."""
    from consortium.crypto.keyfile import read_secret

    path = place if place.is_file() else place / OPERATOR_FILE
    if not path.exists():
        raise NotEnrolledError(
            f"there is no {OPERATOR_FILE} in {place}",
            hint="consortium serve writes it; --coordinator DIR says where, "
            "--operator FILE names a token's file",
        )
    try:
        values = json.loads(read_secret(path).reveal())
        access = Access(values["url"], values["authority"], values["token"])
    except (ValueError, RecursionError, KeyError, TypeError):
        access = Access("", "", "")
    if not all(isinstance(part, str) and part for part in (access.url, access.token)):
        raise NotEnrolledError(
            f"{path} is not what `consortium serve` or `consortium token new` writes",
            hint="start consortium serve again, or ask for a new token",
        )
    return access


class Operator:
    """One coordinator, as its operator speaks with it."""

    def __init__(self, folder: Path) -> None:
        from consortium.site.transport import Client, verified_context

        access = read_access(folder)
        self._headers = {"Authorization": f"Bearer {access.token}"}
        self._client = Client(access.url, verified_context(access.authority.encode()))

    def get(self, path: str) -> Any:
        """The JSON at a path."""
        return self._ask("GET", path)

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """The JSON that an order is answered with."""
        return self._ask("POST", path, body)

    def federations(self) -> list[str]:
        """The names of all federations here."""
        return [str(one["federation"]) for one in self.get("/v1/federations")]

    def federation(self, wanted: str | None) -> str:
        """The path of the federation that is meant: the named one, or the only one."""
        if wanted is not None:
            return self.path_of(wanted)
        names = self.federations()
        if len(names) != 1:
            raise UsageError(
                f"there are {len(names)} federations here: say which one",
                hint=f"--federation {names[0]}    # or: {', '.join(names[1:])}" if names else "",
            )
        return self.path_of(names[0])

    @staticmethod
    def path_of(federation: str) -> str:
        """Where the federation of that name is told of."""
        return f"/v1/federations/{quote(federation, safe='')}"

    @contextmanager
    def open(
        self, path: str, headers: Mapping[str, str], *, takes: tuple[int, ...] = ()
    ) -> Iterator[Response]:
        """The open answer to a GET, for what is too large to hold."""
        with self._opened("GET", path, headers, b"", takes) as response:
            yield response

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        with self._opened(method, path, headers, content) as response:
            return _decoded(response)

    @contextmanager
    def _opened(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes,
        takes: tuple[int, ...] = (),
    ) -> Iterator[Response]:
        from consortium.site.transport import Request

        request = Request(method, path, {**self._headers, **headers}, content)
        try:
            with self._client.open(request, takes=takes) as response:
                yield response
        except UnreachableError as error:
            if "status" in error.details:  # it has answered
                raise
            raise UnreachableError(
                error.message, hint="start it: consortium serve; look closer: consortium doctor"
            ) from None


@contextmanager
def operator(folder: Path) -> Iterator[Operator]:
    """The coordinator whose folder this is, for one command."""
    found = Operator(folder)
    try:
        yield found
    finally:
        found.close()


def _decoded(response: Response) -> Any:
    told = response.read_all(_MOST_BYTES)
    try:
        return json.loads(told)
    except (ValueError, RecursionError):
        raise WireError("the coordinator's answer is not JSON") from None

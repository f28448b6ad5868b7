"""Every route and everybody: what each hears. Made from the OpenAPI document and the table of
`access`, kept as a reviewed page (docs/reference/access.md), and performed by a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fastapi import FastAPI

from consortium.coordinator.access import RULES, Action, Role
from consortium.coordinator.app import MODULES
from consortium.coordinator.described import ACTION, describe
from consortium.coordinator.gate import guarded


class Reach(StrEnum):
    """What somebody belongs to, seen from the federation that is asked about."""

    OWN = "own"
    OTHER = "other"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who asks. `holds` says whether the token holds, or the site was not revoked."""

    role: Role
    reach: Reach = Reach.OWN
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One route."""

    method: str
    path: str
    action: Action

    @property
    def names_federation(self) -> bool:
        """In its path, or in its body."""
        return "{name}" in self.path or self.path == "/federated/server/start"


OPERATORS = (Role.VIEWER, Role.OFFICER, Role.LEAD, Role.ADMIN)
_OLD = Person(Role.ADMIN, Reach.ALL, holds=False)
COLUMNS: dict[str, tuple[Person, ...]] = {
    "nobody": (Person(Role.ANYBODY),),
    "token that does not hold": (_OLD,),
    **{str(role): tuple(Person(role, reach) for reach in Reach) for role in OPERATORS},
    "site": (Person(Role.SITE), Person(Role.SITE, Reach.OTHER)),
    "revoked site": (Person(Role.SITE, holds=False),),
}


def document() -> dict[str, Any]:
    """The routes, without a coordinator behind them."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for module in MODULES:
        guarded(app, module.routes)
    return describe(app)


def rows() -> Iterator[Row]:
    """Every route, in the order of the document."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield Row(method.upper(), path, Action(operation[ACTION]))


def expected(row: Row, person: Person) -> str:
    """`yes`, or the status of the refusal."""
    roles = RULES[row.action].roles
    if Role.ANYBODY in roles:
        return "yes"
    if Role.SITE in roles:
        return _of_site(row, person)
    if person.role not in OPERATORS or not person.holds:
        return "401"
    return _of_operator(row, person)


def _of_site(row: Row, person: Person) -> str:
    if person.role is not Role.SITE:
        return "401"
    if not person.holds:  # who was put out is told so when it leaves: it may have lost the answer
        return "403" if row.action is Action.LEAVE else "401"
    is_elsewhere = person.reach is Reach.OTHER and row.path == "/v1/blobs/{digest}"
    return "404" if is_elsewhere else "yes"


def _of_operator(row: Row, person: Person) -> str:
    rule = RULES[row.action]
    is_hidden = row.names_federation and person.reach is Reach.OTHER
    if is_hidden and "{name}" in row.path:
        return "404"
    if person.role not in rule.roles or (rule.is_whole and person.reach is not Reach.ALL):
        return "403"
    return "404" if is_hidden else "yes"


def table() -> str:
    """The page's table."""
    heads = list(COLUMNS)
    lines = [f"| route | action | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for row in rows():
        cells = [" ".join(expected(row, one) for one in people) for people in COLUMNS.values()]
        lines.append(f"| `{row.method} {row.path}` | {row.action} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read_table(page: str) -> dict[tuple[str, str], dict[Person, str]]:
    """What a page says: for each method and path what everybody hears."""
    found: dict[tuple[str, str], dict[Person, str]] = {}
    people = [one for column in COLUMNS.values() for one in column]
    for line in page.splitlines():
        if not line.startswith("| `"):
            continue
        route, _, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        method, _, path = route.strip("`").partition(" ")
        answers = " ".join(cells).split()
        found[method, path] = dict(zip(people, answers, strict=True))
    return found

"""Takes every check of who may do what out of the running code, one at a time, and looks
whether the attacks and the matrix of tests/coordinator notice.

    python -m scripts.remove_checks            exit 1 if one is not missed
    python -m scripts.remove_checks --list     the checks

A check is: an `if` whose body refuses; a statement that calls something which refuses; a part
of an `and` that grants, or of an `or` that refuses; a row of the table of `access`. They are
found in the functions of `WHERE` by their form, so a new one is tried without being listed.
"""

from __future__ import annotations

import ast
import inspect
import logging
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from consortium.coordinator import (
    access,
    auth,
    bodies,
    desk,
    edge,
    enrolment,
    gate,
    office,
    operators,
    remembered,
    routes_site,
    tokens,
    uploads,
)
from consortium.coordinator.access import RULES, Action, Role, Rule
from consortium.coordinator.matrix import rows
from consortium.wire import signing
from tests.coordinator.access_attacks import HEARS, Attack, heard
from tests.coordinator.access_cells import complaints_of
from tests.coordinator.access_world import World, world

_USES = 30  # of a world: each leaves some sites behind
WHERE: tuple[Any, ...] = (
    access.allowed,
    access.check,
    access.Scope.covers,
    access.Scope.is_whole,
    auth.site_of,
    auth.operator_of,
    auth.token_of,
    auth._check_certificate,
    auth.Caller.in_round,
    gate.Visit.teller,
    gate.Visit.tellers,
    gate.Gate.admit,
    gate.Gate._identified,
    gate.Gate._site,
    gate.Gate._operator,
    signing.Signed.verify,
    office.Office.site,
    office.Office.enrol,
    office.Office.renew,
    operators.operator_of,
    enrolment.redeem,
    enrolment._admit,
    tokens._scope,
    bodies.check_digest,
    edge.Edge.signed,
    edge.Edge.answered,
    edge.Edge.asking,
    remembered.Remembered.once,
    desk.Desk.may_read,
    desk.Desk.seat,
    desk.Desk._member,
    desk.Desk.has_member,
    desk.Desk.register,
    routes_site._opened,
    routes_site._before_chunks,
)
# What refuses when it is called as a statement.
_CHECKERS = {"check", "check_digest", "verify", "_check_certificate", "check_public_key"}
# Not missed, and why.
_NO_SEAT = "seat 0 is nobody's, so there is no member there"
_FOR_TYPES = "the type checker asks for it: nothing is same as nobody's key"
SPARE = {
    "desk.Desk.seat: … or site.seat is None": _NO_SEAT,
    "desk.Desk.has_member: … and site.seat is not None": _NO_SEAT,
    "enrolment.redeem: … and holder is not None": _FOR_TYPES,
    "desk.Desk.may_read: … or open_round is None": "without a round there is nothing to read",
    "routes_site._before_chunks: … and not is_next": "a short way: without it the same is found",
    "routes_site._before_chunks: … and size": "no bytes: nothing is written, whatever is answered",
}


@dataclass(frozen=True)
class Removal:
    """One check, and how to take it out until the block ends."""

    name: str
    out: Callable[[], Any]  # a context manager


# ---- by form ------------------------------------------------------------------------


class _Cut(ast.NodeTransformer):
    """Takes the check of this number out of a function, or counts them."""

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.found = wanted, []

    def _is_it(self, what: str) -> bool:
        self.found.append(what)
        return len(self.found) - 1 == self.wanted

    def visit_If(self, node: ast.If) -> ast.AST:
        if _refuses(node.body):
            if self._is_it(f"if {ast.unparse(node.test)}"):
                node.test = ast.Constant(False)
            elif isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or):
                self._parts(node.test)
        elif isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
            self._parts(node.test)  # it grants
        node.body = [self.visit(one) for one in node.body]
        node.orelse = [self.visit(one) for one in node.orelse]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.And):
            self._parts(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and _name(call.func) in _CHECKERS:
            if self._is_it(ast.unparse(node)):
                return ast.copy_location(ast.Pass(), node)
        return node

    def _parts(self, node: ast.BoolOp) -> None:
        neutral = ast.Constant(isinstance(node.op, ast.And))
        word = "and" if isinstance(node.op, ast.And) else "or"
        for at, part in enumerate(list(node.values)):
            if self._is_it(f"… {word} {ast.unparse(part)}"):
                node.values[at] = ast.copy_location(neutral, part)


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _refuses(body: list[ast.stmt]) -> bool:
    """Raises, or returns nothing that anybody could use."""
    last = body[-1]
    if isinstance(last, ast.Raise):
        return True
    empty = isinstance(last, ast.Return) and isinstance(last.value, ast.Constant)
    return empty and last.value.value in (0, False)  # type: ignore[attr-defined]


def _by_form(function: Any) -> Iterator[Removal]:
    function = function.fget if isinstance(function, property) else function
    source = textwrap.dedent(inspect.getsource(function))
    counting = _Cut()
    counting.visit(ast.parse(source))
    for number, what in enumerate(counting.found):
        place = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        yield Removal(f"{place}: {what}", lambda number=number: _without(function, source, number))


@contextmanager
def _without(function: FunctionType, source: str, number: int) -> Iterator[None]:
    """The code of a function is exchanged, so whoever has imported it has the other one."""
    tree = ast.fix_missing_locations(_Cut(number).visit(ast.parse(source)))
    made: dict[str, Any] = {}
    tree.body[0].decorator_list = []
    exec(
        compile(tree, f"<{function.__qualname__} without a check>", "exec"),
        function.__globals__,
        made,
    )
    kept, function.__code__ = function.__code__, made[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = kept


# ---- by hand ------------------------------------------------------------------------


def _rows_of_the_table() -> Iterator[Removal]:
    """For each action and each operator's role: the other way round."""
    for action, rule in RULES.items():
        if Role.SITE in rule.roles or Role.ANYBODY in rule.roles:
            continue
        for role in (Role.VIEWER, Role.OFFICER, Role.LEAD, Role.ADMIN):
            other = Rule(rule.roles ^ {role}, rule.is_whole)
            word = "may not" if role in rule.roles else "may"
            yield Removal(f"RULES: {role} {word} {action}", lambda a=action, o=other: _rule(a, o))
        if rule.is_whole:
            bounded = Rule(rule.roles, is_whole=False)
            yield Removal(f"RULES: {action} of a part", lambda a=action, o=bounded: _rule(a, o))


@contextmanager
def _rule(action: Action, rule: Rule) -> Iterator[None]:
    kept, RULES[action] = RULES[action], rule
    try:
        yield
    finally:
        RULES[action] = kept


@contextmanager
def _instead(owner: Any, name: str, other: Any) -> Iterator[None]:
    kept = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def _by_hand() -> Iterator[Removal]:
    key = operators.token_key
    yield Removal(
        "operators.token_key: the audience",
        lambda: _instead(operators, "token_key", lambda token, _: key(token, "")),
    )
    home = uploads.Uploads._home
    yield Removal(
        "uploads.Uploads._home: whose upload it is",
        lambda: _instead(uploads.Uploads, "_home", lambda self, _: home(self, "everybody")),
    )
    done = uploads.Uploads._done
    yield Removal(
        "uploads.Uploads._done: who has sent it",
        lambda: _instead(uploads.Uploads, "_done", lambda self, _: done(self, "everybody")),
    )
    yield Removal(
        "desk.Desk.upload_limit: who may upload now",
        lambda: _instead(desk.Desk, "upload_limit", lambda *_: 1 << 20),
    )
    site = office.Office.site
    yield Removal(
        "auth.site_of: may_be_out only to leave",
        lambda: _instead(
            office.Office, "site", lambda self, one, **_: site(self, one, may_be_out=True)
        ),
    )
    yield Removal(
        "gate.Visit.tellers: what is shown in a list",
        lambda: _instead(gate.Visit, "tellers", lambda self: self.office.tellers()),
    )


def removals() -> list[Removal]:
    found = [one for function in WHERE for one in _by_form(function)]
    return [*found, *_rows_of_the_table(), *_by_hand()]


# ---- trying -------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """An attack, or a row of the matrix: what it complains of."""

    name: str
    complaint: Callable[[World], str | None]


def probes() -> list[Probe]:
    found = [Probe(attack.__name__, lambda w, a=attack: _attack(w, a)) for attack in HEARS]
    for row in rows():
        name = f"{row.action} {row.method} {row.path}"
        found.append(Probe(name, lambda w, r=row: next(complaints_of(w, r.method, r.path), None)))
    return found


def _attack(world: World, attack: Attack) -> str | None:
    found = heard(world, attack)
    return None if found == HEARS[attack] else f"{attack.__name__}: {found}"


def _complaint(probe: Probe, world: World) -> str | None:
    try:
        return probe.complaint(world)
    except Exception as error:  # what cannot even begin without its check misses it
        return f"{probe.name}: {type(error).__name__}: {error}"


class Bench:
    """A world that is used again as long as it is clean."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._world: World | None = None
        self._uses = 0

    def world(self) -> World:
        if self._world is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory())
            self._world = self._stack.enter_context(world(Path(folder) / "data"))
            self._uses = 0
        self._uses += 1
        return self._world

    def renew(self) -> None:
        self._world = None
        with suppress(AssertionError):  # a federation without its checks may have had trouble
            self._stack.close()

    def notice(self, removal: Removal, wanted: list[Probe]) -> str | None:
        """Who notices that a check is missing, and is quiet when it is back."""
        if self._uses > _USES:
            self.renew()
        for is_fresh in (False, True):
            if is_fresh:
                self.renew()
            there = self.world()
            with removal.out():
                found = _first(wanted, there)
            if found is None or is_fresh or _complaint(found[0], there) is None:
                return None if found is None else found[1]
        return None


def _first(wanted: list[Probe], there: World) -> tuple[Probe, str] | None:
    for probe in wanted:
        complaint = _complaint(probe, there)
        if complaint is not None:
            return probe, complaint
    return None


def _likely_first(removal: Removal, wanted: list[Probe]) -> list[Probe]:
    """Those that speak of the same action, then the attacks, then the rest."""
    action = removal.name.partition(" of a part")[0].split(" may ")[-1].removeprefix("not ")
    action = action.removeprefix("RULES: ")
    return sorted(wanted, key=lambda probe: not probe.name.startswith(f"{action} "))


def main(arguments: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    wanted, looking, bench = removals(), probes(), Bench()
    if "--list" in arguments:
        print("\n".join(one.name for one in wanted))
        return 0
    begun, unnoticed = time.monotonic(), []
    told = _first(looking, bench.world())
    assert told is None, f"with every check in its place: {told}"
    for removal in wanted:
        notice = bench.notice(removal, _likely_first(removal, looking))
        if "-v" in arguments or (notice is None and removal.name not in SPARE):
            print(f"{removal.name}\n    {notice or 'NOT MISSED'}", flush=True)
        if (notice is None) is not (removal.name in SPARE):
            unnoticed.append(removal.name)
    bench.renew()
    took_s = time.monotonic() - begun
    print(f"{len(wanted)} checks taken out, {len(SPARE)} known to be spare,", end=" ")
    print(f"{len(unnoticed)} not as expected, {took_s:.0f} s")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

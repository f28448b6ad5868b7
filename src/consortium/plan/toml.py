"""Plans as TOML, in and out. An error points at the line and suggests what was meant."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from consortium.errors import (
    PlanError,
    PlanFileError,
    PlanSyntaxError,
    UnknownKeyError,
    WrongTypeError,
)
from consortium.plan.check import problems
from consortium.plan.problem import Problem, remedies
from consortium.plan.values import Plan

MAX_PLAN_BYTES = 1 << 20

# Pydantic speaks of Python's types; a plan is TOML.
_IN_WORDS = {
    "a valid tuple": 'a list, such as ["one", "two"]',
    "a valid string": "text in quotes",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "String should match pattern": "must be of the form",
}

Key = tuple[str, ...]


def read_plan(path: str | Path) -> Plan:
    """The plan in a TOML file, checked. Raises a `PlanError` that names the line."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanFileError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_PLAN_BYTES:
        raise PlanFileError(f"{path} is larger than 1 MiB; that is not a plan")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise PlanSyntaxError(f"{path} is not UTF-8 text", where=str(path)) from None
    return parse_plan(text, str(path))


def parse_plan(text: str, name: str = "plan") -> Plan:
    """The plan in `text`; `name` is what error messages call it."""
    source = Source(text, name)
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise source.syntax_error(str(error)) from None
    return plan_of(values, source)


def plan_of(values: dict[str, Any], source: Source) -> Plan:
    """The plan of these sections and keys, checked; `source` is what errors point at."""
    plan = typed(values, source)
    found = problems(plan)
    if found:
        raise source.problem(found)
    return plan


def typed(values: dict[str, Any], source: Source) -> Plan:
    """The plan of these sections and keys. Each is known and has a value that it may have;
    whether they go together was not looked at."""
    try:
        return Plan.model_validate(values)
    except ValidationError as error:
        raise _explain(error.errors()[0], source) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The values in a TOML text; raises `ValueError`, in words for people, for any other."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python's own limit, in words for programmers
        raise ValueError("a number has too many digits") from None
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None


def write_plan(plan: Plan) -> str:
    """The plan as TOML, every key that is not at its default. Reads back to an equal plan."""
    values = plan.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return tomli_w.dumps({name: table for name, table in values.items() if table})


def _explain(detail: ErrorDetails, source: Source) -> PlanError:
    """Pydantic's finding as one of our errors, with its line."""
    key: Key = tuple(str(part) for part in detail["loc"] if isinstance(part, str))
    place = f"`{key[-1]}` in [{key[0]}]" if len(key) > 1 else f"[{key[0]}]"
    if detail["type"] == "extra_forbidden":
        kind = "key" if len(key) > 1 else "section"
        hint = _home_of(key[-1]) if len(key) == 1 else ""
        hint = hint or _suggestion(key[-1], _keys(key[:-1]))
        return source.error(UnknownKeyError, key, f"unknown {kind} {place}", hint)
    if len(key) == 1:
        return source.error(
            WrongTypeError, key, f"{place} is a section, not a value", _describe(key)
        )
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    for theirs, ours in _IN_WORDS.items():
        message = message.replace(theirs, ours)
    return source.error(WrongTypeError, key, f"{place}: {message}", _describe(key))


def _keys(section: Key) -> list[str]:
    model: type[BaseModel] = Plan
    for name in section:
        annotation = Plan.model_fields[name].annotation
        model = annotation if isinstance(annotation, type) else model
    return list(model.model_fields)


def _home_of(name: str) -> str:
    """Where a key belongs that stands outside of any section."""
    for section in Plan.model_fields:
        if name in _keys((section,)):
            return f"{name} belongs under [{section}]"
    return ""


def _describe(key: Key) -> str:
    if len(key) != 2 or key[0] not in Plan.model_fields:
        return "a section holds keys: [federation], then rounds = 20"
    section = Plan.model_fields[key[0]].annotation
    field = section.model_fields[key[1]]  # type: ignore[union-attr]  # every field of Plan is a section
    choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    listed = f" (one of {', '.join(choices)})" if choices else ""
    return f"{key[1]}: {field.description}{listed}"


def _suggestion(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known keys: {', '.join(sorted(known))}"


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a plan, for pointing at lines, or a name alone. tomllib keeps no positions,
    so keys are looked for in the text; a key that is not found is reported without a line."""

    text: str
    name: str

    def problem(self, found: Sequence[Problem]) -> PlanError:
        """The first, with the remedies of all."""
        first = found[0]
        return self.error(first.kind, first.key, first.message, remedies(found))

    def error(self, kind: type[PlanError], key: Key, message: str, hint: str) -> PlanError:
        place = self._find(key) or (self._find(key[:1]) if len(key) > 1 else None)
        if place is None:
            return kind(message, hint=hint, where=self.name)
        line, column, width = place
        return kind(
            message, hint=hint, where=f"{self.name}:{line}", excerpt=self._at(line, column, width)
        )

    def syntax_error(self, message: str) -> PlanError:
        match = re.search(r"\(at line (\d+), column (\d+)\)", message)
        what = re.sub(r"\s*\(at .*\)$", "", message)
        what = what[:1].lower() + what[1:]
        is_value = "invalid value" in message.lower()
        hint = 'text is written in quotes: name = "heart"' if is_value else ""
        if match is None:
            return PlanSyntaxError(f"not TOML: {what}", hint=hint, where=self.name)
        line, column = int(match[1]), int(match[2])
        excerpt = self._at(line, column, 1)
        where = f"{self.name}:{line}"
        return PlanSyntaxError(f"not TOML: {what}", hint=hint, where=where, excerpt=excerpt)

    def _at(self, line: int, column: int, width: int) -> str:
        lines = self.text.splitlines()
        shown = lines[line - 1] if line <= len(lines) else ""
        return f"{shown}\n{' ' * (column - 1)}{'^' * width}"

    def _find(self, key: Key) -> tuple[int, int, int] | None:
        """(line, column, width) of a section's header or of a key in it."""
        section: Key = ()
        for number, line in enumerate(self.text.splitlines(), start=1):
            header = re.match(r"\s*\[\s*([^\[\]#]+?)\s*\]", line)
            if header:
                section = tuple(part.strip(" \"'") for part in header[1].split("."))
                if section == key:
                    return number, header.start(1) + 1, len(header[1])
                continue
            entry = re.match(r"\s*([A-Za-z0-9_.\"'-]+)\s*=", line)
            if entry:
                name = tuple(part.strip("\"'") for part in entry[1].split("."))
                if (*section, *name) == key:
                    return number, entry.start(1) + 1, len(entry[1])
        return None

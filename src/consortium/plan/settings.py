"""Keys of a plan set from outside: `training.lr=0.01,0.1` on the command line.

Behind the `=` stand values with commas between them, each as in a plan file; a word that is
no TOML value is text, so that names and times need no quotes, and `default` takes the key
out of the plan. Several values make several plans: the grid of all settings.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from consortium.errors import UnknownKeyError, UsageError, WrongTypeError
from consortium.plan.toml import Source, parse_toml, plan_of, typed
from consortium.plan.values import Plan

_FORM = "--set training.lr=0.01,0.1"
_DEFAULT = "default"
_OPENING, _CLOSING = "[{", "]}"


class _Default:
    """In place of a value: the key as if the plan did not have it."""


DEFAULT = _Default()


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a plan, and the values that it is to have."""

    section: str
    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A plan with one value for each setting."""

    plan: Plan
    settings: tuple[tuple[str, str], ...]  # (section.key, the value as it was told)

    @property
    def label(self) -> str:
        """The settings in words; empty when there are none."""
        return " ".join(f"{name}={value}" for name, value in self.settings)


def parse_setting(text: str) -> Setting:
    """`SECTION.KEY=VALUE,VALUE…` as a setting. Refuses keys that no plan has, by near misses,
    and values that the key cannot have.

    >>> parse_setting("training.lr=0.01,0.1").values
    (0.01, 0.1)
    >>> parse_setting('personal.layers=["head"],[head, tail]').values
    (['head'], ['head', 'tail'])
    """
    name, equals, rest = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not section or not key:
        raise UsageError(
            f"--set {text}: not of the form SECTION.KEY=VALUE", hint=_homes(name.strip()) or _FORM
        )
    parts = _split(rest)
    if not all(parts):
        raise UsageError(
            f"--set {text}: a value is missing", hint=f'{_FORM}; for empty text: {name}=""'
        )
    setting = Setting(section, key, tuple(_value(part) for part in parts))
    for part, value in zip(parts, setting.values, strict=True):
        _check(setting, value, Source("", f"--set {setting.name}={part}"))
    if len({json.dumps(shown(value)) for value in setting.values}) < len(parts):
        raise UsageError(f"--set {text}: a value is there twice", hint="each value once")
    return setting


def variants(plan: Plan, settings: Sequence[Setting]) -> list[Variant]:
    """One plan for each combination of values, each of them checked; the last setting changes
    first. Without settings, the plan itself."""
    names = [setting.name for setting in settings]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"--set {name} is there twice", hint=f"one --set with all values: {name}=1,2"
            )
    return list(_variants(plan, settings)) if settings else [Variant(plan, ())]


def _variants(plan: Plan, settings: Sequence[Setting]) -> Iterator[Variant]:
    for values in itertools.product(*(setting.values for setting in settings)):
        # Only what was set: that a key is there may mean something, as in [simulation].
        sections = plan.model_dump(exclude_unset=True)
        for setting, value in zip(settings, values, strict=True):
            section = sections.setdefault(setting.section, {})
            if value is DEFAULT:
                section.pop(setting.key, None)
            else:
                section[setting.key] = value
        told = tuple(
            (setting.name, shown(value)) for setting, value in zip(settings, values, strict=True)
        )
        name = " ".join(f"--set {key}={value}" for key, value in told)
        yield Variant(plan_of(sections, Source("", name)), told)


def shown(value: Any) -> str:
    """A value as it can be told again."""
    if value is DEFAULT:
        return _DEFAULT
    if isinstance(value, str) and _value(value) == value:
        return value
    return json.dumps(value)


def _check(setting: Setting, value: Any, source: Source) -> None:
    """Refuse an unknown key, or a value that it cannot have. Whether the value goes together
    with the rest of the plan is found out with all of it."""
    stands_for = None if value is DEFAULT else value
    try:
        typed({setting.section: {setting.key: stands_for}}, source)
    except WrongTypeError:
        if value is not DEFAULT:  # nothing is wrong with a key that is taken out
            raise
    except UnknownKeyError as error:
        error.hint = _homes(setting.key) or error.hint
        raise


def _split(text: str) -> list[str]:
    """The parts of a text between commas that stand in no list, table or quotes."""
    parts, depth, quote, is_escaped = [""], 0, "", False
    for letter in text:
        if quote:
            is_end = letter == quote and not is_escaped
            is_escaped = quote == '"' and letter == "\\" and not is_escaped
            quote = "" if is_end else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPENING + _CLOSING:
            depth += 1 if letter in _OPENING else -1
        elif letter == "," and depth <= 0:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def _value(text: str) -> Any:
    """A value as in a plan file; a word that is none is text, in a list too, because shells
    take quotes away."""
    if text == _DEFAULT:
        return DEFAULT
    found = _in_toml(text)
    if isinstance(found, str) and text.startswith("[") and text.endswith("]"):
        return [_in_toml(part) for part in _split(text[1:-1]) if part]
    return found


def _in_toml(text: str) -> Any:
    try:
        values = parse_toml(f"value = {text}")
    except ValueError:
        return text
    return values["value"] if len(values) == 1 else text


def _homes(key: str) -> str:
    """Where a key belongs that was told without its section."""
    homes = [
        f"{section}.{key}"
        for section, field in Plan.model_fields.items()
        if key in getattr(field.annotation, "model_fields", {})
    ]
    return f"did you mean {' or '.join(homes)}?" if homes else ""

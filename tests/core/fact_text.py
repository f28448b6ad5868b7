"""Facts as readable text (JSON), for the vectors, and strategies that make any fact.

Both walk the type hints on their own, without the codec's help, so that they can
disagree with it.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import IntEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from consortium.core import account_facts, facts, site_facts
from consortium.core.codec import decode, kinds_in
from consortium.core.ids import Digest, Seat, Seats, SiteId
from consortium.core.terms import TOLD_APART, ReportValue

FACTS: tuple[type[Any], ...] = get_args(facts.Fact)
SITE_FACTS: tuple[type[Any], ...] = get_args(site_facts.SiteFact)
ACCOUNT_FACTS: tuple[type[Any], ...] = get_args(account_facts.AccountFact)
EVERY_FACT = {cls.__name__: cls for cls in (*FACTS, *SITE_FACTS, *ACCOUNT_FACTS)}


def every_kind() -> dict[int, type[Any]]:
    return kinds_in(*EVERY_FACT.values())


def read(record: bytes) -> Any:
    """Decode a fact of either log."""
    return decode(record, every_kind)


# ---- text -----------------------------------------------------------------------------


def to_text(fact: object) -> str:
    return json.dumps(_to_json(fact), ensure_ascii=False)


def from_text(cls: type[Any], text: str) -> Any:
    return _from_json(cls, json.loads(text))


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return {name: _to_json(getattr(value, name)) for name in _told(type(value))}
    if isinstance(value, IntEnum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return value


def _told(cls: type[Any]) -> list[str]:
    """The fields that are written with the record: some of `Terms` are told by another fact."""
    return [field.name for field in fields(cls) if TOLD_APART not in field.metadata]


def _from_json(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return hint(**{name: _from_json(hints[name], item) for name, item in value.items()})
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return hint[value]
    if hint in (bytes, Digest):
        return bytes.fromhex(value)
    if _is_optional(hint):
        return None if value is None else _from_json(get_args(hint)[0], value)
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        if inner[-1] is Ellipsis:
            return tuple(_from_json(inner[0], item) for item in value)
        return tuple(_from_json(kind, item) for kind, item in zip(inner, value, strict=True))
    return value


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (UnionType, Union) and NoneType in get_args(hint)


# ---- strategies -----------------------------------------------------------------------

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
SEATS = st.one_of(
    st.sets(st.integers(1, 60), max_size=25),
    st.sets(st.integers(1, 2**62), max_size=6),
    st.integers(1, 5000).map(lambda size: set(range(1, size))),
).map(lambda seats: tuple(sorted(seats)))

_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: NUMBERS,
    Seat: NUMBERS,
    bool: st.booleans(),
    float: FLOATS,
    bytes: st.binary(max_size=70),
    str: TEXTS,
    SiteId: TEXTS,
    Digest: st.binary(min_size=32, max_size=32),
    Seats: SEATS,
    ReportValue: st.one_of(st.booleans(), st.integers(-(2**62), 2**62 - 1), FLOATS, TEXTS),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may have."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{name: values_of(hints[name]) for name in _told(hint)})
    if _is_optional(hint):
        return st.none() | values_of(get_args(hint)[0])
    inner = get_args(hint)
    if inner[-1] is Ellipsis:
        return st.lists(values_of(inner[0]), max_size=5).map(tuple)
    return st.tuples(*map(values_of, inner))


def any_fact() -> st.SearchStrategy[Any]:
    return st.one_of([values_of(cls) for cls in EVERY_FACT.values()])

"""The folded state as bytes, so that a long log need not be folded again at every start.

A snapshot is a cache: it is bound to the code that wrote it and to the record that it
ends at, and whatever does not fit exactly is thrown away and the log folded instead.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from consortium.core.codec import Coder, coder_of
from consortium.core.roster import Member, Roster
from consortium.core.state import Federation, Round, Sums, Version
from consortium.core.terms import Terms
from consortium.errors import CodecError

_STATE = (Federation, Roster, Member, Round, Sums, Version, Terms)
_CHECKSUM_BYTES = 32


def save(state: Federation, last_record: bytes, code: bytes) -> bytes:
    """The state after a log that ends with `last_record`, folded by the code of that digest."""
    out = bytearray()
    _root()[0](out, state)
    return _seal(bytes(out), last_record, code) + bytes(out)


def load(snapshot: bytes, last_record: bytes, code: bytes) -> Federation:
    """The state, if this snapshot was saved by this very code after this very record.

    Raises `CodecError` for anything else.
    """
    sealed, body = snapshot[:_CHECKSUM_BYTES], snapshot[_CHECKSUM_BYTES:]
    if sealed != _seal(body, last_record, code):
        raise CodecError("the snapshot is not of this log, of other code, or damaged")
    state, _ = _root()[1](body, 0)
    assert isinstance(state, Federation)
    return state


def _seal(body: bytes, last_record: bytes, code: bytes) -> bytes:
    return sha256(sha256(code).digest() + sha256(last_record).digest() + body).digest()


_coders: dict[str, Coder] = {}


def _root() -> Coder:
    if "root" not in _coders:
        _coders["root"] = _state_coder(Federation)
    return _coders["root"]


def _state_coder(hint: Any) -> Coder:
    """What the codec of facts does not know: mutable records, tables, lists, enums, unions."""
    arguments = get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint) and hint in _STATE:
        return _record(hint)
    if isinstance(hint, type) and issubclass(hint, Enum) and not issubclass(hint, IntEnum):
        return _enum(hint)
    if get_origin(hint) is list:
        return _list(_state_coder(arguments[0]))
    if get_origin(hint) is dict:
        return _table(_state_coder(arguments[0]), _state_coder(arguments[1]))
    if get_origin(hint) in (UnionType, Union):
        return _union(arguments)
    if hint in (None, NoneType):
        return (lambda out, value: None), (lambda record, at: (None, at))
    return coder_of(hint, str(hint))


_put_count, _take_count = coder_of(int, "count")


def _record(cls: type[Any]) -> Coder:
    hints = get_type_hints(cls)
    parts = [(field.name, *_state_coder(hints[field.name])) for field in fields(cls)]

    def put(out: bytearray, value: Any) -> None:
        for name, put_part, _ in parts:
            put_part(out, getattr(value, name))

    def take(record: bytes, at: int) -> tuple[Any, int]:
        values = {}
        for name, _, take_part in parts:
            values[name], at = take_part(record, at)
        return cls(**values), at

    return put, take


def _enum(kind: type[Enum]) -> Coder:
    members = list(kind)
    numbers = {member: number for number, member in enumerate(members)}

    def take(record: bytes, at: int) -> tuple[Enum, int]:
        number, at = _take_count(record, at)
        if number >= len(members):
            raise CodecError(f"unknown {kind.__name__} {number}")
        return members[number], at

    return (lambda out, value: _put_count(out, numbers[value])), take


def _list(inner: Coder) -> Coder:
    put_item, take_item = inner

    def put(out: bytearray, values: list[Any]) -> None:
        _put_count(out, len(values))
        for value in values:
            put_item(out, value)

    def take(record: bytes, at: int) -> tuple[list[Any], int]:
        count, at = _take_count(record, at)
        values = []
        for _ in range(count):
            value, at = take_item(record, at)
            values.append(value)
        return values, at

    return put, take


def _table(key: Coder, value: Coder) -> Coder:
    """A dictionary in its own order: the order of seats is part of the state."""
    put_pairs, take_pairs = _list(_pair(key, value))

    def take(record: bytes, at: int) -> tuple[dict[Any, Any], int]:
        pairs, at = take_pairs(record, at)
        return dict(pairs), at

    return (lambda out, table: put_pairs(out, list(table.items()))), take


def _pair(left: Coder, right: Coder) -> Coder:
    def put(out: bytearray, pair: tuple[Any, Any]) -> None:
        left[0](out, pair[0])
        right[0](out, pair[1])

    def take(record: bytes, at: int) -> tuple[tuple[Any, Any], int]:
        first, at = left[1](record, at)
        second, at = right[1](record, at)
        return (first, second), at

    return put, take


def _union(arguments: tuple[Any, ...]) -> Coder:
    """A tag, then the value; by exact type. New types of bytes are told by being bytes."""
    coders = [_state_coder(argument) for argument in arguments]
    kinds = [getattr(argument, "__supertype__", argument) for argument in arguments]

    def put(out: bytearray, value: Any) -> None:
        tag = kinds.index(type(value))
        _put_count(out, tag)
        coders[tag][0](out, value)

    def take(record: bytes, at: int) -> tuple[Any, int]:
        tag, at = _take_count(record, at)
        if tag >= len(coders):
            raise CodecError(f"unknown type tag {tag}")
        return coders[tag][1](record, at)

    return put, take

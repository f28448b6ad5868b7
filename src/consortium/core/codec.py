"""One canonical, compact encoding for facts: equal facts have equal bytes, and only those.

A record is the fact's KIND as a varint, then its fields in order, typed by the class, so
nothing of the schema travels. The decoder refuses whatever the encoder would not have
written: unknown kinds and enum values, longer varints than needed, unsorted seats, floats
that are not finite, negative zero, trailing bytes. The format is docs/spec/facts.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from consortium.core import account_facts as account_fact_module
from consortium.core import facts as fact_module
from consortium.core import site_facts as site_fact_module
from consortium.core.ids import DIGEST_BYTES, Digest, Seat, Seats, SiteId
from consortium.core.terms import TOLD_APART, ReportValue
from consortium.errors import CodecError

MAX_TEXT_BYTES = 1024
MAX_ITEMS = 1 << 20
_MAX_INT = 1 << 63
_FLOAT = struct.Struct(">d")

# A value of any field type goes in and comes out; the schema, not the checker, knows which.
Put = Callable[[bytearray, Any], None]
Take = Callable[[bytes, int], tuple[Any, int]]
Coder = tuple[Put, Take]


def encode(fact: object) -> bytes:
    """The canonical bytes of a fact (or of any dataclass with a KIND)."""
    head, values_of, puts = _WRITERS.get(type(fact)) or _make_writer(type(fact))
    out = bytearray(head)
    for put, value in zip(puts, values_of(fact), strict=True):
        put(out, value)
    return bytes(out)


def decode(record: bytes, kinds: Callable[[], dict[int, type[Any]]] | None = None) -> Any:
    """The fact whose canonical bytes are `record`; anything else is refused."""
    kind, at = _take_uint(record, 0)
    cls = (kinds or fact_kinds)().get(kind)
    if cls is None:
        raise CodecError(f"unknown fact kind {kind}", hint="a newer version wrote this log")
    value, end = (_READERS.get(cls) or _make_reader(cls))(record, at)
    if end != len(record):
        raise CodecError(f"{len(record) - end} bytes follow the {cls.__name__}")
    return value


def kinds_in(*classes: type[Any]) -> dict[int, type[Any]]:
    """A decoding table; two classes with one KIND are a programming error."""
    table = {cls.KIND: cls for cls in classes}
    if len(table) != len(classes):
        raise CodecError("two facts have the same kind number")
    return table


@cache
def fact_kinds() -> dict[int, type[Any]]:
    """The coordinator's facts by kind number."""
    return kinds_in(*get_args(fact_module.Fact))


@cache
def account_kinds() -> dict[int, type[Any]]:
    """The facts of a privacy account by kind number."""
    return kinds_in(*account_fact_module.ACCOUNT_FACTS)


@cache
def site_kinds() -> dict[int, type[Any]]:
    """The facts of a site's own log by kind number."""
    return kinds_in(*get_args(site_fact_module.SiteFact))


# ---- whole records ------------------------------------------------------------------


# Compiled once a class, on first use.
_Writer = tuple[bytes, Callable[[Any], tuple[Any, ...]], tuple[Put, ...]]
_WRITERS: dict[type[Any], _Writer] = {}
_READERS: dict[type[Any], Take] = {}


def _make_writer(cls: type[Any]) -> _Writer:
    if not is_dataclass(cls) or not hasattr(cls, "KIND"):
        raise CodecError(f"not a fact: {cls.__name__}")
    head = bytearray()
    _put_uint(head, cls.KIND)
    names, coders = _schema(cls)
    _WRITERS[cls] = bytes(head), _values(names), tuple(put for put, _ in coders)
    return _WRITERS[cls]


def _make_reader(cls: type[Any]) -> Take:
    _, coders = _schema(cls)
    takes = tuple(take for _, take in coders)

    def read(record: bytes, at: int) -> tuple[Any, int]:
        values = []
        for take in takes:
            value, at = take(record, at)
            values.append(value)
        return cls(*values), at

    _READERS[cls] = read
    return read


def _schema(cls: type[Any]) -> tuple[tuple[str, ...], tuple[Coder, ...]]:
    hints = get_type_hints(cls)
    names = tuple(field.name for field in fields(cls) if TOLD_APART not in field.metadata)
    return names, tuple(coder_of(hints[name], f"{cls.__name__}.{name}") for name in names)


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:
        return lambda fact: (getattr(fact, names[0]),)
    return attrgetter(*names)


def coder_of(hint: Any, where: str) -> Coder:
    """How a field of this type is written and read. `Secret` has no entry, by design."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _enum_coder(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _record_coder(hint)
    arguments = get_args(hint)
    if get_origin(hint) in (UnionType, Union) and len(arguments) == 2 and arguments[1] is NoneType:
        return _optional_coder(coder_of(arguments[0], where))
    if get_origin(hint) is tuple and arguments[-1:] == (Ellipsis,):
        return _sequence_coder(coder_of(arguments[0], where))
    if get_origin(hint) is tuple:
        return _pair_coder([coder_of(argument, where) for argument in arguments])
    raise CodecError(f"{where}: a {getattr(hint, '__name__', hint)} cannot be part of a fact")


# ---- plain values -------------------------------------------------------------------


def _put_uint(out: bytearray, value: int) -> None:
    if type(value) is not int or not 0 <= value < _MAX_INT:
        raise CodecError(f"not an unsigned integer: {type(value).__name__}")
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _take_uint(record: bytes, at: int) -> tuple[int, int]:
    if at < len(record) and record[at] < 0x80:  # nearly all numbers are small
        return record[at], at + 1
    value = shift = 0
    while True:
        if at >= len(record) or shift > 63:
            raise CodecError("the record ends in the middle of a number, or it is too long")
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if (byte == 0 and shift) or value >= _MAX_INT:
        raise CodecError("a number is not in its shortest form or too large")
    return value, at


def _put_int(out: bytearray, value: int) -> None:
    if type(value) is not int or not -_MAX_INT // 2 <= value < _MAX_INT // 2:
        raise CodecError(f"not an integer in range: {type(value).__name__}")
    _put_uint(out, value * 2 if value >= 0 else -value * 2 - 1)


def _take_int(record: bytes, at: int) -> tuple[int, int]:
    value, at = _take_uint(record, at)
    return (-(value + 1) // 2 if value & 1 else value // 2), at


def _put_bool(out: bytearray, value: bool) -> None:
    if type(value) is not bool:
        raise CodecError(f"not a boolean: {type(value).__name__}")
    out.append(value)


def _take_bool(record: bytes, at: int) -> tuple[bool, int]:
    value, at = _take_uint(record, at)
    if value > 1:
        raise CodecError("a boolean is neither 0 nor 1")
    return bool(value), at


def _put_float(out: bytearray, value: float) -> None:
    if type(value) is not float or not math.isfinite(value):
        raise CodecError(f"not a finite float: {type(value).__name__}")
    out += _FLOAT.pack(value + 0.0)  # -0.0 + 0.0 is 0.0: one encoding for zero


def _take_float(record: bytes, at: int) -> tuple[float, int]:
    raw, at = _take_raw(record, at, 8)
    value: float = _FLOAT.unpack(raw)[0]
    if not math.isfinite(value) or (value == 0.0 and raw != bytes(8)):
        raise CodecError("a float is not finite or is a negative zero")
    return value, at


def _take_raw(record: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(record):
        raise CodecError("the record ends in the middle of a value")
    return record[at : at + size], at + size


def _put_bytes(out: bytearray, value: bytes) -> None:
    if type(value) is not bytes or len(value) > MAX_TEXT_BYTES:
        raise CodecError(f"not bytes, or too long: {type(value).__name__}")
    _put_uint(out, len(value))
    out += value


def _take_bytes(record: bytes, at: int) -> tuple[bytes, int]:
    size, at = _take_uint(record, at)
    if size > MAX_TEXT_BYTES:
        raise CodecError("a value is too long")
    return _take_raw(record, at, size)


def _put_text(out: bytearray, value: str) -> None:
    if type(value) is not str:
        raise CodecError(f"not text: {type(value).__name__}")
    try:
        _put_bytes(out, value.encode())
    except UnicodeEncodeError:
        raise CodecError("text with a lone surrogate has no encoding") from None


def _take_text(record: bytes, at: int) -> tuple[str, int]:
    raw, at = _take_bytes(record, at)
    try:
        return raw.decode(), at
    except UnicodeDecodeError:
        raise CodecError("text is not UTF-8") from None


def _put_digest(out: bytearray, value: bytes) -> None:
    if type(value) is not bytes or len(value) != DIGEST_BYTES:
        raise CodecError(f"not a digest: {type(value).__name__}")
    out += value


def _take_digest(record: bytes, at: int) -> tuple[bytes, int]:
    return _take_raw(record, at, DIGEST_BYTES)


def _put_seats(out: bytearray, seats: tuple[int, ...]) -> None:
    """Runs of consecutive seats: how many, then (gap since the last run, length) each."""
    if type(seats) is not tuple or len(seats) > MAX_ITEMS:
        raise CodecError(f"not a tuple, or too long: {type(seats).__name__}")
    numbers: list[int] = []
    last = 0
    for seat in seats:
        if type(seat) is not int or seat <= last:
            raise CodecError("seats are not strictly ascending positive integers")
        if seat - last == 1 and numbers:
            numbers[-1] += 1
        else:
            numbers.append(seat - last - 1)
            numbers.append(1)
        last = seat
    if numbers:
        numbers[0] += 1  # the first gap counts from zero, the others from the seat behind a run
    _put_uint(out, len(numbers) // 2)
    for number in numbers:
        if number < 0x80:  # nearly all, and a cohort has many
            out.append(number)
        else:
            _put_uint(out, number)


def _take_seats(record: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = _take_uint(record, at)
    seats: list[int] = []
    end = 0
    for _ in range(count):
        gap, at = _take_uint(record, at)
        length, at = _take_uint(record, at)
        if gap == 0 or length == 0 or length + len(seats) > MAX_ITEMS:
            raise CodecError("seats are not in their shortest form or too many")
        seats.extend(range(end + gap, end + gap + length))
        end += gap + length
    return tuple(seats), at


# ---- compound values ----------------------------------------------------------------


def _enum_coder(kind: type[IntEnum]) -> Coder:
    members = {member.value: member for member in kind}

    def put(out: bytearray, value: Any) -> None:
        if type(value) is not kind:
            raise CodecError(f"not a {kind.__name__}: {type(value).__name__}")
        _put_uint(out, value.value)

    def take(record: bytes, at: int) -> tuple[IntEnum, int]:
        number, at = _take_uint(record, at)
        if number not in members:
            raise CodecError(f"unknown {kind.__name__} {number}")
        return members[number], at

    return put, take


def _record_coder(cls: type[Any]) -> Coder:
    names, coders = _schema(cls)
    values_of, puts = _values(names), tuple(put for put, _ in coders)
    positional = not any(field.kw_only for field in fields(cls))
    apart = [(field.name, field.default) for field in fields(cls) if field.name not in names]

    def put_record(out: bytearray, value: Any) -> None:
        if type(value) is not cls:
            raise CodecError(f"not a {cls.__name__}: {type(value).__name__}")
        if any(getattr(value, name) != default for name, default in apart):
            raise CodecError(f"a {cls.__name__} with something that another fact tells")
        for put, item in zip(puts, values_of(value), strict=True):
            put(out, item)

    def take_record(record: bytes, at: int) -> tuple[Any, int]:
        values = []
        for _, take in coders:
            value, at = take(record, at)
            values.append(value)
        return (cls(*values) if positional else cls(**dict(zip(names, values, strict=True)))), at

    return put_record, take_record


def _optional_coder(inner: Coder) -> Coder:
    put_inner, take_inner = inner

    def put(out: bytearray, value: Any) -> None:
        out.append(value is not None)
        if value is not None:
            put_inner(out, value)

    def take(record: bytes, at: int) -> tuple[Any, int]:
        is_there, at = _take_bool(record, at)
        return take_inner(record, at) if is_there else (None, at)

    return put, take


def _sequence_coder(inner: Coder) -> Coder:
    put_inner, take_inner = inner

    def put(out: bytearray, values: tuple[Any, ...]) -> None:
        if type(values) is not tuple or len(values) > MAX_ITEMS:
            raise CodecError(f"not a tuple, or too long: {type(values).__name__}")
        _put_uint(out, len(values))
        for value in values:
            put_inner(out, value)

    def take(record: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        count, at = _take_uint(record, at)
        if count > min(len(record), MAX_ITEMS):  # every item takes a byte: no claim allocates
            raise CodecError("a list claims more items than the record has bytes, or too many")
        values = []
        for _ in range(count):
            value, at = take_inner(record, at)
            values.append(value)
        return tuple(values), at

    return put, take


def _pair_coder(inner: list[Coder]) -> Coder:
    def put(out: bytearray, values: tuple[Any, ...]) -> None:
        if type(values) is not tuple or len(values) != len(inner):
            raise CodecError(f"not a tuple of {len(inner)}: {type(values).__name__}")
        for (put_item, _), value in zip(inner, values, strict=True):
            put_item(out, value)

    def take(record: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        values = []
        for _, take_item in inner:
            value, at = take_item(record, at)
            values.append(value)
        return tuple(values), at

    return put, take


# The tag of each type that a site may report, in the order of the tags.
_REPORT: tuple[tuple[type, Coder], ...] = (
    (bool, (_put_bool, _take_bool)),
    (int, (_put_int, _take_int)),
    (float, (_put_float, _take_float)),
    (str, (_put_text, _take_text)),
)


def _put_report_value(out: bytearray, value: ReportValue) -> None:
    for tag, (kind, (put, _)) in enumerate(_REPORT):
        if type(value) is kind:
            _put_uint(out, tag)
            return put(out, value)
    raise CodecError(f"a site cannot report a {type(value).__name__}")


def _take_report_value(record: bytes, at: int) -> tuple[ReportValue, int]:
    tag, at = _take_uint(record, at)
    if tag >= len(_REPORT):
        raise CodecError(f"unknown type tag {tag}")
    value, at = _REPORT[tag][1][1](record, at)
    return value, at


_PLAIN: dict[Any, Coder] = {
    int: (_put_uint, _take_uint),
    Seat: (_put_uint, _take_uint),
    bool: (_put_bool, _take_bool),
    float: (_put_float, _take_float),
    bytes: (_put_bytes, _take_bytes),
    str: (_put_text, _take_text),
    Digest: (_put_digest, _take_digest),
    Seats: (_put_seats, _take_seats),
    SiteId: (_put_text, _take_text),
    ReportValue: (_put_report_value, _take_report_value),
}

"""Files that a hostile site may send as its update, and what becomes of each: one table.

`FATE` is what the coordinator's log says of the update, or how its upload is refused. Good
files that look odd are here too: they must count, or the checks refuse too much.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]

FORMAT, DIMENSIONS, MAGNITUDE, STALENESS = "format", "dimensions", "magnitude", "staleness"
COUNTED = "counted"
TOO_LARGE = "E0817"  # at the upload, before it takes any room
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """What a good update of this round would be made of."""

    size: int  # float32 numbers
    base: str  # of the model to train from, in hexadecimal

    @property
    def about(self) -> dict[str, object]:
        return {"base": self.base, "weight": "1.0"}

    @property
    def entry(self) -> dict[str, object]:
        return {"dtype": "F32", "shape": [self.size], "data_offsets": [0, 4 * self.size]}

    def header(self, **changes: object) -> dict[str, object]:
        return {"__metadata__": self.about, "step": self.entry | changes}

    def numbers(self, first: float = 0.0, rest: float = 0.0) -> bytes:
        values = np.full(self.size, rest, "<f4")
        values[0] = first
        return values.tobytes()


Make = Callable[[Round], bytes]


@dataclass(frozen=True, slots=True)
class HostileFile:
    """One file; `size` is how large the model must be for it to be sent at all."""

    name: str
    make: Make
    fate: str
    least_size: int = 0


def packed(header: object, body: bytes, length: int | None = None) -> bytes:
    """A safetensors file; `length` is what it says of its header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    told = len(text) if length is None else length
    return told.to_bytes(8, "little") + text + body


def _header(**changes: object) -> Make:
    return lambda r: packed(r.header(**changes), r.numbers())


def _about(**changes: object) -> Make:
    return lambda r: packed(r.header() | {"__metadata__": r.about | changes}, r.numbers())


def _text(change: Callable[[str, Round], str | bytes]) -> Make:
    """The header's text, changed."""

    def make(r: Round) -> bytes:
        text = change(json.dumps(r.header()), r)
        return packed(text if isinstance(text, bytes) else text.encode(), r.numbers())

    return make


def _values(first: float, rest: float = 0.0) -> Make:
    return lambda r: packed(r.header(), r.numbers(first, rest))


def _bits(pattern: int) -> Make:
    """The first number has exactly these bits."""
    return lambda r: packed(r.header(), struct.pack("<I", pattern) + r.numbers()[4:])


def _whole(data: bytes) -> Make:
    return lambda _: data


def _good(r: Round) -> bytes:
    return packed(r.header(), r.numbers())


def _cut(count: int) -> Make:
    """Without its last bytes."""
    return lambda r: _good(r)[:-count]


def _head(r: Round) -> int:
    return 8 + len(json.dumps(r.header()))


def _two(first: tuple[int, int], second: tuple[int, int]) -> Make:
    """Two tensors of half the size, at these offsets in halves of the body."""

    def make(r: Round) -> bytes:
        half = r.size // 2
        entries = {
            name: {"dtype": "F32", "shape": [half], "data_offsets": [4 * half * at for at in place]}
            for name, place in (("a", first), ("step", second))
        }
        return packed({"__metadata__": r.about} | entries, r.numbers()[: 8 * half])

    return make


def _other_size(by: int) -> Make:
    def make(r: Round) -> bytes:
        other = Round(r.size + by, r.base)
        return packed(other.header(), other.numbers())

    return make


def _twice(text: str, r: Round) -> str:
    """The tensor stands twice, in JSON that most parsers take."""
    return text[:-1] + ', "step": ' + json.dumps(r.entry) + "}"


def _long_header(size: int) -> Make:
    """A header that is as long as it says: names without end."""

    def make(r: Round) -> bytes:
        entry = b'"%08d":{"dtype":"F32","shape":[],"data_offsets":[0,0]},'
        count = size // len(entry % 0) + 1
        text = b"{" + b"".join(entry % at for at in range(count))
        return packed(text[:-1] + b"}", r.numbers()[:4])

    return make


def _filled(piece: bytes, opening: bytes, closing: bytes) -> Make:
    """A header of just under the limit of an upload that costs more memory than its bytes."""

    def make(r: Round) -> bytes:
        room = min(MIB, 4 * r.size) - 1024
        text = opening + piece * (room // len(piece)) + closing
        return packed(text, b"")

    return make


def _codes(r: Round) -> bytes:
    """A step of 4 bits a number, in a study that does not compress updates."""
    codes, scales = bytes([0x88]) * -(-r.size // 2), bytes(4 * -(-r.size // 256))
    entries = {
        "step.codes": {"dtype": "U8", "shape": [len(codes)], "data_offsets": [0, len(codes)]},
        "step.scales": {
            "dtype": "F32",
            "shape": [len(scales) // 4],
            "data_offsets": [len(codes), len(codes) + len(scales)],
        },
    }
    return packed({"__metadata__": r.about} | entries, codes + scales)


_ZIP = b"PK\x05\x06" + bytes(18)
# What `pickle.dumps` makes of an object that runs `os.system` when it is loaded.
_PICKLE = b"\x80\x04cposix\nsystem\n(S'touch /tmp/owned'\ntR."
_BOMB = zlib.compress(bytes(MIB), 9)

FILES: tuple[HostileFile, ...] = (
    # ---- what must count: odd, and allowed ------------------------------------------
    HostileFile("minus zero", _bits(0x8000_0000), COUNTED),
    HostileFile("denormal", _bits(0x0000_0001), COUNTED),
    HostileFile("spaces before the numbers", _text(lambda t, _: t + " " * 4096), COUNTED),
    # ---- truncation and length ------------------------------------------------------
    HostileFile("empty", _whole(b""), FORMAT),
    HostileFile("one byte", _whole(b"\x00"), FORMAT),
    HostileFile("seven bytes", _whole(bytes(7)), FORMAT),
    HostileFile("eight bytes, no header", _whole(bytes(8)), FORMAT),
    HostileFile("cut in the header", lambda r: _good(r)[: _head(r) - 1], FORMAT),
    HostileFile("cut behind the header", lambda r: _good(r)[: _head(r)], FORMAT),
    HostileFile("cut in the first number", lambda r: _good(r)[: _head(r) + 1], FORMAT),
    HostileFile("cut by a byte", _cut(1), FORMAT),
    HostileFile("cut by a number", _cut(4), FORMAT),
    HostileFile("longer by a byte", lambda r: _good(r) + b"\0", FORMAT),
    HostileFile("longer by a number", lambda r: _good(r) + bytes(4), FORMAT),
    HostileFile("longer than an update may be", lambda r: _good(r) + bytes(MIB), TOO_LARGE),
    # ---- how long the header is -----------------------------------------------------
    HostileFile("says 63 MiB of header", lambda r: packed(b"{}", bytes(64), 63 * MIB), FORMAT),
    HostileFile("says 2**63 of header", lambda r: packed(b"{}", bytes(64), 1 << 63), FORMAT),
    HostileFile("says all bits of header", lambda r: packed(b"{}", b"", (1 << 64) - 1), FORMAT),
    HostileFile("a header of 1 MiB and a bit", _long_header(MIB + 64), FORMAT, MIB // 4),
    HostileFile("a header of 63 MiB", _long_header(63 * MIB), FORMAT, 16 * MIB),
    HostileFile("a header of empty lists", _filled(b"[],", b'{"a":[', b"0]}"), FORMAT),
    HostileFile("a header of one name", _filled(b"n", b'{"', b'":0}'), FORMAT),
    HostileFile("a header of digits", _filled(b"9", b'{"a":', b"}"), FORMAT),
    HostileFile("a deep header", _filled(b"[", b'{"a":', b"}"), FORMAT),
    # ---- what the header is ---------------------------------------------------------
    HostileFile("not UTF-8", _text(lambda t, _: t.encode() + b"\xff"), FORMAT),
    HostileFile("a byte order mark", _text(lambda t, _: b"\xef\xbb\xbf" + t.encode()), FORMAT),
    HostileFile("UTF-16", _text(lambda t, _: t.encode("utf-16")), FORMAT),
    HostileFile("UTF-32", _text(lambda t, _: t.encode("utf-32-le")), FORMAT),
    HostileFile("a list", _text(lambda t, _: f"[{t}]"), FORMAT),
    HostileFile("two values", _text(lambda t, _: t + t), FORMAT),
    HostileFile("a header of NaN", _text(lambda t, _: t.replace('"1.0"', "NaN")), FORMAT),
    HostileFile("no tensor", lambda r: packed({"__metadata__": r.about}, b""), DIMENSIONS),
    HostileFile("the tensor twice", _text(_twice), FORMAT),
    HostileFile(
        "a field twice", _text(lambda t, _: t.replace('"dtype"', '"dtype":"F32","dtype"')), FORMAT
    ),
    HostileFile("a field too many", _header(more=1), FORMAT),
    # ---- shapes, types, offsets -----------------------------------------------------
    HostileFile("overlapping", _two((0, 2), (1, 2)), FORMAT),
    HostileFile("the same place twice", _two((0, 1), (0, 1)), FORMAT),
    HostileFile("a gap", _two((0, 1), (2, 3)), FORMAT),
    HostileFile("a tensor too many", _two((0, 1), (1, 2)), DIMENSIONS),
    HostileFile(
        "offsets turned round",
        lambda r: packed(r.header(data_offsets=[4 * r.size, 0]), r.numbers()),
        FORMAT,
    ),
    HostileFile("offsets below zero", _header(data_offsets=[-4, 0]), FORMAT),
    HostileFile("three offsets", _header(data_offsets=[0, 4, 8]), FORMAT),
    HostileFile("a shape below zero", _header(shape=[-1]), FORMAT),
    HostileFile("a shape beyond all numbers", _header(shape=[1 << 64]), FORMAT),
    HostileFile("a shape whose product overflows", _header(shape=[1 << 32, 1 << 32]), FORMAT),
    HostileFile("a shape of a thousand ones", _header(shape=[1] * 1000), FORMAT),
    HostileFile("a shape of true", _header(shape=[True]), FORMAT),
    HostileFile("a shape of fractions", _header(shape=[1.5]), FORMAT),
    HostileFile("a shape in words", _header(shape="all"), FORMAT),
    HostileFile(
        "another shape", lambda r: packed(r.header(shape=[1, r.size]), r.numbers()), DIMENSIONS
    ),
    HostileFile("another type of the same width", _header(dtype="I32"), DIMENSIONS),
    HostileFile("a type that nobody knows", _header(dtype="BF16"), FORMAT),
    HostileFile("a type that is a list", _header(dtype=["F32"]), FORMAT),
    HostileFile("a number too few", _other_size(-1), DIMENSIONS),
    HostileFile("a number too many", _other_size(1), DIMENSIONS),
    HostileFile(
        "a name that climbs",
        lambda r: packed({"__metadata__": r.about, "../../../etc/passwd": r.entry}, r.numbers()),
        DIMENSIONS,
    ),
    HostileFile(
        "a name with a NUL",
        lambda r: packed({"__metadata__": r.about, "step\0": r.entry}, r.numbers()),
        DIMENSIONS,
    ),
    HostileFile("a compressed step that was not asked for", _codes, DIMENSIONS),
    # ---- numbers --------------------------------------------------------------------
    HostileFile("NaN", _values(float("nan")), FORMAT),
    HostileFile("a signalling NaN", _bits(0x7F80_0001), FORMAT),
    HostileFile("infinity", _values(float("inf")), FORMAT),
    HostileFile("minus infinity", _values(float("-inf")), FORMAT),
    HostileFile("one number overflows the sum", _values(3e38), MAGNITUDE),
    HostileFile("all numbers overflow the sum", _values(3e38, 3e38), MAGNITUDE),
    HostileFile("all numbers overflow below", _values(-3e38, -3e38), MAGNITUDE),
    # ---- weight and base ------------------------------------------------------------
    HostileFile("no metadata", lambda r: packed({"step": r.entry}, r.numbers()), FORMAT),
    HostileFile("metadata of numbers", _about(weight=1.0), FORMAT),
    HostileFile("metadata too many", _about(more="x"), FORMAT),
    HostileFile("weight 0", _about(weight="0.0"), FORMAT),
    HostileFile("weight -1", _about(weight="-1.0"), FORMAT),
    HostileFile("weight NaN", _about(weight="nan"), FORMAT),
    HostileFile("weight infinity", _about(weight="inf"), FORMAT),
    HostileFile("weight 1e999", _about(weight="1e999"), FORMAT),
    HostileFile("weight 1e300", _about(weight="1e+300"), MAGNITUDE),
    HostileFile("weight 2", _about(weight="2.0"), MAGNITUDE),
    HostileFile("weight with a line between", _about(weight="1_0.0"), FORMAT),
    HostileFile("weight in other digits", _about(weight="\uff11.0"), FORMAT),
    HostileFile("weight with spaces", _about(weight=" 1.0 "), FORMAT),
    HostileFile("another base", _about(base="00" * 32), STALENESS),
    HostileFile("a base with spaces", _about(base="00 " * 21 + "0"), FORMAT),
    HostileFile(
        "a base in capitals",
        lambda r: packed(
            r.header() | {"__metadata__": r.about | {"base": r.base.upper()}}, r.numbers()
        ),
        FORMAT,
    ),
    # ---- other formats --------------------------------------------------------------
    HostileFile("a zip file", _whole(_ZIP), FORMAT),
    HostileFile("a pickle", _whole(_PICKLE), FORMAT),
    HostileFile("a pickle behind a header", lambda r: packed(_PICKLE, r.numbers()), FORMAT),
    HostileFile(
        "a torch file",
        _whole(b"PK\x03\x04" + bytes(26) + b"archive/data.pkl" + _PICKLE + _ZIP),
        FORMAT,
    ),
    HostileFile("a bomb", _whole(_BOMB), FORMAT),
    HostileFile("a program", _whole(b"\x7fELF" + bytes(60)), FORMAT),
)

"""Named arrays as one file: safetensors, in one fixed form.

Eight bytes of header length, a JSON header, raw little-endian numbers. We write the header
ourselves, in one fixed form, so that equal tensors have equal digests in every version; and
we check it before anything else looks at the bytes, because a hostile header is the
cheapest attack on a parser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.errors import FormatError

Tensors = Mapping[str, npt.NDArray[Any]]  # any type comes in; a layout says which may leave

File = bytes | mmap  # all of a file, read or mapped

MAX_HEADER_BYTES = 1 << 20
_KNOWN_HEADER_BYTES = 1 << 14  # of those that are remembered: a few of them, and small ones
METADATA = "__metadata__"  # the one name that safetensors keeps for itself
DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file: its name, its shape, and one of the types above."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * DTYPES[self.dtype].itemsize


def spec_of(name: str, array: npt.NDArray[Any]) -> TensorSpec:
    """The spec of an array, which must be of one of the types that a file can hold."""
    if array.dtype not in CODES:
        raise FormatError(f"`{name}` has type {array.dtype}, which a tensor file cannot hold")
    return TensorSpec(name, array.shape, CODES[array.dtype])


def save_tensors(tensors: Tensors) -> bytes:
    """A site's own arrays as bytes, in the order of their names: what stays is kept so."""
    arrays = {name: np.ascontiguousarray(tensors[name]) for name in sorted(tensors)}
    specs = [spec_of(name, np.asarray(tensors[name])) for name in arrays]
    return _plain_header(tuple(specs)) + b"".join(array.tobytes() for array in arrays.values())


@lru_cache(maxsize=64)
def _plain_header(specs: tuple[TensorSpec, ...]) -> bytes:
    return write_header(specs, {})


def load_tensors(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of `save_tensors`, as copies that may be changed."""
    specs, _, start = read_header(data)
    return {name: array.copy() for name, array in arrays_of(specs, data, start).items()}


def arrays_of(specs: Sequence[TensorSpec], data: File, start: int) -> dict[str, npt.NDArray[Any]]:
    """Read-only views of the tensors in a file whose header was read."""
    arrays = {}
    for spec in specs:
        flat = np.frombuffer(data, DTYPES[spec.dtype], count=spec.size, offset=start)
        arrays[spec.name] = flat.reshape(spec.shape)
        start += spec.size_bytes
    return arrays


def write_header(specs: Sequence[TensorSpec], about: Mapping[str, str]) -> bytes:
    """The header of a file that holds these tensors, in the order of their names."""
    metadata = [f'"{METADATA}":{_compact(dict(sorted(about.items())))}'] if about else []
    text = f"{{{','.join([*metadata, *_entries(tuple(specs))])}}}".encode()
    text += b" " * (-len(text) % 8)  # numbers start at a multiple of eight
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


@lru_cache(maxsize=64)
def _entries(specs: tuple[TensorSpec, ...]) -> list[str]:
    """What a header says of each tensor: the same for all files of one model."""
    entries, at = [], 0
    for spec in specs:
        end = at + spec.size_bytes
        entry = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [at, end]}
        entries.append(f"{_compact(spec.name)}:{_compact(entry)}")
        at = end
    return entries


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def header_bytes(data: bytes) -> int:
    """How much of a file `read_header` needs to see, by the file's first eight bytes."""
    return _LENGTH_BYTES + min(int.from_bytes(data[:_LENGTH_BYTES], "little"), MAX_HEADER_BYTES)


def read_header(
    data: File | memoryview, size_bytes: int | None = None
) -> tuple[tuple[TensorSpec, ...], dict[str, str], int]:
    """(tensors, metadata, where the numbers start) of a safetensors file.

    Refuses a long header, duplicate names, unknown types, gaps, overlaps and a size that
    is not exactly what the header says, before any tensor is made. With `size_bytes`, that
    of the file, `data` may be its beginning only: see `header_bytes`.
    """
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(data) < _LENGTH_BYTES or length > MAX_HEADER_BYTES or start > len(data):
        raise FormatError("the header is missing, cut off or longer than 1 MiB")
    parse = _parsed if length <= _KNOWN_HEADER_BYTES else _parsed.__wrapped__
    specs, about, end = parse(bytes(data[_LENGTH_BYTES:start]))
    if start + end != (len(data) if size_bytes is None else size_bytes):
        raise FormatError("the file is not as long as its header says")
    return specs, dict(about), start


@lru_cache(maxsize=64)
def _parsed(header: bytes) -> tuple[tuple[TensorSpec, ...], dict[str, str], int]:
    """(tensors, metadata, bytes of all numbers). Files of one model have the same header, time
    and again."""
    try:
        # Decoded here: of bytes, `json` would guess the encoding, and take UTF-16 or a mark.
        entries = json.loads(header.decode(), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):
        raise FormatError("the header is not JSON") from None
    if not isinstance(entries, dict):
        raise FormatError("the header is not a table")
    about = entries.pop(METADATA, {})
    if not isinstance(about, dict) or not all(isinstance(text, str) for text in about.values()):
        raise FormatError("the metadata is not a table of texts")
    specs, end = _specs_of(entries)
    return specs, about, end


def _specs_of(entries: dict[str, object]) -> tuple[tuple[TensorSpec, ...], int]:
    specs, at = [], 0
    for name, entry in sorted(entries.items()):
        spec, begin, end = _spec_of(name, entry)
        if begin != at or end - begin != spec.size_bytes:
            raise FormatError("tensors do not follow each other in the order of their names")
        specs.append(spec)
        at = end
    return tuple(specs), at


def _spec_of(name: str, entry: object) -> tuple[TensorSpec, int, int]:
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise FormatError("a header entry has other fields than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError("a tensor has a type that is not known")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise FormatError("a shape or offset is not a list of whole numbers")
    return TensorSpec(name, tuple(shape), dtype), offsets[0], offsets[1]


def _are_sizes(values: object) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 32
        and all(type(value) is int and 0 <= value < 1 << 48 for value in values)
    )


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("duplicate name")
    return table

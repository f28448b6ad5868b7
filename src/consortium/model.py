"""Models and updates as flat vectors with a layout, and their one file format.

What sites share is one flat vector; the `Layout` says which slice is which tensor. Files
are safetensors: eight bytes of header length, a JSON header, raw little-endian numbers.
We write the header ourselves, in one fixed form, so that equal models have equal digests
in every version; and we check it before anything else looks at the bytes, because a
hostile header is the cheapest attack on a parser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.core.ids import Digest
from consortium.errors import DimensionError, FormatError, LayoutError, ModelFileError

Vector = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Tensors = Mapping[str, npt.NDArray[Any]]  # any dtype comes in; the layout says which may stay

MAX_HEADER_BYTES = 1 << 20
_LENGTH_BYTES = 8
_METADATA = "__metadata__"  # the one name that safetensors keeps for itself
_DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_LAYOUT_CONTEXT = "consortium/layout/v1\n"


def digest_of(data: bytes) -> Digest:
    """The name of a blob: the plain SHA-256 of its bytes, as `sha256sum` prints it."""
    return Digest(sha256(data).digest())


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a layout. `dtype` is F16, F32 or F64; integers are never averaged."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors are shared, in the order of their names.

    >>> layout = Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)})
    >>> layout.size, [spec.name for spec in layout.specs]
    (8, ['b', 'w'])
    """

    specs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        """The layout of these tensors; refuses what cannot be averaged."""
        if not tensors:
            raise LayoutError("the task shares no tensor at all")
        specs = []
        for name in sorted(tensors):
            if name == _METADATA or not name.isprintable() or not 0 < len(name) <= 200:
                raise LayoutError("a shared tensor has a name of 1 to 200 printable characters")
            array = np.asarray(tensors[name])
            if array.dtype not in _CODES:
                raise LayoutError(
                    f"shared tensor `{name}` has type {array.dtype}, which cannot be averaged",
                    hint="share float16, float32 or float64; keep counters and flags private",
                )
            specs.append(TensorSpec(name, array.shape, _CODES[array.dtype]))
        return cls(tuple(specs))

    @property
    def size(self) -> int:
        """Numbers in the flat vector."""
        return sum(spec.size for spec in self.specs)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the flat vector: float64 if any tensor is, else float32."""
        has_double = any(spec.dtype == "F64" for spec in self.specs)
        return np.dtype(np.float64 if has_double else np.float32)

    def canonical(self) -> bytes:
        """The layout as text: one line a tensor. As a blob it has the layout's digest."""
        lines = [
            f"{spec.dtype} {'x'.join(map(str, spec.shape))} {spec.name}\n" for spec in self.specs
        ]
        return (_LAYOUT_CONTEXT + "".join(lines)).encode()

    @classmethod
    def from_canonical(cls, data: bytes) -> Layout:
        """The layout of a blob; refuses what `canonical` would not have written."""
        specs = []
        for line in data.decode(errors="replace").splitlines()[1:]:
            dtype, _, rest = line.partition(" ")
            shape, _, name = rest.partition(" ")
            parts = shape.split("x")[:32]
            sizes = [int(size) for size in parts if size.isdecimal() and len(size) < 16]
            specs.append(TensorSpec(name, tuple(sizes), dtype))
        layout = cls(tuple(specs))
        if not specs or layout.canonical() != data:
            raise ModelFileError("the layout's blob is not in canonical form")
        return layout

    @property
    def digest(self) -> Digest:
        return digest_of(self.canonical())

    def flatten(self, tensors: Tensors) -> Vector:
        """One vector of all tensors; refuses other names, shapes or types."""
        found = Layout.of(tensors)
        if found != self:
            raise LayoutError(f"shared tensors differ: {_difference(self, found)}")
        parts = [np.asarray(tensors[spec.name]).reshape(-1) for spec in self.specs]
        vector: Vector = np.concatenate(parts).astype(self.dtype, copy=False)
        return vector

    def unflatten(self, vector: Vector) -> dict[str, npt.NDArray[Any]]:
        """The tensors of a vector, as copies that the caller may change."""
        tensors, at = {}, 0
        for spec in self.specs:
            part = vector[at : at + spec.size].astype(_DTYPES[spec.dtype])
            tensors[spec.name] = part.reshape(spec.shape)
            at += spec.size
        return tensors


def _difference(expected: Layout, found: Layout) -> str:
    ours = {spec.name: spec for spec in expected.specs}
    theirs = {spec.name: spec for spec in found.specs}
    for name in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(name), theirs.get(name)
        if mine is None or other is None:
            return f"`{name}` is {'missing' if other is None else 'not part of the layout'}"
        if mine != other:
            return (
                f"`{name}` is {other.dtype} {list(other.shape)}, "
                f"expected {mine.dtype} {list(mine.shape)}"
            )
    return "the order of tensors"


# ---- models -------------------------------------------------------------------------


def save_model(layout: Layout, vector: Vector) -> bytes:
    """The safetensors file of a model: the same bytes for the same numbers, always."""
    if vector.shape != (layout.size,):
        raise LayoutError(f"a vector of {vector.size} numbers does not fit the layout")
    tensors = layout.unflatten(vector)
    return _header(layout, {}) + b"".join(tensors[spec.name].tobytes() for spec in layout.specs)


def load_model(layout: Layout, data: bytes) -> Vector:
    """The vector of a model file of exactly this layout; refuses anything else."""
    try:
        found, _, start = read_header(data)
        if found != layout:
            raise DimensionError(_difference(layout, found))
    except (FormatError, DimensionError) as error:
        raise ModelFileError(f"not a model of this layout: {error.message}") from None
    vector = layout.flatten(_tensors(layout, data, start))
    if not np.isfinite(vector).all():
        raise ModelFileError("the model has numbers that are not finite")
    return vector


def _tensors(layout: Layout, data: bytes, start: int) -> dict[str, npt.NDArray[Any]]:
    tensors = {}
    for spec in layout.specs:
        dtype = _DTYPES[spec.dtype]
        flat = np.frombuffer(data, dtype, count=spec.size, offset=start)
        tensors[spec.name] = flat.reshape(spec.shape)
        start += spec.size * dtype.itemsize
    return tensors


# ---- updates ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Update:
    """What one site sends: its step under the round's layout, its weight, its base model."""

    step: Vector
    weight: float
    base: Digest


def save_update(update: Update) -> bytes:
    layout = _update_layout(update.step)
    about = {"base": update.base.hex(), "weight": repr(float(update.weight))}
    return _header(layout, about) + update.step.tobytes()


def load_update(data: bytes, size: int, dtype: np.dtype[Any]) -> Update:
    """One site's update of `size` numbers. The bytes come from outside: trust nothing.

    Raises `FormatError` for what is not well-formed or not finite, `DimensionError` for
    what is not a step of this size and type.
    """
    layout, about, start = read_header(data)
    if layout != Layout((TensorSpec("step", (size,), _CODES[dtype]),)):
        raise DimensionError(f"not one step of {size} numbers of type {_CODES[dtype]}")
    if sorted(about) != ["base", "weight"] or len(about["base"]) != 64:
        raise FormatError("an update names its base and its weight, and nothing else")
    step = np.frombuffer(data, dtype, offset=start)
    try:
        weight, base = float(about["weight"]), bytes.fromhex(about["base"])
    except ValueError:
        raise FormatError("base or weight of the update is malformed") from None
    if not math.isfinite(weight) or weight <= 0 or not np.isfinite(step).all():
        raise FormatError("the update has numbers that are not finite or not positive")
    return Update(step, weight, Digest(base))


def _update_layout(step: Vector) -> Layout:
    return Layout((TensorSpec("step", step.shape, _CODES[step.dtype]),))


# ---- the header ---------------------------------------------------------------------


def _header(layout: Layout, about: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {_METADATA: dict(sorted(about.items()))} if about else {}
    at = 0
    for spec in layout.specs:
        end = at + spec.size * _DTYPES[spec.dtype].itemsize
        shape = list(spec.shape)
        entries[spec.name] = {"dtype": spec.dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # numbers start at a multiple of eight
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def read_header(data: bytes) -> tuple[Layout, dict[str, str], int]:
    """(layout, metadata, where the numbers start) of a safetensors file.

    Refuses a long header, duplicate names, unknown types, gaps, overlaps and a size that
    is not exactly what the header says, before any tensor is made.
    """
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(data) < _LENGTH_BYTES or length > MAX_HEADER_BYTES or start > len(data):
        raise FormatError("the header is missing, cut off or longer than 1 MiB")
    try:
        entries = json.loads(data[_LENGTH_BYTES:start], object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):
        raise FormatError("the header is not JSON") from None
    if not isinstance(entries, dict):
        raise FormatError("the header is not a table")
    about = entries.pop(_METADATA, {})
    if not isinstance(about, dict) or not all(isinstance(text, str) for text in about.values()):
        raise FormatError("the metadata is not a table of texts")
    layout, end = _layout_of(entries)
    if start + end != len(data):
        raise FormatError("the file is not as long as its header says")
    return layout, about, start


def _layout_of(entries: dict[str, object]) -> tuple[Layout, int]:
    specs, at = [], 0
    for name, entry in sorted(entries.items()):
        spec, begin, end = _spec_of(name, entry)
        if begin != at or end - begin != spec.size * _DTYPES[spec.dtype].itemsize:
            raise FormatError("tensors do not follow each other in the order of their names")
        specs.append(spec)
        at = end
    return Layout(tuple(specs)), at


def _spec_of(name: str, entry: object) -> tuple[TensorSpec, int, int]:
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise FormatError("a header entry has other fields than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise FormatError("a tensor has a type that cannot be averaged")
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

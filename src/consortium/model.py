"""Models and updates as flat vectors with a layout, and their one file format.

What sites share is one flat vector; the `Layout` says which slice is which tensor. Files
are safetensors in one fixed form: see `consortium.tensors`. An update is one row as well:
its step, and whatever else the strategy makes sites send, side by side. The step may be packed
into fewer bytes: see `consortium.packing`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.core.ids import Digest
from consortium.errors import DimensionError, FormatError, LayoutError, ModelFileError
from consortium.packing.packed import Packing
from consortium.packing.row import PackedRow, Read, open_step
from consortium.tensors import (
    CODES,
    DTYPES,
    METADATA,
    File,
    Tensors,
    TensorSpec,
    arrays_of,
    read_header,
    write_header,
)

Vector = npt.NDArray[np.float32] | npt.NDArray[np.float64]

_AVERAGED = ("F16", "F32", "F64")  # integers are never averaged
_LAYOUT_CONTEXT = "consortium/layout/v1\n"
_LOOKED_AT = 1 << 20  # columns of an update at a time: unpacked ones take room


def digest_of(data: bytes) -> Digest:
    """The name of a blob: the plain SHA-256 of its bytes, as `sha256sum` prints it."""
    return Digest(sha256(data).digest())


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tensors are shared, in the order of their names.

    >>> layout = Layout.of({"w": np.zeros((2, 3), np.float32), "b": np.zeros(2, np.float32)})
    >>> layout.size, [spec.name for spec in layout.specs]
    (8, ['b', 'w'])
    """

    specs: tuple[TensorSpec, ...]
    # They follow from the specs; what is asked many times a round is found out once.
    size: int = field(init=False, compare=False, repr=False)  # numbers in the flat vector
    dtype: np.dtype[Any] = field(init=False, compare=False, repr=False)  # of the flat vector

    def __post_init__(self) -> None:
        has_double = any(spec.dtype == "F64" for spec in self.specs)
        object.__setattr__(self, "size", sum(spec.size for spec in self.specs))
        object.__setattr__(self, "dtype", np.dtype(np.float64 if has_double else np.float32))

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        """The layout of these tensors; refuses what cannot be averaged."""
        if not tensors:
            raise LayoutError("the task shares no tensor at all")
        specs = []
        for name in sorted(tensors):
            if name == METADATA or not name.isprintable() or not 0 < len(name) <= 200:
                raise LayoutError("a shared tensor has a name of 1 to 200 printable characters")
            array = np.asarray(tensors[name])
            if CODES.get(array.dtype) not in _AVERAGED:
                raise LayoutError(
                    f"shared tensor `{name}` has type {array.dtype}, which cannot be averaged",
                    hint="share float16, float32 or float64; keep counters and flags private",
                )
            specs.append(TensorSpec(name, array.shape, CODES[array.dtype]))
        return cls(tuple(specs))

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
        is_known = all(spec.dtype in _AVERAGED for spec in specs)
        if not specs or not is_known or layout.canonical() != data:
            raise ModelFileError("the layout's blob is not in canonical form")
        return layout

    @property
    def digest(self) -> Digest:
        return digest_of(self.canonical())

    def flatten(self, tensors: Tensors) -> Vector:
        """One vector of all tensors; refuses other names, shapes or types."""
        found = Layout.of(tensors)
        if found != self:
            raise LayoutError(self.difference(found))
        parts = [np.asarray(tensors[spec.name]).reshape(-1) for spec in self.specs]
        vector: Vector = np.concatenate(parts).astype(self.dtype, copy=False)
        return vector

    def difference(self, found: Layout) -> str:
        """In words, the first thing that another layout has otherwise."""
        return f"shared tensors differ: {_difference(self, found)}"

    def unflatten(self, vector: Vector) -> dict[str, npt.NDArray[Any]]:
        """The tensors of a vector, as copies that the caller may change."""
        tensors, at = {}, 0
        for spec in self.specs:
            part = vector[at : at + spec.size].astype(DTYPES[spec.dtype])
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
    numbers = b"".join(tensors[spec.name].tobytes() for spec in layout.specs)
    return write_header(layout.specs, {}) + numbers


def load_model(layout: Layout, data: File) -> Vector:
    """The vector of a model file of exactly this layout, to be read only; refuses anything
    else."""
    start = read_model_header(layout, data)
    if all(DTYPES[spec.dtype] == layout.dtype for spec in layout.specs):
        vector: Vector = np.frombuffer(data, layout.dtype, layout.size, start)  # as it lies there
    else:
        vector = layout.flatten(arrays_of(layout.specs, data, start))
    if not np.isfinite(vector).all():
        raise ModelFileError("the model has numbers that are not finite")
    return vector


def read_model_header(layout: Layout, data: File, size_bytes: int | None = None) -> int:
    """Where the numbers start in a model file of exactly this layout; refuses anything else.
    With the file's size, its beginning suffices."""
    try:
        specs, _, start = read_header(data, size_bytes)
        if specs != layout.specs:
            raise DimensionError(_difference(layout, Layout(specs)))
    except (FormatError, DimensionError) as error:
        raise ModelFileError(f"not a model of this layout: {error.message}") from None
    return start


# ---- updates ------------------------------------------------------------------------

STEP = "step"
MASKED = "masked"


@dataclass(frozen=True, slots=True)
class Form:
    """What an update consists of: named vectors, side by side in one row, in the order of
    their names. `step` is always there, and first; a strategy may add others. With a packing,
    the step is another thing in the file, and the same in the row. Under masks there is `masked`
    alone, which holds all of it.

    >>> form = Form((("step", 3), ("tau", 1)), np.dtype(np.float32))
    >>> form.size, form.part(np.arange(4), "tau")
    (4, array([3]))
    """

    vectors: tuple[tuple[str, int], ...]
    dtype: np.dtype[Any]
    packing: Packing | None = None

    @property
    def size(self) -> int:
        return sum(size for _, size in self.vectors)

    @property
    def is_masked(self) -> bool:
        """Whether its numbers are masked, so that nothing can be said of them."""
        return self.vectors[0][0] == MASKED

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors of the file."""
        code = CODES[self.dtype]
        plain = [TensorSpec(name, (size,), code) for name, size in self.vectors]
        if self.packing is None:
            return tuple(plain)
        return *self.packing.specs(STEP, self.vectors[0][1], code), *plain[1:]

    @property
    def size_bytes(self) -> int:
        """Of the file, without its header."""
        return sum(spec.size_bytes for spec in self.specs)

    def part(self, row: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """One vector of a row, as a view."""
        at = 0
        for known, size in self.vectors:
            if known == name:
                return row[at : at + size]
            at += size
        raise KeyError(name)


def plain_form(size: int, dtype: np.dtype[Any]) -> Form:
    """An update that is a step and nothing else."""
    return Form(((STEP, size),), dtype)


def masked_row_form(size: int) -> Form:
    """An update under masks: whole numbers modulo 2**32, of which nobody can say more."""
    return Form(((MASKED, size),), DTYPES["U32"])


@dataclass(frozen=True, slots=True)
class Update:
    """What one site sends: a row of some form, its weight, its base model. `packed` is the row
    as the file has it, where that is another thing: what leaves is not made of the row again."""

    row: Vector | PackedRow
    weight: float
    base: Digest
    packed: bytes | None = None


def save_update(update: Update, form: Form | None = None) -> bytes:
    """The file of an update; without a form, of one that is a step and nothing else."""
    return b"".join(update_parts(update, form))


def update_parts(update: Update, form: Form | None = None) -> tuple[bytes, memoryview]:
    """The same file as its header and its numbers, of which there is no copy."""
    row, packed = update.row, update.packed
    form = form or plain_form(len(row), row.dtype)
    header = write_header(form.specs, _about(update.weight, update.base))
    if packed is not None or form.packing is not None:
        if packed is None or len(packed) != form.size_bytes:
            raise LayoutError("a row that is not packed does not have the update's form")
        return header, memoryview(packed)
    numbers = row[:]
    if numbers.shape != (form.size,) or row.dtype != form.dtype:
        raise LayoutError(f"a row of {numbers.size} numbers does not have the update's form")
    return header, np.ascontiguousarray(numbers).data.cast("B")


def update_bytes(form: Form, *weights: float) -> int:
    """How many bytes the files of updates of this form with these weights have together."""
    specs, size_bytes = form.specs, form.size_bytes
    return sum(
        count * (_header_bytes(specs, len(repr(weight))) + size_bytes)
        for weight, count in Counter(weights).items()  # of many sites most weigh the same
    )


@lru_cache(maxsize=64)  # a simulation asks for every site
def _header_bytes(specs: tuple[TensorSpec, ...], weight_characters: int) -> int:
    about = {"base": "0" * 64, "weight": "1" * weight_characters}
    return len(write_header(specs, about))


def _about(weight: float, base: Digest) -> dict[str, str]:
    return {"base": base.hex(), "weight": repr(float(weight))}


def load_update(data: bytes, form: Form) -> Update:
    """One site's update of this form. The bytes come from outside: trust nothing.

    Raises `FormatError` for what is not well-formed or not finite, `DimensionError` for
    what is not an update of this form.
    """
    weight, base, start = read_update_header(data, form)
    if form.packing is None:
        row: Vector | PackedRow = np.frombuffer(data, form.dtype, offset=start)
    else:
        body = memoryview(data)[start:]
        row = packed_row(form, lambda at, size: body[at : at + size])
    for lo in range(0, form.size, _LOOKED_AT):
        if not np.isfinite(row[lo : lo + _LOOKED_AT]).all():
            raise FormatError("the update has numbers that are not finite")
    return Update(row, weight, base)


def packed_row(form: Form, read: Read) -> PackedRow:
    """The row of a packed form, whose bytes behind the header `read` gives. Raises `FormatError`
    here, or when a slice is asked for, for what cannot be unpacked."""
    assert form.packing is not None
    size, code = form.vectors[0][1], CODES[form.dtype]
    step = open_step(form.packing, size, code, read)
    packed = sum(spec.size_bytes for spec in form.packing.specs(STEP, size, code))
    return PackedRow(step, form.size - size, packed)


def read_update_header(
    data: bytes, form: Form, size_bytes: int | None = None
) -> tuple[float, Digest, int]:
    """(weight, base, where the row starts) of an update file of this form. With the file's
    size, its beginning suffices. Raises what `load_update` raises."""
    specs, about, start = read_header(data, size_bytes)
    if specs != form.specs:
        wanted = ", ".join(f"{name} of {size}" for name, size in form.vectors)
        raise DimensionError(f"not an update of: {wanted} numbers of type {CODES[form.dtype]}")
    if sorted(about) != ["base", "weight"] or len(about["base"]) != 64:
        raise FormatError("an update names its base and its weight, and nothing else")
    try:
        weight, base = float(about["weight"]), bytes.fromhex(about["base"])
    except ValueError:
        raise FormatError("base or weight of the update is malformed") from None
    # One spelling, as `save_update` has it: Python also reads `1_0`, spaces and other digits.
    if (repr(weight), base.hex()) != (about["weight"], about["base"]):
        raise FormatError("base or weight of the update is malformed")
    if not math.isfinite(weight) or weight <= 0:
        raise FormatError("the update's weight is not finite or not positive")
    return weight, Digest(base), start

"""Layouts, flat vectors and their files, against the safetensors library as reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from consortium.core.ids import Digest
from consortium.errors import (
    ConsortiumError,
    DimensionError,
    FormatError,
    LayoutError,
    ModelFileError,
)
from consortium.model import (
    Layout,
    Update,
    digest_of,
    load_model,
    load_update,
    plain_form,
    save_model,
    save_update,
)
from consortium.tensors import MAX_HEADER_BYTES, read_header

TENSORS = {
    "head.w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "body.w": np.ones((4,), np.float32) / 3,
    "scale": np.float32(7).reshape(()),
}
LAYOUT = Layout.of(TENSORS)
F32 = np.dtype(np.float32)
FORM = plain_form(2, F32)
BASE = Digest(bytes(range(32)))
MODEL = save_model(LAYOUT, LAYOUT.flatten(TENSORS))
UPDATE = save_update(Update(np.array([1, 2], np.float32), 3.0, BASE))

names = st.text("abcdefg.é", min_size=1, max_size=6)
arrays = hnp.arrays(
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=4),
    elements=st.floats(-1000, 1000, width=16),
)


def file_with(entries: object, data: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@given(st.dictionaries(names, arrays, min_size=1, max_size=4))
def test_a_model_comes_back_as_it_went_in(tensors: dict[str, np.ndarray]) -> None:
    layout = Layout.of(tensors)
    data = save_model(layout, layout.flatten(tensors))
    again = layout.unflatten(load_model(layout, data))
    reference = safetensors.numpy.load(data)
    for name, array in tensors.items():
        assert again[name].dtype == array.dtype
        np.testing.assert_array_equal(again[name], array)
        np.testing.assert_array_equal(reference[name], array)


def test_the_bytes_of_a_model_and_an_update_are_fixed_for_ever() -> None:
    expected = "05d815049abff15ff044dd414151e2943b0e0dc28b3d65a023ee7962db967833"
    assert digest_of(MODEL).hex() == expected
    expected = "8d386b5203721a84c7889689da7c6f5a1c30f8fd123593d4e4358765f8f82326"
    assert digest_of(UPDATE).hex() == expected
    expected = "8af6a84a5aa75dbf49b94bdeb01988e0fdab1a1c22bb62f3697d9ea3360c55da"
    assert LAYOUT.digest.hex() == expected


def test_a_layout_has_one_slice_a_tensor_in_the_order_of_names() -> None:
    vector = LAYOUT.flatten(TENSORS)
    np.testing.assert_array_equal(vector, np.float32([1 / 3] * 4 + [0, 1, 2, 3, 4, 5] + [7]))
    assert LAYOUT.size == 11
    assert LAYOUT.dtype == F32


def test_one_double_makes_the_vector_double() -> None:
    layout = Layout.of({"a": np.zeros(1, np.float16), "b": np.zeros(1)})
    assert layout.dtype == np.dtype(np.float64)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, "shares no tensor"),
        ({"steps": np.zeros(1, np.int64)}, "cannot be averaged"),
        ({"mask": np.zeros(1, bool)}, "cannot be averaged"),
        ({"": np.zeros(1, np.float32)}, "1 to 200 printable"),
        ({"a\nb": np.zeros(1, np.float32)}, "1 to 200 printable"),
        ({"__metadata__": np.zeros(1, np.float32)}, "1 to 200 printable"),
    ],
)
def test_what_cannot_be_shared_is_refused(tensors: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        Layout.of(tensors)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scale": np.zeros(2, np.float32)}, r"`scale` is F32 \[2\], expected F32 \[\]"),
        ({"scale": np.zeros((), np.float64)}, r"`scale` is F64"),
        ({"more": np.zeros(1, np.float32)}, "`more` is not part of the layout"),
    ],
)
def test_other_tensors_than_the_layouts_are_refused(
    change: dict[str, np.ndarray], says: str
) -> None:
    with pytest.raises(LayoutError, match=says):
        LAYOUT.flatten({**TENSORS, **change})


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(LayoutError, match="`scale` is missing"):
        LAYOUT.flatten({name: TENSORS[name] for name in ("head.w", "body.w")})


def test_a_vector_of_another_size_is_not_saved() -> None:
    with pytest.raises(LayoutError, match="does not fit"):
        save_model(LAYOUT, np.zeros(3, np.float32))


def test_a_model_of_another_layout_or_with_nan_is_refused() -> None:
    other = Layout.of({"x": np.zeros(2, np.float32)})
    with pytest.raises(ModelFileError, match="not a model of this layout"):
        load_model(other, MODEL)
    with pytest.raises(ModelFileError, match="not a model of this layout"):
        load_model(LAYOUT, MODEL[:-1])
    with pytest.raises(ModelFileError, match="not finite"):
        load_model(other, save_model(other, np.float32([1, np.nan])))


def test_an_update_comes_back_as_it_went_in() -> None:
    update = load_update(UPDATE, FORM)
    np.testing.assert_array_equal(update.row, [1, 2])
    assert (update.weight, update.base) == (3.0, BASE)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", FormatError),
        (b"\x00" * 7, FormatError),
        (b"\xff" * 8 + b"{}", FormatError),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b" " * (MAX_HEADER_BYTES + 1), FormatError),
        (file_with(b"not json"), FormatError),
        (file_with(b"[" * 5000), FormatError),
        (file_with(b"[]"), FormatError),
        (file_with({"step": 3}), FormatError),
        (file_with({"__metadata__": {"weight": 3}}), FormatError),
        (file_with({"__metadata__": "x"}), FormatError),
        (
            file_with(b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{}}', b"1234"),
            FormatError,
        ),
        (file_with({"step": entry([1], [0, 4], "I64")}, b"1234"), FormatError),
        (file_with({"step": entry([1], [0, 8])}, b"12345678"), FormatError),
        (file_with({"step": entry([1], [4, 8])}, b"12345678"), FormatError),
        (file_with({"step": entry([-1], [0, 4])}, b"1234"), FormatError),
        (file_with({"step": entry([True], [0, 4])}, b"1234"), FormatError),
        (file_with({"step": entry([1] * 33, [0, 4])}, b"1234"), FormatError),
        (file_with({"step": entry([1 << 60], [0, 4])}, b"1234"), FormatError),
        (file_with({"step": {**entry([1], [0, 4]), "more": 1}}, b"1234"), FormatError),
        (
            file_with({"step": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
            FormatError,
        ),
        (file_with({"a": entry([1], [0, 4]), "b": entry([1], [0, 4])}, b"1234"), FormatError),
        (UPDATE[:-1], FormatError),
        (UPDATE + b"\0", FormatError),
        (file_with({"step": entry([2], [0, 8])}, b"12345678"), FormatError),
        (MODEL, DimensionError),
        (save_update(Update(np.zeros(3, np.float32), 3.0, BASE)), DimensionError),
        (save_update(Update(np.zeros(2, np.float64), 3.0, BASE)), DimensionError),
        (save_update(Update(np.float32([1, np.nan]), 3.0, BASE)), FormatError),
        (save_update(Update(np.float32([1, np.inf]), 3.0, BASE)), FormatError),
        (UPDATE.replace(b'"3.0"', b'"nan"'), FormatError),
        (UPDATE.replace(b'"3.0"', b'"0.0"'), FormatError),
        (UPDATE.replace(b'"3.0"', b'"-.0"'), FormatError),
        (UPDATE.replace(b'"3.0"', b'"x.0"'), FormatError),
        (UPDATE.replace(b"0001020304", b"zz01020304"), FormatError),
    ],
)
def test_a_bad_update_is_refused_with_its_code(data: bytes, error: type[ConsortiumError]) -> None:
    with pytest.raises(error):
        load_update(data, FORM)


@given(st.data())
def test_damaged_updates_are_refused_or_well_formed_and_never_crash(data: st.DataObject) -> None:
    damaged = bytearray(UPDATE)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        update = load_update(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), FORM)
    except (FormatError, DimensionError):
        return
    assert np.isfinite(update.row).all()
    assert update.weight > 0


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        specs, _, start = read_header(data)
    except FormatError:
        return
    assert start <= len(data)
    assert all(spec.size >= 0 for spec in specs)

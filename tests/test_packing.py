"""Packed updates: what is written is what is read, in any slices; what is malformed is refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.checks import Expected, check_update, measure
from consortium.core.facts import Fault
from consortium.core.ids import Digest
from consortium.errors import DimensionError, FormatError, LayoutError
from consortium.model import Form, Update, load_update, save_update, update_bytes
from consortium.packing.packed import Packing, Sent
from consortium.packing.places import DRAWN_AT_ONCE, all_drawn, draw_of, drawn_places, kept_of
from consortium.store.files import FileBlobs
from consortium.store.memory import MemoryBlobs
from consortium.stored import open_update
from consortium.tensors import arrays_of, read_header, write_header
from consortium.update.compress import Compress

BASE = Digest(b"b" * 32)
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
PLAN = bytes(range(32))
PACKINGS = [
    Packing(8),
    Packing(4),
    Packing(0, Sent.TOP, 0.1),
    Packing(4, Sent.TOP, 0.1),
    Packing(8, Sent.TOP, 0.02),
    Packing(0, Sent.DRAWN, 0.3, PLAN, 7),
    Packing(4, Sent.DRAWN, 0.1, PLAN, 7),
]


def form_of(packing: Packing, size: int, *, tau: bool = False, dtype: Any = FLOAT32) -> Form:
    vectors = (("step", size), ("tau", 1)) if tau else (("step", size),)
    return Form(vectors, dtype, packing)


def made(form: Form, seed: int = 0) -> tuple[Any, bytes]:
    """A row as it will be read, and its file."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(1, form.size)).astype(form.dtype)
    found = Compress(form).apply(rows, [rng])
    return found.rows[0], save_update(Update(found.rows[0], 10.0, BASE, found.packed[0]), form)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1_001, 70_001, 140_000])
@pytest.mark.parametrize(("tau", "dtype"), [(False, FLOAT32), (True, FLOAT64)])
def test_a_file_is_read_as_it_was_meant(packing: Packing, size: int, tau: bool, dtype: Any) -> None:
    form = form_of(packing, size, tau=tau, dtype=dtype)
    row, data = made(form)
    loaded = load_update(data, form)
    assert (len(loaded.row), loaded.row.dtype) == (form.size, dtype)
    assert loaded.row[:].tobytes() == row.tobytes()
    assert len(data) == update_bytes(form, 10.0)


@given(data=st.data(), packing=st.sampled_from(PACKINGS), tau=st.booleans())
def test_any_slice_of_a_stored_update_is_that_of_the_row(
    data: st.DataObject, packing: Packing, tau: bool
) -> None:
    form = form_of(packing, data.draw(st.sampled_from([3, 700, 66_000, 140_001])), tau=tau)
    row, file = made(form)
    blobs = MemoryBlobs()
    stored = open_update(blobs, form, blobs.put(file)).row
    for _ in range(4):
        lo = data.draw(st.integers(0, form.size))
        hi = data.draw(st.integers(lo, form.size))
        assert stored[lo:hi].tobytes() == row[lo:hi].tobytes()


@pytest.mark.parametrize("packing", [Packing(4), Packing(8, Sent.TOP, 0.05), PACKINGS[-1]])
def test_a_large_update_is_looked_at_in_little_memory(packing: Packing, tmp_path: Path) -> None:
    form = form_of(packing, 3_000_000)
    blobs = FileBlobs(tmp_path / "blobs")
    digest = blobs.put(made(form)[1])
    tracemalloc.start()
    try:
        measure(open_update(blobs, form, digest).row, form)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20, f"{peak >> 10} KiB for a row of 12 MB"


@pytest.mark.parametrize("packing", PACKINGS)
def test_norms_are_those_of_the_unpacked_row(packing: Packing) -> None:
    form = form_of(packing, 200_003, tau=True)
    row, file = made(form)
    blobs = MemoryBlobs()
    assert measure(open_update(blobs, form, blobs.put(file)).row, form) == measure(row, form)


def test_a_4_bit_update_of_10_000_numbers_is_below_14_percent() -> None:
    plain = update_bytes(Form((("step", 10_000),), FLOAT32), 123.0)
    assert update_bytes(form_of(Packing(4), 10_000), 123.0) < 0.14 * plain
    assert update_bytes(form_of(Packing(4), 1_000_000), 123.0) < 0.13 * 4_000_000
    assert update_bytes(form_of(Packing(0, Sent.TOP, 0.01), 1_000_000), 123.0) < 0.015 * 4_000_000


def test_a_row_that_is_not_packed_cannot_be_sent_as_one() -> None:
    form = form_of(Packing(4), 10)
    for packed in (None, b"", bytes(100)):
        with pytest.raises(LayoutError):
            save_update(Update(np.zeros(10, np.float32), 1.0, BASE, packed), form)


def test_a_plain_file_is_no_packed_one_and_the_other_way_round() -> None:
    form = form_of(Packing(4), 10)
    plain = Form(form.vectors, form.dtype)
    with pytest.raises(DimensionError):
        load_update(save_update(Update(np.zeros(10, np.float32), 1.0, BASE)), form)
    with pytest.raises(DimensionError):
        load_update(made(form)[1], plain)


# ---- drawn places -------------------------------------------------------------------


def test_drawn_places_are_pinned() -> None:
    """They are part of the format: another NumPy must draw the same."""
    draw = draw_of(PLAN, 3)
    assert draw.hex()[:16] == "3dfa711ec33ce8b6"
    assert drawn_places(draw, 0, 100, 0.1).tolist() == [4, 9, 15, 19, 23, 60, 74, 83, 87, 95]


def test_drawn_places_follow_the_published_rule() -> None:
    """SplitMix64 as it is published, a number at a time; the smallest are drawn."""
    draw, mask = draw_of(PLAN, 12), (1 << 64) - 1
    state, numbers = int.from_bytes(draw[:8], "little"), []
    for column in range(300):
        state = (state + 0x9E3779B97F4A7C15) & mask
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
        numbers.append((mixed ^ (mixed >> 31), column))
    expected = sorted(column for _, column in sorted(numbers)[:30])
    assert drawn_places(draw, 0, 300, 0.1).tolist() == expected


def test_drawn_places_are_even_over_columns_and_other_each_round() -> None:
    size, keep, rounds = 1_000, 0.1, 400
    counts = np.zeros(size)
    for number in range(rounds):
        places = all_drawn(draw_of(PLAN, number), size, keep)
        assert len(places) == kept_of(size, keep) and (np.diff(places) > 0).all()
        counts[places] += 1
    # Binomial with mean 40 and deviation 6: six deviations have a chance of 1e-6 over all.
    assert abs(counts - 40).max() < 36
    assert counts.sum() == rounds * 100


def test_drawn_places_of_a_block_do_not_depend_on_the_others() -> None:
    draw, size = draw_of(PLAN, 1), DRAWN_AT_ONCE + 500
    whole = all_drawn(draw, size, 0.05)
    tail = drawn_places(draw, 1, 500, 0.05)
    assert whole[whole >= DRAWN_AT_ONCE].tolist() == tail.tolist()
    assert len(tail) == 25


# ---- what is malformed --------------------------------------------------------------


def changed(data: bytes, **tensors: Any) -> bytes:
    """The file with other contents of some tensors."""
    specs, about, start = read_header(data)
    arrays = arrays_of(specs, data, start)
    bodies = []
    for spec in specs:
        array = arrays[spec.name].copy()
        change = tensors.get(spec.name.removeprefix("step."))
        bodies.append((array if change is None else change(array)).tobytes())
    return write_header(specs, about) + b"".join(bodies)


def put(place: int, value: Any) -> Any:
    def change(array: Any) -> Any:
        array[place] = value
        return array

    return change


def moved(array: Any) -> Any:
    """One place fewer in the first span, one more in the second."""
    array[0] -= 1
    array[1] += 1
    return array


TOP, FOUR, EIGHT = Packing(8, Sent.TOP, 0.1), Packing(4), Packing(8)
MALFORMED = [
    ("a code that stands for nothing", EIGHT, {"codes": put(5, 0)}),
    ("a low half that stands for nothing", FOUR, {"codes": put(5, 0x10)}),
    ("a high half that stands for nothing", FOUR, {"codes": put(5, 0x01)}),
    ("bits behind the last code", FOUR, {"codes": put(-1, 0x11)}),
    ("a scale of NaN", FOUR, {"scales": put(0, np.nan)}),
    ("a scale of infinity", FOUR, {"scales": put(2, np.inf)}),
    ("a scale below zero", EIGHT, {"scales": put(1, -1e-9)}),
    ("a scale of minus zero", EIGHT, {"scales": put(1, -0.0)}),
    ("a scale that overflows", EIGHT, {"scales": put(0, 3e38)}),
    ("too many places", TOP, {"counts": put(0, 255)}),
    ("too few places", TOP, {"counts": put(0, 0)}),
    ("a place in another span", TOP, {"counts": moved}),
    ("a place twice", TOP, {"places": lambda array: array * 0 + array[1]}),
    ("places that descend", TOP, {"places": lambda array: array[::-1]}),
    ("a place outside of its span", TOP, {"places": put(-1, 255)}),
    ("a place behind the last column", TOP, {"places": put(-1, 254)}),
    ("a value of NaN", Packing(0, Sent.TOP, 0.1), {"values": put(3, np.nan)}),
    ("a value of infinity", PACKINGS[5], {"values": put(-1, np.inf)}),
]


@pytest.mark.parametrize(
    ("packing", "changes"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED]
)
def test_what_is_malformed_is_refused(packing: Packing, changes: dict[str, Any]) -> None:
    form = form_of(packing, 1_001)  # an odd number, and no whole number of spans or groups
    data = changed(made(form)[1], **changes)
    expected = Expected(form, BASE, None, (1.0, 100.0))
    blobs = MemoryBlobs()
    assert check_update(blobs, blobs.put(changed(made(form)[1])), expected).fault is None
    assert check_update(blobs, blobs.put(data), expected).fault is Fault.FORMAT
    with pytest.raises(FormatError):
        load_update(data, form)


@given(data=st.data(), packing=st.sampled_from(PACKINGS))
def test_any_other_bytes_are_finite_numbers_or_refused(
    data: st.DataObject, packing: Packing
) -> None:
    form = form_of(packing, 600)
    file = bytearray(made(form)[1])
    for _ in range(data.draw(st.integers(1, 5))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        row = load_update(bytes(file), form).row
    except (FormatError, DimensionError):
        return
    assert np.isfinite(row[:]).all() and len(row[:]) == 600

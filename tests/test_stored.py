"""Models and updates by columns: the same bytes and numbers as in one piece, and no more memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.aggregate import columns
from consortium.aggregate.columns import CHUNK
from consortium.checks import Expected, Findings, check_update, measure
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import Fault, RoundEnd
from consortium.drive import rows
from consortium.drive.clock import ManualClock
from consortium.drive.hands import CoordinatorHands
from consortium.errors import (
    CorruptBlobError,
    FormatError,
    MissingBlobError,
    ModelFileError,
)
from consortium.model import (
    STEP,
    Form,
    Layout,
    Update,
    digest_of,
    load_model,
    plain_form,
    save_model,
    save_update,
)
from consortium.plan.strategy import TAU, VARIATE, StrategySection
from consortium.store.files import FileBlobs
from consortium.store.memory import MemoryBlobs
from consortium.stored import ModelSink, check_model, open_model, open_tensors, open_update
from consortium.tensors import MAX_HEADER_BYTES, TensorSpec
from consortium.update.clip import norms

BASE = digest_of(b"base")
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
MIXED = Layout(
    (
        TensorSpec("a", (3,), "F16"),
        TensorSpec("b", (2, 2), "F32"),
        TensorSpec("c", (0, 7), "F16"),
        TensorSpec("d", (5,), "F32"),
        TensorSpec("e", (), "F16"),
    )
)

layouts = st.lists(
    st.tuples(st.sampled_from(["F16", "F32", "F64"]), st.integers(0, 9)), min_size=1, max_size=6
).map(lambda parts: Layout(tuple(TensorSpec(f"t{k}", (n,), c) for k, (c, n) in enumerate(parts))))


def numbers(layout: Layout, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=layout.size).astype(layout.dtype)


# ---- models -------------------------------------------------------------------------


@given(layouts, st.integers(0, 99), st.integers(0, 60), st.integers(0, 60))
def test_columns_of_a_stored_model_are_those_of_the_loaded_one(
    layout: Layout, seed: int, lo: int, hi: int
) -> None:
    blobs = MemoryBlobs()
    data = save_model(layout, numbers(layout, seed))
    stored, loaded = open_model(blobs, layout, blobs.put(data)), load_model(layout, data)
    assert (len(stored), stored.dtype) == (layout.size, layout.dtype)
    assert stored[lo:hi].dtype == layout.dtype
    assert stored[lo:hi].tobytes() == loaded[lo:hi].tobytes()


@given(layouts, st.integers(0, 99), st.lists(st.integers(0, 60), max_size=4))
def test_a_model_written_by_columns_has_the_bytes_of_the_saved_one(
    layout: Layout, seed: int, cuts: list[int]
) -> None:
    wide = np.random.default_rng(seed).normal(size=layout.size)
    edges = sorted({0, layout.size, *(cut for cut in cuts if cut < layout.size)})
    blobs = MemoryBlobs()
    with blobs.writer() as writer:
        sink = ModelSink(writer, layout)
        for lo, hi in reversed(list(pairwise(edges))):
            sink.put(lo, wide[lo:hi])
        digest = sink.finish()
    assert blobs.get(digest) == save_model(layout, wide.astype(layout.dtype))


def test_each_tensor_of_a_stored_model_is_a_vector() -> None:
    blobs, vector = MemoryBlobs(), numbers(MIXED, 1)
    parts = open_tensors(blobs, MIXED, blobs.put(save_model(MIXED, vector)))
    for name, tensor in MIXED.unflatten(vector).items():
        assert parts[name][:].tobytes() == tensor.tobytes()


@pytest.mark.parametrize("column", range(MIXED.size))
def test_a_number_that_the_tensors_type_cannot_hold_is_refused(column: int) -> None:
    values = np.zeros(MIXED.size)
    values[column] = 1e39
    with np.errstate(over="ignore"), MemoryBlobs().writer() as writer:
        sink = ModelSink(writer, MIXED)
        with pytest.raises(ModelFileError, match="finite"):
            sink.put(0, values)


def test_a_model_is_checked_where_it_lies(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    layout = Layout((TensorSpec("w", (CHUNK + 5,), "F32"),))
    good = np.ones(layout.size, np.float32)
    check_model(blobs, layout, blobs.put(save_model(layout, good)))
    with pytest.raises(MissingBlobError):
        check_model(blobs, layout, BASE)
    with pytest.raises(ModelFileError, match="not a model of this layout"):
        check_model(blobs, layout, blobs.put(save_model(MIXED, numbers(MIXED, 1))))
    good[-1] = np.inf
    with pytest.raises(ModelFileError, match="finite"):
        check_model(blobs, layout, blobs.put(save_model(layout, good)))


def test_a_model_that_was_changed_or_cut_off_is_found(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    digest = blobs.put(save_model(MIXED, numbers(MIXED, 1)))
    stored = open_model(blobs, MIXED, digest)
    whole = blobs.path(digest).read_bytes()
    blobs.path(digest).write_bytes(whole[:-1] + b"?")
    with pytest.raises(CorruptBlobError, match="changed"):
        check_model(blobs, MIXED, digest)
    blobs.path(digest).write_bytes(whole[:-1])
    with pytest.raises(CorruptBlobError, match="cut off"):
        stored[:]


def test_a_long_header_is_read_and_one_without_end_is_not() -> None:
    blobs = MemoryBlobs()
    layout = Layout(tuple(TensorSpec(f"{k:04}", (1,), "F32") for k in range(300)))
    digest = blobs.put(save_model(layout, numbers(layout, 1)))
    assert len(open_model(blobs, layout, digest)) == 300
    endless = (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + bytes(MAX_HEADER_BYTES + 1)
    with pytest.raises(ModelFileError, match="header"):
        open_model(blobs, layout, blobs.put(endless))


# ---- sums ---------------------------------------------------------------------------

STRATEGIES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedadam": {"name": "fedadam"},
    "scaffold with momentum": {"name": "scaffold", "server": "momentum"},
    "fednova with variates": {"name": "fednova", "variates": True},
    "median": {"rule": "median"},
    "krum": {"rule": "krum", "hostile": 0.1},
}


def sums(blobs: Any, settings: dict[str, Any]) -> list[Any]:
    """Two rounds: a sum of single updates and, if the rule takes them, of a block's sum too."""
    strategy, rng = StrategySection(**settings), np.random.default_rng(5)
    hands = CoordinatorHands(MIXED, strategy, blobs, ManualClock(), lambda _: bytes(32))
    base, state = blobs.put(save_model(MIXED, numbers(MIXED, 1))), None
    form = hands.form
    summed = Form(form.vectors, FLOAT64)
    found: list[Any] = []
    for number in (1, 2):
        sent = [rng.normal(size=form.size).astype(form.dtype) for _ in range(6)]
        digests = [blobs.put(save_update(Update(row, 3.0, base), form)) for row in sent]
        wide = blobs.put(save_update(Update(rng.normal(size=form.size), 7.0, base), summed))
        partials = () if strategy.needs_rows else ((64, 7.0, wide),)
        ranked = tuple(enumerate(digests))
        done = hands.perform(d.Aggregate(number, 6, 9, base, state, ranked, partials))
        assert isinstance(done, i.Summed)
        base, state = done.model, done.server_state
        found.append(done)
    return found


@pytest.mark.parametrize("settings", STRATEGIES.values(), ids=STRATEGIES)
def test_what_is_read_by_columns_gives_the_model_of_what_is_held(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = sums(MemoryBlobs(), settings)
    monkeypatch.setattr(rows, "_KEPT_BYTES", -1)
    monkeypatch.setattr(columns, "CHUNK", 4)
    assert sums(FileBlobs(tmp_path / "blobs"), settings) == held


def test_a_sum_that_is_not_finite_leaves_no_model_behind(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    hands = CoordinatorHands(MIXED, StrategySection(), blobs, ManualClock(), lambda _: bytes(32))
    base = blobs.put(save_model(MIXED, numbers(MIXED, 1)))
    large = np.full(MIXED.size, 1e5, np.float32)  # too large for float16 only
    update = blobs.put(save_update(Update(large, 1.0, base), hands.form))
    before = list(blobs.digests())
    done = hands.perform(d.Aggregate(1, 1, 1, base, None, ((0, update),), ()))
    assert isinstance(done, i.NotSummed) and done.reason is RoundEnd.NOT_FINITE
    assert list(blobs.digests()) == before
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []


# ---- updates ------------------------------------------------------------------------


def form_of(size: int, *, tau: bool, variate: bool, dtype: np.dtype[Any] = FLOAT32) -> Form:
    vectors = [(STEP, size), *([(TAU, 1)] if tau else []), *([(VARIATE, size)] if variate else [])]
    return Form(tuple(vectors), dtype)


def plain_norm(row: Any, form: Form) -> float:
    """As it was first written, with all of the row in memory."""
    names = [name for name, _ in form.vectors if name != TAU]
    sent = np.concatenate([form.part(row, name) for name in names])
    return float(np.sqrt(np.sum(np.square(sent, dtype=np.float64))))


@pytest.mark.parametrize("size", [1, 7, 65_536, 65_537, 200_003, 1_000_000])
@pytest.mark.parametrize(("tau", "variate"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_the_norm_is_that_of_the_whole_row(
    size: int, tau: bool, variate: bool, dtype: np.dtype[Any]
) -> None:
    form = form_of(size, tau=tau, variate=variate, dtype=dtype)
    row = np.random.default_rng(size).normal(size=form.size).astype(dtype)
    if tau:
        form.part(row, TAU)[:] = 77.0
    blobs = MemoryBlobs()
    update = open_update(blobs, form, blobs.put(save_update(Update(row, 2.0, BASE), form)))
    assert (update.weight, update.base) == (2.0, BASE)
    found = measure(update.row, form)
    assert found.norm == plain_norm(row, form)
    assert found.steps == (77.0 if tau else None)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_simulation_and_coordinator_have_one_norm(dtype: np.dtype[Any]) -> None:
    row = np.random.default_rng(3).normal(size=300_001).astype(dtype)
    assert norms(row[None, :])[0] == measure(row, plain_form(len(row), dtype)).norm


@pytest.mark.parametrize("column", [0, 65_536, 131_071, 131_072, 131_073, 262_144])
def test_one_number_that_is_not_finite_is_found_anywhere(column: int) -> None:
    form = form_of(131_072, tau=True, variate=True)
    row = np.ones(form.size, np.float32)
    row[column] = np.nan
    with pytest.raises(FormatError):
        measure(row, form)


def expecting(form: Form, **changes: Any) -> Expected:
    return replace(Expected(form, BASE, None, (1.0, 10.0)), **changes)


def spoilt(change: Callable[[Any], None]) -> bytes:
    """An update with more than one thing wrong: another base, and what `change` does to it."""
    row = np.ones(3, np.float32)
    change(row)
    return save_update(Update(row, 99.0, digest_of(b"other")))


def checked(data: bytes, expected: Expected) -> Findings:
    blobs = MemoryBlobs()
    return check_update(blobs, blobs.put(data), expected)


def test_of_several_faults_the_first_of_the_fixed_order_is_told() -> None:
    expected = expecting(plain_form(3, FLOAT32))
    assert checked(spoilt(lambda row: row.fill(np.inf)), expected).fault is Fault.FORMAT
    assert checked(spoilt(lambda row: None), expected).fault is Fault.STALENESS


@pytest.mark.parametrize("size", [3, 500_000])
def test_lost_bytes_are_not_the_updates_fault(tmp_path: Path, size: int) -> None:
    blobs, form = FileBlobs(tmp_path / "blobs"), plain_form(size, FLOAT32)
    digest = blobs.put(save_update(Update(np.ones(size, np.float32), 1.0, BASE)))
    assert check_update(blobs, digest, expecting(form)).norm == np.sqrt(size)
    blobs.drop(digest)
    with pytest.raises(MissingBlobError):
        check_update(blobs, digest, expecting(form))


def test_an_update_shorter_or_longer_than_its_header_says_is_malformed() -> None:
    form = plain_form(3, FLOAT32)
    data = save_update(Update(np.ones(3, np.float32), 1.0, BASE))
    for wrong in (data[:-1], data + b"\x00", data[:20], b""):
        assert checked(wrong, expecting(form)).fault is Fault.FORMAT

"""Tasks and bundles: loading, the hash that a site approves, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.bundle import MAX_FILE_BYTES, Bundle, make_bundle, unpack
from consortium.core.terms import Metric
from consortium.errors import BundleError, TaskEntryError, TaskResultError
from consortium.model import Layout
from consortium.tasks import NumpyTask, load_task, numpy_task

TASK = """
import numpy as np
import consortium as co
from extra import FEATURES

def start(rng):
    return {"w": np.zeros(FEATURES, np.float32)}

def evaluate(site, shared):
    return {"loss": 1.0}, 1

@co.numpy_task(start=start, evaluate=evaluate)
def study(site, shared):
    return shared, 1

other = 3
"""
LAYOUT = Layout.of({"w": np.zeros(3, np.float32)})
METRICS = (Metric("loss", higher_is_better=False),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "extra.py").write_text("FEATURES = 3\n")
    (tmp_path / "broken.py").write_text("import nonsense_module_of_nobody\n")
    return tmp_path


def test_a_task_is_loaded_with_its_own_files(folder: Path) -> None:
    task = load_task("task.py:study", folder)
    assert isinstance(task, NumpyTask)
    assert task.metrics == METRICS
    assert task.start(np.random.default_rng(0))["w"].shape == (3,)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("task.py", "not of the form"),
        ("task:study", "not of the form"),
        ("task.py:os.system", "not of the form"),
        ("none.py:study", "there is no file"),
        ("task.py:nothing", "has no `nothing`"),
        ("task.py:other", "is a int, not a task"),
        ("task.py:start", "is a function, not a task"),
        ("broken.py:study", "cannot be run: ModuleNotFoundError"),
    ],
)
def test_a_wrong_entry_is_explained(folder: Path, entry: str, says: str) -> None:
    with pytest.raises(TaskEntryError, match=says) as caught:
        load_task(entry, folder)
    assert caught.value.hint


def test_an_unknown_metric_needs_its_direction() -> None:
    with pytest.raises(TaskResultError, match="not known"):
        numpy_task(start=dict, evaluate=dict, metrics=["brier"])  # type: ignore[arg-type]
    decorate = numpy_task(start=dict, evaluate=dict, metrics=[Metric("brier", False)])  # type: ignore[arg-type]
    assert decorate(dict).metrics == (Metric("brier", False),)  # type: ignore[arg-type]


def test_a_bundle_packs_and_unpacks(folder: Path) -> None:
    bundle = make_bundle(folder, ["task.py", "extra.py", "task.py"])
    assert [name for name, _ in bundle.files] == ["extra.py", "task.py"]
    assert unpack(bundle.pack()) == bundle


def test_the_task_hash_covers_files_layout_entry_and_metrics(folder: Path) -> None:
    bundle = make_bundle(folder, ["task.py", "extra.py"])
    base = bundle.task_hash(LAYOUT, "task.py:study", METRICS)
    assert bundle.task_hash(LAYOUT, "task.py:study", METRICS) == base
    wider = Layout.of({"w": np.zeros(4, np.float32)})
    higher = (Metric("loss", higher_is_better=True),)
    (folder / "extra.py").write_text("FEATURES = 4\n")
    changed = make_bundle(folder, ["task.py", "extra.py"])
    others = {
        bundle.task_hash(wider, "task.py:study", METRICS),
        bundle.task_hash(LAYOUT, "task.py:other", METRICS),
        bundle.task_hash(LAYOUT, "task.py:study", higher),
        bundle.task_hash(LAYOUT, "task.py:study", ()),
        changed.task_hash(LAYOUT, "task.py:study", METRICS),
    }
    assert len(others) == 5
    assert base not in others


def test_the_task_hash_is_fixed_for_ever() -> None:
    bundle = Bundle((("task.py", b"x = 1\n"),))
    expected = "246a8f42"
    assert bundle.task_hash(LAYOUT, "task.py:study", METRICS).hex().startswith(expected)


@pytest.mark.parametrize(
    "name",
    ["../task.py", "/etc/passwd", "a//b.py", "./task.py", "", "a\\b", "a b.py", ".env", "x" * 300],
)
def test_a_name_that_could_lead_out_of_the_folder_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(BundleError):
        make_bundle(folder, [name])
    with pytest.raises(BundleError):
        unpack(Bundle(((name, b""),)).pack())


def test_links_missing_and_large_files_are_refused(folder: Path) -> None:
    (folder / "link.py").symlink_to(folder / "task.py")
    (folder / "large.py").write_bytes(b" " * (MAX_FILE_BYTES + 1))
    for name in ("link.py", "none.py", "large.py"):
        with pytest.raises(BundleError):
            make_bundle(folder, [name])
    with pytest.raises(BundleError):
        make_bundle(folder, [])


@given(st.data())
def test_a_damaged_bundle_is_refused_or_another_one(data: st.DataObject) -> None:
    bundle = Bundle((("a.py", b"one"), ("b.py", b"two")))
    packed = bundle.pack()
    damaged = bytearray(packed)
    at = data.draw(st.integers(0, len(packed) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        other = unpack(bytes(damaged))
    except BundleError:
        other = None
    assert other is None or other.manifest != bundle.manifest  # a name changed: another hash
    with pytest.raises(BundleError):
        unpack(packed[:at])


def test_a_bundle_of_too_many_files_is_refused() -> None:
    files = tuple((f"f{number:04}.py", b"") for number in range(1001))
    with pytest.raises(BundleError, match="too many"):
        unpack(Bundle(files).pack())

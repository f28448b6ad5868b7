"""The lock of a study: what it writes, what it notices, and what it shows before anything runs."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from consortium.cli.app import app
from consortium.drive.inspect import inspect, inventory_text
from consortium.drive.lock import LOCK, MODEL, check_lock, make_lock, read_lock, write_lock
from consortium.drive.study import Study, load_study
from consortium.errors import (
    ConsortiumError,
    ImpossiblePlanError,
    PlanFileError,
    TaskResultError,
    VerificationError,
)
from consortium.model import Layout, digest_of, load_model, save_model
from consortium.plan import Plan
from consortium.tasks import Inventory, NumpyTask, Site
from consortium.tensors import TensorSpec
from tests.studies import TASK

TASK_FILE = """
from pathlib import Path

import numpy as np

import consortium as co


def start(rng):
    first = Path(__file__).with_name("first.txt")
    scale = float(first.read_text()) if first.exists() else 1.0
    return {"w": (scale * rng.normal(size=(2, 3))).astype(np.float32), "b": np.zeros(2, np.float64)}


def evaluate(site, shared):
    return {"loss": float(np.square(shared["w"]).mean()), "accuracy": 0.5}, 5


@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site, shared):
    shared["w"] *= np.float32(0.9)
    return shared, 5
"""
PLAN_FILE = """
[task]
entry = "task.py:study"

[federation]
name = "locked"
rounds = 2
sites = "data/*.csv"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name in ("north", "east", "west"):
        (tmp_path / "data" / f"{name}.csv").write_text("1,2\n")
    (tmp_path / "task.py").write_text(TASK_FILE)
    (tmp_path / "plan.toml").write_text(PLAN_FILE)
    return tmp_path


@pytest.fixture
def locked(folder: Path) -> Path:
    assert call("lock", folder / "plan.toml", "--seed", "7").exit_code == 0
    return folder


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# ---- what it writes ------------------------------------------------------------------------


def test_lock_writes_both_files_and_they_belong_together(folder: Path) -> None:
    done = call("lock", folder / "plan.toml", "--seed", "7")
    assert done.exit_code == 0, done.stderr
    lock, model = read_lock(folder)
    assert (folder / MODEL).read_bytes() == model
    assert digest_of(model) == lock.model
    study = load_study(folder / "plan.toml")
    assert (lock.plan, lock.task) == (study.plan.digest, study.task_hash)
    assert (lock.entry, lock.seed, lock.pinned) == ("task.py:study", 7, None)
    assert [metric.name for metric in lock.metrics] == ["loss", "accuracy"]
    assert [spec.name for spec in lock.layout.specs] == ["b", "w"]
    assert np.isfinite(load_model(lock.layout, model)).all()
    for digest in (lock.plan, lock.task, lock.model):
        assert digest.hex() in done.stdout
    assert f"wrote {folder / LOCK} and {folder / MODEL}" in done.stderr


def test_the_lock_is_toml_that_people_can_read(locked: Path) -> None:
    text = (locked / LOCK).read_text()
    assert text.startswith("# Made by `consortium lock`.")
    values = tomllib.loads(text)
    assert values["version"] == 1
    assert sorted(values) == ["model", "plan", "task", "version"]
    assert values["model"]["file"] == MODEL
    assert values["model"]["layout"] == ["consortium/layout/v1", "F64 2 b", "F32 2x3 w"]
    assert values["task"]["metrics"] == [
        {"name": "loss", "higher_is_better": False},
        {"name": "accuracy", "higher_is_better": True},
    ]


def test_the_first_model_is_that_of_a_simulation_with_the_seed(locked: Path) -> None:
    from consortium.drive.simulate import simulate

    study = load_study(locked / "plan.toml")
    lock, model = read_lock(locked)
    run = simulate(study.task, study.plan, study.sites, seed=lock.seed)
    assert save_model(run.layout, run.first) == model


def test_the_same_seed_gives_the_same_files_and_none_draws_one(folder: Path) -> None:
    made = []
    for seed in (["--seed", "7"], ["--seed", "7"], ["--seed", "8"], []):
        assert call("lock", folder / "plan.toml", *seed).exit_code == 0
        made.append(((folder / LOCK).read_bytes(), (folder / MODEL).read_bytes()))
    assert made[0] == made[1]
    assert len({lock for lock, _ in made}) == len({model for _, model in made}) == 3


def test_lock_tells_machines_too(folder: Path) -> None:
    told = json.loads(call("--json", "lock", folder / "plan.toml", "--seed", "7").stdout)
    lock, _ = read_lock(folder)
    assert told["data"] == {
        "lock": str(folder / LOCK),
        "model": str(folder / MODEL),
        "task": lock.task.hex(),
        "plan": lock.plan.hex(),
        "sha256": lock.model.hex(),
    }
    told = json.loads(call("--json", "lock", folder / "plan.toml", "--check").stdout)
    assert told["data"] == {"lock": str(folder / LOCK), "task": lock.task.hex()}


def test_a_folder_that_cannot_be_written_is_told(folder: Path) -> None:
    (folder / LOCK).mkdir()
    done = call("lock", folder / "plan.toml")
    assert (done.exit_code, "error[E0117]: cannot write" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("[strategy]\nname = 'scaffold'\n", "changes the gradients"),
        ("[evaluation]\nmetric = 'f1'\n", "does not report"),
    ],
)
def test_a_study_that_could_not_run_is_not_locked(folder: Path, more: str, says: str) -> None:
    (folder / "plan.toml").write_text(PLAN_FILE + more)
    done = call("lock", folder / "plan.toml")
    assert (done.exit_code, "error[E0114]" in done.stderr, says in done.stderr) == (3, True, True)
    assert not (folder / LOCK).exists() and not (folder / MODEL).exists()


# ---- what it shows -------------------------------------------------------------------------


def test_it_shows_what_leaves_and_what_stays(folder: Path) -> None:
    lines = call("lock", folder / "plan.toml", "--seed", "7").stdout.splitlines()
    assert lines[:6] == [
        "LEAVES  every round, 40 bytes",
        "        b  F64             2      16 bytes",
        "        w  F32           2x3      24 bytes",
        "LEAVES  every round: a weight made of how many records there are",
        "LEAVES  every round: how many test records, the sums of the metrics",
        "STAYS   the records",
    ]


def test_noise_under_masks_is_computed_and_what_is_masked_is_shown(folder: Path) -> None:
    edit(folder / "plan.toml", "rounds = 2", "rounds = 2\nquorum = 3")
    with (folder / "plan.toml").open("a") as plan:
        plan.write("[selection]\ntarget = 3\n[security]\nsecure_aggregation = true\n")
        plan.write("[evaluation]\nenabled = false\ngate = false\n")
        plan.write('[privacy]\nunit = "site"\nepsilon = 8.0\nclip = 1.0\n')
    done = call("lock", folder / "plan.toml", "--seed", "7")
    assert done.exit_code == 0, done.stderr
    assert "LEAVES  as 36 bytes that are masked" in done.stdout
    assert "noise_multiplier = " in (folder / "plan.lock").read_text()
    assert call("lock", folder / "plan.toml", "--check").exit_code == 0


def test_private_and_frozen_tensors_are_shown_to_stay() -> None:
    inventory = Inventory(
        leaves=(TensorSpec("body.weight", (1000, 1000)),),
        private=(TensorSpec("head", (10,), "F64"), TensorSpec("count", (), "I64")),
        frozen=(TensorSpec("embedding", (5, 2), "F16"),),
    )
    assert inventory_text(inventory, Plan()).splitlines() == [
        "LEAVES  every round, 4,000,000 bytes",
        "        body.weight  F32     1000x1000  4,000,000 bytes",
        "LEAVES  every round: a weight made of how many records there are",
        "LEAVES  every round: how many test records, the sums of the metrics",
        "STAYS   the records",
        "STAYS   88 bytes that the site keeps for itself",
        "        head   F64            10      80 bytes",
        "        count  I64             1       8 bytes",
        "STAYS   20 bytes that nobody changes",
        "        embedding  F16           5x2      20 bytes",
    ]


def test_inspect_prints_it_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    inspect(TASK)
    told = capsys.readouterr().out
    assert "LEAVES  every round, 16 bytes" in told
    assert "STAYS   the records" in told


def test_inspect_tells_an_error_without_showing_it() -> None:
    def start(rng: np.random.Generator) -> Any:
        raise ValueError("patient 4711")

    with pytest.raises(TaskResultError, match="the task failed: ValueError") as caught:
        inspect(replace(TASK, start=start))
    assert "4711" not in str(caught.value)


# ---- what it notices -----------------------------------------------------------------------


def test_check_passes_as_long_as_nothing_changes(locked: Path) -> None:
    before = {path: path.read_bytes() for path in locked.iterdir() if path.is_file()}
    done = call("lock", locked / "plan.toml", "--check")
    assert (done.exit_code, done.stdout) == (0, f"{locked / LOCK} is up to date\n")
    assert before == {path: path.read_bytes() for path in locked.iterdir() if path.is_file()}


def new_rounds(folder: Path) -> None:
    edit(folder / "plan.toml", "rounds = 2", "rounds = 3")


def new_code(folder: Path) -> None:
    edit(folder / "task.py", "0.9", "0.8")


def new_comment(folder: Path) -> None:
    edit(folder / "task.py", "import numpy", "# reviewed\nimport numpy")


def new_layout(folder: Path) -> None:
    edit(folder / "task.py", "size=(2, 3)", "size=(3, 3)")


def new_first_model(folder: Path) -> None:
    (folder / "first.txt").write_text("2.0")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (new_rounds, "the plan"),
        (new_code, "the task"),
        (new_comment, "the task"),
        (new_layout, "the task"),
        (new_first_model, "the first model"),
    ],
)
def test_check_fails_after_a_change(
    locked: Path, change: Callable[[Path], None], what: str
) -> None:
    change(locked)
    done = call("lock", locked / "plan.toml", "--check")
    assert done.exit_code == 7
    assert f"error[E0900]: {what} has changed since the study was locked" in done.stderr
    assert "hint: consortium lock PLAN" in done.stderr
    assert call("lock", locked / "plan.toml", "--seed", "7").exit_code == 0
    assert call("lock", locked / "plan.toml", "--check").exit_code == 0


def test_where_the_data_lies_is_not_part_of_the_lock(locked: Path) -> None:
    (locked / "data").rename(locked / "elsewhere")
    edit(locked / "plan.toml", "data/*", "elsewhere/*")
    assert call("lock", locked / "plan.toml", "--check").exit_code == 0


def test_check_without_a_lock_says_how_to_make_one(folder: Path) -> None:
    done = call("lock", folder / "plan.toml", "--check")
    assert done.exit_code == 3
    assert "cannot read the lock" in done.stderr
    assert "hint: consortium lock PLAN" in done.stderr


# ---- damaged files -------------------------------------------------------------------------


def is_noticed(folder: Path, study: Study) -> bool:
    try:
        check_lock(folder, study)
    except ConsortiumError:
        return True
    return False


@pytest.mark.parametrize("name", [LOCK, MODEL])
def test_any_changed_byte_is_found_or_harmless(locked: Path, name: str) -> None:
    """Harmless: the lock still says all that it said, but for its seed, and that gives the
    same model; so a comment, or a digest in capital letters."""
    path, study = locked / name, load_study(locked / "plan.toml")
    original, (held, _) = path.read_bytes(), read_lock(locked)
    noticed = 0
    for at in range(len(original)):
        changed = bytearray(original)
        changed[at] ^= 1 << (at % 8)
        path.write_bytes(bytes(changed))
        if is_noticed(locked, study):
            noticed += 1
        else:
            assert replace(read_lock(locked)[0], seed=held.seed) == held, (at, changed[at])
    path.write_bytes(original)
    check_lock(locked, study)
    if name == MODEL:
        assert noticed == len(original)
    assert noticed > len(original) / 2


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = tomllib.loads((folder / LOCK).read_text())
    change(values)
    (folder / LOCK).write_text(tomli_w.dumps(values))


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.pop("version"),
        lambda values: values.update(version=2),
        lambda values: values.pop("plan"),
        lambda values: values.update(plan="00"),
        lambda values: values.update(plan="zz" * 32),
        lambda values: values.update(plan=7),
        lambda values: values.update(task=3),
        lambda values: values.update(model=["a"]),
        lambda values: values["task"].pop("entry"),
        lambda values: values["task"].update(metrics=["loss"]),
        lambda values: values["task"].update(metrics=7),
        lambda values: values["task"].update(frozen="beef"),
        lambda values: values["model"].update(layout="F32 2 w"),
        lambda values: values["model"].update(layout=[]),
        lambda values: values["model"].update(layout=7),
        lambda values: values["model"].update(seed=float("inf")),
        lambda values: values["model"].update(seed="7"),
    ],
)
def test_a_lock_that_is_not_one_is_refused(
    locked: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewritten(locked, change)
    with pytest.raises(VerificationError, match=f"{LOCK} is not a lock") as caught:
        read_lock(locked)
    assert (caught.value.exit_code, caught.value.hint) == (7, "consortium lock PLAN")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"= 3", b"a = {", b"\0", b""])
def test_a_lock_that_is_not_toml_is_refused(locked: Path, content: bytes) -> None:
    (locked / LOCK).write_bytes(content)
    with pytest.raises(VerificationError, match="is not a lock"):
        read_lock(locked)


def test_another_model_is_refused(locked: Path) -> None:
    lock, _ = read_lock(locked)
    (locked / MODEL).write_bytes(save_model(lock.layout, np.ones(lock.layout.size)))
    with pytest.raises(VerificationError, match="not the model that the lock names"):
        read_lock(locked)


def test_a_model_of_another_layout_is_refused_though_the_lock_names_it(locked: Path) -> None:
    other = save_model(Layout.of({"w": np.zeros(3, np.float32)}), np.zeros(3, np.float32))
    (locked / MODEL).write_bytes(other)
    rewritten(locked, lambda values: values["model"].update(sha256=digest_of(other).hex()))
    with pytest.raises(VerificationError, match="not the model that the lock names"):
        read_lock(locked)


@pytest.mark.parametrize("name", [LOCK, MODEL])
def test_a_missing_file_is_told(locked: Path, name: str) -> None:
    (locked / name).unlink()
    with pytest.raises(PlanFileError, match="cannot read the lock"):
        read_lock(locked)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["task"].update(entry="task.py:other"),
        lambda values: values["task"].update(frozen="ab" * 32),
        lambda values: values["task"]["metrics"][0].update(higher_is_better=True),
        lambda values: values["task"]["metrics"][1].update(name="auroc"),
        lambda values: values["task"]["metrics"].pop(),
    ],
)
def test_what_the_hash_covers_cannot_be_spelt_otherwise(
    locked: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """A coordinator reads metrics and entry from the lock: they must be the hashed ones."""
    rewritten(locked, change)
    read_lock(locked)
    done = call("lock", locked / "plan.toml", "--check")
    assert (done.exit_code, "the lock itself has changed" in done.stderr) == (7, True)


@dataclass(frozen=True)
class Frozen:
    """A task with a pretrained part that nobody changes."""

    task: NumpyTask
    weights: bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def inventory(self, site: Site) -> Inventory:
        return replace(self.task.inventory(site), pinned=digest_of(self.weights))


def test_the_lock_pins_the_frozen_part(folder: Path) -> None:
    study = load_study(folder / "plan.toml")
    frozen = replace(study, task=Frozen(study.task, b"weights"))
    write_lock(folder, *make_lock(frozen, 7))
    held, _ = read_lock(folder)
    assert held.pinned == digest_of(b"weights")
    check_lock(folder, frozen)
    with pytest.raises(VerificationError):
        check_lock(folder, replace(study, task=Frozen(study.task, b"others")))


def test_a_lock_reads_back_as_it_was_written(folder: Path) -> None:
    study = load_study(folder / "plan.toml")
    for seed in (0, 7, 2**40):
        made = make_lock(study, seed)
        write_lock(folder, *made)
        assert read_lock(folder) == made
        assert re.search(rf"^seed = {seed}$", (folder / LOCK).read_text(), re.MULTILINE)


def test_an_impossible_plan_is_not_locked_from_python(folder: Path) -> None:
    study = load_study(folder / "plan.toml")
    plan = study.plan.model_copy(
        update={"strategy": study.plan.strategy.model_copy(update={"mu": 0.5})}
    )
    with pytest.raises(ImpossiblePlanError):
        make_lock(replace(study, plan=plan), 7)

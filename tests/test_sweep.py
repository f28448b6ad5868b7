"""Studies: every setting with every seed, killed and gone on with, told in a table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from consortium.cli.app import app
from consortium.drive.runs import read_run, read_runs
from consortium.drive.sweep import STUDY_FILE, PlannedRun, read_study, results
from consortium.errors import PlanFileError

ROUNDS = 3
GRID = ("--rounds", ROUNDS, "--set", "training.lr=0.02,0.2", "--seeds", 2)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def made(folder: Path, *more: str) -> Path:
    assert call("init", folder, *more).exit_code == 0
    return folder / "consortium.toml"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("studies") / "mine")


@pytest.fixture(scope="module")
def whole(plan: Path) -> dict[str, Any]:
    """A study that nobody interrupted."""
    done = call("--json", "simulate", plan, *GRID, "--study", plan.parent / "whole")
    assert done.exit_code == 0, done.stdout
    told: dict[str, Any] = json.loads(done.stdout)["data"]
    return told


def digests(told: dict[str, Any]) -> dict[str, str]:
    return {Path(run["folder"]).name: run["model"] for run in told["runs"]}


# ---- the grid ------------------------------------------------------------------------------


def test_every_setting_runs_with_every_seed(whole: dict[str, Any]) -> None:
    names = ["1-lr-0.02-seed-1", "1-lr-0.02-seed-2", "2-lr-0.2-seed-1", "2-lr-0.2-seed-2"]
    assert [Path(run["folder"]).name for run in whole["runs"]] == names
    assert len(set(digests(whole).values())) == 4
    for run in whole["runs"]:
        past = read_run(Path(run["folder"]))
        assert past.plan.training.lr == float(run["settings"]["training.lr"])
        assert (past.summary["seed"], past.summary["model"]) == (run["seed"], run["model"])
        assert len(past.rounds) == ROUNDS


def test_a_run_of_a_study_is_the_run_by_itself(plan: Path, whole: dict[str, Any]) -> None:
    alone = call("--json", "simulate", plan, "--rounds", ROUNDS, "--set", "training.lr=0.2",
                 "--seed", 2, "--runs", plan.parent / "runs")  # fmt: skip
    told = json.loads(alone.stdout)["data"]
    assert told["model"] == digests(whole)["2-lr-0.2-seed-2"]
    past, other = read_run(Path(told["folder"])), read_run(plan.parent / "whole/2-lr-0.2-seed-2")
    assert (past.rounds, past.kind) == (other.rounds, other.kind)


def test_settings_come_with_mean_and_interval_best_first(plan: Path) -> None:
    done = call("simulate", plan, *GRID, "--study", plan.parent / "table")
    assert done.exit_code == 0
    assert "2 settings × 2 seeds = 4 runs" in done.stderr
    assert "run 3 of 4: training.lr=0.2, seed 1" in done.stderr
    assert "with 2 seeds it is rough" in done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["run", "seed", "rounds", "accuracy", "s", "settings"]
    assert [line.split()[0] for line in lines[:4]] == ["1/4", "2/4", "3/4", "4/4"]
    assert lines[5].split()[:4] == ["accuracy", "±", "95", "%"]
    assert "higher is better" in lines[5]
    means = [float(line.split()[0]) for line in lines[6:]]
    assert means == sorted(means, reverse=True) and len(means) == 2


def test_json_has_every_value(plan: Path, whole: dict[str, Any]) -> None:
    assert (whole["metric"], whole["higher_is_better"]) == ("accuracy", True)
    for one in whole["settings"]:
        assert set(one["values"]) == {"1", "2"}
        assert one["mean"] == pytest.approx(sum(one["values"].values()) / 2)
        assert one["half_width"] >= 0 and one["unmeasured"] == 0


def test_one_value_without_seeds_is_one_run(plan: Path) -> None:
    runs = plan.parent / "single"
    done = call("--json", "simulate", plan, "--rounds", 1, "--set", "training.lr=0.3",
                "--set", "selection.fraction=1.0", "--seed", 1, "--runs", runs)  # fmt: skip
    told = json.loads(done.stdout)["data"]
    assert Path(told["folder"]).parent == runs and "runs" not in told
    assert read_run(Path(told["folder"])).plan.training.lr == 0.3


def test_seeds_alone_make_a_study(plan: Path) -> None:
    runs = plan.parent / "seeds"
    asked = ("simulate", plan, "--rounds", 1, "--seeds", 2, "--seed", 5, "--runs", runs)
    told = json.loads(call("--json", *asked).stdout)["data"]
    assert [run["seed"] for run in told["runs"]] == [5, 6]
    assert Path(told["folder"]).parent == runs
    assert re.fullmatch(r"first-study-study-[0-9a-f]{8}", Path(told["folder"]).name)
    done = call(*asked)
    assert "2 runs, 2 done already" in done.stderr  # the same command, the same folder
    assert "(the plan)" in done.stdout and done.stdout.count(" done") == 2


def test_seeds_can_be_added(plan: Path, whole: dict[str, Any]) -> None:
    folder = plan.parent / "more"
    call("simulate", plan, *GRID[:-1], 1, "--study", folder)
    done = call("--json", "simulate", plan, *GRID, "--study", folder)
    assert digests(json.loads(done.stdout)["data"]) == digests(whole)


def test_a_run_whose_folder_is_taken_away_runs_again(plan: Path) -> None:
    folder = plan.parent / "again"
    first = json.loads(call("--json", "simulate", plan, *GRID, "--study", folder).stdout)["data"]
    for file in (folder / "1-lr-0.02-seed-2").iterdir():
        file.unlink()
    (folder / "1-lr-0.02-seed-2").rmdir()
    done = call("--json", "simulate", plan, *GRID, "--study", folder)
    assert digests(json.loads(done.stdout)["data"]) == digests(first)
    assert (folder / "1-lr-0.02-seed-2" / "model.safetensors").exists()


def test_data_is_dropped_when_a_run_is_done_unless_it_is_to_be_kept(plan: Path) -> None:
    assert not (plan.parent / "whole" / "data").exists()
    folder = plan.parent / "kept"
    call("simulate", plan, "--rounds", 1, "--seeds", 2, "--study", folder, "--keep-data")
    assert sorted(path.name for path in (folder / "data").iterdir()) == ["seed-1", "seed-2"]
    assert call("audit", "verify", folder / "data" / "seed-1").exit_code == 0
    call("simulate", plan, "--rounds", 1, "--seeds", 2, "--study", folder)
    assert not (folder / "data").exists()


def test_a_setting_that_diverges_ends_neither_the_study_nor_the_table(plan: Path) -> None:
    folder = plan.parent / "diverges"
    asked = ("--rounds", 2, "--seeds", 2, "--study", folder, "--away", "east:1,2", "--away")
    alone = call("simulate", plan, *asked, "north:1,2")
    assert alone.exit_code == 8 and "no round completed in any run" in alone.stderr
    again = call("--json", "simulate", plan, *asked, "north:1,2")  # nothing runs a second time
    assert again.exit_code == 8 and json.loads(again.stdout)["error"]["code"] == "E0306"


def test_settings_without_a_value_come_last() -> None:
    runs = [PlannedRun("a", 0, 1), PlannedRun("b", 1, 1), PlannedRun("c", 2, 1)]
    from consortium.drive.sweep import DoneRun

    for run, metrics in zip(runs, ({}, {"loss": 2.0}, {"loss": 1.0}), strict=True):
        run.done = DoneRun("", 1, 0, "rounds_done", metrics)
    names = [{"a": "1"}, {"b": "1"}, {"c": "1"}]
    assert [one.settings for one in results(names, runs, "loss", higher=False)] == names[::-1]
    found = results(names, runs, "loss", higher=True)
    assert [one.settings for one in found] == [names[1], names[2], names[0]]
    assert (found[2].interval, found[2].unmeasured) == (None, 1)


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("--set", "training.lr=0.02,0.3"), "other settings"),
        (("--set", "training.lr=0.02,0.2", "--rounds", 4), "another plan"),
        (("--set", "training.lr=0.02,0.2", "--dropout", 0.1), "other options"),
    ],
)
def test_a_folder_of_another_study_is_refused(
    plan: Path, whole: dict[str, Any], change: tuple[object, ...], what: str
) -> None:
    folder = plan.parent / "whole"
    before = (folder / STUDY_FILE).read_bytes()
    done = call("simulate", plan, "--rounds", ROUNDS, *change, "--seeds", 2, "--study", folder)
    assert (done.exit_code, f"error[E0305]: {folder} holds a study of {what}" in done.stderr) == (
        5,
        True,
    ), done.stderr
    assert f"hint: --study {folder}-2" in done.stderr
    assert (folder / STUDY_FILE).read_bytes() == before


def test_another_task_or_other_sites_are_refused(tmp_path: Path) -> None:
    plan = made(tmp_path / "study")
    asked = ("simulate", plan, "--rounds", 1, "--seeds", 1, "--study", tmp_path / "mine")
    assert call(*asked).exit_code == 0
    (plan.parent / "data" / "west.csv").rename(plan.parent / "data" / "best.csv")
    assert "holds a study of other sites" in call(*asked).stderr
    (plan.parent / "data" / "best.csv").rename(plan.parent / "data" / "west.csv")
    task = plan.parent / "task.py"
    task.write_text(task.read_text() + "\n# another\n")
    assert "holds a study of another task" in call(*asked).stderr


def test_a_folder_of_something_else_is_refused(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    done = call("simulate", plan, "--seeds", 1, "--study", tmp_path)
    assert "is not empty, and not the folder of a study" in done.stderr
    assert not (tmp_path / STUDY_FILE).exists()
    (tmp_path / STUDY_FILE).write_text("{}")
    assert "error[E0117]" in call("simulate", plan, "--seeds", 1, "--study", tmp_path).stderr


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (("--seeds", 2, "--data", "kept"), "--data is for one run"),
        (("--seeds", 2, "--cross-site"), "--cross-site is for one run"),
        (("--keep-data",), "--keep-data is for studies"),
        (("--seeds", 0), "greater than or equal to 1"),
    ],
)
def test_options_that_do_not_go_together(plan: Path, asked: tuple[object, ...], what: str) -> None:
    done = call("simulate", plan, *asked)
    assert (done.exit_code, what in done.stderr) == (2, True), done.stderr


def test_every_plan_is_checked_before_the_first_run(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "never"
    for text, what in (
        ("federation.quorum=3,9", "quorum is 9"),  # there are four sites
        ("evaluation.metric=accuracy,auroc", "does not report"),
        ("selection.target=4,2", "quorum 3 is above target 2"),
    ):
        done = call("simulate", plan, "--set", text, "--study", folder)
        assert done.exit_code != 0 and what in done.stderr, done.stderr
        assert not folder.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda told: told.pop("runs"),
        lambda told: told.update(form=2),
        lambda told: told["runs"][0].update(folder="../elsewhere"),
        lambda told: told["runs"][0].update(folder=".."),
        lambda told: told["runs"][0].update(folder=""),
        lambda told: told["runs"][0].update(folder="data"),
        lambda told: told["runs"][0].update(setting=7),
        lambda told: told["subject"].update(settings=5),
        lambda told: told["runs"][0].update(done={"model": "x"}),
    ],
)
def test_a_damaged_file_is_told(
    plan: Path, whole: dict[str, Any], tmp_path: Path, damage: Callable[[Any], object]
) -> None:
    told = json.loads((plan.parent / "whole" / STUDY_FILE).read_text())
    damage(told)
    (tmp_path / STUDY_FILE).write_text(json.dumps(told))
    with pytest.raises(PlanFileError, match="not the folder of a study"):
        read_study(tmp_path)


# ---- killed ---------------------------------------------------------------------------------


def started(plan: Path, folder: Path, *more: object) -> subprocess.Popen[str]:
    asked = [str(part) for part in ("simulate", plan, *(more or GRID), "--study", folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "consortium", "--json", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def killed_when(process: subprocess.Popen[str], is_time: Callable[[], bool]) -> bool:
    """Kill it at a moment that can be seen from outside; whether it came to that."""
    while process.poll() is None:
        if is_time():
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        time.sleep(0.0005)
    process.communicate()
    return False


def rounds_of(run: Path) -> int:
    file = run / "rounds.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def done_of(folder: Path) -> int:
    return sum(run.done is not None for run in read_study(folder).runs)


def moments(folder: Path) -> list[Callable[[], bool]]:
    """In the order in which they come."""
    first, second = folder / "1-lr-0.02-seed-1", folder / "2-lr-0.2-seed-1"
    data = folder / "data"
    return [
        lambda: (folder / STUDY_FILE).exists(),
        lambda: (data / first.name / "log.sqlite").exists(),
        lambda: rounds_of(first) == 1,
        lambda: (first / "model.safetensors").exists(),  # the run is over, its folder is not
        lambda: done_of(folder) == 1,
        lambda: rounds_of(folder / "1-lr-0.02-seed-2") == 2,
        lambda: (folder / "1-lr-0.02-seed-2" / "summary.json").exists(),
        lambda: rounds_of(second) == ROUNDS,
        lambda: done_of(folder) == 3,
    ]


def gone_on(plan: Path, folder: Path, *more: object) -> dict[str, Any]:
    out, err = (process := started(plan, folder, *more)).communicate()
    assert process.returncode == 0, out + err
    told: dict[str, Any] = json.loads(out)["data"]
    return told


def test_a_killed_study_ends_with_the_same_digests(plan: Path, whole: dict[str, Any]) -> None:
    folder, kills = plan.parent / "killed", 0
    for is_time in moments(folder):
        kills += killed_when(started(plan, folder), is_time)
    assert kills >= 7  # a moment may be over before it was seen
    told = gone_on(plan, folder)
    assert digests(told) == digests(whole)
    assert told["settings"] == whole["settings"]
    assert not (folder / "data").exists()
    for run in whole["runs"]:
        name = Path(run["folder"]).name
        past, other = read_run(folder / name), read_run(plan.parent / "whole" / name)
        assert past.rounds[-1]["metrics"] == other.rounds[-1]["metrics"]
        assert len(past.rounds) == len(other.rounds)


def test_a_study_of_torch_models_goes_on_with_its_workers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    plan = made(tmp_path / "torch", "--torch")
    asked = ("--rounds", 2, "--seeds", 2, "--workers", 2)
    whole = gone_on(plan, tmp_path / "whole", *asked)
    folder = tmp_path / "killed"
    process = started(plan, folder, *asked, "--pace", 0.05)
    assert killed_when(process, lambda: rounds_of(folder / "seed-2") == 1)
    assert done_of(folder) == 1
    assert digests(gone_on(plan, folder, *asked)) == digests(whole)


def test_a_kill_in_the_first_write_leaves_a_folder_that_can_be_used(plan: Path) -> None:
    folder = plan.parent / "begun"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / f"{STUDY_FILE}.123.new").write_text("{")
    assert call("simulate", plan, "--rounds", 1, "--seeds", 1, "--study", folder).exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"lock", STUDY_FILE, "seed-1"}


def test_a_study_is_for_one_process_at_a_time(plan: Path) -> None:
    folder = plan.parent / "busy"
    process = started(plan, folder, *GRID, "--pace", 0.3)
    while not (folder / STUDY_FILE).exists():
        time.sleep(0.01)
    try:
        done = call("simulate", plan, *GRID, "--study", folder)
        assert "error[E0604]" in done.stderr and "in use by another process" in done.stderr
    finally:
        process.kill()
        process.communicate()


def test_what_is_done_of_a_study_can_be_read(plan: Path, whole: dict[str, Any]) -> None:
    runs = read_runs(plan.parent / "whole")
    assert [run.label for run in runs] == ["training.lr=0.02"] * 2 + ["training.lr=0.2"] * 2


def test_a_masked_study_says_of_which_version_its_scores_are(plan: Path) -> None:
    masks = ("security.secure_aggregation=true", "selection.target=4", "strategy.clip=5.0")
    masks += ("strategy.weight=uniform", "evaluation.gate=false", "evaluation.bound=10.0")
    settings = [part for one in masks for part in ("--set", one)]
    asked = ("simulate", plan, "--rounds", 2, "--seeds", 2, *settings)
    done = call(*asked, "--study", plan.parent / "masked")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(line.endswith("(of version 1)") for line in (*lines[1:3], lines[-1]))
    again = json.loads(call("--json", *asked, "--study", plan.parent / "masked").stdout)["data"]
    assert [one["metrics_version"] for one in again["runs"]] == [1, 1], "read back"

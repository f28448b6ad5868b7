"""The command line as a stranger meets it: real processes, exit codes, no tracebacks."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from consortium.errors import every_error


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from consortium.cli import main; main()", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        timeout=120,
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "mine"
    done = run("init", str(folder))
    assert done.returncode == 0
    assert "consortium simulate" in done.stdout
    return folder


def test_late_scores_say_of_which_version_they_are(study: Path, tmp_path: Path) -> None:
    """Under masks; the plan says what is missing until it can have them."""
    masks = {"security.secure_aggregation": "true", "selection.target": "4"}
    masks |= {"strategy.clip": "5.0", "strategy.weight": "uniform"}

    def simulate(**more: str) -> subprocess.CompletedProcess[str]:
        told = masks | {f"evaluation.{key}": value for key, value in more.items()}
        settings = [part for pair in told.items() for part in ("--set", "=".join(pair))]
        asked = ("--rounds", "2", "--seed", "1", "--runs", str(tmp_path))
        return run("simulate", "consortium.toml", *asked, *settings, cwd=study)

    done = simulate()
    assert done.returncode == 3 and "error[E0114]" in done.stderr and "gate = false" in done.stderr
    done = simulate(gate="false")
    assert "`loss` is summed under masks" in done.stderr and "bound = 10.0" in done.stderr
    done = simulate(gate="false", bound="10.0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[34:44] for line in lines[:3]] == [" scores of", " version 0", " version 1"]
    assert "the last scores are of version 1" in done.stderr
    assert "so version 2 has none" in done.stderr


def test_the_study_that_init_writes_runs(study: Path) -> None:
    done = run("simulate", "consortium.toml", "--seed", "3", cwd=study)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "round",
        "invited",
        "counted",
        "dropped",
        "loss",
        "accuracy",
        "outcome",
    ]
    assert len([line for line in lines if line.endswith("accepted")]) == 10
    assert "NOT PROTECTED" in done.stderr
    [folder] = (study / "runs").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "plan.toml",
        "seed.txt",
        "guarantees.txt",
        "rounds.jsonl",
        "sites.json",
        "summary.json",
        "model.safetensors",
        "log.facts",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["model"] in done.stdout
    assert summary["metrics"]["accuracy"] > 0.7
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [record["number"] for record in rounds] == list(range(1, 11))


def test_the_same_seed_gives_the_same_digest_in_another_process(study: Path) -> None:
    digests = set()
    for extra in ((), (), ("--record",)):
        done = run(
            "--json",
            "simulate",
            "consortium.toml",
            "--seed",
            "9",
            "--rounds",
            "3",
            *extra,
            cwd=study,
        )
        told = json.loads(done.stdout)
        assert told["ok"] is True
        assert done.stderr == ""
        digests.add(told["data"]["model"])
    assert len(digests) == 1


def test_dropout_is_seen_in_the_table(study: Path) -> None:
    done = run(
        "simulate", "consortium.toml", "--seed", "1", "--dropout", "0.2", "--rounds", "5", cwd=study
    )
    assert done.returncode == 0
    dropped = [line.split()[3] for line in done.stdout.splitlines()[1:6]]
    assert any(int(count) for count in dropped)


def test_a_site_can_be_away_by_name(study: Path) -> None:
    done = run("simulate", "consortium.toml", "--rounds", "3", "--away", "north:2", cwd=study)
    assert [line.split()[3] for line in done.stdout.splitlines()[1:4]] == ["0", "1", "0"]
    for wrong in ("nobody:2", "north", "north:x"):
        done = run("simulate", "consortium.toml", "--away", wrong, cwd=study)
        assert (done.returncode, "error[E0003]: --away" in done.stderr) == (2, True)


def test_a_run_on_a_directory_can_be_run_again(study: Path) -> None:
    arguments = ("simulate", "consortium.toml", "--seed", "5", "--rounds", "2", "--data", "kept")
    first = run(*arguments, cwd=study)
    again = run(*arguments, cwd=study)
    assert first.returncode == again.returncode == 0
    assert first.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]
    other = run(*arguments[:4], "--rounds", "3", "--data", "kept", cwd=study)
    assert "another plan or task" in other.stderr
    assert run("audit", "verify", "kept", cwd=study).returncode == 0


def test_a_run_without_a_seed_goes_on_with_its_own(study: Path) -> None:
    first = run("simulate", "consortium.toml", "--rounds", "2", "--data", "drawn", cwd=study)
    seed = (study / "drawn" / "seed.txt").read_text().strip()
    assert f"seed {seed}" in first.stderr
    again = run("simulate", "consortium.toml", "--rounds", "2", "--data", "drawn", cwd=study)
    assert first.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]
    wrong = run("simulate", "consortium.toml", "--data", "drawn", "--seed", "0", cwd=study)
    assert f"holds a run with seed {seed}" in wrong.stderr


def test_metrics_are_of_the_model_that_came_out(study: Path) -> None:
    text = (study / "consortium.toml").read_text().replace("lr = 0.1", "lr = 500.0")
    (study / "wild.toml").write_text(text.replace('metric = "accuracy"', 'metric = "loss"'))
    done = run("--json", "simulate", "wild.toml", "--seed", "1", "--rounds", "2", cwd=study)
    told = json.loads(done.stdout)["data"]
    rounds = (study / told["folder"] / "rounds.jsonl").read_text().splitlines()
    last = json.loads(rounds[-1])
    assert (last["outcome"], told["model_version"]) == ("kept", 0)
    assert told["metrics"] == last["base_metrics"]


def test_a_task_that_exits_is_an_error(study: Path) -> None:
    loop = "    for _ in range(site.training.epochs):"
    text = (study / "task.py").read_text()
    (study / "leaving.py").write_text(text.replace(loop, f"    raise SystemExit(0)\n{loop}"))
    plan = (study / "consortium.toml").read_text().replace("task.py:", "leaving.py:")
    (study / "leaving.toml").write_text(plan)
    done = run("simulate", "leaving.toml", cwd=study)
    assert done.returncode == 1
    assert "train failed: SystemExit in leaving.py" in done.stderr


def test_what_a_task_prints_does_not_spoil_the_json(study: Path) -> None:
    loop = "    for _ in range(site.training.epochs):"
    text = (study / "task.py").read_text()
    (study / "loud.py").write_text(text.replace(loop, f"    print('hello')\n{loop}"))
    plan = (study / "consortium.toml").read_text().replace("task.py:", "loud.py:")
    (study / "loud.toml").write_text(plan)
    done = run("--json", "simulate", "loud.toml", "--rounds", "1", cwd=study)
    assert json.loads(done.stdout)["ok"] is True
    assert "hello" in done.stderr


def test_a_closed_pipe_ends_quietly(study: Path) -> None:
    script = f"{sys.executable} -m consortium simulate consortium.toml --seed 1 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], cwd=study, capture_output=True, text=True
    )
    assert done.returncode in (0, 141)
    assert "Traceback" not in done.stderr


def test_no_completed_round_is_exit_8(study: Path) -> None:
    done = run(
        "simulate", "consortium.toml", "--seed", "1", "--dropout", "1", "--rounds", "2", cwd=study
    )
    assert done.returncode == 8
    assert "error[E0306]" in done.stderr
    assert "no_quorum" in done.stdout


def test_init_does_not_overwrite(study: Path) -> None:
    done = run("init", str(study))
    assert done.returncode == 3
    assert "error[E0117]" in done.stderr


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (("rounds = 10", "ruonds = 10"), "E0112", "did you mean rounds?"),
        (("rounds = 10", 'rounds = "10"'), "E0113", "a whole number"),
        (("fraction = 1.0", "target = 2"), "E0114", "quorum 3 is above target 2"),
        (
            ("[training]", "[security]\nsecure_aggregation = true\n[training]"),
            "E0114",
            "the most sites that are ever summed",
        ),
        (("rounds = 10", "rounds = "), "E0111", "not TOML"),
        (("task.py:study", "task.py:stdy"), "E0201", "has no `stdy`"),
        (("data/*.csv", "nowhere/*.csv"), "E0117", "no file matches"),
        (('sites = "data/*.csv"', ""), "E0117", "where the sites' data is"),
        (('entry = "task.py:study"', ""), "E0201", "names no task"),
        (('metric = "accuracy"', 'metric = "f1"'), "E0114", "does not report"),
    ],
)
def test_a_bad_plan_is_exit_3_with_code_and_hint(
    study: Path, change: tuple[str, str], code: str, says: str
) -> None:
    text = (study / "consortium.toml").read_text()
    assert change[0] in text
    bad = study / "bad.toml"
    bad.write_text(text.replace(*change))
    done = run("simulate", "bad.toml", cwd=study)
    assert done.returncode == 3
    assert f"error[{code}]" in done.stderr
    assert says in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(run("--json", "simulate", "bad.toml", cwd=study).stdout)
    assert (told["ok"], told["error"]["code"]) == (False, code)


def test_the_error_shows_the_line_with_a_caret(study: Path) -> None:
    (study / "caret.toml").write_text("[federation]\nname = 'x'\nruonds = 3\n")
    done = run("simulate", "caret.toml", cwd=study)
    assert done.stderr.splitlines() == [
        "error[E0112]: caret.toml:3: unknown key `ruonds` in [federation]",
        "      3 | ruonds = 3",
        "        | ^^^^^^",
        "hint: did you mean rounds?",
    ]


def test_bad_data_is_told_without_showing_it(study: Path) -> None:
    (study / "secret").mkdir()
    for number in range(3):
        (study / "secret" / f"s{number}.csv").write_text("a,label\npatient-4711,1\n")
    text = (study / "consortium.toml").read_text().replace("data/*", "secret/*")
    (study / "secret.toml").write_text(text)
    done = run("simulate", "secret.toml", cwd=study)
    assert done.returncode == 1
    assert "error[E0204]" in done.stderr
    assert "4711" not in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert "Traceback" in run("-vv", "simulate", "secret.toml", cwd=study).stderr


def test_two_files_of_one_name_are_refused(study: Path) -> None:
    (study / "twice" / "a").mkdir(parents=True)
    (study / "twice" / "b").mkdir()
    for folder in "ab":
        (study / "twice" / folder / "same.csv").write_text("")
    text = (study / "consortium.toml").read_text().replace("data/*", "twice/*/*")
    (study / "twice.toml").write_text(text)
    assert "same name" in run("simulate", "twice.toml", cwd=study).stderr


def test_usage_errors_are_exit_2(study: Path) -> None:
    assert run("simulate").returncode == 2
    assert run("nonsense").returncode == 2
    assert run("simulate", "consortium.toml", "--dropout", "7", cwd=study).returncode == 2


def test_rounds_below_one_are_refused(study: Path) -> None:
    done = run("simulate", "consortium.toml", "--rounds", "0", cwd=study)
    assert (done.returncode, "E0003" in done.stderr) == (2, True)


@pytest.mark.parametrize("code", [kind.code for kind in every_error()])
def test_every_code_is_explained(code: str) -> None:
    from consortium.cli.explain import _meaning, _told

    kind = next(kind for kind in every_error() if kind.code == code)
    assert len(_meaning(kind)) > 20
    assert _told(kind)["code"] == code


def test_explain_takes_what_people_paste() -> None:
    for pasted in ("E0302", "e0302", "error[E0302]:", "302"):
        done = run("explain", pasted)
        assert done.returncode == 0
        assert "DeadlineExpiredError" in done.stdout
    assert "E0112" in run("explain", "all").stdout
    assert "What to do:" in run("explain", "E0114").stdout
    assert json.loads(run("--json", "explain", "E0302").stdout)["data"]["exit_code"] == 5
    done = run("explain", "E0303x")
    assert done.returncode == 2
    assert "consortium explain E0303" in done.stderr


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 0.6, "0.3 CPU seconds on an idle machine; CI machines are slower"
    heavy = ("numpy", "pydantic", "torch", "sklearn")
    script = f"import sys, consortium.cli; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"


def test_an_unexpected_error_keeps_its_evidence_to_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from consortium.cli.report import command

    @command
    def broken() -> None:
        raise RuntimeError("patient 4711")

    @command
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        broken()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "error[E0001]: unexpected RuntimeError" in told
    assert "4711" not in told
    with pytest.raises(SystemExit) as ended:
        interrupted()
    assert ended.value.code == 130


def test_the_readme_shows_what_init_writes(tmp_path: Path) -> None:
    """Word for word, and in no more than thirty lines that a person would have to write."""
    assert run("init", str(tmp_path / "mine"), "--torch").returncode == 0
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    lines = 0
    for name in ("task.py", "consortium.toml"):
        text = (tmp_path / "mine" / name).read_text()
        assert f"\n{text}```" in readme
        body = text.split('"""')[-1]  # without the task's docstring
        lines += sum(bool(line.split("#")[0].strip()) for line in body.splitlines())
    assert lines <= 30

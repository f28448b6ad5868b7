"""Runs side by side: the table, the JSON, the plot, and what cannot be compared."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from consortium.cli.app import app
from consortium.cli.compare import _BARS, _trend
from consortium.drive.run_folder import RunFolder
from consortium.drive.runs import PastRun, RunGroup, metrics_of, read_run
from consortium.drive.simulate import Options, simulate
from consortium.errors import PlanFileError
from consortium.plan import parse_plan
from consortium.tasks import NumpyTask, Site
from tests.studies import TASK, sites

ROUNDS = 4


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def make_run(
    path: Path,
    strategy: str = "",
    *,
    task: NumpyTask = TASK,
    more: str = "",
    rounds: int = ROUNDS,
    seed: int = 1,
) -> Path:
    plan = parse_plan(
        f"[federation]\nrounds = {rounds}\n[selection]\nfraction = 1.0\n{more}\n"
        f"[strategy]\n{strategy}\n"
    )
    folder = RunFolder(path)
    folder.begin(plan, seed)
    options = Options(on_round=folder.add_round)
    folder.finish(simulate(task, plan, sites(4), seed=seed, options=options))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    plain = make_run(folder / "plain")
    return plain, make_run(folder / "robust", "rule = 'median'")


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


# ---- the table -----------------------------------------------------------------------------


def test_a_row_a_run_with_its_last_value_and_its_worst_site(runs: tuple[Path, Path]) -> None:
    done = call("compare", *runs)
    assert (done.exit_code, done.stderr) == (0, "")
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["run", "strategy", "rounds", "last", "worst", "site", "loss"]
    assert len(lines) == 2
    for line, folder, strategy in zip(lines, runs, ("fedavg", "fedavg + median"), strict=True):
        last = rounds_of(folder)[-1]
        _, worst = last["worst"]["loss"]
        assert line.startswith(f"{folder.name:<34} {strategy:<24} {ROUNDS:>6} ")
        assert line[67:].split()[:2] == [f"{last['metrics']['loss']:.4f}", f"{worst:.4f}"]
        assert line.split()[-1] == _trend(
            [record["metrics"]["loss"] for record in rounds_of(folder)]
        )


def test_another_metric_is_shown_when_it_is_asked_for(runs: tuple[Path, Path]) -> None:
    told = json.loads(call("--json", "compare", *runs, "--metric", "mae").stdout)["data"]
    assert told["metric"] == "mae"
    assert [row["last"] for row in told["runs"]] == [
        rounds_of(folder)[-1]["metrics"]["mae"] for folder in runs
    ]


def test_json_has_the_numbers_in_full(runs: tuple[Path, Path]) -> None:
    done = call("--json", "compare", *runs)
    told = json.loads(done.stdout)
    assert (told["ok"], told["command"], told["data"]["metric"]) == (True, "compare", "loss")
    for row, folder in zip(told["data"]["runs"], runs, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        site, value = summary["worst"]["loss"]
        assert row == {
            "run": folder.name,
            "strategy": "fedavg + median" if folder.name == "robust" else "fedavg",
            "rounds": ROUNDS,
            "last": summary["metrics"]["loss"],
            "worst_site": {"site": site, "value": value},
        }


def test_the_metric_of_the_first_plan_is_taken(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "judged", more="[evaluation]\nmetric = 'mae'")
    assert json.loads(call("--json", "compare", folder).stdout)["data"]["metric"] == "mae"


def test_only_metrics_that_all_runs_have_are_compared(
    tmp_path: Path, runs: tuple[Path, Path]
) -> None:
    def evaluate(site: Site, shared: dict[str, Any]) -> Any:
        means, records = TASK.evaluate(site, shared)
        return {"loss": means["loss"]}, records

    only_loss = replace(TASK, metrics=TASK.metrics[:1], evaluate=evaluate)
    folder = make_run(tmp_path / "one", task=only_loss)
    assert metrics_of([read_run(runs[0]), read_run(folder)]) == ["loss"]
    done = call("compare", runs[0], folder, "--metric", "mae")
    assert (done.exit_code, "they all have: loss" in done.stderr) == (2, True)


def test_a_kept_candidate_counts_with_the_model_that_was_kept(tmp_path: Path) -> None:
    """The curve, the last value and the worst site are of the model that came out."""

    def spoil(site: Site, shared: dict[str, Any]) -> Any:
        if site.round == 3:
            return {"w": shared["w"] + np.float32(9), "b": shared["b"]}, 10
        return TASK.train(site, shared)

    folder = make_run(tmp_path / "spoilt", task=replace(TASK, train=spoil), rounds=3)
    first, second, third = rounds_of(folder)
    assert [record["outcome"] for record in (first, second, third)] == [
        "accepted",
        "accepted",
        "kept",
    ]
    past = read_run(folder)
    losses = [first["metrics"]["loss"], second["metrics"]["loss"], second["metrics"]["loss"]]
    assert [value for _, value in past.curve("loss")] == pytest.approx(losses, rel=1e-12)
    (row,) = json.loads(call("--json", "compare", folder).stdout)["data"]["runs"]
    assert row["last"] == third["base_metrics"]["loss"]
    assert [row["worst_site"]["site"], row["worst_site"]["value"]] == second["worst"]["loss"]


def test_a_failed_round_has_no_point(tmp_path: Path) -> None:
    plan = parse_plan("[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n")
    folder = RunFolder(tmp_path / "run")
    folder.begin(plan, 1)
    options = Options(on_round=folder.add_round, drops=lambda number, site: number == 2)
    folder.finish(simulate(TASK, plan, sites(4), seed=1, options=options))
    assert [at for at, _ in read_run(folder.path).curve("loss")] == [1, 3]


def test_an_interrupted_run_can_be_compared(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    folder = make_run(tmp_path / "cut")
    (folder / "summary.json").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text("".join(lines[:2]))
    told = json.loads(call("--json", "compare", folder, runs[0]).stdout)["data"]["runs"]
    assert (told[0]["rounds"], told[0]["worst_site"]) == (2, None)
    assert "–" in call("compare", folder).stdout


def test_runs_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run", "mu = 0.0")
    drawn: list[dict[str, Any]] = []
    monkeypatch.setattr("consortium.cli.plot.draw_curves", lambda curves, *_: drawn.append(curves))
    told = json.loads(call("--json", "compare", left, right, "--plot", "x.svg").stdout)["data"]
    assert [row["run"] for row in told["runs"]] == [str(left), str(right)]
    assert list(drawn[0]) == [str(left), str(right)]
    monkeypatch.chdir(left)
    told = json.loads(call("--json", "compare", ".").stdout)["data"]
    assert told["runs"][0]["run"] == "run"


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([3.0], "▁"),
        ([2.0, 2.0, 2.0], "▁▁▁"),
        ([0.0, 1.0], "▁█"),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], _BARS[::-1]),
    ],
)
def test_the_trend_is_a_row_of_bars(values: list[float], bars: str) -> None:
    assert _trend(values) == bars


@pytest.mark.parametrize("count", [20, 21, 39, 40, 41, 1000])
def test_a_long_trend_is_thinned_and_ends_with_the_last_round(count: int) -> None:
    bars = _trend([float(number) for number in range(count)])
    assert 10 <= len(bars) <= 20
    assert bars[0] == "▁" and bars[-1] == "█"
    assert list(bars) == sorted(bars, key=_BARS.index)


# ---- the plot ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_a_plot_is_drawn(
    runs: tuple[Path, Path], tmp_path: Path, suffix: str, begins: bytes
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"compare.{suffix}"
    done = call("compare", *runs, "--plot", path)
    assert (done.exit_code, done.stderr) == (0, f"drawn: {path}\n")
    content = path.read_bytes()
    assert content.startswith(begins)
    assert len(content) > 2000


def test_every_run_has_a_line_of_its_own(runs: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from consortium.cli.plot import _COLOURS, draw_curves

    curves = {f"run-{number}": [(1, 1.0), (2, 0.5 + number)] for number in range(9)}
    draw_curves(curves, "loss", tmp_path / "many.svg")
    text = (tmp_path / "many.svg").read_text().lower()
    for colour in _COLOURS:
        assert colour.lower() in text
    draw_curves({"nothing": []}, "loss", tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").stat().st_size > 2000


# ---- several seeds -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three seeds of one plan, two of another."""
    folder = tmp_path_factory.mktemp("seeds")
    plain = [make_run(folder / f"plain-{seed}", seed=seed) for seed in (1, 2, 3)]
    robust = [make_run(folder / f"robust-{seed}", "rule = 'median'", seed=seed) for seed in (1, 2)]
    return [*plain, *robust]


def last_of(folder: Path) -> float:
    return float(rounds_of(folder)[-1]["metrics"]["loss"])


def test_runs_that_differ_in_the_seed_alone_are_one_row(seeds: list[Path]) -> None:
    done = call("--json", "compare", *seeds[:5])
    first, second = json.loads(done.stdout)["data"]["runs"]
    values = [last_of(folder) for folder in seeds[:3]]
    assert first["run"] == "plain-1 and 2 more"
    assert (first["seeds"], first["runs"]) == ([1, 2, 3], ["plain-1", "plain-2", "plain-3"])
    assert first["last"] == pytest.approx(np.mean(values))
    assert first["half_width"] == pytest.approx(4.302653 * np.std(values, ddof=1) / 3**0.5)
    assert (second["run"], second["seeds"]) == ("robust-1 and 1 more", [1, 2])
    worst = [json.loads((f / "summary.json").read_text())["worst"]["loss"][1] for f in seeds[:3]]
    assert first["worst_site"]["value"] == pytest.approx(np.mean(worst))


def test_the_table_says_how_many_seeds_and_how_sure(seeds: list[Path]) -> None:
    done = call("compare", *seeds[:3], seeds[4])
    header, group, single = done.stdout.splitlines()
    assert header.split() == (
        ["run", "strategy", "rounds", "last", "±", "95", "%", "seeds", "worst", "site", "loss"]
    )
    assert group.split()[-3] == "3" and single.split()[-3] == "1"
    assert single.split()[-4] == "–"  # one seed has no interval
    assert "with 3 seeds it is rough" in done.stderr


def test_each_run_by_itself_when_asked(seeds: list[Path]) -> None:
    done = call("compare", *seeds[:3], "--each")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == (
        ["plain-1", "plain-2", "plain-3"]
    )
    assert "±" not in done.stdout and done.stderr == ""


def test_a_seed_counts_once(seeds: list[Path], tmp_path: Path) -> None:
    again = make_run(tmp_path / "again", seed=1)
    (row,) = json.loads(call("--json", "compare", again, *seeds[:2]).stdout)["data"]["runs"]
    assert row["seeds"] == [1, 2]
    rows = json.loads(call("--json", "compare", again, seeds[0]).stdout)["data"]["runs"]
    assert [row["run"] for row in rows] == ["again", "plain-1"]  # one seed: nothing to average


@pytest.mark.parametrize("part", ["task", "sites", "choices"])
def test_other_tasks_sites_and_choices_are_not_averaged(
    seeds: list[Path], tmp_path: Path, part: str
) -> None:
    other = make_run(tmp_path / "other", seed=9)
    summary = json.loads((other / "summary.json").read_text())
    summary[part] = {"other": 1}
    (other / "summary.json").write_text(json.dumps(summary))
    rows = json.loads(call("--json", "compare", seeds[0], seeds[1], other).stdout)["data"]["runs"]
    assert len(rows) == 2
    del summary["task"]  # a folder of an earlier version does not tell
    (other / "summary.json").write_text(json.dumps(summary))
    assert read_run(other).kind is None


def test_a_group_has_a_band_and_a_mean(
    seeds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr("consortium.cli.plot.draw_curves", lambda *given: drawn.append(given))
    call("compare", *seeds[:3], seeds[4], "--plot", tmp_path / "x.svg")
    ((curves, metric, _, bands),) = drawn
    assert (metric, list(curves)) == ("loss", ["plain-1 and 2 more", "robust-2"])
    curve, band = curves["plain-1 and 2 more"], bands["plain-1 and 2 more"]
    assert [at for at, _ in curve] == [at for at, _, _ in band] == [1, 2, 3, 4]
    for (_, mean), (_, low, high) in zip(curve, band, strict=True):
        assert low <= mean <= high and (low + high) / 2 == pytest.approx(mean)
    assert bands["robust-2"] == []


def test_the_band_is_in_the_picture(seeds: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with_band, without = tmp_path / "band.svg", tmp_path / "each.svg"
    call("compare", *seeds[:3], "--plot", with_band)
    call("compare", *seeds[:3], "--each", "--plot", without)
    assert "FillBetween" in with_band.read_text() or "PolyCollection" in with_band.read_text()
    assert "PolyCollection" not in without.read_text()


def test_a_run_that_stopped_early_keeps_its_last_value() -> None:
    def past(*values: float, first: int = 1) -> PastRun:
        rounds = [
            {"number": at, "outcome": "accepted", "metrics": {"loss": value}, "base_metrics": {}}
            for at, value in enumerate(values, start=first)
        ]
        return PastRun("a", parse_plan(""), {}, rounds)

    group = RunGroup("two", (past(3.0, 2.0, 1.0), past(5.0, 4.0), past(1.0, 1.0, 1.0, first=2)))
    assert [(at, one.mean) for at, one in group.curve("loss")] == [
        (2, pytest.approx((2 + 4 + 1) / 3)),
        (3, pytest.approx((1 + 4 + 1) / 3)),
        (4, pytest.approx((1 + 4 + 1) / 3)),
    ]
    assert RunGroup("none", (past(),)).curve("loss") == []
    assert RunGroup("none", (past(),)).last("loss") is None


def test_a_study_is_compared_by_its_settings(tmp_path: Path) -> None:
    assert call("init", tmp_path / "study").exit_code == 0
    plan, folder = tmp_path / "study" / "consortium.toml", tmp_path / "sweep"
    asked = ("--rounds", 2, "--set", "training.lr=0.02,0.2", "--seeds", 2, "--study", folder)
    told = json.loads(call("--json", "simulate", plan, *asked).stdout)["data"]
    rows = json.loads(call("--json", "compare", folder).stdout)["data"]["runs"]
    assert [row["run"] for row in rows] == ["training.lr=0.02", "training.lr=0.2"]
    means = {one["settings"]["training.lr"]: one["mean"] for one in told["settings"]}
    assert [row["last"] for row in rows] == [means["0.02"], means["0.2"]]
    several = call("--json", "compare", folder, folder / "1-lr-0.02-seed-1")
    names = [row["run"] for row in json.loads(several.stdout)["data"]["runs"]]
    assert names == ["sweep: training.lr=0.02", "sweep: training.lr=0.2"]  # counted once
    study = json.loads((folder / "study.json").read_text())
    for run in study["runs"]:
        run["done"] = None
    (folder / "study.json").write_text(json.dumps(study))
    assert "no run of the study" in call("compare", folder).stderr


# ---- what cannot be compared ---------------------------------------------------------------


def test_a_missing_run_is_told(runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = call("compare", runs[0], tmp_path / "nowhere")
    assert done.exit_code == 3
    assert f"error[E0117]: {tmp_path / 'nowhere'} is not the folder of a run" in done.stderr
    assert "hint: runs lie in runs/" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("rounds.jsonl", "{\n"),
        ("rounds.jsonl", "{}\n"),
        ("rounds.jsonl", "7\n"),
        ("rounds.jsonl", "\udcff"),
        pytest.param("rounds.jsonl", "[" * 5000, id="rounds.jsonl-depth"),
        ("summary.json", "[1,"),
        pytest.param("summary.json", "[" * 5000, id="summary.json-depth"),
        pytest.param("summary.json", "9" * 5000, id="summary.json-digits"),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, file: str, content: str) -> None:
    folder = make_run(tmp_path / "run", rounds=1)
    (folder / file).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(PlanFileError, match="not the folder of a run"):
        read_run(folder)


def test_a_metric_that_nobody_measured_is_told(runs: tuple[Path, Path]) -> None:
    done = call("compare", *runs, "--metric", "auroc")
    assert done.exit_code == 2
    assert "error[E0003]: not all of these runs measured `auroc`" in done.stderr
    assert "hint: they all have: loss, mae" in done.stderr


def test_runs_without_evaluation_have_nothing_to_compare(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "blind", more="[evaluation]\nenabled = false")
    done = call("compare", folder)
    assert (done.exit_code, "they all have: no metric" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["compare.gif", "compare", "compare.svg.txt"])
def test_a_plot_of_another_kind_is_refused(
    runs: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    done = call("compare", *runs, "--plot", tmp_path / name)
    assert done.exit_code == 2
    assert "is none of .svg, .png, .pdf" in done.stderr
    assert "hint: --plot compare.svg" in done.stderr
    assert not (tmp_path / name).exists()


def test_a_plot_that_cannot_be_written_is_told(runs: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = call("compare", *runs, "--plot", tmp_path / "nowhere" / "compare.svg")
    assert (done.exit_code, "error[E0003]: cannot write" in done.stderr) == (2, True)


def test_without_matplotlib_the_hint_is_to_install_it(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    done = call("compare", *runs, "--plot", tmp_path / "compare.svg")
    assert done.exit_code != 0
    assert "plots need matplotlib" in done.stderr
    assert "hint: pip install 'consortium[plots]'" in done.stderr
    assert done.stdout.count("\n") == 3  # the table is there all the same


def test_nothing_to_compare_is_a_usage_error() -> None:
    assert call("compare").exit_code == 2


# ---- under masks --------------------------------------------------------------------


def test_a_masked_run_says_of_which_version_its_last_score_is(tmp_path: Path) -> None:
    """While it goes on, a line of rounds.jsonl has no metrics: the next one's base has them."""
    masks = (
        "[federation]\nrounds = 3\nquorum = 3\n[selection]\ntarget = 4\n[strategy]\nclip = 1.0\n"
        'weight = "uniform"\n[evaluation]\ngate = false\nbound = 50.0\n'
        "[security]\nsecure_aggregation = true\n"
    )
    plan, written = parse_plan(masks), []
    for seed in (1, 2):
        folder = RunFolder(tmp_path / f"run-{seed}")
        folder.begin(plan, seed)
        options = Options(on_round=folder.add_round)
        run = simulate(TASK, plan, sites(4), seed=seed, options=options)
        written.append((folder.path / "rounds.jsonl").read_text())
        folder.finish(run)
    one, other = (tmp_path / f"run-{seed}" for seed in (1, 2))
    whole = read_run(one).curve("loss")
    assert call("compare", one).stdout.rstrip().endswith("last is of version 2")
    (row,) = json.loads(call("--json", "compare", one, other).stdout)["data"]["runs"]
    assert row["last_of_versions"] == [2]
    (other / "summary.json").unlink()
    (other / "rounds.jsonl").write_text(written[1].splitlines()[0] + "\n")
    assert "measured `anything`" in call("compare", other).stderr
    (one / "rounds.jsonl").write_text(written[0])
    assert read_run(one).curve("loss") == whole and len(whole) == 2

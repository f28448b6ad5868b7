"""Numbers that people compare sites by, against direct computation: the cross-site table, the
worst site, and the pooled statistics of columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from consortium.cli.app import app
from consortium.cli.cross_site import cross_site_table
from consortium.core.ids import Seat
from consortium.core.terms import Metric
from consortium.drive.alone import CrossSite, cross_site
from consortium.drive.engine import SimulatedSite
from consortium.drive.history import worst_of
from consortium.drive.rng import stream
from consortium.drive.run_folder import RunFolder
from consortium.drive.simulate import Options, Run, simulate
from consortium.drive.statistics import (
    federated_statistics,
    statistics_of,
    statistics_plan,
    statistics_task,
)
from consortium.errors import (
    ImpossiblePlanError,
    InsufficientParticipantsError,
)
from consortium.plan import parse_plan
from consortium.tasks import Inventory, NumpyTask, Site, Trained
from consortium.tensors import TensorSpec, load_tensors
from tests.studies import TASK, sites

SEED, ROUNDS, EVER = 3, 3, 1 << 62


def make_plan(more: str = "") -> Any:
    return parse_plan(
        f"[federation]\nrounds = {ROUNDS}\n[selection]\nfraction = 1.0\n"
        f"[training]\nbatch_size = 8\nepochs = 2\n{more}"
    )


def at_site(site: SimulatedSite, seat: int, number: int, state: Any = None) -> Site:
    rng = stream(SEED, "train", number, seat)
    return Site(site.name, site.data, number, rng, make_plan().training, state=state)


def alone(site: SimulatedSite, seat: int, rounds: int = ROUNDS) -> dict[str, Any]:
    """The same site, the same records, the same random numbers, and nobody else."""
    shared = TASK.start(np.random.default_rng(0))
    for number in range(1, rounds + 1):
        shared, _ = TASK.train(at_site(site, seat, number), dict(shared))  # type: ignore[misc]
    return dict(shared)


def loss(site: SimulatedSite, shared: dict[str, Any]) -> float:
    features, target = site.data
    return float(((features @ shared["w"] + shared["b"] - target) ** 2).mean())


def mae(site: SimulatedSite, shared: dict[str, Any]) -> float:
    features, target = site.data
    return float(np.abs(features @ shared["w"] + shared["b"] - target).mean())


# ---- the cross-site table ------------------------------------------------------------------


@pytest.mark.parametrize(("metric", "value"), [("loss", loss), ("mae", mae)])
def test_the_table_is_what_direct_computation_gives(
    metric: str, value: Callable[[SimulatedSite, dict[str, Any]], float]
) -> None:
    run = simulate(TASK, make_plan(), sites(4), seed=SEED)
    found = cross_site(run, metric)
    assert (found.metric, found.sites) == (metric, ("site-0", "site-1", "site-2", "site-3"))
    models = [alone(site, seat) for seat, site in enumerate(sites(4), start=1)]
    expected = [[value(site, model) for site in sites(4)] for model in models]
    # A model goes through a float32 step each round, which rounds once more than we do here.
    np.testing.assert_allclose(found.own, expected, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(
        found.common, [value(site, run.tensors) for site in sites(4)], rtol=1e-12
    )


@pytest.mark.parametrize(
    "strategy",
    ["name = 'fedprox'\nmu = 5.0", "name = 'scaffold'", "name = 'fednova'", "clip = 0.01"],
)
def test_alone_means_without_the_federations_strategy(strategy: str) -> None:
    """Nobody to be pulled towards, to be corrected by, or to be clipped for."""

    def train(site: Site, shared: dict[str, Any]) -> Trained:
        shared, records = TASK.train(site, shared)  # type: ignore[misc]
        still = {name: np.zeros_like(array) for name, array in shared.items()}
        pull = site.rules.adjusted(shared, still)
        moved = {name: shared[name] - np.float32(0.1) * pull[name] for name in shared}
        return Trained(moved, records, steps=records)

    task: NumpyTask = replace(TASK, train=train, follows_rules=True)
    plain = cross_site(simulate(task, make_plan(), sites(3), seed=SEED), "loss")
    run = simulate(task, make_plan(f"[strategy]\n{strategy}\n"), sites(3), seed=SEED)
    found = cross_site(run, "loss")
    assert found.own == plain.own
    assert found.common != plain.common


def test_what_a_site_keeps_goes_with_its_own_model() -> None:
    def train(site: Site, shared: dict[str, Any]) -> Trained:
        own = np.zeros(1) if site.state is None else site.state["own"]
        shared, records = TASK.train(site, shared)  # type: ignore[misc]
        return Trained(shared, records, state={"own": own + len(site.data[1])})

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        own = 0.0 if site.state is None else float(site.state["own"][0])
        return {"loss": own, "mae": 0.0}, 5

    plan = make_plan("[evaluation]\ngate = false\n")
    run = simulate(replace(TASK, train=train, evaluate=evaluate), plan, sites(3), seed=SEED)
    found = cross_site(run, "loss")
    trained = [ROUNDS * (20 + number) for number in range(3)]
    assert found.own == tuple((float(own),) * 3 for own in trained)
    assert found.common == tuple(float(own) for own in trained)
    for seat, own in enumerate(trained, start=1):
        held = run.states.current(Seat(seat))
        assert held is not None
        assert load_tensors(held)["task/own"] == [own]


@dataclass(frozen=True)
class OwnFeatures:
    """A task whose private part has another form at each site."""

    task: NumpyTask

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def inventory(self, site: Site) -> Inventory:
        own = TensorSpec("own", (len(site.data[1]),))
        return replace(self.task.inventory(site), private=(own,))


def test_a_model_that_does_not_fit_elsewhere_is_tried_at_home() -> None:
    run = simulate(OwnFeatures(TASK), make_plan(), sites(3), seed=SEED)
    found = cross_site(run, "loss")
    for at, row in enumerate(found.own):
        assert [value is None for value in row] == [other != at for other in range(3)]
    plain = cross_site(simulate(TASK, make_plan(), sites(3), seed=SEED), "loss")
    assert [row[at] for at, row in enumerate(found.own)] == [
        row[at] for at, row in enumerate(plain.own)
    ]
    assert found.common == plain.common


def test_a_metric_that_the_task_does_not_report_is_refused() -> None:
    run = simulate(TASK, make_plan(), sites(3), seed=SEED)
    with pytest.raises(ImpossiblePlanError, match="does not report `auroc`") as caught:
        cross_site(run, "auroc")
    assert caught.value.hint == "it reports: loss, mae"


def test_the_table_is_laid_out_for_people() -> None:
    found = CrossSite(
        "accuracy", ("a", "a-very-long-name"), ((0.91234, None), (0.5, 1.0)), (0.8, 0.9)
    )
    assert cross_site_table(found) == [
        "accuracy: trained at (down), tried at (across)",
        "                          a a-very-lo",
        "a                    0.9123         –",
        "a-very-long-name     0.5000    1.0000",
        "together             0.8000    0.9000",
    ]


def test_a_table_of_many_sites_shows_the_first() -> None:
    names = tuple(f"s{number}" for number in range(30))
    found = CrossSite("loss", names, ((0.5,) * 30,) * 30, (0.25,) * 30)
    lines = cross_site_table(found)
    assert len(lines) == 2 + 12 + 1 + 1
    assert lines[-1] == "(the first 12 of 30 sites)"
    assert "s11" in lines[1] and "s12" not in lines[1]
    assert max(len(line) for line in lines) <= 132


TASK_FILE = """
import numpy as np

import consortium as co


def start(rng):
    return {"w": np.zeros(2)}


def evaluate(site, shared):
    table = np.loadtxt(site.data, delimiter=",", ndmin=2)
    error = np.square(table[:, :2] @ shared["w"] - table[:, 2])
    return {"loss": error.mean(), "accuracy": (error < 0.5).mean()}, len(table)


@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site, shared):
    table = np.loadtxt(site.data, delimiter=",", ndmin=2)
    error = table[:, :2] @ shared["w"] - table[:, 2]
    return {"w": shared["w"] - 0.1 * error @ table[:, :2] / len(table)}, len(table)
"""


def test_the_command_prints_the_table_and_writes_it(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK_FILE)
    (tmp_path / "plan.toml").write_text(
        "[task]\nentry = 'task.py:study'\n[federation]\nrounds = 2\nsites = '*.csv'\n"
        "[selection]\nfraction = 1.0\n"
    )
    tables = {}
    for number, name in enumerate(("east", "north", "west")):
        table = np.random.default_rng(number).normal(size=(9 + number, 3))
        np.savetxt(tmp_path / f"{name}.csv", table, delimiter=",", fmt="%.17g")
        tables[name] = table
    command = ["simulate", str(tmp_path / "plan.toml"), "--seed", "1", "--cross-site"]
    done = CliRunner().invoke(app, [*command, "--runs", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    held = json.loads((folder / "cross_site.json").read_text())
    expected = []
    for table in tables.values():
        w = np.zeros(2)
        for _ in range(2):
            w = w - 0.1 * (table[:, :2] @ w - table[:, 2]) @ table[:, :2] / len(table)
        expected.append(
            [np.square(other[:, :2] @ w - other[:, 2]).mean() for other in tables.values()]
        )
    np.testing.assert_allclose(held["own"], expected, rtol=1e-12)
    assert (held["metric"], held["sites"]) == ("loss", list(tables))
    lines = done.stdout.splitlines()
    at = lines.index("loss: trained at (down), tried at (across)")
    assert lines[at + 1].split() == list(tables)
    assert lines[at + 2].split() == ["east", *(f"{value:.4f}" for value in expected[0])]
    assert lines[at + 5].split() == ["together", *(f"{value:.4f}" for value in held["common"])]
    told = CliRunner().invoke(app, ["--json", *command, "--runs", str(tmp_path / "again")])
    assert json.loads(told.stdout)["data"]["cross_site"] == held


# ---- each site and the worst one -----------------------------------------------------------


def recorded(path: Path, task: NumpyTask = TASK, **options: Any) -> tuple[Run, Path]:
    folder = RunFolder(path)
    folder.begin(make_plan(), SEED)
    run = simulate(
        task,
        make_plan(),
        sites(4),
        seed=SEED,
        options=Options(on_round=folder.add_round, **options),
    )
    folder.finish(run)
    return run, path


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("options", [{}, {"record": True}, {"workers": 2}])
def test_what_a_run_tells_of_each_site_is_what_the_model_gives_there(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    run, folder = recorded(tmp_path / "run", **options)
    direct = {
        site.name: {"loss": loss(site, run.tensors), "mae": mae(site, run.tensors)}
        for site in sites(4)
    }
    assert run.history.rounds[-1].outcome == "accepted"
    assert_means(read(folder / "sites.json"), direct)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    told = read(folder / "summary.json")
    for metric in ("loss", "mae"):
        worst = max(direct, key=lambda name: direct[name][metric])
        expected = [worst, pytest.approx(direct[worst][metric], rel=1e-12)]
        assert rounds[-1]["worst"][metric] == told["worst"][metric] == expected
        counts = {site.name: len(site.data[1]) for site in sites(4)}
        pooled = sum(counts[name] * direct[name][metric] for name in counts) / sum(counts.values())
        assert rounds[-1]["metrics"][metric] == pytest.approx(pooled, rel=1e-12)
        assert told["metrics"][metric] == rounds[-1]["metrics"][metric]
    assert "sites" not in rounds[-1]  # there may be thousands, every round


def assert_means(found: dict[str, dict[str, float]], direct: dict[str, dict[str, float]]) -> None:
    assert found.keys() == direct.keys()
    for name, means in direct.items():
        assert found[name] == pytest.approx(means, rel=1e-12)


def test_in_every_round_the_members_alone_are_told_of(tmp_path: Path) -> None:
    run, _ = recorded(
        tmp_path / "run",
        drops=lambda number, site: (number, site) in {(1, "site-2"), (3, "site-0")},
    )
    seen = [record.sites for record in run.history.rounds]
    everybody = {site.name for site in sites(4)}
    assert [set(found) for found in seen] == [
        everybody - {"site-2"},
        everybody,
        everybody - {"site-0"},
    ]


def test_the_worst_of_the_summary_is_of_the_model_that_came_out(tmp_path: Path) -> None:
    """A last candidate that was kept out was tried too, but nobody gets it."""

    def spoil(site: Site, shared: dict[str, Any]) -> Any:
        if site.round == ROUNDS:
            return {"w": shared["w"] + np.float32(9), "b": shared["b"]}, 10
        return TASK.train(site, shared)

    run, folder = recorded(tmp_path / "run", replace(TASK, train=spoil))
    assert run.history.rounds[-1].outcome == "kept"
    told, direct = read(folder / "summary.json"), {s.name: loss(s, run.tensors) for s in sites(4)}
    assert told["worst"]["loss"][1] == pytest.approx(max(direct.values()), rel=1e-12)
    assert read(folder / "sites.json")["site-0"]["loss"] > 10 * max(direct.values())


def test_worst_is_lowest_where_higher_is_better() -> None:
    metrics = (Metric("accuracy", True), Metric("loss", False))
    found = {"a": {"accuracy": 0.9, "loss": 0.1}, "b": {"accuracy": 0.7, "loss": 0.3}}
    assert worst_of(found, metrics) == {"accuracy": ("b", 0.7), "loss": ("b", 0.3)}
    assert worst_of({}, metrics) == {}


def test_without_evaluation_nobody_is_the_worst(tmp_path: Path) -> None:
    plan = make_plan("[evaluation]\nenabled = false\n")
    folder = RunFolder(tmp_path / "run")
    folder.begin(plan, SEED)
    folder.finish(simulate(TASK, plan, sites(3), seed=SEED))
    assert read(folder.path / "summary.json")["worst"] == {}
    assert read(folder.path / "sites.json") == {}


# ---- statistics of columns -----------------------------------------------------------------

COLUMNS = ("age", "height", "constant")


def tables(seed: int, counts: list[int], missing: float = 0.0) -> list[Any]:
    rng = np.random.default_rng(seed)
    made = []
    for number, count in enumerate(counts):
        table = rng.normal(size=(count, 3)) * [12.0, 9.0, 0.0] + [50.0 + number, 170.0, 3.0]
        table[rng.random(size=table.shape) < missing] = np.nan
        table[0] = [40.0, 160.0, 3.0]  # every column has a value somewhere
        made.append(table)
    return made


def features(site: Site) -> Any:
    return site.data


def statistics_sites(data: list[Any]) -> list[SimulatedSite]:
    return [SimulatedSite(f"s{number}", table) for number, table in enumerate(data)]


@given(
    st.integers(0, 1000),
    st.lists(st.integers(1, 40), min_size=3, max_size=6),
    st.sampled_from([0.0, 0.3]),
)
def test_federated_statistics_are_those_of_the_pooled_records(
    seed: int, counts: list[int], missing: float
) -> None:
    data = tables(seed, counts, missing)
    found = federated_statistics(statistics_sites(data), features, COLUMNS)
    pooled = np.concatenate(data)
    np.testing.assert_allclose(found.mean, np.nanmean(pooled, axis=0), rtol=1e-12)
    # The square of the mean is 200 times the variance: two of sixteen digits are lost.
    np.testing.assert_allclose(found.std, np.nanstd(pooled, axis=0), rtol=1e-9, atol=1e-5)
    assert (found.columns, found.records) == (COLUMNS, sum(counts))


def test_a_public_centre_keeps_the_digits_of_a_small_spread() -> None:
    rng = np.random.default_rng(0)
    data = [1e6 + rng.normal(size=(50, 1)) * 1e-3 for _ in range(3)]
    made, pooled = statistics_sites(data), np.concatenate(data)
    centred = federated_statistics(made, features, ("x",), centre=np.array([1e6]))
    np.testing.assert_allclose(centred.std, pooled.std(axis=0), rtol=1e-6)
    plain = federated_statistics(made, features, ("x",))
    assert not np.allclose(plain.std, pooled.std(axis=0), rtol=1e-1)


@pytest.mark.parametrize("quorum", [0, 1, 2])
def test_statistics_of_fewer_than_three_are_refused(quorum: int) -> None:
    made = statistics_sites(tables(0, [5, 5, 5]))
    with pytest.raises(ImpossiblePlanError, match="fewer than 3 sites") as caught:
        federated_statistics(made, features, COLUMNS, quorum=quorum)
    assert (caught.value.code, caught.value.hint) == ("E0114", "quorum=3")
    with pytest.raises(ImpossiblePlanError):
        statistics_plan(quorum)


def test_two_sites_have_no_statistics() -> None:
    with pytest.raises(InsufficientParticipantsError, match="2 sites"):
        federated_statistics(statistics_sites(tables(0, [5, 5])), features, COLUMNS)
    with pytest.raises(InsufficientParticipantsError, match="4 sites"):
        federated_statistics(statistics_sites(tables(0, [5] * 4)), features, COLUMNS, quorum=5)


def test_a_column_that_nobody_has_is_told() -> None:
    data = tables(0, [5, 5, 5])
    for table in data:
        table[:, 1] = np.nan
    with pytest.raises(InsufficientParticipantsError, match="a value in every column"):
        federated_statistics(statistics_sites(data), features, COLUMNS)


@pytest.mark.parametrize("record", [False, True])
def test_records_are_counted_in_blocks_and_one_by_one(record: bool) -> None:
    data = tables(0, [5, 7, 9, 11])
    task, plan = statistics_task(features, COLUMNS), statistics_plan()
    run = simulate(task, plan, statistics_sites(data), seed=0, options=Options(record=record))
    found = statistics_of(run, COLUMNS)
    assert found.records == 32
    np.testing.assert_allclose(found.mean, np.concatenate(data).mean(axis=0), rtol=1e-12)


def test_statistics_are_one_round_that_shares_three_numbers_a_column() -> None:
    run = simulate(
        statistics_task(features, COLUMNS),
        statistics_plan(),
        statistics_sites(tables(0, [5, 6, 7])),
        seed=0,
    )
    assert len(run.history.rounds) == 1
    assert {spec.name: spec.shape for spec in run.layout.specs} == {
        "mean": (3,),
        "present": (3,),
        "square": (3,),
    }

"""The sites of a simulation together: blocks and backups, states, resuming, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import consortium as co
from consortium.core.ids import Seat
from consortium.data import Table
from consortium.drive.directory import DataDirectory
from consortium.drive.history import RoundRecord
from consortium.drive.simulate import Options, Run, simulate
from consortium.errors import (
    ImpossiblePlanError,
    InsufficientParticipantsError,
    QualityError,
    SchemaError,
)
from consortium.plan import Plan, parse_plan
from consortium.tasks import NumpyTask, Site

HERE = Options(workers=0)
FINETUNE = """[federation]
rounds = 3
[selection]
fraction = 1.0
[evaluation]
gate = false
[training]
epochs = 1
batch_size = 8
lr = 0.2
lr_decay = 0.5
[personal]
name = "finetune"
epochs = 2
"""


def everybody(rounds: int, more: str = "") -> Plan:
    text = f"[federation]\nrounds = {rounds}\nquorum = 3\n[selection]\nfraction = 1.0\n"
    return parse_plan(text + more)


def records(seed: int, n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return x, (x[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(np.int64)


def sites(count: int, n: int = 60) -> list[co.SimulatedSite]:
    return [co.SimulatedSite(f"s{number}", records(number, n)) for number in range(count)]


def halves(data: Any) -> tuple[Any, Any]:
    x, y = data
    half = len(x) // 2
    return (x[:half], y[:half]), (x[half:], y[half:])


def adapted(**options: Any) -> Any:
    """A task whose first layer stays at the site."""

    @co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"], **options)
    def task(site: Site) -> Any:
        adapter = co.private(nn.Linear(4, 8))
        return nn.Sequential(adapter, nn.ReLU(), nn.Linear(8, 2)), *halves(site.data)

    return task


# ---- blocks ----------------------------------------------------------------------------


def unfit(names: set[str]) -> NumpyTask:
    """A task whose sums depend on their order in the last bit, and that some sites refuse."""

    def start(rng: np.random.Generator) -> dict[str, Any]:
        return {"w": rng.normal(size=7)}

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        return {"loss": float((shared["w"] ** 2).mean())}, 5

    @co.numpy_task(start=start, evaluate=evaluate)
    def task(site: Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
        if site.name in names:
            raise QualityError("no")
        shared["w"] = shared["w"] + site.rng.normal(size=7) * 0.37
        return shared, int(site.rng.integers(5, 500))

    return task


def test_a_backup_that_lands_in_the_block_under_way_is_summed_as_one_by_one() -> None:
    plan = parse_plan(
        "[federation]\nrounds = 4\nquorum = 6\n[selection]\ntarget = 6\n"
        "[evaluation]\ngate = false\n"
    )
    people = [co.SimulatedSite(f"s{number}", None) for number in range(40)]
    backups = 0
    for seed in range(12):
        task = unfit({"s3", "s5", "s8"})
        blocks = simulate(task, plan, people, seed=seed)
        single = simulate(task, plan, people, seed=seed, options=Options(record=True))
        assert blocks.model_digest == single.model_digest
        backups += sum(record.backups for record in blocks.history.rounds)
    assert backups > 0


# ---- states and resuming -----------------------------------------------------------------


class Stop(Exception):
    """The process ends here."""


def run_in(folder: Path, plan: Plan, seed: int, stop_after: int | None = None) -> Run | None:
    def on_round(record: RoundRecord) -> None:
        if record.number == stop_after:
            raise Stop

    directory = DataDirectory(folder)
    options = Options(workers=0, directory=directory, on_round=on_round)
    try:
        return simulate(adapted(), plan, sites(3), seed=seed, options=options)
    except Stop:
        return None
    finally:
        directory.close()


def test_two_federations_in_one_directory_keep_their_states_apart(tmp_path: Path) -> None:
    plan = everybody(2)
    alone = run_in(tmp_path / "alone", plan, seed=7)
    run_in(tmp_path / "both", plan, seed=1)
    second = run_in(tmp_path / "both", plan, seed=7)
    assert alone is not None and second is not None
    assert second.model_digest == alone.model_digest


def test_a_base_is_tried_after_a_resume_as_it_would_have_been(tmp_path: Path) -> None:
    plan = parse_plan(FINETUNE)
    through = run_in(tmp_path / "a", plan, seed=1)
    run_in(tmp_path / "b", plan, seed=1, stop_after=1)
    resumed = run_in(tmp_path / "b", plan, seed=1)
    assert through is not None and resumed is not None
    assert [(r.metrics, r.base_metrics) for r in resumed.history.rounds] == [
        (r.metrics, r.base_metrics) for r in through.history.rounds
    ]


def test_a_finetuned_model_is_the_one_that_was_measured() -> None:
    people = sites(3, n=400)
    run = simulate(adapted(), parse_plan(FINETUNE), people, seed=3, options=HERE)
    told = run.history.rounds[-1].sites
    for site in people:
        x, y = halves(site.data)[1]
        accuracy = (run.at(site.name).predict(x).argmax(1) == y).mean()
        assert accuracy == pytest.approx(told[site.name]["accuracy"])


def test_across_sites_the_common_model_is_tried_as_in_its_own_round() -> None:
    run = simulate(adapted(), parse_plan(FINETUNE), sites(3), seed=3, options=HERE)
    told, common = run.history.rounds[-1].sites, co.cross_site(run, "loss").common
    assert common == pytest.approx([told[site.name]["loss"] for site in run.sites])


def test_a_site_that_never_trained_fits_its_own_layers_first() -> None:
    people = sites(8, n=400)
    plan = parse_plan(
        "[federation]\nrounds = 2\nquorum = 3\n[selection]\ntarget = 3\n"
        "[training]\nepochs = 4\nlr = 0.1\n"
    )
    run = simulate(adapted(), plan, people, seed=3, options=HERE)
    new = [site for n, site in enumerate(people) if run.states.current(Seat(n + 1)) is None]
    assert new
    for site in new:
        x, y = halves(site.data)[1]
        once, again = (run.at(site.name).predict(x) for _ in range(2))
        assert np.array_equal(once, again)
        assert (once.argmax(1) == y).mean() > 0.65  # by chance: 0.5


# ---- what is refused, and what is not ------------------------------------------------------


def test_the_table_across_sites_leaves_out_one_whose_data_fails() -> None:
    @co.task(loss=nn.CrossEntropyLoss())
    def task(site: Site) -> Any:
        if site.name == "s1":
            raise QualityError("the data failed its quality check")
        return nn.Linear(4, 2), *halves(site.data)

    run = simulate(task, everybody(1), sites(4), seed=1, options=HERE)
    table = co.cross_site(run, "loss")
    assert [value is None for value in table.common] == [False, True, False, False]
    assert [[value is None for value in row] for row in table.own] == [
        [1 in (at, there) for there in range(4)] for at in range(4)
    ]


def test_fedrep_is_refused_where_the_task_has_a_loop_of_its_own() -> None:
    def loop(model: nn.Module, train: Any, site: Site) -> int:
        return 1

    plan = everybody(1, '[personal]\nname = "fedrep"\n')
    with pytest.raises(ImpossiblePlanError, match="a loop of its own") as caught:
        simulate(adapted(loop=loop), plan, sites(3), seed=1, options=HERE)
    assert caught.value.code == "E0114"


def pooled(tables: list[Any]) -> Any:
    people = [co.SimulatedSite(f"h{number}", table) for number, table in enumerate(tables)]
    return co.federated_statistics(people, lambda site: site.data, ("a", "b"))


def test_a_site_that_lacks_a_column_sits_the_statistics_out() -> None:
    rng = np.random.default_rng(0)
    full = [rng.normal(5, 2, (n, 2)) for n in (9, 12, 15)]
    lacking = np.column_stack([np.arange(6.0), np.full(6, np.nan)])
    found, together = pooled([*full, lacking]), np.concatenate(full)
    assert found.mean == pytest.approx(together.mean(axis=0), rel=1e-5)
    assert found.std == pytest.approx(together.std(axis=0), rel=1e-5)
    with pytest.raises(InsufficientParticipantsError, match=r"fewer than 3 sites .*h2 \("):
        pooled([*full[:2], lacking])


class Loose:
    """Somebody's own records, with columns that are no tuple."""

    def __init__(self, x: Any, y: Any) -> None:
        self.features, self.labels = x, y
        self.columns = np.array(["a", "b", "c", "d"])


def test_columns_that_are_an_array_are_not_compared() -> None:
    @co.task(loss=nn.CrossEntropyLoss())
    def task(site: Site) -> Any:
        train, test = halves(site.data)
        return nn.Linear(4, 2), Loose(*train), Loose(*test)

    assert len(simulate(task, everybody(1), sites(3), seed=5, options=HERE).history.rounds) == 1


def test_columns_are_compared_where_the_first_layer_is_shared_and_the_head_is_not() -> None:
    @co.task(loss=nn.CrossEntropyLoss())
    def task(site: Site) -> Any:
        names = ("a", "b", "c", "d") if site.name != "s2" else ("b", "a", "c", "d")
        tables = [Table(x, y, names, ("0", "1")) for x, y in halves(site.data)]
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), co.private(nn.Linear(8, 2))), *tables

    with pytest.raises(SchemaError, match="site s2: its columns are not those of site s0"):
        simulate(task, everybody(1), sites(3), seed=5, options=HERE)

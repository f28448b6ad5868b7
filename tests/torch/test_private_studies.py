"""Whole studies in which single records are hidden, simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import consortium as co
from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.ids import Digest
from consortium.drive.lock import make_lock
from consortium.drive.simulate import Options
from consortium.drive.study import Study
from consortium.errors import ImpossiblePlanError, TaskResultError
from consortium.plan.noise import epsilon_of_rounds, resolved

PLAN = """[federation]
rounds = 2
quorum = 3
[selection]
fraction = 1.0
[training]
epochs = 1
lr = 0.5
momentum = 0.0
[privacy]
unit = "record"
epsilon = 8.0
sampling_rate = 0.1
records = 100
{more}
"""
PUBLIC = 'test_records = "public"'


def plan_of(more: str = "") -> co.Plan:
    return co.parse_plan(PLAN.format(more=more))


def write(folder: Path, count: int = 4) -> list[co.SimulatedSite]:
    sites = []
    for number in range(count):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(120, 3))
        y = (x[:, 0] > 0).astype(int)
        lines = [",".join([*map(str, row), str(label)]) for row, label in zip(x, y, strict=True)]
        path = folder / f"site-{number}.csv"
        path.write_text("a,b,c,label\n" + "\n".join(lines) + "\n")
        sites.append(co.SimulatedSite(f"site-{number}", path))
    return sites


def task_of(**reading: Any) -> Any:
    @co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
    def study(site: co.Site) -> Any:
        train, test = co.read_csv(site.data, label="label", **{"split": "record", **reading})
        net = nn.Sequential(nn.Linear(train.n_features, 8), nn.ReLU(), nn.Linear(8, 2))
        return net, train, test

    return study


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_private_study_learns_and_is_charged(tmp_path: Path, engine: str) -> None:
    plan, options = plan_of(PUBLIC), Options(engine=engine, workers=0)
    run = co.simulate(task_of(), plan, write(tmp_path), seed=1, options=options)
    kinds = [type(decode(record)) for record in run.records]
    assert kinds.count(f.BudgetCharged) == 2
    first_invited = kinds.index(f.SitesInvited)
    assert kinds[first_invited + 1] is f.BudgetCharged  # before anybody has trained
    assert run.history.rounds[-1].metrics["accuracy"] > 0.7
    assert epsilon_of_rounds(resolved(plan), 2) <= 8.0


def test_engines_agree_and_a_seed_repeats(tmp_path: Path) -> None:
    sites = write(tmp_path)

    def tensors(engine: str) -> dict[str, Any]:
        options = Options(engine=engine, workers=0)
        return co.simulate(task_of(), plan_of(), sites, seed=1, options=options).tensors

    one, other, again = tensors("loop"), tensors("batched"), tensors("loop")
    for name, values in one.items():
        assert np.array_equal(values, again[name])
        assert np.allclose(values, other[name], atol=2e-5)


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(
    "reading", [{"scale": "site"}, {"missing": "mean"}, {"split": "share"}], ids=str
)
def test_records_that_follow_each_other_are_refused(
    tmp_path: Path, reading: dict[str, Any], engine: str
) -> None:
    options = Options(engine=engine, workers=0)
    with pytest.raises(TaskResultError, match="one record moves all others"):
        co.simulate(task_of(**reading), plan_of(), write(tmp_path), seed=1, options=options)


@pytest.mark.parametrize("rounds", [1, 3])
def test_all_rounds_that_epsilon_is_for_are_run(tmp_path: Path, rounds: int) -> None:
    text = PLAN.format(more="").replace("rounds = 2", f"rounds = {rounds}")
    plan = co.parse_plan(text.replace("epochs = 1", "epochs = 5"))
    run = co.simulate(task_of(), plan, write(tmp_path), seed=1)
    assert len(run.history.rounds) == rounds
    assert run.state.finished is f.Finish.ROUNDS_DONE


def test_accuracy_by_a_function_of_the_users_own_is_not_vouched_for(tmp_path: Path) -> None:
    plan = co.parse_plan(PLAN.format(more="") + '[evaluation]\nmetric = "accuracy"\n')
    own = (co.Metric("accuracy", True), lambda outputs, targets: 1e9)

    @co.task(loss=nn.CrossEntropyLoss(), metrics=[own])
    def study(site: co.Site) -> Any:
        train, test = co.read_csv(site.data, label="label", split="record")
        return nn.Linear(train.n_features, 2), train, test

    with pytest.raises(ImpossiblePlanError, match="vouch"):
        co.simulate(study, plan, write(tmp_path), seed=1)


@pytest.mark.parametrize("unit", ["site", "local"])
def test_scores_of_layers_that_stay_are_refused_where_only_updates_are_noised(
    tmp_path: Path, unit: str
) -> None:
    text = f'[selection]\ntarget = 4\n[privacy]\nunit = "{unit}"\nepsilon = 8.0\n{PUBLIC}\n'

    @co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
    def study(site: co.Site) -> Any:
        train, test = co.read_csv(site.data, label="label")
        return nn.Sequential(co.private(nn.Linear(3, 4)), nn.Linear(4, 2)), train, test

    with pytest.raises(ImpossiblePlanError, match="layers of the site's own"):
        co.simulate(study, co.parse_plan(text), write(tmp_path), seed=1)
    with pytest.raises(ImpossiblePlanError, match="personal"):
        co.parse_plan(f'{text}[personal]\nname = "finetune"\n')


def test_lock_refuses_what_every_site_would_refuse(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    sites = write(tmp_path / "data")
    study = Study(plan_of(), task_of(scale="site"), sites, Digest(bytes(32)))
    with pytest.raises(TaskResultError, match="one record moves all others"):
        make_lock(study, 1)
    lock, _ = make_lock(replace(study, task=task_of()), 1)
    assert lock.noise is not None


def test_noised_scores_judge_nothing() -> None:
    text = PLAN.format(more="") + '[evaluation]\nmetric = "accuracy"\n'
    plan = co.parse_plan(text)
    assert plan.evaluation.enabled and not plan.evaluation.gate
    assert co.Plan.from_canonical(plan.canonical()) == plan
    with pytest.raises(ImpossiblePlanError, match="patience"):
        co.parse_plan(f"{text}[stop]\npatience = 3\n")


def test_a_known_scale_is_fine(tmp_path: Path) -> None:
    task = task_of(scale={"a": (0.0, 2.0)})
    assert co.simulate(task, plan_of(), write(tmp_path), seed=1).history.rounds


def test_scores_leave_with_noise_and_only_the_bounded_ones(tmp_path: Path) -> None:
    plan = co.parse_plan(PLAN.format(more="") + '[evaluation]\nmetric = "accuracy"\n')
    run = co.simulate(task_of(), plan, write(tmp_path), seed=1)
    assert [metric.name for metric in run.state.terms.metrics] == ["accuracy"]  # type: ignore[union-attr]
    budget = resolved(plan).budget
    assert budget is not None and budget.costs[1].releases == 2

"""Scores inside masked sums of torch tasks: whatever engine trains, a model is tried alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consortium.core.codec import decode
from consortium.core.facts import BaseScored
from consortium.drive.engine import SimulatedSite
from consortium.drive.simulate import Options, Run, simulate
from consortium.plan import Plan, parse_plan
from consortium.tasks import Site
from consortium.torch import TorchTask, private, task

SITES = 7


def plan_of(*, masks: bool = True) -> Plan:
    security = "[security]\nsecure_aggregation = true\n" if masks else ""
    return parse_plan(
        "[federation]\nrounds = 3\nquorum = 5\n[selection]\ntarget = 7\n"
        '[strategy]\nclip = 5.0\nweight = "uniform"\n'
        "[training]\nepochs = 2\nbatch_size = 8\nlr = 0.05\n"
        f'[evaluation]\ngate = false\nbound = 20.0\nmetric = "accuracy"\n{security}'
    )


def made(*, keeps_head: bool = False) -> TorchTask:
    @task(loss=nn.CrossEntropyLoss(), metrics=["accuracy", "auroc"])
    def built(site: Site) -> tuple[nn.Module, Any, Any]:
        x, y = (torch.tensor(part) for part in site.data)
        head = nn.Linear(8, 2)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), private(head) if keeps_head else head)
        return model, (x, y), (x[: len(x) // 2], y[: len(y) // 2])

    return built


def sites() -> list[SimulatedSite]:
    found = []
    for at in range(SITES):
        rng = np.random.default_rng(at)
        x = rng.normal(size=(20 + 3 * at, 4)).astype(np.float32)
        found.append(SimulatedSite(f"site-{at}", (x, (x[:, 0] > x[:, 1]).astype(np.int64))))
    return found


def run(plan: Plan, **options: Any) -> Run:
    return simulate(made(), plan, sites(), seed=5, options=Options(**{"workers": 0, **options}))


def scored(found: Run) -> list[BaseScored]:
    facts = [decode(record) for record in found.records]
    return [fact for fact in facts if isinstance(fact, BaseScored)]


@pytest.mark.parametrize("engine", ["loop", "batched", "fused"])
def test_every_engine_tells_what_members_of_an_open_study_tell(engine: str) -> None:
    """The first model has the same bits; later ones differ by rounding."""
    masked, open_ = run(plan_of(), engine=engine), run(plan_of(masks=False), engine=engine)
    records = open_.history.rounds
    assert [one.samples for one in scored(masked)] == [record.samples for record in records]
    assert scored(masked)[0].means == pytest.approx(
        list(records[0].base_metrics.values()), abs=1e-4
    )
    for one, record in zip(scored(masked), records, strict=True):
        assert one.means[0] == pytest.approx(record.base_metrics["loss"], abs=1e-3)


def test_workers_give_the_same_bits() -> None:
    here, apart = run(plan_of(), engine="batched"), run(plan_of(), engine="batched", workers=2)
    assert here.model_digest == apart.model_digest
    assert [(one.samples, one.sums) for one in scored(here)] == [
        (one.samples, one.sums) for one in scored(apart)
    ]


def test_a_model_is_tried_with_the_layers_of_the_site() -> None:
    found = simulate(made(keeps_head=True), plan_of(), sites(), seed=5, options=Options(workers=0))
    losses = [one.means[0] for one in scored(found)]
    assert losses == sorted(losses, reverse=True), "what the site keeps goes with the base"

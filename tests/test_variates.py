"""Control variates: of the right size with any optimiser, and summed by the round's own facts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import consortium as co
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.federation import owed
from consortium.core.ids import Seat, SiteId
from consortium.core.terms import Metric
from consortium.drive.clock import ManualClock
from consortium.drive.driver import Driver
from consortium.drive.hands import CoordinatorHands
from consortium.drive.simulate import Options, simulate
from consortium.errors import TaskResultError
from consortium.model import Layout, Update, digest_of, save_model, save_update
from consortium.plan import parse_plan
from consortium.plan.values import TrainingSection
from consortium.store.memory import MemoryBlobs, MemoryLog
from consortium.tasks import LocalRules, Site
from consortium.tensors import TensorSpec, load_tensors
from tests.torch.sites import data, first, site

SITES = [co.SimulatedSite(f"s{number}", data(seed=number)) for number in range(3)]
SCAFFOLD = """[federation]
rounds = 3
[selection]
fraction = 1.0
[evaluation]
gate = false
[strategy]
name = "scaffold"
[training]
epochs = 2
batch_size = 10
momentum = 0.0
"""


def made(optimizer: Any = None) -> Any:
    @co.task(loss=nn.CrossEntropyLoss(), optimizer=optimizer)
    def task(at: Site) -> Any:
        return nn.Linear(4, 2), at.data, at.data

    return task


def variates(task: Any, lr: float) -> list[Any]:
    """What each site keeps after three rounds."""
    plan = parse_plan(f"{SCAFFOLD}lr = {lr}\n")
    run = simulate(task, plan, SITES, seed=1, options=Options(workers=0))
    kept = [run.states.current(Seat(seat)) for seat in (1, 2, 3)]
    return [load_tensors(state)["variate"] for state in kept if state is not None]


def test_an_optimiser_with_a_rate_of_its_own_gives_the_same_variates() -> None:
    own = variates(made(lambda parameters, _: torch.optim.SGD(parameters, lr=0.2)), lr=0.01)
    assert np.allclose(own, variates(made(), lr=0.2), rtol=1e-3, atol=1e-5)  # float32 steps


def test_an_optimiser_of_ones_own_is_given_the_rate_of_this_round() -> None:
    told: list[float] = []

    def optimizer(parameters: Any, training: TrainingSection) -> torch.optim.Optimizer:
        told.extend((training.lr, training.lr_in(3)))  # decayed already, and only once
        return torch.optim.SGD(parameters, lr=training.lr)

    task = made(optimizer)
    task.train(site(round=3, lr=0.1, lr_decay=0.5), first(task))
    assert told == pytest.approx([0.025, 0.025])


def test_layers_with_rates_of_their_own_do_not_go_with_variates() -> None:
    def optimizer(parameters: Any, _: TrainingSection) -> torch.optim.Optimizer:
        groups = [{"params": [part], "lr": 0.1 * (1 + n)} for n, part in enumerate(parameters)]
        return torch.optim.SGD(groups, lr=0.1)

    task = made(optimizer)
    shared = first(task)
    task.train(site(), dict(shared))  # without variates they do
    rules = LocalRules(correction={name: np.zeros_like(part) for name, part in shared.items()})
    with pytest.raises(TaskResultError, match="one learning rate for all layers"):
        task.train(site(rules=rules), shared)


def test_a_site_that_joins_during_a_round_does_not_change_its_sum() -> None:
    plan = parse_plan(
        "[selection]\nfraction = 1.0\n[strategy]\nname = 'scaffold'\n"
        "[evaluation]\nenabled = false\ngate = false\n"
    )
    layout, blobs, clock = Layout((TensorSpec("w", (4,), "F32"),)), MemoryBlobs(), ManualClock()
    hands = CoordinatorHands(layout, plan.strategy, blobs, clock, lambda _: bytes(32))
    driver = Driver(MemoryLog(), "x", clock)
    driver.feed(i.Found("x", 0))
    terms = plan.terms((Metric("loss", False),))
    driver.feed(i.AdoptPlan(plan.digest, digest_of(b"t"), layout.digest, terms, 0))
    model = blobs.put(save_model(layout, np.zeros(4, np.float32)))
    driver.feed(i.InstallModel(model, 0))
    for number in range(3):
        driver.feed(i.Admit(SiteId(f"{number:032x}"), b"", 0))
        driver.feed(i.Report(Seat(number + 1), (("ready", True),), 0))
    duty = _sum_that_is_owed(driver, hands)
    before = hands.perform(duty)
    driver.feed(i.Admit(SiteId("f" * 32), b"", 2))
    assert len(driver.state.roster) == 4
    assert hands.perform(duty) == before


def _sum_that_is_owed(driver: Driver, hands: CoordinatorHands) -> d.Aggregate:
    """Play the round until its updates are to be summed."""
    for _ in range(50):
        for duty in owed(driver.state):
            if isinstance(duty, d.Aggregate):
                return duty
        open_round = driver.state.round
        if not driver.work(hands) and open_round is not None and open_round.waiting:
            seat = next(iter(open_round.waiting))
            row = np.full(hands.form.size, float(seat), np.float32)
            update = save_update(Update(row, 1.0, open_round.base), hands.form)
            driver.feed(i.Submit(open_round.number, seat, hands.blobs.put(update), None, 1))
    raise AssertionError("the round never came to its sum")

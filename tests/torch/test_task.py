"""The contract of a task, escape hatches, what is kept between calls."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consortium import torch as public
from consortium.core.terms import Metric
from consortium.errors import TaskResultError
from consortium.model import Layout
from consortium.tasks import LocalRules, Site, Task, Trained
from consortium.tensors import load_tensors, save_tensors
from consortium.torch import TorchTask, frozen, task
from consortium.torch import workshop as workshops
from consortium.torch.metrics import MetricChoice
from tests.torch.sites import DATA, Net, data, first, linear, mixed, same, site

CE = nn.CrossEntropyLoss()


def made_of(function: Any, loss: Any = CE, metrics: list[MetricChoice] | None = None) -> TorchTask:
    return task(loss=loss, metrics=metrics or [])(function)


# ---- contract -----------------------------------------------------------------------


def test_public_names_are_sorted_and_there() -> None:
    assert public.__all__ == sorted(public.__all__)
    assert all(hasattr(public, name) for name in public.__all__)


def test_a_torch_task_keeps_the_contract() -> None:
    assert isinstance(mixed, Task)
    assert mixed.__name__ == "mixed"
    assert [metric.name for metric in mixed.metrics] == ["loss", "accuracy", "auroc"]
    assert mixed.follows_rules and mixed.prefers_workers
    shared = mixed.first(site())
    layout = Layout.of(shared)
    assert mixed.inventory(site()).leaves == layout.specs
    trained = mixed.train(site(), layout.unflatten(layout.flatten(shared)))
    assert isinstance(trained, Trained)
    assert Layout.of(trained.shared) == layout
    means, records = mixed.evaluate(site(), dict(trained.shared))
    assert list(means) == ["loss", "accuracy", "auroc"]
    assert records == 37


def test_nothing_that_stays_is_in_what_is_shared() -> None:
    inventory = mixed.inventory(site())
    leaves = {spec.name for spec in inventory.leaves}
    stays = {spec.name for spec in inventory.private}
    assert not leaves & stays
    assert leaves | stays == set(Net(4).state_dict())
    assert not any("adapter" in name or "running" in name for name in leaves)
    trained = mixed.train(site(), first(mixed))
    assert set(trained.shared) == leaves
    assert set(trained.state or ()) == stays


def test_what_a_site_keeps_survives_as_a_file() -> None:
    state = mixed.train(site(), first(mixed)).state
    assert state is not None
    again = load_tensors(save_tensors(state))
    assert same(state, again)
    shared = first(mixed)
    assert same(
        mixed.train(site(state=again), dict(shared)).shared,
        mixed.train(site(state=state), dict(shared)).shared,
    )


def test_the_first_model_does_not_depend_on_the_sites_width_or_own_seed() -> None:
    one = mixed.first(site(data=data(3)))
    assert same(one, mixed.first(site(data=data(9), own_seed=77)))
    assert not same(one, mixed.first(site(data=data(3), seed=2)))


def test_private_first_values_follow_the_own_seed_alone() -> None:
    def adapter(**options: Any) -> Any:
        return mixed.new_model(site(**options)).state_dict()["adapter.0.weight"].numpy()

    assert np.array_equal(adapter(), adapter(round=5, seed=9))
    assert not np.array_equal(adapter(), adapter(own_seed=6))


def test_frozen_values_are_pinned() -> None:
    def pinned(scale: float) -> Any:
        def make(at: Site) -> Any:
            base = nn.Linear(4, 3)
            nn.init.constant_(base.weight, scale)
            nn.init.zeros_(base.bias)
            return nn.Sequential(frozen(base), nn.Linear(3, 2)), at.data, at.data

        return made_of(make).inventory(site()).pinned

    assert pinned(1.0) == pinned(1.0) != pinned(2.0)
    assert mixed.inventory(site()).pinned is None


# ---- escape hatches -----------------------------------------------------------------


def test_a_step_of_the_users_own() -> None:
    def step(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(inputs), targets)

    own = task(loss=CE, step=step)(linear._make)
    shared = first(linear)
    assert same(own.train(site(), shared).shared, linear.train(site(), shared).shared)
    assert own.follows_rules


def test_an_optimiser_of_the_users_own() -> None:
    def optimizer(parameters: Any, training: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, training.lr, momentum=training.momentum)

    own = task(loss=CE, optimizer=optimizer)(linear._make)
    shared = first(linear)
    trained, wanted = own.train(site(), shared), linear.train(site(), shared)
    assert same(trained.shared, wanted.shared)
    assert trained.steps == wanted.steps


def test_a_loop_of_the_users_own() -> None:
    def loop(model: nn.Module, train: Any, at: Site) -> int:
        assert model.training
        assert train is DATA
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(float(at.rng.normal()))
        return 3

    own = task(loss=CE, loop=loop)(lambda s: (nn.Linear(4, 2), s.data, s.data))
    shared = own.first(site())
    trained = own.train(site(), shared)
    assert trained.steps == 3 and trained.records == 37
    assert not own.follows_rules
    assert np.ptp(trained.shared["weight"] - shared["weight"]) < 1e-6
    silent = task(loss=CE, loop=lambda *_: None)(own._make)
    assert silent.train(site(), shared).steps is None
    wrong: Any = task(loss=CE, loop=lambda *_: "three")(own._make)  # type: ignore[arg-type, return-value]
    with pytest.raises(TaskResultError, match="number of steps"):
        wrong.train(site(), shared)


# ---- what is kept between calls -----------------------------------------------------


def counting() -> tuple[TorchTask, list[str]]:
    calls: list[str] = []

    def make(at: Site) -> Any:
        calls.append(at.name)
        x, y = (np.load(at.data), np.zeros(5, int)) if isinstance(at.data, Path) else at.data
        return Net(x.shape[1]), (x, y), (x, y)

    return made_of(make), calls


def test_a_site_is_made_once() -> None:
    made, calls = counting()
    shared = first(mixed)
    for number in range(1, 4):
        made.train(site(round=number, seed=number, rules=LocalRules()), dict(shared))
        made.evaluate(site(round=number), dict(shared))
    assert calls == ["a"]
    made.train(site(name="b"), dict(shared))
    made.train(site(data=data(seed=4)), dict(shared))
    assert calls == ["a", "b", "a"]


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    made, calls = counting()
    path = tmp_path / "data.npy"
    np.save(path, np.zeros((5, 4), np.float32))
    at = site(data=path)
    made.inventory(at)
    made.inventory(at)
    assert calls == ["a"]
    os.utime(path, ns=(1, 1))
    made.inventory(at)
    np.save(path, np.zeros((5, 6), np.float32))
    os.utime(path, ns=(1, 1))
    made.inventory(at)
    assert calls == ["a", "a", "a"]


def test_only_so_many_sites_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshops, "MAX_SITES", 2)
    monkeypatch.setattr(workshops, "MAX_BYTES", 0)
    made, calls = counting()
    for name in ("a", "b", "a", "c", "a", "b"):
        made.inventory(site(name=name))
    assert calls == ["a", "b", "c", "b"]


def test_results_are_the_same_with_and_without_the_cache() -> None:
    shared = first(mixed)
    used, fresh = counting()[0], counting()[0]
    for number in range(3):
        used.train(site(seed=number), dict(shared))
        used.evaluate(site(seed=number), dict(shared))
    one, two = used.train(site(seed=9), dict(shared)), fresh.train(site(seed=9), dict(shared))
    assert same(one.shared, two.shared)
    assert same(one.state, two.state)


def test_sites_do_not_see_each_other() -> None:
    shared = first(mixed)
    alone = mixed.train(site(name="b", data=data(7, seed=2)), dict(shared))
    mixed.train(site(name="a", lr=5.0), dict(shared))
    beside = mixed.train(site(name="b", data=data(7, seed=2)), dict(shared))
    assert same(alone.shared, beside.shared)
    assert same(alone.state, beside.state)


def test_a_buffer_that_is_replaced_is_kept_and_set_anew() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 2)
            self.register_buffer("seen", torch.zeros(1))
            self.register_buffer("lately", torch.zeros(1), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.seen, self.lately = self.seen + len(x), self.lately + 1
            return self.line(x)  # type: ignore[no-any-return]

    made = made_of(lambda s: (Counts(), s.data, s.data))
    shared = made.first(site())
    for _ in range(2):
        assert made.train(site(), shared).state == {"seen": np.array([74.0], np.float32)}


def test_the_users_function_sees_nothing_of_the_round() -> None:
    seen: list[Site] = []

    def make(at: Site) -> Any:
        seen.append(at)
        at.rng.normal(size=at.round + 3)  # must not shift what training draws
        return nn.Linear(4, 2), at.data, at.data

    made = made_of(make)
    shared = first(linear)
    rules = LocalRules(mu=1.0, base=shared)
    trained = made.train(site(round=6, rules=rules), shared)
    (at,) = seen
    assert at.round == 0 and at.state is None and at.rules.are_plain
    assert same(trained.shared, linear.train(site(round=6, rules=rules), shared).shared)


# ---- types and forms ------------------------------------------------------------------


def test_metrics_of_the_users_own_are_reported() -> None:
    share = Metric("share", higher_is_better=True)
    made = made_of(
        linear._make, metrics=["f1", (share, lambda o, t: (o.argmax(1) == 1).float().mean())]
    )
    means, _ = made.evaluate(site(), first(linear))
    assert list(means) == ["loss", "f1", "share"]
    assert 0 <= means["share"] <= 1


def test_models_of_doubles_stay_doubles() -> None:
    made = made_of(lambda s: (nn.Linear(4, 2).double(), s.data, s.data))
    shared = made.first(site())
    assert shared["weight"].dtype == np.float64
    assert made.train(site(), shared).shared["weight"].dtype == np.float64


def test_regression_with_one_column_is_not_broadcast() -> None:
    x = DATA[0]
    pair = (x, x @ np.array([1, 2, 3, 4], np.float32))
    made = made_of(lambda s: (nn.Linear(4, 1), s.data, s.data), nn.MSELoss(), ["mae"])
    at = site(data=pair, epochs=60)
    done = made.train(at, made.first(site(data=pair)))
    means, _ = made.evaluate(replace(at, rng=np.random.default_rng(0)), dict(done.shared))
    assert means["loss"] < 1e-3

"""Personalisation: FedPer, FedRep, FedBN, fine-tuning, newcomers, calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from consortium.plan.values import PersonalSection
from consortium.tasks import LocalRules
from consortium.torch import HospitalNet, private, task
from tests.torch.sites import DATA, data, first, linear, mixed, same, site

FEDREP = PersonalSection(name="fedrep", epochs=2)


def moved(before: Any, after: Any) -> set[str]:
    return {name for name in after if not np.array_equal(before[name], after[name])}


def initial_state(personal: PersonalSection | None = None) -> Any:
    """What a site keeps before it has trained: the first values by its own seed."""
    saved = mixed.new_model(site(personal=personal)).state_dict()
    shared = set(mixed.first(site(personal=personal)))
    return {name: value.numpy() for name, value in saved.items() if name not in shared}


class Order(nn.Module):
    """A model that tells which of its parameters learn at each step."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.own = private(nn.Linear(4, 3))
        self.common = nn.Linear(3, 2)
        self._log = log

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            learning = [n for n, p in self.named_parameters() if p.requires_grad]
            self._log.append("+".join(sorted({name.partition(".")[0] for name in learning})))
        return self.common(self.own(x))  # type: ignore[no-any-return]


def log_of(state: Any = None, **options: Any) -> list[str]:
    """Which parts learnt, step by step; one step an epoch."""
    log: list[str] = []
    made = task(loss=nn.CrossEntropyLoss())(lambda s: (Order(log), s.data, s.data))
    shared = made.first(site())
    made.train(site(state=state, batch_size=37, **options), shared)
    return log


def kept() -> Any:
    made = task(loss=nn.CrossEntropyLoss())(lambda s: (Order([]), s.data, s.data))
    return made.train(site(), made.first(site())).state


def test_everything_learns_together_unless_the_plan_says_otherwise() -> None:
    assert log_of(epochs=3) == ["common+own"] * 3
    fedper = PersonalSection(name="fedper")
    assert log_of(epochs=2, personal=fedper) == ["common+own"] * 2


def test_fedrep_trains_private_then_shared() -> None:
    assert log_of(epochs=3, personal=FEDREP) == ["own", "own", "common", "common", "common"]


def test_fedrep_counts_the_steps_of_the_shared_part() -> None:
    at = site(personal=PersonalSection(name="fedrep", epochs=5), momentum=0.0)
    assert mixed.train(at, first(mixed)).steps == 10


def test_fedrep_follows_rules_in_the_shared_phase() -> None:
    shared = first(mixed)
    far = LocalRules(correction={name: np.ones_like(array) for name, array in shared.items()})
    plain = mixed.train(site(personal=FEDREP), dict(shared))
    ruled = mixed.train(site(personal=FEDREP, rules=far), dict(shared))
    assert moved(plain.shared, ruled.shared) == set(shared)


def test_a_newcomer_warms_its_private_layers_up_first() -> None:
    warm = PersonalSection(warmup=2)
    assert log_of(round=4, epochs=1, personal=warm) == ["own", "own", "common+own"]
    assert log_of(round=1, epochs=1, personal=warm) == ["common+own"]
    assert log_of(round=4, epochs=1, personal=warm, state=kept()) == ["common+own"]
    assert log_of(round=4, epochs=1, personal=PersonalSection(warmup=0)) == ["common+own"]


def test_a_newcomer_without_private_layers_just_trains() -> None:
    shared = first(linear)
    late, early = (linear.train(site(round=n), shared).shared for n in (7, 1))
    assert same(late, early)


def test_warming_up_helps_a_newcomer() -> None:
    """The shared part has learnt; a fresh adapter that moves it at once does harm."""
    shared, state = dict(first(mixed)), None
    for number in range(1, 9):
        done = mixed.train(site(round=number, seed=number, state=state, lr=0.05), shared)
        shared, state = dict(done.shared), done.state
    other = data(seed=0)
    personal = PersonalSection(warmup=10)
    newcomer = mixed.train(site(name="new", data=other, round=9, personal=personal), dict(shared))
    means, _ = mixed.evaluate(site(name="new", data=other, state=newcomer.state), dict(shared))
    assert means["accuracy"] > 0.75


def test_fedbn_keeps_affine_parameters_and_statistics() -> None:
    fedbn = PersonalSection(name="fedbn")
    shared = mixed.first(site(personal=fedbn))
    assert sorted(shared) == ["body.1.bias", "body.1.weight", "head.bias", "head.weight"]
    trained = mixed.train(site(personal=fedbn), shared)
    assert trained.state is not None
    assert {"body.2.weight", "body.2.running_var"} <= set(trained.state)


def test_without_fedbn_affine_parameters_are_shared_and_statistics_stay() -> None:
    shared = first(mixed)
    assert "body.2.weight" in shared
    assert not any("running" in name or "num_batches" in name for name in shared)


def test_fine_tuning_is_for_evaluation_only() -> None:
    tuned = PersonalSection(name="finetune", epochs=20)
    shared = first(mixed)
    before = {name: array.copy() for name, array in shared.items()}
    plain, _ = mixed.evaluate(site(), shared)
    better, records = mixed.evaluate(site(personal=tuned), shared)
    assert better["loss"] < plain["loss"] - 0.1
    assert records == 37
    assert same(shared, before)
    assert mixed.evaluate(site(), shared)[0] == plain
    assert same(
        mixed.train(site(personal=tuned), dict(shared)).shared,
        mixed.train(site(), dict(shared)).shared,
    )


def test_private_state_comes_back_in_the_next_round() -> None:
    shared = first(mixed)
    one = mixed.train(site(), dict(shared))
    again = mixed.train(site(round=2, seed=2, state=one.state), dict(one.shared))
    mixed.train(site(seed=3), dict(shared))  # other work at the same bench
    repeated = mixed.train(site(round=2, seed=2, state=one.state), dict(one.shared))
    assert same(again.shared, repeated.shared)
    assert one.state is not None and again.state is not None
    assert int(one.state["adapter.1.num_batches_tracked"]) == 10
    assert int(again.state["adapter.1.num_batches_tracked"]) == 20
    assert moved(initial_state(), one.state) == set(one.state)


def test_a_site_without_statistics_takes_them_from_its_records() -> None:
    """Running statistics do not travel: as it comes, the model would be scaled wrongly."""
    shared = first(mixed)
    shifted = (DATA[0] * 50 + 1000, DATA[1])
    cold = PersonalSection(warmup=0)
    complete = mixed.complete(site(data=shifted, personal=cold), shared).module
    norm = complete.adapter[1]  # type: ignore[index]
    hidden = complete.adapter[0](torch.tensor(shifted[0]))  # type: ignore[index]
    torch.testing.assert_close(norm.running_mean, hidden.mean(0), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(norm.running_var, hidden.var(0), rtol=1e-3, atol=1e-3)
    assert norm.momentum == 0.1
    assert not complete.training and not norm.training


def test_statistics_that_are_there_are_kept() -> None:
    shared = first(mixed)
    one = mixed.train(site(), dict(shared))
    assert one.state is not None
    complete = mixed.complete(site(state=one.state), dict(one.shared)).module
    kept = complete.state_dict()
    assert same(one.state, {name: kept[name].numpy() for name in one.state})


@pytest.mark.parametrize("name", ["none", "fedper", "fedrep", "fedbn", "finetune"])
def test_hospitals_of_different_widths_learn_together(name: str) -> None:
    personal = PersonalSection(name=name)  # type: ignore[arg-type]
    made = task(loss=nn.CrossEntropyLoss(), metrics=["auroc"])(
        lambda s: (HospitalNet(s.data[0].shape[1]), s.data, s.data)
    )
    ten, fifteen = (
        site(name=str(n), data=data(n, 40), personal=personal, epochs=1) for n in (10, 15)
    )
    assert made.inventory(ten).leaves == made.inventory(fifteen).leaves
    shared = made.first(ten)
    one, two = made.train(ten, dict(shared)), made.train(fifteen, dict(shared))
    assert sorted(one.shared) == sorted(two.shared) == sorted(shared)
    mean = {key: (one.shared[key] + two.shared[key]) / 2 for key in shared}
    at = site(name="10", data=ten.data, personal=personal, epochs=1, state=one.state)
    assert 0 <= made.evaluate(at, mean)[0]["auroc"] <= 1

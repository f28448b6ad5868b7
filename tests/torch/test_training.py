"""Local training against loops written by hand: optimisers, time, modes, repeating."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from consortium.errors import SiteDataError
from consortium.tasks import Site
from consortium.torch import frozen, task
from consortium.torch.build import built
from tests.torch.sites import DATA, Net, arrays, first, linear, loaded, mixed, plain_sgd, same, site

X, Y = DATA


# ---- golden -------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_a_loop_written_by_hand_bit_for_bit(momentum: float) -> None:
    options: Any = {"momentum": momentum, "weight_decay": 0.01}
    shared = first(mixed)
    trained = mixed.train(site(**options), dict(shared))
    model = loaded(built(lambda: Net(4), 5), shared)  # private values come from own_seed
    plain_sgd(model, site(**options))
    assert same(trained.shared, arrays(model, shared))
    assert trained.state is not None
    assert same(trained.state, arrays(model, set(model.state_dict()) - set(shared)))
    assert trained.records == len(X)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_other_optimisers_of_the_plan(name: str) -> None:
    at = site(optimizer=name, lr=0.01, weight_decay=0.1, epochs=1, batch_size=37)
    shared = first(linear)
    model = loaded(nn.Linear(4, 2), shared)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    optimizer = kind(model.parameters(), 0.01, weight_decay=0.1)
    rng = np.random.default_rng(1)
    rng.integers(2**63)
    order = torch.tensor(rng.permutation(37))
    nn.functional.cross_entropy(model(torch.tensor(X)[order]), torch.tensor(Y)[order]).backward()
    optimizer.step()
    trained = linear.train(at, shared)
    assert trained.steps == 1
    for tensor, parameter in model.named_parameters():
        np.testing.assert_allclose(trained.shared[tensor], parameter.detach(), atol=1e-6)


def test_the_learning_rate_decays_with_rounds() -> None:
    shared = first(linear)
    third = linear.train(site(round=3, lr=0.4, lr_decay=0.5), shared)
    same_rate = linear.train(site(round=1, lr=0.1), shared)
    assert same(third.shared, same_rate.shared)


# ---- time, modes, batches -----------------------------------------------------------


def test_a_slow_site_stops_in_time_after_at_least_one_step() -> None:
    def slow(model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        time.sleep(0.02)
        return nn.functional.cross_entropy(model(inputs), targets)

    made = task(loss=nn.CrossEntropyLoss(), step=slow)(linear._make)
    trained = made.train(site(epochs=1000, max_seconds=0.05, momentum=0.0), first(linear))
    assert trained.steps is not None
    assert 1 <= trained.steps < 10
    at_once = made.train(site(epochs=1000, max_seconds=1e-9, momentum=0.0), first(linear))
    assert at_once.steps == 1


@pytest.mark.parametrize("batch_size", [1, 2, 36, 37])
def test_batch_norm_never_meets_a_single_record(batch_size: int) -> None:
    trained = mixed.train(site(batch_size=batch_size, epochs=1), first(mixed))
    assert all(np.isfinite(array).all() for array in trained.shared.values())


def test_a_loader_that_ends_in_a_single_record_is_no_trouble() -> None:
    tensors = TensorDataset(torch.tensor(X), torch.tensor(Y))
    made = task(loss=nn.CrossEntropyLoss())(
        lambda s: (Net(4), DataLoader(tensors, batch_size=9), s.data)
    )
    trained = made.train(site(momentum=0.0, epochs=1), made.first(site()))
    assert trained.records == 37
    assert trained.steps == 4  # 9, 9, 9 and 10


def test_one_record_is_too_few_for_batch_norm() -> None:
    one = (X[:1], Y[:1])
    with pytest.raises(SiteDataError, match="one record"):
        mixed.train(site(data=one), first(mixed))
    assert linear.train(site(data=one), first(linear)).records == 1


def test_frozen_layers_stand_still_and_are_in_evaluation_mode() -> None:
    seen = []

    class Pretrained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = frozen(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.training, self.base.training, self.base[1].training))
            return self.head(self.base(x))  # type: ignore[no-any-return]

    made = task(loss=nn.CrossEntropyLoss())(lambda s: (Pretrained(), s.data, s.data))
    before = made.inventory(site())
    shared = made.first(site())
    assert sorted(shared) == ["head.bias", "head.weight"]
    trained = made.train(site(batch_size=36), shared)  # a last batch of one is fine here
    assert trained.state is None
    assert set(seen) == {(True, False, False)}
    assert made.inventory(site()) == before
    assert before.pinned is not None
    assert len(before.frozen) == 7


def test_parameters_that_the_user_switched_off_stand_still() -> None:
    def make(at: Site) -> Any:
        model = nn.Linear(4, 2)
        model.bias.requires_grad_(False)
        return model, at.data, at.data

    made = task(loss=nn.CrossEntropyLoss())(make)
    shared = made.first(site())
    trained = made.train(site(), shared)
    assert np.array_equal(trained.shared["bias"], shared["bias"])
    assert not np.array_equal(trained.shared["weight"], shared["weight"])


def test_numbers_that_are_not_finite_are_returned_as_they_are() -> None:
    trained = linear.train(site(lr=1e38, epochs=5), first(linear))
    assert not all(np.isfinite(array).all() for array in trained.shared.values())


# ---- repeating ----------------------------------------------------------------------


def test_training_depends_on_its_own_generator_only() -> None:
    shared = first(mixed)
    one = mixed.train(site(), dict(shared))
    torch.manual_seed(1234)
    torch.set_num_threads(2)
    mixed.train(site(name="b", seed=9), dict(shared))
    mixed.evaluate(site(), dict(shared))
    state = torch.get_rng_state()
    two = mixed.train(site(), dict(shared))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == 2
    assert same(one.shared, two.shared)
    assert one.state is not None and two.state is not None
    assert same(one.state, two.state)
    assert not same(one.shared, mixed.train(site(seed=2), dict(shared)).shared)


def test_threads_do_not_disturb_each_other() -> None:
    shared = first(mixed)
    alone = [mixed.train(site(seed=seed), dict(shared)).shared for seed in range(4)]
    found: dict[int, Any] = {}

    def work(seed: int) -> None:
        found[seed] = mixed.train(site(seed=seed), dict(shared)).shared

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(found[seed], alone[seed]) for seed in range(4))

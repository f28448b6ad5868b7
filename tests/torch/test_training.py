"""Local training against loops written by hand, and the rules of strategies."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from consortium.errors import LayoutError, SiteDataError, TaskResultError
from consortium.tasks import LocalRules, Site
from consortium.torch import TorchTask, frozen, task
from consortium.torch.build import built
from consortium.torch.steps import EffectiveSteps
from tests.torch.sites import DATA, Net, first, linear, mixed, plain_sgd, same, site

X, Y = DATA


def loaded(model: nn.Module, shared: Any) -> nn.Module:
    tensors = {name: torch.tensor(array) for name, array in shared.items()}
    model.load_state_dict(tensors, strict=False)
    return model


def arrays(model: nn.Module, names: Any) -> dict[str, Any]:
    state = model.state_dict()
    return {name: state[name].numpy() for name in names}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """The loops written by hand compute on one thread, as the task does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


# ---- what strategies ask ------------------------------------------------------------


def test_fedprox_pulls_towards_the_rounds_model() -> None:
    shared = first(linear)
    mu, options = 0.7, {"momentum": 0.0, "batch_size": 37, "epochs": 3}
    base = {name: torch.tensor(array) for name, array in shared.items()}
    model = loaded(nn.Linear(4, 2), shared)

    def pull(model: nn.Module) -> None:
        for name, p in model.named_parameters():
            assert p.grad is not None
            p.grad += mu * (p.detach() - base[name])

    plain_sgd(model, site(**options), pull)
    trained = linear.train(site(rules=LocalRules(mu=mu, base=shared), **options), shared)
    for name, value in arrays(model, shared).items():
        np.testing.assert_allclose(trained.shared[name], value, rtol=0, atol=1e-6)
    free = linear.train(site(**options), shared)
    assert _distance(trained.shared, shared) < _distance(free.shared, shared)


def _distance(one: Any, other: Any) -> float:
    return float(sum(((one[name] - other[name]) ** 2).sum() for name in one))


def test_scaffold_adds_its_correction_to_every_gradient() -> None:
    shared = first(linear)
    rng = np.random.default_rng(3)
    correction = {n: rng.normal(size=a.shape).astype(np.float32) for n, a in shared.items()}
    model = loaded(nn.Linear(4, 2), shared)

    def correct(model: nn.Module) -> None:
        for name, p in model.named_parameters():
            assert p.grad is not None
            p.grad += torch.tensor(correction[name])

    plain_sgd(model, site(), correct)
    trained = linear.train(site(rules=LocalRules(correction=correction)), shared)
    assert same(trained.shared, arrays(model, shared))


def test_rules_do_not_touch_private_parameters() -> None:
    shared = first(mixed)
    at = {"batch_size": 37, "epochs": 1, "momentum": 0.0}
    huge = {name: np.full_like(array, 1e3) for name, array in shared.items()}
    free, held = (
        mixed.train(site(rules=rules, **at), dict(shared))
        for rules in (LocalRules(), LocalRules(correction=huge))
    )
    assert free.state is not None and held.state is not None
    assert same(free.state, held.state)  # one step: the correction has not reached the loss yet
    assert not same(free.shared, held.shared)


def test_a_parameter_that_the_loss_does_not_use_follows_the_correction() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 2), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)  # type: ignore[no-any-return]

    made = task(loss=nn.CrossEntropyLoss())(lambda s: (Half(), s.data, s.data))
    shared = made.first(site())
    rules = LocalRules(correction={n: np.ones_like(a) for n, a in shared.items()})
    at = site(rules=rules, momentum=0.0, batch_size=37, epochs=1)
    np.testing.assert_allclose(made.train(at, shared).shared["idle"], -0.1 * np.ones(3), rtol=1e-6)


def test_gradients_are_clipped_before_rules_are_added() -> None:
    shared = first(linear)
    options: Any = {"momentum": 0.0, "batch_size": 37, "epochs": 1, "lr": 1.0}
    clipped = linear.train(site(grad_clip=1e-3, **options), shared)
    assert _distance(clipped.shared, shared) ** 0.5 == pytest.approx(1e-3, rel=1e-3)
    ones = LocalRules(correction={n: np.ones_like(a) for n, a in shared.items()})
    corrected = linear.train(site(grad_clip=1e-3, rules=ones, **options), shared)
    assert _distance(corrected.shared, shared) > 9  # ten parameters


def test_a_correction_of_anything_but_sgd_is_refused() -> None:
    shared = first(linear)
    rules = LocalRules(correction=shared)
    with pytest.raises(TaskResultError, match="SCAFFOLD") as caught:
        linear.train(site(rules=rules, optimizer="adam"), shared)
    assert 'optimizer = "sgd"' in caught.value.hint


def test_rules_of_another_model_are_refused() -> None:
    shared = first(linear)
    with pytest.raises(LayoutError, match="`bias` is missing"):
        linear.train(site(rules=LocalRules(mu=1.0)), shared)


# ---- effective steps ----------------------------------------------------------------


def counted(steps: EffectiveSteps, count: int) -> float:
    for _ in range(count):
        steps.count()
    return steps.total


@given(st.integers(1, 200), st.floats(0.01, 0.95), st.floats(1e-4, 0.5))
def test_effective_steps_have_the_closed_forms_of_the_paper(
    tau: int, rho: float, pull: float
) -> None:
    assert counted(EffectiveSteps(), tau) == tau
    momentum = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)  # Wang et al. 2020, section 4.1
    assert counted(EffectiveSteps(rho), tau) == pytest.approx(momentum)
    proximal = (1 - (1 - pull) ** tau) / pull
    assert counted(EffectiveSteps(0.0, pull), tau) == pytest.approx(proximal)


@settings(max_examples=10)
@given(st.floats(0, 0.95), st.floats(0, 1), st.floats(0, 1))
def test_effective_steps_are_what_torch_does_to_a_constant_gradient(
    rho: float, mu: float, decay: float
) -> None:
    """A loss with the constant gradient one: x ends at -lr times the effective steps."""

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.x

    made = task(loss=nn.MSELoss(), step=lambda m, _i, _t: m(0))(lambda s: (Slope(), s.data, s.data))
    rules = LocalRules(mu=mu, base={"x": np.zeros(())})
    trained = made.train(site(rules=rules, momentum=rho, weight_decay=decay), {"x": np.zeros(())})
    assert trained.steps is not None
    assert trained.steps * 0.1 == pytest.approx(-float(trained.shared["x"]), rel=1e-9)


def test_steps_are_counted_by_the_optimiser_in_use() -> None:
    shared, count = first(linear), 10  # 37 records, 8 a step, 2 epochs

    def steps(made: TorchTask, **options: Any) -> float | None:
        return made.train(site(**options), shared).steps

    assert steps(linear, momentum=0.0) == count
    assert steps(linear, optimizer="adam") == count
    assert steps(linear, momentum=0.5) == pytest.approx(counted(EffectiveSteps(0.5), count))

    def nesterov(parameters: Any, training: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, training.lr, momentum=0.9, nesterov=True)

    own = task(loss=nn.CrossEntropyLoss(), optimizer=nesterov)(linear._make)
    assert steps(own) == count


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

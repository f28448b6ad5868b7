"""What strategies ask of local training: gradients with terms, and how steps are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from consortium.errors import LayoutError, TaskResultError
from consortium.tasks import LocalRules
from consortium.torch import TorchTask, task
from consortium.torch.steps import EffectiveSteps
from tests.torch.sites import DATA, arrays, first, linear, loaded, mixed, plain_sgd, same, site

X, Y = DATA


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

"""Training by hand against the plain loop: the same function, in another order of sums.

In float64 the two agree to 1e-9 of the way that a parameter went: that is rounding, and shows
that they compute the same. In float32, which people use, to 1e-3 of the way (about 1e-5 of the
values) after some epochs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from consortium.errors import LabelError, LayoutError, SiteDataError
from consortium.plan.values import PersonalSection
from consortium.tasks import LocalRules, Site
from consortium.torch import frozen, private
from consortium.torch.batches import adopt
from consortium.torch.fused import can_fuse, reordered, run_fused
from consortium.torch.layers import Kind, Layer
from consortium.torch.links import channels_last
from consortium.torch.marks import sort_tensors
from consortium.torch.reproducible import reproducibly
from consortium.torch.training import Method, Phase, Workplace, phases, run_phase
from tests.torch.masks_of_torch import draw_as_torch_does
from tests.torch.sites import site


@pytest.fixture(autouse=True)
def _same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_as_torch_does(monkeypatch)


PLAIN = Method(nn.CrossEntropyLoss())


class Cnn(nn.Module):
    """Of the benchmark's first workload."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 12, 5)
        self.f1, self.f2 = nn.Linear(12 * 16, 20), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        logits: Tensor = self.f2(F.relu(self.f1(x.flatten(1))))
        return logits


class DropoutCnn(nn.Module):
    """Of the benchmark's third workload, and dropout between convolutions besides."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)
        self.f1, self.f2 = nn.Linear(8 * 36, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.c1(x)), 0.1, self.training)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        x = F.dropout(x, 0.25, self.training)
        x = F.relu(self.f1(x.view(x.size(0), -1)))
        logits: Tensor = self.f2(F.dropout(x, 0.5, self.training))
        return logits


def normed_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 9), nn.LayerNorm(9), nn.GELU(), nn.Dropout(0.3), nn.Linear(9, 10)
    )


def batch_normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2, padding=1, count_include_pad=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4, 5, (3, 2), padding=(1, 0)),
        nn.LayerNorm((5, 5, 4)),
        nn.ELU(0.7),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 6),
        nn.BatchNorm1d(6, momentum=None),
        nn.SiLU(),
        nn.Linear(6, 10, bias=False),
        nn.Tanh(),
        nn.Sigmoid(),
    )


def words() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 3), nn.Flatten(), nn.Linear(6, 10))


def reader() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 10), nn.LogSoftmax(dim=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (Cnn, (1, 28, 28)),
    "dropout": (DropoutCnn, (3, 16, 16)),
    "normed": (normed_mlp, (7,)),
    "batch": (batch_normed, (3, 16, 16)),
    "words": (words, (2,)),
}


def made(name: str, dtype: torch.dtype, n: int = 25) -> tuple[nn.Module, Tensor, Tensor]:
    make, shape = MODELS[name]
    with reproducibly(4):
        model = make().to(dtype)
        x = torch.randn(n, *shape, dtype=dtype)
        if name == "words":
            x = torch.randint(0, 11, (n, *shape))
        return model, x, torch.randint(0, 10, (n,))


def trained(
    run: Any,
    model: nn.Module,
    data: Any,
    at: Site,
    method: Method = PLAIN,
    phase: Phase | None = None,
) -> tuple[nn.Module, float]:
    """A copy of the model after a phase of training."""
    model = copy.deepcopy(model)
    parts = sort_tensors(model, at.personal)
    place = Workplace(model, parts, adopt(data, "training"))
    assert can_fuse(place, at, method)
    with reproducibly(int(at.rng.integers(2**63))):
        steps = run(place, phase or list(phases(parts, at))[-1], at, method)
    return model, steps


def far(model: nn.Module, one: nn.Module, other: nn.Module) -> float:
    """The largest difference of two trained models, as a part of the way that they went. A bias
    before BatchNorm goes nowhere but for rounding, so a way is at least 1e-3 long here."""
    first, a, b = (dict(m.state_dict()) for m in (model, one, other))
    return max(
        float((a[name] - b[name]).abs().max() / (a[name] - first[name]).abs().max().clamp(1e-3))
        for name in first
    )


def check(
    model: nn.Module, data: Any, tolerance: float, method: Method = PLAIN, **options: Any
) -> None:
    plain, steps = trained(run_phase, model, data, site(**options), method)
    fused, fused_steps = trained(run_fused, model, data, site(**options), method)
    assert fused_steps == pytest.approx(steps, rel=1e-12)
    assert far(model, plain, fused) < tolerance
    assert [p.stride() for p in fused.parameters()] == [p.stride() for p in plain.parameters()]
    assert all(p.grad is None for p in fused.parameters())
    assert all(p.requires_grad for p in fused.parameters())


# ---- the same as the loop ------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.02, "lr": 0.03}])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_same_function_as_the_loop(name: str, options: dict[str, Any]) -> None:
    options = {"momentum": 0.0, "epochs": 2, "batch_size": 8, **options}  # the last batch is odd
    model, x, y = made(name, torch.float64)
    check(model, (x, y), 1e-9, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.01},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01},
        {"grad_clip": 0.3, "momentum": 0.9, "weight_decay": 0.01},
        {"grad_clip": 0.3, "optimizer": "adam", "lr": 0.01},
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_steps_that_need_all_gradients_first(name: str, options: dict[str, Any]) -> None:
    model, x, y = made(name, torch.float64)
    # Adam divides by the gradient's size, however small: rounding counts where it is all.
    tolerance = 1e-9 if "optimizer" not in options else 1e-5
    check(model, (x, y), tolerance, **options)


@pytest.mark.parametrize("name", MODELS)
def test_float32_differs_in_the_last_digits_only(name: str) -> None:
    model, x, y = made(name, torch.float32)
    check(model, (x, y), 1e-3, epochs=2, batch_size=8, momentum=0.0, lr=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_twice(name: str) -> None:
    model, x, y = made(name, torch.float32)
    once, _ = trained(run_fused, model, (x, y), site())
    again, _ = trained(run_fused, model, (x, y), site())
    same = zip(once.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.MSELoss(), torch.randn(25, 10)),
        (nn.BCEWithLogitsLoss(), torch.rand(25, 10)),
        (nn.CrossEntropyLoss(label_smoothing=0.1), torch.arange(25) % 10),
        (nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0).double()), torch.arange(25) % 10),
        (nn.CrossEntropyLoss(), torch.where(torch.arange(25) % 4 == 0, -100, 1)),  # some ignored
        (nn.CrossEntropyLoss(), torch.softmax(torch.randn(25, 10).double(), 1)),
        (nn.CrossEntropyLoss(), (torch.arange(25) % 10).reshape(25, 1)),
        (nn.CrossEntropyLoss(ignore_index=3), torch.arange(25) % 10),
        (nn.CrossEntropyLoss(reduction="sum"), torch.arange(25) % 10),
        (F.cross_entropy, torch.arange(25) % 10),
        (lambda outputs, targets: (outputs[:, 0] - targets).abs().mean(), torch.arange(25)),
        (lambda outputs, targets: outputs.sigmoid_()[:, 0].mul(targets).mean(), torch.arange(25)),
    ],
)
def test_losses_of_every_kind(loss: Any, targets: Tensor) -> None:
    model, x, _ = made("normed", torch.float64)
    check(model, (x, targets), 1e-9, Method(loss), lr=0.01)


def test_log_probabilities_and_their_loss() -> None:
    with reproducibly(1):
        model, x = reader().double(), torch.randn(25, 7)  # inputs are brought to float64
    check(model, (x, torch.arange(25) % 10), 1e-9, Method(nn.NLLLoss()))


def test_rules_of_strategies_are_followed() -> None:
    model, x, y = made("cnn", torch.float64)
    rng = np.random.default_rng(0)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    rules = LocalRules(
        0.3,
        {name: rng.normal(size=shape) for name, shape in shapes.items()},
        {name: 0.1 * rng.normal(size=shape) for name, shape in shapes.items()},
    )
    for options in ({"momentum": 0.0}, {"momentum": 0.5}, {"grad_clip": 0.5}):
        check(model, (x, y), 1e-9, rules=rules, weight_decay=0.01, **options)
    pulled = LocalRules(0.3, rules.base)
    check(model, (x, y), 1e-6, rules=pulled, optimizer="adam", lr=0.001)
    wrong = LocalRules(0.3, {"c1.weight": np.zeros(3)})
    with pytest.raises(LayoutError, match="do not fit"):
        trained(run_fused, model, (x, y), site(rules=wrong))


def test_phases_train_their_parameters_and_no_others() -> None:
    model, x, y = made("dropout", torch.float64)
    private(model.f1)
    at = {"personal": PersonalSection(name="fedrep"), "momentum": 0.0}
    parts = sort_tensors(model, PersonalSection())
    for names in (parts.private, parts.shared, ("c2.bias",), ("f2.weight",)):
        phase = Phase(names, 2)
        plain, _ = trained(run_phase, model, (x, y), site(**at), phase=phase)
        fused, _ = trained(run_fused, model, (x, y), site(**at), phase=phase)
        before = dict(model.named_parameters())
        after = dict(plain.named_parameters())
        for name, parameter in fused.named_parameters():
            assert torch.allclose(parameter, after[name], rtol=0, atol=1e-12)
            assert torch.equal(parameter, before[name]) == (name not in names)


def test_frozen_layers_and_switched_off_parameters_stand_still() -> None:
    model, x, y = made("cnn", torch.float64)
    frozen(model.c1)
    model.f2.bias.requires_grad_(False)
    plain, _ = trained(run_phase, model, (x, y), site())
    fused, _ = trained(run_fused, model, (x, y), site())
    assert torch.equal(fused.c1.weight, model.c1.weight)
    assert torch.equal(fused.f2.bias, model.f2.bias)
    assert not fused.f2.bias.requires_grad
    assert torch.allclose(fused.f1.weight, plain.f1.weight, rtol=0, atol=1e-12)


def test_a_slow_site_stops_in_time_after_at_least_one_step() -> None:
    model, x, y = made("normed", torch.float32)
    place = Workplace(model, sort_tensors(model, PersonalSection()), adopt((x, y), "training"))
    at = site(epochs=100_000, momentum=0.0)
    phase = Phase(place.parts.shared, at.training.epochs)
    assert run_fused(place, phase, at, PLAIN, time.monotonic()) == 1


def test_a_wrong_label_is_told_as_in_the_loop() -> None:
    model, x, _ = made("cnn", torch.float32)
    with pytest.raises(LabelError, match="not below 10"):
        trained(run_fused, model, (x, torch.full((25,), 10)), site())


def test_one_record_is_too_few_for_batch_norm() -> None:
    model, x, y = made("batch", torch.float32)
    with pytest.raises(SiteDataError, match="one record"):
        trained(run_fused, model, (x[:1], y[:1]), site())


def test_a_batch_of_one_is_joined_for_batch_norm() -> None:
    model, x, y = made("batch", torch.float64)
    check(model, (x, y), 1e-9, batch_size=8, epochs=1)  # 25 records: 8, 8, 9


# ---- what is left to the loop ------------------------------------------------------------------


def fits(model: nn.Module, data: Any, method: Method = PLAIN, **options: Any) -> bool:
    parts = sort_tensors(model, PersonalSection())
    place = Workplace(model, parts, adopt(data, "training"))
    return can_fuse(place, site(**options), method)


def test_steps_that_are_not_the_plans_are_left_to_the_loop() -> None:
    model, x, y = made("cnn", torch.float32)
    assert fits(model, (x, y))
    corrected = LocalRules(correction={name: 0 * p for name, p in model.named_parameters()})
    assert fits(model, (x, y), rules=corrected)
    assert not fits(model, (x, y), rules=corrected, optimizer="adam")  # which says why not
    own_step = Method(nn.CrossEntropyLoss(), step=lambda model, x, y: model(x).sum())
    assert not fits(model, (x, y), own_step)
    own = Method(nn.CrossEntropyLoss(), optimizer=lambda p, _: torch.optim.SGD(p, 0.1))
    assert not fits(model, (x, y), own)


def test_models_and_records_that_we_do_not_know_are_left_to_the_loop() -> None:
    model, x, y = made("cnn", torch.float32)
    assert not fits(model, (x[:, :, :-1], y))  # does not fit the first linear layer
    assert not fits(model, (x.long(), y))
    assert not fits(model, DataLoader(TensorDataset(x, y), 5))
    assert not fits(model, [(x[0], y[0]), (x[1], y[1])])
    assert not fits(nn.Sequential(nn.Linear(3, 3), nn.Softmax(1)), (torch.zeros(4, 3), y[:4]))


def test_frozen_layers_that_behave_differently_are_left_to_the_loop() -> None:
    model, x, y = made("dropout", torch.float32)
    frozen(model.c1)
    assert not fits(model, (x, y))


# ---- parts -------------------------------------------------------------------------------------


def test_reordering_keeps_every_bit() -> None:
    names = [Kind.RELU, Kind.MAX_POOL2D, Kind.DROPOUT, Kind.FLATTEN, Kind.RELU, Kind.DROPOUT]
    assert [layer.kind for layer in reordered(tuple(Layer(kind) for kind in names))] == (
        [Kind.MAX_POOL2D, Kind.RELU, Kind.FLATTEN, Kind.DROPOUT, Kind.RELU, Kind.DROPOUT]
    )
    with reproducibly(0):  # few values, so that many are equal, zero, or minus zero
        x = torch.randint(-3, 3, (4, 3, 9, 9)).float().mul_(-1.0)
    results = []
    for forward in (
        lambda t: F.max_pool2d(t.relu(), 3, 2, 1),
        lambda t: F.max_pool2d(t, 3, 2, 1).relu(),
    ):
        leaf = x.clone().requires_grad_()
        out = forward(leaf)
        (out * torch.arange(out.numel()).reshape(out.shape)).sum().backward()
        results.append((out.detach(), leaf.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_lie_channels_last(channels: int) -> None:
    x = torch.randn(2, channels, 4, 5)
    y = channels_last(x)
    assert torch.equal(x, y)
    assert y.stride() == (20 * channels, 1, 5 * channels, channels)
    assert channels_last(x[0]) is not y

"""Private training against a loop as one writes it from the paper, with the same noise; what is
drawn, and what is refused."""

from __future__ import annotations

import logging
import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from consortium.errors import (
    ImpossiblePlanError,
    InternalError,
    LabelError,
    TaskResultError,
)
from consortium.plan.values import PersonalSection
from consortium.privacy.noise import SecretNoise
from consortium.tasks import LocalRules, Site
from consortium.torch import private, private_clipping, private_opacus, task
from consortium.torch.batches import TensorRecords
from consortium.torch.private_sampling import sample, secret_seed, with_divisor
from consortium.torch.private_training import shares, train_privately
from consortium.torch.reproducible import reproducibly
from consortium.torch.training import Method, phases, train_locally
from tests.torch.private_sums import (
    CROSS,
    EXACT,
    Known,
    clipped_rows,
    place_of,
    private_site,
    rows_by_autograd,
    simulated,
)

PLAIN = Method(CROSS)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), private(nn.Linear(6, 5)), nn.Linear(5, 3))


class Skipping(nn.Module):
    """No chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = private(nn.Linear(4, 5)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.second(x + torch.tanh(x))
        return out


def made(make: Any = mlp, n: int = 30) -> tuple[nn.Module, Tensor, Tensor]:
    with reproducibly(1):
        return make().double(), 3 * torch.randn(n, 4).double(), torch.randint(0, 3, (n,))


def trained(model: nn.Module, data: Any, at: Site, method: Method = PLAIN) -> nn.Module:
    model = deepcopy(model)
    with reproducibly(0):
        train_privately(place_of(model, data, at), at, method)
    return model


def by_hand(model: nn.Module, x: Tensor, y: Tensor, at: Site) -> nn.Module:
    """Abadi et al. 2016, algorithm 1, with what the strategy and the optimiser do after it."""
    model, privacy = deepcopy(model), at.privacy
    assert privacy is not None
    parts = place_of(model, (x, y), at).parts
    secret_seed(privacy.noise)
    divisor = with_divisor(privacy, len(x)).expected_batch
    todo = list(phases(parts, at))
    for phase, steps in zip(todo, shares([p.epochs for p in todo], privacy.steps), strict=True):
        names = [*sorted(set(phase.names) & set(parts.shared))]
        names += [name for name in phase.names if name not in names]
        parameters = [dict(model.named_parameters())[name] for name in names]
        optimizer = _optimizer(parameters, at)
        for _ in range(steps):
            picked = torch.from_numpy(privacy.noise.coins(len(x), privacy.rate))
            rows = torch.zeros(1, sum(p.numel() for p in parameters)).double()
            if picked.any():
                rows = clipped_rows(
                    rows_by_autograd(model, x[picked], y[picked], names=names), privacy.clip
                )
            noise = torch.from_numpy(privacy.noise.normal(rows.shape[1]))
            mean = (rows.sum(0) + privacy.sigma * privacy.clip * noise) / divisor
            for name, parameter, part in zip(
                names, parameters, mean.split([p.numel() for p in parameters]), strict=True
            ):
                parameter.grad = part.view(parameter.shape)
                _add_rules(name, parameter, phase.rules)
            optimizer.step()
    return model


def _optimizer(parameters: list[nn.Parameter], at: Site) -> torch.optim.Optimizer:
    plan = at.training
    lr, decay = plan.lr_in(at.round), plan.weight_decay
    if plan.optimizer == "adam":
        return torch.optim.Adam(parameters, lr, weight_decay=decay)
    return torch.optim.SGD(parameters, lr, momentum=plan.momentum, weight_decay=decay)


def _add_rules(name: str, parameter: nn.Parameter, rules: LocalRules) -> None:
    assert parameter.grad is not None
    if rules.mu and name in rules.base:
        parameter.grad += rules.mu * (parameter.detach() - torch.tensor(rules.base[name]))
    if rules.correction is not None and name in rules.correction:
        parameter.grad += torch.tensor(rules.correction[name])


def apart(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


# ---- the same as the paper's loop ------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {"momentum": 0.0},
    {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.2, "sigma": 2.0},
    {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    {"momentum": 0.0, "expected_batch": None, "count_sigma": 5.0},
    {"momentum": 0.0, "rate": 0.02, "steps": 8},  # most samples are empty
    {"momentum": 0.0, "rate": 1.0, "lr_decay": 0.5, "round": 3},
    {"momentum": 0.5, "personal": PersonalSection(name="fedrep", epochs=3), "steps": 7},
    {"momentum": 0.0, "personal": PersonalSection(warmup=2), "round": 2, "steps": 5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("make", [mlp, Skipping])
def test_it_is_the_loop_of_the_paper(make: Any, options: dict[str, Any]) -> None:
    model, x, y = made(make)
    wanted = by_hand(model, x, y, private_site(simulated(3), **options))
    found = trained(model, (x, y), private_site(simulated(3), **options))
    assert apart(found, wanted) < EXACT
    assert apart(found, model) > 1e-3


@pytest.mark.parametrize("make", [mlp, Skipping])
def test_what_a_strategy_adds_comes_after_the_noise(make: Any) -> None:
    model, x, y = made(make)
    shared = place_of(model, (x, y)).parts.shared
    rng = np.random.default_rng(0)
    shapes = {name: dict(model.named_parameters())[name].shape for name in shared}
    rules = LocalRules(
        0.3,
        {name: rng.normal(size=shape) for name, shape in shapes.items()},
        {name: rng.normal(size=shape) for name, shape in shapes.items()},
    )
    options = {"momentum": 0.0, "rules": rules}
    wanted = by_hand(model, x, y, private_site(simulated(3), **options))
    assert apart(trained(model, (x, y), private_site(simulated(3), **options)), wanted) < EXACT
    with pytest.raises(TaskResultError, match="SCAFFOLD"):
        trained(model, (x, y), private_site(rules=rules, optimizer="adam"))


def test_an_optimiser_of_ones_own_gets_the_noised_gradient() -> None:
    model, x, y = made()
    seen: list[Any] = []

    def optimizer(parameters: list[nn.Parameter], training: Any) -> torch.optim.Optimizer:
        seen.append([tuple(parameter.shape) for parameter in parameters])
        return torch.optim.SGD(parameters, training.lr, momentum=training.momentum)

    wanted = trained(model, (x, y), private_site(simulated(3), momentum=0.5))
    method = Method(CROSS, optimizer=optimizer)
    found = trained(model, (x, y), private_site(simulated(3), momentum=0.5), method)
    assert apart(found, wanted) < EXACT
    assert sorted(seen[0]) == sorted(tuple(parameter.shape) for parameter in model.parameters())


def test_records_of_a_data_set_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in parts, if they are many."""
    model, x, y = made()
    wanted = trained(model, (x, y), private_site(simulated(3)))
    items = [(x[at], int(y[at])) for at in range(len(x))]
    assert apart(trained(model, items, private_site(simulated(3))), wanted) < EXACT
    for module in (private_opacus, private_clipping):
        monkeypatch.setattr(module, "AT_ONCE_BYTES", 3000)
    for data in (items, (x, y)):
        assert apart(trained(model, data, private_site(simulated(3))), wanted) < EXACT


def test_an_empty_sample_is_a_step_of_noise_alone() -> None:
    model, x, y = made()
    none = trained(model, (x, y), private_site(Known([[], []]), steps=2, momentum=0.0))
    assert apart(none, model) == 0.0  # known noise is zero

    class Bare(Known):
        def normal(self, count: int) -> Any:
            return np.ones(count)

    moved = trained(model, (x, y), private_site(Bare([[]]), steps=1, lr=0.1, momentum=0.0))
    change = next(iter(model.parameters())) - next(iter(moved.parameters()))
    assert change.flatten().tolist() == pytest.approx([0.1 / 8.0] * change.numel())


def test_noise_is_as_wide_as_the_plan_says() -> None:
    model, x, y = made(lambda: nn.Linear(4, 10_000))
    at = private_site(simulated(2), clip=0.5, sigma=3.0, steps=1, rate=1e-9, lr=1.0, momentum=0.0)
    change = (next(iter(trained(model, (x, y), at).parameters())) - model.weight).detach().flatten()
    wanted, count = 0.5 * 3.0 / 8.0, change.numel()
    # Five deviations: once in two million seeds.
    assert float(change.std()) == pytest.approx(wanted, rel=5 / math.sqrt(2 * count))
    assert abs(float(change.mean())) < 5 * wanted / math.sqrt(count)


def test_by_default_noise_is_secret_and_nothing_of_it_follows_from_the_sites_seed() -> None:
    model, x, y = made()
    runs = [trained(model, (x, y), private_site(SecretNoise(), seed=7)) for _ in range(2)]
    assert apart(*runs) > 0
    at = private_site(simulated(3), seed=7)
    before = at.rng.bit_generator.state
    trained(model, (x, y), at)
    assert at.rng.bit_generator.state == before


def test_dropouts_masks_follow_from_the_secret_source() -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    _, x, y = made()

    class Masked(Known):
        def __init__(self, bit: bool) -> None:
            super().__init__()
            self._bit = bit

        def coins(self, count: int, rate: float) -> Any:
            return np.full(count, self._bit if count == 62 else True)

    one, other, again = (
        trained(model, (x, y), private_site(Masked(bit), seed=7)) for bit in (True, False, True)
    )
    assert apart(one, again) == 0.0 < apart(one, other)


def test_records_that_are_no_number_are_counted_where_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, x, y = made(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)))
    x[5] = 1e308
    place = place_of(deepcopy(model), (x, y))
    at = private_site(Known(), steps=2, rate=1.0)
    with caplog.at_level(logging.WARNING), torch.random.fork_rng():
        found = train_privately(place, at, PLAIN)
    assert found.rejected == 2
    assert "2 gradients" in caplog.text
    assert all(bool(torch.isfinite(one).all()) for one in place.model.parameters())


# ---- steps and samples -----------------------------------------------------------------


def test_steps_are_counted_as_in_any_training() -> None:
    model, x, y = made()
    with torch.random.fork_rng():
        place, at = place_of(model, (x, y)), private_site(steps=3, momentum=0.5)
        assert train_privately(place, at, PLAIN).effective == 1 + 1.5 + 1.75
        assert train_privately(place, private_site(steps=7, momentum=0.0), PLAIN).effective == 7


@given(st.lists(st.integers(1, 50), min_size=1, max_size=3), st.integers(1, 1000))
def test_phases_share_the_steps_that_were_paid_for(epochs: list[int], steps: int) -> None:
    found = shares(epochs, steps)
    assert sum(found) == steps and min(found) >= 0 and found[-1] >= 1
    assert all(
        abs(part - steps * some / sum(epochs)) < 2 for part, some in zip(found, epochs, strict=True)
    )


def test_every_record_is_picked_by_a_coin_of_its_own() -> None:
    records = TensorRecords(torch.zeros(200, 1), torch.zeros(200))
    privacy = private_site(simulated(1), rate=0.1).privacy
    assert privacy is not None
    draws = 2000
    picked = np.zeros((draws, 200))
    for row in picked:
        row[sample(records, privacy)] = 1.0
    spread = math.sqrt(0.1 * 0.9 / draws)
    assert abs(picked.mean(0) - 0.1).max() < 5.5 * spread  # of 200 records, once in 100,000 seeds
    sizes = picked.sum(1)
    assert sizes.var() == pytest.approx(200 * 0.1 * 0.9, rel=5 * math.sqrt(2 / draws))
    together = np.corrcoef(picked.T) - np.eye(200)
    assert abs(together).max() < 6 / math.sqrt(draws)


def test_a_divisor_hides_how_many_records_there_are() -> None:
    privacy = private_site(simulated(4), rate=0.1, expected_batch=None, count_sigma=20.0).privacy
    assert privacy is not None
    found = [with_divisor(privacy, 1000).expected_batch for _ in range(400)]
    counts = np.array(found, float) / 0.1
    assert counts.mean() == pytest.approx(1000, abs=5 * 20 / 20)
    assert counts.std() == pytest.approx(20, rel=0.2)
    tiny = [with_divisor(privacy, 1).expected_batch for _ in range(50)]
    assert min(one for one in tiny if one is not None) == pytest.approx(0.1)  # never zero or less
    fixed = replace(privacy, expected_batch=7.0)
    assert with_divisor(fixed, 1000) is fixed


# ---- the whole task --------------------------------------------------------------------


def test_a_task_trains_privately_where_its_site_says_so() -> None:
    @task(loss=CROSS)
    def linear(site: Site) -> Any:
        return nn.Linear(4, 2).double(), site.data, site.data

    with reproducibly(0):
        x, y = torch.randn(20, 4).double(), torch.randint(0, 2, (20,))
    shared = {"weight": np.zeros((2, 4)), "bias": np.zeros(2)}
    at = private_site(Known(), data=(x, y), steps=1, rate=1.0, lr=0.1, momentum=0.0, clip=0.1)
    found = linear.train(at, dict(shared))
    norm = math.hypot(*(float(np.linalg.norm(array)) for array in found.shared.values()))
    assert 0 < norm <= 0.1 * 20 * 0.1 / 8.0
    again = linear.train(private_site(Known(), data=(x, y), steps=1), dict(shared))
    assert again.steps == 1.0


# ---- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.0},
        {"clip": math.nan},
        {"sigma": 0.0},
        {"sigma": math.inf},
        {"rate": 0.0},
        {"rate": 1.1},
        {"steps": 0},
        {"expected_batch": 0.0},
        {"expected_batch": None},
        {"max_seconds": 1.0},
        {"grad_clip": 1.0},
    ],
    ids=str,
)
def test_plans_that_cannot_be_kept_are_refused(options: dict[str, Any]) -> None:
    model, x, y = made()
    with pytest.raises(ImpossiblePlanError):
        trained(model, (x, y), private_site(**options))


def test_a_loader_is_refused() -> None:
    model, x, y = made()
    loader = DataLoader(TensorDataset(x, y), 5)
    with pytest.raises(TaskResultError, match="DataLoader") as caught:
        trained(model, loader, private_site())
    assert "loader.dataset" in caught.value.hint
    trained(model, loader.dataset, private_site())


def test_loops_and_steps_of_ones_own_are_refused() -> None:
    model, x, y = made()
    step = Method(CROSS, step=lambda model, x, y: CROSS(model(x), y))
    with pytest.raises(TaskResultError, match="a step of its own"):
        trained(model, (x, y), private_site(), step)

    @task(loss=CROSS, loop=lambda model, train, site: None)
    def looped(site: Site) -> Any:
        return nn.Linear(4, 2).double(), site.data, site.data

    at = private_site(data=(x, y))
    with pytest.raises(TaskResultError, match="a loop of its own"):
        looped.train(at, looped.first(at))


def test_batch_norm_is_refused_with_what_to_put_in_its_place() -> None:
    model, x, y = made(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    with pytest.raises(TaskResultError, match="layer `1` is BatchNorm") as caught:
        trained(model, (x, y), private_site())
    assert "without_batch_norm" in caught.value.hint


def test_a_wrong_label_is_told_as_in_any_training() -> None:
    model, x, y = made()
    with pytest.raises(LabelError, match="not below 3"):
        trained(model, (x, y + 7), private_site(rate=1.0))


def test_training_that_is_not_private_does_not_take_a_private_site() -> None:
    model, x, y = made()
    with pytest.raises(InternalError):
        train_locally(place_of(model, (x, y)), private_site(), PLAIN)

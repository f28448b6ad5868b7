"""Private training of many sites at once against each site alone, with the same noise.

In float64 they agree to 1e-10; in float32 to 1e-4, which is what rounding does in some steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from consortium.drive.engine import SimulatedSite
from consortium.drive.simulate import Options, simulate
from consortium.errors import ImpossiblePlanError, TaskResultError
from consortium.plan import parse_plan
from consortium.plan.values import PersonalSection
from consortium.tasks import LocalRules, Site, Trained, TrainedTogether
from consortium.torch import TorchTask, private, side_private, task
from consortium.torch.layers import Kind, Layer
from consortium.torch.side_clipping import can_clip_side_by_side
from tests.torch.masks_of_torch import draw_as_torch_does
from tests.torch.private_sums import Known, private_site, simulated

EXACT, ROUNDED = 1e-10, 1e-4
COUNTS = (33, 8, 40, 17, 24, 3, 1)
Build = Callable[[int], nn.Module]


def records(at: int, width: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(at)
    return 3 * rng.standard_normal((COUNTS[at], width)), rng.integers(0, 3, COUNTS[at])


def made(build: Build, *, loss: Any = None, dtype: torch.dtype = torch.float64) -> TorchTask:
    @task(loss=loss or nn.CrossEntropyLoss())
    def built(site: Site) -> tuple[nn.Module, Any, Any]:
        x, y = (torch.tensor(part) for part in site.data)
        data = x.to(dtype) if x.is_floating_point() else x, y
        return build(x.shape[-1]).to(dtype), data, data

    return built


DATA = [records(at) for at in range(len(COUNTS))]


def sites(data: Sequence[Any] = DATA, **options: Any) -> list[Site]:
    """Every call makes them anew, with the same noise."""
    return [
        private_site(simulated(at), name=f"site-{at}", data=one, own_seed=at, **options)
        for at, one in enumerate(data)
    ]


def apart(together: TrainedTogether, alone: Sequence[Trained]) -> float:
    """The largest difference in anything; infinity where something is missing."""
    found = 0.0
    for at, one in enumerate(alone):
        assert together.records[at] == one.records
        assert together.steps[at] == pytest.approx(one.steps, rel=1e-12)
        pairs = [(together.shared[name][at], array) for name, array in one.shared.items()]
        mine, state = together.states[at] or {}, one.state or {}
        assert mine.keys() == state.keys()
        pairs += [(mine[name], array) for name, array in state.items()]
        assert all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
        found = max(found, *(float(np.abs(a - b).max()) for a, b in pairs))
    return found


def compare(
    made_task: TorchTask, make_sites: Callable[[], list[Site]], monkeypatch: pytest.MonkeyPatch
) -> float:
    shared = made_task.first(make_sites()[0])
    alone = [made_task.train(site, dict(shared)) for site in make_sites()]
    assert any(
        np.abs(one.shared[name] - shared[name]).max() > 0 for one in alone for name in shared
    )
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[TorchTask.__module__], "train_privately", _nobody)
        together = made_task.train_together(make_sites(), dict(shared), "batched")
    return apart(together, alone)


def _nobody(*_: Any, **__: Any) -> Any:
    raise AssertionError("a site was trained alone")


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)
    )


def normed(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 8),
        nn.LayerNorm(8),
        nn.GELU(),
        nn.LayerNorm(8, bias=False),
        nn.Linear(8, 3),
    )


OPTIONS: list[dict[str, Any]] = [
    {"momentum": 0.0},
    {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.1},
    {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"momentum": 0.0, "rate": 0.02, "steps": 6},  # most samples are empty
    {"momentum": 0.0, "rate": 1.0, "lr_decay": 0.5, "round": 3},
    {"momentum": 0.0, "expected_batch": None, "count_sigma": 4.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("build", [mlp, normed])
def test_every_site_gets_what_it_gets_alone(
    build: Build, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare(made(build), lambda: sites(**options), monkeypatch) < EXACT


def test_float32_models_differ_by_rounding_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(made(normed, dtype=torch.float32), sites, monkeypatch) < ROUNDED


def test_samples_that_do_not_fit_into_memory_come_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(side_private, "AT_ONCE_BYTES", 20_000)
    assert compare(made(mlp), lambda: sites(rate=0.8), monkeypatch) < EXACT


def test_words_that_come_again_in_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(_: int) -> nn.Module:
        return nn.Sequential(nn.Embedding(4, 5), nn.LayerNorm(5), nn.Flatten(), nn.Linear(25, 3))

    texts = [(np.abs(x).astype(np.int64) % 4, y) for x, y in DATA]
    assert compare(made(build), lambda: sites(texts), monkeypatch) < EXACT


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.BCEWithLogitsLoss()])
def test_other_losses(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = [(x, np.sin(x[:, :3])) for x, _ in DATA]
    assert compare(made(mlp, loss=loss), lambda: sites(data), monkeypatch) < EXACT


class Mixed(nn.Sequential):
    """Private layers at both ends, of another width at every site."""

    def __init__(self, width: int) -> None:
        layers = nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)
        super().__init__(*layers)
        private(self[0])
        private(self[4])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"personal": PersonalSection(name="fedrep", epochs=3), "steps": 7},
        {"round": 2, "steps": 5},  # newcomers warm up
    ],
    ids=str,
)
def test_private_layers_of_different_widths(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that only other sites have get no noise."""
    data = [records(at, (4, 6, 9)[at % 3]) for at in range(len(COUNTS))]
    assert compare(made(Mixed), lambda: sites(data, **options), monkeypatch) < EXACT


def test_what_a_strategy_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made_task = made(mlp)
    base = made_task.first(sites()[0])  # the round's model, which `compare` starts from

    def ruled() -> list[Site]:
        found, other = sites(momentum=0.0), np.random.default_rng(1)
        drawn = [
            {name: other.normal(size=array.shape) for name, array in base.items()} for _ in found
        ]
        return [
            replace(site, rules=LocalRules(0.3, base, one))
            for site, one in zip(found, drawn, strict=True)
        ]

    assert compare(made_task, ruled, monkeypatch) < EXACT


def test_frozen_parameters_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(width: int) -> nn.Module:
        model = mlp(width)
        model[2].weight.requires_grad_(False)
        model[4].bias.requires_grad_(False)
        return model

    assert compare(made(build), sites, monkeypatch) < EXACT


def test_dropout_follows_from_the_sites_secret_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3))

    draw_as_torch_does(monkeypatch)
    assert compare(made(build), lambda: sites(steps=3), monkeypatch) < EXACT


def test_records_that_are_no_number_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = [(x.copy(), y) for x, y in DATA]
    data[2][0][7] = 1e308
    assert compare(made(normed), lambda: sites(data, rate=1.0, steps=2), monkeypatch) < EXACT
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and told[0] == told[1] and told[0].startswith("2 gradients")


# ---- one record more or less -----------------------------------------------------------


def test_one_record_changes_its_sites_sum_by_the_clip_and_others_not_at_all() -> None:
    made_task = made(mlp)
    more = [(x.copy(), y) for x, y in DATA]
    more[3] = np.concatenate([more[3][0], [[1e3] * 5]]), np.append(more[3][1], 0)

    def summed(data: Sequence[Any]) -> TrainedTogether:
        options = {"clip": 0.5, "rate": 1.0, "steps": 1, "expected_batch": 1.0}
        found = [
            private_site(
                Known(), name=f"{at}", data=one, own_seed=at, lr=1.0, momentum=0.0, **options
            )
            for at, one in enumerate(data)
        ]
        shared = made_task.first(private_site(data=data[0]))
        return made_task.train_together(found, dict(shared), "batched")

    one, other = summed(DATA), summed(more)
    moved = sum(
        np.square(one.shared[name] - other.shared[name]).reshape(7, -1).sum(1)
        for name in one.shared
    )
    norms = np.sqrt(moved)
    assert 0.49 < norms[3] <= 0.5 * (1 + 1e-9)
    assert np.delete(norms, 3).max() < 1e-12


# ---- who trains alone ------------------------------------------------------------------


class Skipping(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        out: torch.Tensor = self.second(x + torch.tanh(x))
        return out


def test_models_that_do_not_fit_are_trained_alone_and_as_privately() -> None:
    made_task = made(Skipping)
    shared = made_task.first(sites()[0])
    alone = [made_task.train(site, dict(shared)) for site in sites()]
    assert apart(made_task.train_together(sites(), dict(shared), "batched"), alone) < EXACT


def test_linear_layers_over_several_places_and_batch_norm_have_no_part() -> None:
    linear = Layer(Kind.LINEAR, weight="w", size_in=3, size_out=2)
    embedding = Layer(Kind.EMBEDDING, weight="e", size_in=9, size_out=3)
    assert can_clip_side_by_side([linear, Layer(Kind.RELU)], 1)
    assert not can_clip_side_by_side([linear], 2)
    assert can_clip_side_by_side([linear], 1)
    assert not can_clip_side_by_side([embedding, linear], 1)
    assert can_clip_side_by_side([embedding, Layer(Kind.FLATTEN), linear], 1)
    assert not can_clip_side_by_side([Layer(Kind.BATCH_NORM)], 1)
    assert not can_clip_side_by_side([Layer(Kind.CONV2D, weight="w")], 3)


def test_what_is_refused_alone_is_refused_side_by_side() -> None:
    def batch_normed(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    for build, options, kind in (
        (batch_normed, {}, TaskResultError),
        (mlp, {"grad_clip": 1.0}, ImpossiblePlanError),
        (mlp, {"max_seconds": 1.0}, ImpossiblePlanError),
        (mlp, {"sigma": 0.0}, ImpossiblePlanError),
    ):
        made_task = made(build)
        shared = made_task.first(sites()[0])
        with pytest.raises(kind):
            made_task.train_together(sites(DATA[:5], **options), dict(shared), "batched")


def test_a_simulated_study_comes_to_the_same_model_by_either_engine() -> None:
    plan = parse_plan(
        "[federation]\nrounds = 1\n[selection]\ntarget = 7\n"
        "[evaluation]\nenabled = false\ngate = false\n[training]\nepochs = 1\n"
        '[privacy]\nunit = "record"\nepsilon = 1000.0\nnoise_multiplier = 1.0\n'
        "side_noise = 5.0\nsampling_rate = 0.2\n"
    )
    crowd = [SimulatedSite(f"site-{at}", one) for at, one in enumerate(DATA)]
    loop, fast = (
        simulate(made(mlp), plan, crowd, seed=3, options=Options(workers=0, engine=engine))
        for engine in ("loop", "batched")
    )
    np.testing.assert_allclose(fast.model, loop.model, rtol=0, atol=EXACT)
    assert not np.array_equal(loop.model, loop.first)

"""Sites trained side by side against the loop: the same numbers but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from consortium.drive.directory import DataDirectory
from consortium.drive.engine import SimulatedSite
from consortium.drive.rng import stream
from consortium.drive.simulate import Options, Run, simulate
from consortium.errors import LabelError, TaskResultError, UsageError
from consortium.plan import Plan
from consortium.tasks import Pace, Site
from consortium.torch import HospitalNet, TorchTask, frozen, private, task
from consortium.torch.chain import chain_of
from consortium.torch.fingerprint import fingerprint
from consortium.torch.side_by_side import _full_batch
from consortium.torch.together import drawn_seed
from tests.torch.masks_of_torch import draw_as_torch_does
from tests.torch.sites import site as site_of


@pytest.fixture(autouse=True)
def _same_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_as_torch_does(monkeypatch)


SITES, FEATURES = 7, 6
EXACT, ROUNDED = 1e-10, 2e-5  # what float64 and float32 models may differ by, in all tensors
Build = Callable[[int], nn.Module]


def records(at: int, width: int = FEATURES, classes: int = 3) -> tuple[Any, Any]:
    """Sites have unequal numbers of records: some have one batch, some a last one of one."""
    rng = np.random.default_rng(at)
    count = (33, 8, 40, 17, 24, 3, 9)[at % 7]
    x = rng.standard_normal((count, width))
    return x, (np.abs(x).sum(axis=1) * 10).astype(np.int64) % classes


def sites(widths: Sequence[int] = (FEATURES,)) -> list[SimulatedSite]:
    return [
        SimulatedSite(f"site-{at}", records(at, widths[at % len(widths)])) for at in range(SITES)
    ]


def made(build: Build, *, loss: Any = None, double: bool = True, **more: Any) -> TorchTask:
    @task(loss=loss or nn.CrossEntropyLoss(), **more)
    def built(site: Site) -> tuple[nn.Module, Any, Any]:
        x, y = site.data
        dtype = torch.float64 if double else torch.float32
        data = torch.tensor(x, dtype=dtype), torch.tensor(y)
        model = build(x.shape[1])
        return model.double() if double else model, data, data

    return built


def plan_of(**sections: Any) -> Plan:
    training = {"epochs": 2, "batch_size": 8, "lr": 0.05, **sections.pop("training", {})}
    return Plan.model_validate(
        {
            "federation": {"rounds": 3, "quorum": 2},
            "selection": {"fraction": 1.0},
            "training": training,
            "evaluation": {"enabled": False, "gate": False},
            **sections,
        }
    )


def run(made_task: TorchTask, plan: Plan, data: Sequence[SimulatedSite], **options: Any) -> Run:
    options = {"workers": 0, **options}
    return simulate(made_task, plan, data, seed=5, options=Options(**options))


def assert_alike(
    made_task: TorchTask, plan: Plan, data: Sequence[SimulatedSite], tolerance: float = EXACT
) -> None:
    """Both engines agree in the model and in everything that sites keep."""
    loop, fast = (run(made_task, plan, data, engine=engine) for engine in ("loop", "batched"))
    np.testing.assert_allclose(fast.model, loop.model, rtol=tolerance, atol=tolerance)
    assert not np.array_equal(loop.model, loop.first)
    from consortium.core.ids import Seat
    from consortium.tensors import load_tensors

    for seat in range(1, len(data) + 1):
        kept, wanted = (one.states.current(Seat(seat)) for one in (fast, loop))
        assert (kept is None) == (wanted is None)
        if kept is None or wanted is None:
            continue
        mine, theirs = load_tensors(kept), load_tensors(wanted)
        assert mine.keys() == theirs.keys()
        for name, array in theirs.items():
            assert mine[name].dtype == array.dtype and mine[name].shape == array.shape
            np.testing.assert_allclose(
                mine[name], array, rtol=tolerance, atol=tolerance, err_msg=name
            )


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)
    )


class Everything(nn.Module):
    """Every kind of layer that can stand side by side, but for an embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 12, bias=False)
        self.norm = nn.BatchNorm1d(12)
        self.second = nn.Linear(12, 10)
        self.layer_norm = nn.LayerNorm(10)
        self.bare = nn.LayerNorm(10, elementwise_affine=False)
        self.dropout = nn.Dropout(0.3)
        self.third = nn.Linear(10, 9)
        self.fourth = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(self.norm(self.first(x.flatten(1))))
        x = torch.relu(self.bare(nn.functional.silu(self.layer_norm(self.second(x)))))
        x = nn.functional.leaky_relu(self.third(self.dropout(x)), 0.1)
        out: Tensor = self.fourth(nn.functional.elu(torch.sigmoid(x)))
        return out


class Mixed(nn.Module):
    """Private layers at both ends, of another width at every site, and a frozen one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.adapter = private(nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.BatchNorm1d(8)))
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU())
        self.head = private(nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.adapter(x)))
        return out


OPTIMISERS: list[dict[str, Any]] = [
    {"momentum": 0.0},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.5, "grad_clip": 0.1, "weight_decay": 0.01},
    {"optimizer": "adam", "weight_decay": 0.1, "lr": 0.01},
    {"optimizer": "adamw", "weight_decay": 0.1, "lr": 0.01},
    {"optimizer": "adam", "grad_clip": 0.05, "lr": 0.01},
    {"batch_size": 1000, "momentum": 0.0},
    {"batch_size": 1, "momentum": 0.0, "epochs": 1},
]


@pytest.mark.parametrize("training", OPTIMISERS, ids=str)
def test_every_optimiser_of_the_plan(training: dict[str, Any]) -> None:
    assert_alike(made(mlp), plan_of(training=training), sites())


@pytest.mark.parametrize("training", [{"momentum": 0.0}, {"batch_size": 4}, {"batch_size": 1}])
def test_every_layer(training: dict[str, Any]) -> None:
    assert chain_of(Everything(FEATURES)) is not None
    # BatchNorm over two records divides by what may be almost nothing.
    assert_alike(made(Everything), plan_of(training=training), sites(), EXACT * 100)


def test_float32_models_differ_by_rounding_only() -> None:
    assert_alike(made(Everything, double=False), plan_of(), sites(), ROUNDED)
    hospital = made(lambda width: HospitalNet(width, classes=3), double=False)
    # Over three rounds, what rounding did grows ten million times: BatchNorm over three records.
    assert_alike(
        hospital,
        plan_of(training={"epochs": 1}, federation={"rounds": 1, "quorum": 2}),
        sites(widths=(5, 20)),
        ROUNDED,
    )


@pytest.mark.parametrize(
    "sections",
    [
        {"strategy": {"name": "fedprox", "mu": 0.5}},
        {"strategy": {"name": "fedprox", "mu": 0.5}, "training": {"grad_clip": 0.1}},
        {"strategy": {"name": "scaffold"}, "training": {"momentum": 0.0}},
        {"strategy": {"name": "fednova"}},
        {"strategy": {"name": "fedadam"}},
        {"strategy": {"clip": 0.1}},
        {"training": {"lr_decay": 0.5}},
    ],
    ids=str,
)
def test_what_a_strategy_asks_for(sections: dict[str, Any]) -> None:
    # A clip shrinks by one part in a million more where rounding went the wrong way.
    tolerance = 1e-6 if "clip" in sections.get("strategy", {}) else EXACT
    assert_alike(made(mlp), plan_of(**sections), sites(), tolerance)


@pytest.mark.parametrize(
    "personal",
    [
        {},
        {"name": "fedper"},
        {"name": "fedrep", "epochs": 2},
        {"name": "fedbn"},
        {"name": "fedper", "layers": ["body.0"]},
        {"warmup": 0},
    ],
    ids=str,
)
def test_private_layers_of_different_widths(personal: dict[str, Any]) -> None:
    """With a third of the sites away at a time, so that some come new in later rounds."""
    plan = plan_of(personal=personal, selection={"fraction": 0.7})
    assert_alike(made(Mixed), plan, sites(widths=(4, 6, 9)))


def test_frozen_layers_and_parameters_that_are_switched_off() -> None:
    def build(width: int) -> nn.Module:
        model = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        with torch.no_grad():
            for tensor in model[2].parameters():
                tensor.fill_(0.25)
        frozen(model[2])
        model.append(nn.Linear(8, 3))
        model[4].bias.requires_grad_(False)
        return model

    assert_alike(made(build), plan_of(), sites())


@pytest.mark.parametrize(
    "loss",
    [nn.MSELoss(), nn.BCEWithLogitsLoss(), nn.functional.mse_loss],
    ids=["mse", "logit", "function"],
)
def test_other_losses(loss: Any) -> None:
    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 1))

    data = [SimulatedSite(f"site-{at}", records(at, classes=2)) for at in range(SITES)]
    assert_alike(made(build, loss=loss), plan_of(), data)


def test_an_embedding() -> None:
    def build(_: int) -> nn.Module:
        return nn.Sequential(nn.Embedding(11, 5), nn.Flatten(), nn.Linear(5 * 6, 3))

    @task(loss=nn.CrossEntropyLoss())
    def words(site: Site) -> tuple[nn.Module, Any, Any]:
        x, y = site.data
        data = torch.tensor(np.abs(x * 5).astype(np.int64) % 11), torch.tensor(y)
        return build(0).double(), data, data

    for training in ({"momentum": 0.0}, {"momentum": 0.9}):
        assert_alike(words, plan_of(training=training), sites())


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.last(x + torch.tanh(self.second(x)))
        return out


class PrivateResidual(Residual):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        private(self.last)


@pytest.mark.parametrize("build", [Residual, PrivateResidual])
@pytest.mark.parametrize("training", OPTIMISERS[:5], ids=str)
def test_models_that_are_no_chain(build: Build, training: dict[str, Any]) -> None:
    assert chain_of(build(FEATURES)) is None
    assert_alike(made(build), plan_of(training=training), sites())


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)),
        lambda outputs, targets: nn.functional.cross_entropy(outputs * 2, targets),
    ],
)
def test_losses_of_another_form(loss: Any) -> None:
    assert_alike(made(mlp, loss=loss), plan_of(), sites())


# ---- choosing ------------------------------------------------------------------------------


def pace(made_task: TorchTask, wanted: str = "auto", **training: Any) -> Pace:
    here = site_of(**training)
    return made_task.pace(here, wanted)


def small(**more: Any) -> TorchTask:
    @task(loss=more.pop("loss", nn.CrossEntropyLoss()), **more)
    def found(site: Site) -> tuple[nn.Module, Any, Any]:
        return nn.Linear(4, 2), site.data, site.data

    return found


def test_small_chains_are_batched_and_others_are_not() -> None:
    assert pace(small()).engine == "batched"
    assert pace(small()).at_once > 1
    assert pace(small(), "loop") == Pace("loop")
    for other in (
        small(step=lambda model, x, y: nn.functional.cross_entropy(model(x), y)),
        small(optimizer=lambda parameters, training: torch.optim.SGD(parameters, training.lr)),
        small(loop=lambda model, train, site: None),
    ):
        assert pace(other) == Pace("loop")
        with pytest.raises(UsageError):
            pace(other, "fused")
    # What vmap cannot do, such as to ask for a number, one model after the other can.
    strange = small(loss=lambda outputs, targets: outputs.sum() * float(outputs.mean()))
    assert pace(strange) == pace(small(), max_seconds=1.0) == Pace("fused")


def test_a_task_that_changes_training_is_not_got_round() -> None:
    """Wrapped, or inherited: then its own `train` is what counts."""
    inner = made(mlp)

    class Wrapped:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def train(self, site: Site, shared: dict[str, Any]) -> Any:
            return {name: array + 1 for name, array in shared.items()}, 10

    class Inherited(TorchTask):
        def train(self, site: Site, shared: dict[str, Any]) -> Any:
            return {name: array + 1 for name, array in shared.items()}, 10

    inherited = Inherited(inner._make, inner._method, inner._measures, None)
    for changed in (Wrapped(), inherited):
        ended = run(changed, plan_of(), sites())  # type: ignore[arg-type]
        np.testing.assert_allclose(ended.model, ended.first + 3)


def test_an_engine_that_cannot_is_refused() -> None:
    with pytest.raises(UsageError, match="no engine `quick`"):
        pace(small(), "quick")
    with pytest.raises(UsageError, match="cannot train this task"):
        pace(small(loop=lambda model, train, site: None), "batched")


def test_sites_that_do_not_fit_are_trained_alone() -> None:
    """Records from a loader at one site, batches of its own."""

    @task(loss=nn.CrossEntropyLoss())
    def some(site: Site) -> tuple[nn.Module, Any, Any]:
        x, y = site.data
        data: Any = torch.tensor(x), torch.tensor(y)
        if site.name == "site-2":
            data = DataLoader(TensorDataset(*data), batch_size=5)
        return mlp(x.shape[1]).double(), data, data

    assert_alike(some, plan_of(), sites())


def test_parameters_that_are_not_used_stay_as_they_are() -> None:
    """Also with weight decay: torch's optimisers leave alone what has no gradient."""

    class Spare(Residual):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.spare = nn.Linear(3, 3)

    assert_alike_auto(made(Spare), plan_of(training={"weight_decay": 0.1}), sites())


def test_batch_norm_without_statistics() -> None:
    class Normed(Residual):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.norm = nn.BatchNorm1d(width, track_running_stats=False)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x))

    assert_alike_auto(made(Normed), plan_of(), sites())


def assert_alike_auto(made_task: TorchTask, plan: Plan, data: Sequence[SimulatedSite]) -> None:
    loop, chosen = (run(made_task, plan, data, engine=engine) for engine in ("loop", "auto"))
    np.testing.assert_allclose(chosen.model, loop.model, rtol=EXACT, atol=EXACT)


def test_records_of_different_shapes_are_not_laid_side_by_side() -> None:
    data = sites()
    data[1] = SimulatedSite("site-1", (data[1].data[0], data[1].data[1][:, None]))
    assert_alike(made(mlp), plan_of(), data)


def test_rows_that_do_not_count_are_the_sites_own() -> None:
    """A neighbour's record that overflows makes nobody else's numbers not finite."""
    data = sites()
    data[0].data[0][0] = 3e38
    loop, fast = (
        run(made(mlp, double=False), plan_of(), data, engine=engine)
        for engine in ("loop", "batched")
    )
    lost = [[name for name, _ in one.history.rounds[0].lost] for one in (loop, fast)]
    assert lost[0] == lost[1]


def test_a_layer_that_we_cannot_read_is_no_chain() -> None:
    assert chain_of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d((None, 1)))) is None


def test_wrong_labels_are_told_as_the_loop_tells_them() -> None:
    data = sites()
    data[3].data[1][0] = 7
    for engine in ("loop", "batched"):
        with pytest.raises(LabelError, match="site site-3"):
            run(made(mlp), plan_of(), data, engine=engine)


def test_what_fails_side_by_side_is_done_again_alone() -> None:
    """Labels that a loss of another form does not take, at one site: the others' draws are as
    if nothing had happened."""

    def picky(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape[0] == 3:  # only site-5 has so few records
            raise ValueError("no")
        return nn.functional.cross_entropy(outputs, targets)

    with pytest.raises(TaskResultError, match="site site-5: ValueError"):
        run(made(mlp, loss=picky), plan_of(), sites(), engine="batched")

    def clumsy(outputs: Tensor, targets: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(outputs) and outputs.shape[0] == 3:
            raise ValueError("not side by side")
        return nn.functional.cross_entropy(outputs, targets)

    assert_alike(made(mlp, loss=clumsy), plan_of(), sites())


# ---- narrow layers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"grad_clip": 0.5},
        {"optimizer": "adam", "lr": 0.01},
    ],
)
@pytest.mark.parametrize("personal", [{}, {"name": "fedper", "layers": ["0"]}])
def test_layers_of_few_inputs_and_many_outputs(
    training: dict[str, Any], personal: dict[str, Any]
) -> None:
    """Their products are taken on their side, and what is not private lies so in memory."""
    plain = {} if "optimizer" in training else {"momentum": 0.0}
    plan = plan_of(training={**plain, **training}, personal=personal)
    assert_alike(made(odd), plan, sites(widths=(5,)))


def test_a_seed_is_drawn_as_the_loop_draws_it() -> None:
    for seat in range(200):
        drawn, wanted = (stream(1, "train", 2, seat) for _ in range(2))
        assert drawn_seed(drawn) == int(wanted.integers(2**63))
        np.testing.assert_array_equal(drawn.permutation(50), wanted.permutation(50))


# ---- repeating -----------------------------------------------------------------------------


def odd(width: int) -> nn.Module:
    """Of sizes that no computer likes: products of matrices then depend on where they lie."""
    return nn.Sequential(nn.Linear(width, 33), nn.ReLU(), nn.Linear(33, 3))


@pytest.mark.parametrize("build", [odd, mlp, Mixed, Residual])
@pytest.mark.parametrize("record", [False, True])
def test_the_same_digest_again_and_whatever_the_number_of_workers(
    build: Build, record: bool
) -> None:
    plan, data = plan_of(), sites(widths=(4, 6, 9) if build is Mixed else (5,))
    digests = {
        run(made(build, double=False), plan, data, workers=workers, record=record).model_digest
        for workers in (0, 0, 1, 2, 3)
    }
    assert len(digests) == 1


def test_what_is_kept_of_a_batch_can_be_used_by_autograd() -> None:
    """Groups by hand are trained without autograd, and others have the same batches."""
    with torch.inference_mode():
        batch = _full_batch(3, 7, torch.float32)
        kept = batch.sizes, batch.shares, batch.opposed
    assert not any(tensor.is_inference() for tensor in kept)


@pytest.mark.parametrize("count", [70, 100, 120])
@pytest.mark.parametrize("falls_out", [(), ("site-0",), ("site-20", "site-50"), ("site-69",)])
def test_blocks_that_workers_add_up_are_those_of_one_by_one(
    count: int, falls_out: tuple[str, ...]
) -> None:
    """Seventy sites are two groups, and the first block ends in the middle of the second. A hundred
    are two groups that are blocks, but for who falls out."""
    crowd = [SimulatedSite(f"site-{at}", records(at, 5)) for at in range(count)]
    plan = plan_of(federation={"rounds": 2, "quorum": 2}, training={"epochs": 1})
    digests = {
        run(
            made(odd, double=False),
            plan,
            crowd,
            drops=lambda number, name: number == 1 and name in falls_out,
            **options,
        ).model_digest
        for options in ({}, {"workers": 1}, {"workers": 2}, {"record": True, "workers": 2})
    }
    assert len(digests) == 1


def test_rows_of_a_site_that_fails_are_not_added_up() -> None:
    """A worker finds out that a site's numbers are not finite; its block is the others'."""
    crowd = [SimulatedSite(f"site-{at}", records(at, 5)) for at in range(80)]
    for at in (3, 60):
        crowd[at].data[0][:] = 1e38
    plan = plan_of(federation={"rounds": 2, "quorum": 2}, training={"epochs": 1})
    runs = [
        run(made(odd, double=False), plan, crowd, **options)
        for options in ({}, {"workers": 2}, {"record": True, "workers": 2})
    ]
    assert len({one.model_digest for one in runs}) == 1
    assert np.isfinite(runs[0].model).all()
    assert [set(one.state.ended.fallen) for one in runs if one.state.ended] == [{4, 61}] * 3


@pytest.mark.parametrize("record", [False, True])
def test_a_run_that_was_cut_off_ends_with_the_same_digest(record: bool, tmp_path: Path) -> None:
    """Wherever in a round it was: groups follow from the round, not from what is left of it."""
    crowd = [SimulatedSite(f"site-{at}", records(at, 5)) for at in range(70)]
    plan = plan_of(federation={"rounds": 2, "quorum": 2}, training={"epochs": 1})

    def ended(folder: Path, stop_after: int | None) -> Run:
        left = [stop_after]

        def on_work(*_: Any) -> None:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt

        directory = DataDirectory(folder)
        try:
            options = {"record": record, "directory": directory, "on_work": on_work}
            return run(made(odd, double=False), plan, crowd, **options)
        finally:
            directory.close()

    whole = ended(tmp_path / "whole", None)
    for calls in (1, 2) if not record else (20, 66):
        folder = tmp_path / str(calls)
        with pytest.raises(KeyboardInterrupt):
            ended(folder, calls)
        assert ended(folder, None).model_digest == whole.model_digest


def test_recorded_one_by_one_it_is_the_same_model() -> None:
    plan, data = plan_of(), sites()
    found = {run(made(mlp), plan, data, record=record).model_digest for record in (False, True)}
    assert len(found) == 1


# ---- models that are alike -----------------------------------------------------------------


class Switched(nn.Module):
    def __init__(self, squared: bool) -> None:
        super().__init__()
        self.squared, self.layer = squared, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.relu() if self.squared else x)
        return out


def test_models_with_one_fingerprint_are_built_alike() -> None:
    assert fingerprint(mlp(4)) == fingerprint(mlp(4)) is not None
    assert fingerprint(mlp(4)) != fingerprint(mlp(5))
    assert fingerprint(Switched(True)) != fingerprint(Switched(False))
    assert fingerprint(nn.Dropout(0.1)) != fingerprint(nn.Dropout(0.2))
    assert fingerprint(nn.Sequential(nn.ReLU())) != fingerprint(nn.Sequential(nn.Tanh()))
    assert fingerprint(private(nn.Linear(2, 2))) != fingerprint(nn.Linear(2, 2))
    hooked = mlp(4)
    hooked.register_forward_hook(lambda *_: None)
    assert fingerprint(hooked) is None


def test_sites_with_other_models_of_the_same_shapes_are_not_mixed_up() -> None:
    @task(loss=nn.CrossEntropyLoss())
    def switched(site: Site) -> tuple[nn.Module, Any, Any]:
        x, y = site.data
        data = torch.tensor(x[:, :4]), torch.tensor(y % 2)
        return Switched(site.name in ("site-1", "site-4")).double(), data, data

    assert_alike(switched, plan_of(), sites())

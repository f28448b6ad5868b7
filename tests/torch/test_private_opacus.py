"""Against Opacus: our closed forms beside its hooks; and models that only it can take apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.layers import DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from consortium.errors import TaskResultError
from consortium.torch import frozen
from consortium.torch.private_training import train_privately
from consortium.torch.reproducible import reproducibly
from consortium.torch.training import Method
from tests.torch.private_sums import (
    CROSS,
    EXACT,
    ROUNDED,
    Known,
    clipped_rows,
    median_norm,
    off,
    ours,
    place_of,
    private_site,
    rows_by_autograd,
)
from tests.torch.test_private_clipping import MODELS, made

KNOWN_TO_OPACUS = [name for name in MODELS if name != "no bias"]  # LayerNorm needs one there


def by_opacus(model: nn.Module, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """The sum of its hooks and its optimiser, in the order of the model's parameters."""
    sampler = GradSampleModule(deepcopy(model), loss_reduction="sum")
    inner = torch.optim.SGD(sampler.parameters(), 1.0)
    options: dict[str, Any] = {"noise_multiplier": 0.0, "max_grad_norm": clip}
    optimizer = DPOptimizer(inner, expected_batch_size=1, loss_reduction="sum", **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        nn.CrossEntropyLoss(reduction="sum")(sampler(x), y).backward()
    optimizer.clip_and_accumulate()
    return torch.cat([one.summed_grad.flatten() for one in sampler.parameters()])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", KNOWN_TO_OPACUS)
def test_closed_forms_give_what_opacus_gives(name: str, dtype: torch.dtype) -> None:
    model, x, y = made(name, dtype)
    clip = median_norm(rows_by_autograd(model, x, y))
    found, _ = ours(model, x, y, clip)
    # Opacus divides by the norm plus 1e-6.
    limit = 1e-5 if dtype is torch.float64 else 2 * ROUNDED
    assert off(found, by_opacus(model, x, y, clip)) < limit
    unclipped, _ = ours(model, x, y, 1e9)
    limit = EXACT if dtype is torch.float64 else ROUNDED
    assert off(unclipped, by_opacus(model, x, y, 1e9)) < limit


@pytest.mark.parametrize("name", KNOWN_TO_OPACUS)
def test_both_of_our_ways_give_the_same(name: str) -> None:
    model, x, y = made(name, torch.float64)
    clip = median_norm(rows_by_autograd(model, x, y))
    closed, _ = ours(model, x, y, clip)
    told, _ = ours(model, x, y, clip, closed=False)
    assert off(told, closed) < EXACT


# ---- models without a closed form ------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module, size: int = 4) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(x).mean(1))
        return out


class Tied(nn.Module):
    """One table reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(x).mean(1))
        return out


class Twice(nn.Module):
    """A layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))
        return out


class Attentive(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.head = attention, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.attention(x, x, x)[0].mean(1))
        return out


class Bare(nn.Module):
    """A parameter that is no layer's, and one that is used for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.idle = nn.Parameter(torch.randn(5, 3)), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def frozen_norm() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4), frozen(nn.BatchNorm1d(4)), nn.Linear(4, 3))
    model[1].requires_grad_(False)
    return model.eval()


OPEN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...] | None]] = {
    "lstm": (lambda: Recurrent(nn.LSTM(5, 4, batch_first=True)), (6, 5)),
    "gru": (lambda: Recurrent(nn.GRU(5, 4, 2, batch_first=True, bias=False)), (6, 5)),
    "rnn": (
        lambda: Recurrent(nn.RNN(5, 4, batch_first=True, bidirectional=True), 8),
        (6, 5),
    ),
    "padded": (Padded, None),
    "tied": (Tied, None),
    "twice": (Twice, (5,)),
    "attention": (lambda: Attentive(DPMultiheadAttention(4, 2, batch_first=True)), (6, 4)),
    "groups": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
        ),
        (2, 6, 6),
    ),
    "lengths": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)),
        (2, 6),
    ),
}


def opened(name: str, n: int = 9) -> tuple[nn.Module, Tensor, Tensor]:
    make, shape = OPEN[name]
    with reproducibly(5):
        model = make().double()
        x = torch.randint(0, 5, (n, 6)) if shape is None else torch.randn(n, *shape).double()
        return model, x, torch.randint(0, 3, (n,))


@pytest.mark.parametrize("name", OPEN)
def test_models_without_a_closed_form_are_clipped_as_a_whole(name: str) -> None:
    model, x, y = opened(name)
    rows = rows_by_autograd(model, x, y)
    clip = median_norm(rows)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found, rejected = ours(model, x, y, clip, closed=False)
    assert rejected == 0
    assert off(found, clipped_rows(rows, clip).sum(0)) < EXACT
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())  # it works on a copy


def test_batch_norm_that_is_frozen_computes_with_fixed_numbers() -> None:
    with reproducibly(0):
        model, x, y = frozen_norm().double(), torch.randn(9, 5).double(), torch.arange(9) % 3
    rows = []
    for at in range(9):  # in evaluation mode, as a frozen layer is
        loss = CROSS(model(x[at : at + 1]), y[at : at + 1])
        wanted = [p for p in model.parameters() if p.requires_grad]
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, wanted)]))
    found, _ = ours(model, x, y, 0.5, closed=False)
    assert off(found, clipped_rows(torch.stack(rows), 0.5).sum(0)) < EXACT


def test_a_parameter_that_nothing_depends_on_gets_nothing() -> None:
    with reproducibly(0):
        model, x, y = Bare().double(), torch.randn(9, 5).double(), torch.arange(9) % 3
    found, _ = ours(model, x, y, 0.5, closed=False)
    rows = rows_by_autograd(model, x, y)
    assert off(found, clipped_rows(rows, 0.5).sum(0)) < EXACT


def test_a_record_that_is_no_number_is_left_out() -> None:
    model = Twice()
    with reproducibly(0):
        nn.init.normal_(model.head.weight)
        x, y = torch.randn(9, 5), torch.randn(9, 3)
    wanted, _ = ours(model, x[1:], y[1:], 0.5, loss=nn.MSELoss(), closed=False)
    y[0] = 3e38
    found, rejected = ours(model, x, y, 0.5, loss=nn.MSELoss(), closed=False)
    assert rejected == 1
    assert off(found, wanted) < ROUNDED


# ---- what is refused -------------------------------------------------------------------


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x - x.mean(0))
        return out


class Cloaked(nn.Module):
    """Counts its records in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        out: Tensor = self.head(torch.sin(x))
        return out


class Pooled(nn.Module):
    """The first dimension of what a layer gets is not the records."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(1, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x.reshape(-1, 1)).reshape(len(x), 5, 2).sum(1))
        return out


class Functional(nn.Module):
    """Uses a layer's weights without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x @ self.layer.weight.t())
        return out


def train(model: nn.Module, data: Any, **options: Any) -> None:
    at = private_site(Known(), **options)
    train_privately(place_of(model, data), at, Method(CROSS))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Mixing(), "mixes records"),
        (Cloaked(), "buffer `seen`"),
        (Pooled(), "gradients of single records by `layer"),
        (Functional(), "Opacus cannot tell"),
        (nn.Linear(5, 3).half(), "float32 or float64"),
        (nn.Sequential(nn.Linear(5, 4).double(), nn.Linear(4, 3)), "float32 or float64"),
    ],
    ids=["mixing", "buffer", "pooled", "functional", "half", "two types"],
)
def test_models_that_records_cannot_be_told_apart_in_are_refused(
    model: nn.Module, message: str
) -> None:
    with reproducibly(0), pytest.raises(TaskResultError, match=message):
        train(model, (torch.randn(9, 5), torch.arange(9) % 3))


def test_mixing_is_seen_even_where_the_first_records_are_alike() -> None:
    x = torch.ones(9, 5)
    with pytest.raises(TaskResultError, match="mixes records"):
        train(Mixing(), (x, torch.arange(9) % 3))


def test_a_model_that_changes_its_parameters_by_itself_is_refused() -> None:
    """An embedding with a largest norm shortens the rows of just those words that came."""

    class Shortening(Padded):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 4, max_norm=0.1)

    with pytest.raises(TaskResultError, match=r"changes `words\.weight`"):
        train(Shortening(), (torch.randint(0, 5, (9, 6)), torch.arange(9) % 3))
    train(Padded(), (torch.randint(0, 5, (9, 6)), torch.arange(9) % 3), momentum=0.9)


def test_torchs_own_attention_is_refused_with_a_hint() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    for model in (
        Attentive(nn.MultiheadAttention(4, 2, batch_first=True)),
        nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3)),
    ):
        with pytest.raises(TaskResultError, match="attention") as caught:
            train(model, (torch.randn(9, 6, 4), torch.arange(9) % 3))
        assert "DPMultiheadAttention" in caught.value.hint


def test_recurrent_layers_with_projections_are_refused() -> None:
    model = Recurrent(nn.LSTM(5, 4, batch_first=True, proj_size=2), 2)
    with pytest.raises(TaskResultError, match="proj_size"):
        train(model, (torch.randn(9, 6, 5), torch.arange(9) % 3))


def test_targets_that_are_not_one_a_record_are_refused() -> None:
    data = [(torch.randn(5), {"label": at}) for at in range(9)]
    with pytest.raises(TaskResultError, match="one target for each record"):
        train(Twice(), data)

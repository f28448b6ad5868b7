"""Closed forms against the gradients of single records, one after the other by autograd.

In float64 the sums agree to 1e-10 of their norm, in float32 to 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from consortium.torch import frozen
from consortium.torch.layers import Kind, Layer
from consortium.torch.private_clipping import clip_factors
from consortium.torch.private_norms import can_clip, part_of
from consortium.torch.reproducible import reproducibly
from tests.torch.private_sums import (
    EXACT,
    ROUNDED,
    clipped_rows,
    median_norm,
    names_of,
    off,
    ours,
    rows_by_autograd,
)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)
    )


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 9),
        nn.LayerNorm(9),
        nn.GELU(),
        nn.Linear(9, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 3),
    )


def without_bias() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 9, bias=False), nn.LayerNorm(9, bias=False), nn.ELU(), nn.Linear(9, 3)
    )


def words() -> nn.Module:
    """Words come twice in a record; the linear layer behind them has several places."""
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 6), nn.Flatten(), nn.Linear(36, 3))


def wide_words() -> nn.Module:
    """With fewer places than features, so that norms are found by pairs of places."""
    return nn.Sequential(
        nn.Embedding(5, 64),
        nn.Linear(64, 64),
        nn.LayerNorm((6, 64)),
        nn.Flatten(),
        nn.Linear(384, 3),
    )


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 70, (2, 1), bias=False),  # by pairs
        nn.LayerNorm((70, 1, 2)),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(140, 3),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (7,)),
    "normed": (normed, (7,)),
    "no bias": (without_bias, (7,)),
    "words": (words, (6,)),
    "wide words": (wide_words, (6,)),
    "pictures": (pictures, (2, 8, 8)),
}


def made(name: str, dtype: torch.dtype, n: int = 12) -> tuple[nn.Module, Tensor, Tensor]:
    make, shape = MODELS[name]
    with reproducibly(2):
        model = make().to(dtype)
        x = torch.randn(n, *shape, dtype=dtype) * torch.logspace(-1, 1, n, dtype=dtype).view(
            -1, *[1] * len(shape)
        )
        if "words" in name:
            x = torch.randint(0, 5, (n, *shape))
        return model, x, torch.randint(0, 3, (n,))


# ---- the sum ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_sum_of_the_clipped_gradients_of_records(name: str, dtype: torch.dtype) -> None:
    model, x, y = made(name, dtype)
    rows = rows_by_autograd(model, x, y)
    clip = median_norm(rows)
    found, rejected = ours(model, x, y, clip)
    assert rejected == 0
    assert off(found, clipped_rows(rows, clip).sum(0)) < (
        EXACT if dtype is torch.float64 else ROUNDED
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_part_of_the_parameters_is_clipped_by_its_own_norm(name: str) -> None:
    """A phase trains some parameters, and those alone are the vector that is clipped."""
    model, x, y = made(name, torch.float64)
    everything = names_of(model)
    for names in ([everything[0]], [everything[-1]], everything[1:-1], everything[::2]):
        rows = rows_by_autograd(model, x, y, names=names)
        clip = median_norm(rows)
        found, _ = ours(model, x, y, clip, names=names)
        assert off(found, clipped_rows(rows, clip).sum(0)) < EXACT


def test_frozen_layers_and_parameters_that_are_switched_off_do_not_count() -> None:
    model, x, y = made("mlp", torch.float64)
    frozen(model[2])
    model[2].requires_grad_(False)
    model[4].bias.requires_grad_(False)
    rows = rows_by_autograd(model, x, y)
    found, _ = ours(model, x, y, median_norm(rows))
    assert off(found, clipped_rows(rows, median_norm(rows)).sum(0)) < EXACT


WEIGHTS = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)
LOSSES: dict[str, tuple[Any, Any, Callable[[int], Tensor]]] = {
    # the loss; what it is for one record; targets
    "values": (nn.MSELoss(), nn.MSELoss(), lambda n: torch.randn(n, 3).double()),
    "sum of values": (
        nn.MSELoss(reduction="sum"),
        nn.MSELoss(reduction="sum"),
        lambda n: torch.randn(n, 3).double(),
    ),
    "logits": (nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(), lambda n: torch.rand(n, 3).double()),
    "class weights": (
        nn.CrossEntropyLoss(weight=WEIGHTS),
        nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"),  # a mean would take them out again
        lambda n: torch.arange(n) % 3,
    ),
    "smoothed": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda n: torch.arange(n) % 3,
    ),
    "some ignored": (
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),  # a mean over none is no number
        lambda n: torch.where(torch.arange(n) % 4 == 0, -100, 1),
    ),
    "a column": (
        nn.CrossEntropyLoss(),
        lambda z, y: F.cross_entropy(z, y[:, 0]),
        lambda n: (torch.arange(n) % 3).reshape(n, 1),
    ),
    "soft classes": (
        F.cross_entropy,
        F.cross_entropy,
        lambda n: torch.softmax(torch.randn(n, 3).double(), 1),
    ),
    "one's own": (
        lambda z, y: (z[:, 0] - y).abs().mean(),
        lambda z, y: (z[:, 0] - y).abs().mean(),
        lambda n: torch.arange(n),
    ),
    "of the batch": (  # divides by what all records give: here by what one gives
        lambda z, y: (z[:, 0] * y).sum() / (1 + y.sum()),
        lambda z, y: (z[:, 0] * y).sum() / (1 + y.sum()),
        lambda n: torch.arange(n),
    ),
    "one number for all": (lambda z, y: z.mean(), lambda z, y: z.mean(), lambda n: torch.arange(n)),
    "with a branch": (
        lambda z, y: z[:, 0].sum() if bool(z.detach()[0, 0] > 0) else -z[:, 1].sum(),
        lambda z, y: z[:, 0].sum() if bool(z.detach()[0, 0] > 0) else -z[:, 1].sum(),
        lambda n: torch.arange(n),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_every_kind_are_taken_record_by_record(name: str) -> None:
    loss, alone, targets = LOSSES[name]
    model, x, _ = made("normed", torch.float64)
    with reproducibly(0):
        y = targets(len(x))
    rows = rows_by_autograd(model, x, y, alone)
    clip = median_norm(rows)
    found, _ = ours(model, x, y, clip, loss=loss)
    assert off(found, clipped_rows(rows, clip).sum(0)) < EXACT


def test_in_pieces_it_is_the_same_sum() -> None:
    model, x, y = made("pictures", torch.float64)
    whole, _ = ours(model, x, y, 0.5)
    parts = [ours(model, x[at : at + 5], y[at : at + 5], 0.5)[0] for at in (0, 5, 10)]
    assert off(torch.stack(parts).sum(0), whole) < EXACT


# ---- numbers at the end of the range -------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ([nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3)], (7,)),
        ([nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 3)], (7,)),
        ([nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(64, 3)], (2, 6, 6)),
        ([nn.Conv2d(2, 70, 5), nn.Flatten(), nn.Linear(280, 3)], (2, 6, 6)),  # by pairs
    ],
)
def test_a_record_whose_gradient_is_not_finite_counts_as_nothing(
    layers: list[nn.Module], shape: tuple[int, ...]
) -> None:
    model = nn.Sequential(*layers)
    with reproducibly(1):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        x, y = torch.randn(5, *shape), torch.arange(5) % 3
    wanted, _ = ours(model, x[1:], y[1:], 0.7)
    x[0] = 3e38
    found, rejected = ours(model, x, y, 0.7)
    assert rejected == 1
    assert off(found, wanted) < ROUNDED


def test_who_is_left_out_does_not_change_what_dropout_gives_the_others() -> None:
    model = nn.Sequential(nn.Linear(7, 9), nn.Dropout(0.5), nn.Linear(9, 3))
    _, x, y = made("mlp", torch.float32)
    sums = []
    for strange in (0.0, 3e38):
        x[-1] = strange
        with reproducibly(3):
            sums.append(ours(model, x, y, 0.7)[0])
    assert float((sums[0] - sums[1]).norm()) <= 0.7 * (1 + ROUNDED)


def test_a_norm_beyond_float32_is_clipped_too() -> None:
    model = nn.Linear(2, 2)
    x, y = torch.tensor([[1e25, 1e25]]), torch.tensor([[-1e25, 1e10]])
    found, rejected = ours(model, x, y, 1.0, loss=nn.MSELoss())
    assert rejected == 0 and bool(torch.isfinite(found).all())
    assert float(found.norm()) <= 1.0


def test_factors_bring_every_norm_to_the_clip_and_no_further() -> None:
    norms = torch.tensor([0.0, 0.5, 1.0, 4.0, 1e20, 1e300], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        found = clip_factors(norms, 1.0, dtype)
        assert found.dtype is dtype
        assert bool((found.double() * norms <= 1.0).all())
        assert found[:4].tolist() == pytest.approx([1.0, 1.0, 1.0, 0.25], rel=1e-6)
        assert float(found[-1]) == 0.0


def test_places_that_cancel_each_other_do_not_hide() -> None:
    """By pairs, the norm of such a record is a difference of large numbers."""
    layer = Layer(Kind.LINEAR, weight="w", size_in=64, size_out=64)
    with reproducibly(0):
        x = torch.randn(1, 1, 64).double().repeat(1, 2, 1)
        d = torch.randn(1, 1, 64).double() * 1e9 * torch.tensor([1.0, -1.0]).double().view(1, 2, 1)
    d[0, 1, 0] += 1.0  # all that is left of two gradients of 1e11
    gradient = torch.zeros(64, 64, dtype=torch.float64)
    part = part_of(layer, (2, 64), {"w": gradient})
    assert part is not None
    part.keep(x)
    norm = part.squares(d).sqrt()
    part.add(clip_factors(norm, 1.0, torch.float64))
    assert float(gradient.norm()) <= 1.0


def test_batch_norm_has_no_closed_form() -> None:
    assert not can_clip(Layer(Kind.BATCH_NORM, size_in=3))
    assert can_clip(Layer(Kind.RELU))


# ---- any chain -------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Layers that fit each other, over rows of numbers or over several places."""
    places = draw(st.sampled_from([(), (2,), (3, 2)]))
    width = draw(st.integers(1, 40))
    shape, layers = (*places, width), list[nn.Module]()
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 40))
        layers.append(nn.Linear(width, size, bias=draw(st.booleans())))
        width = size
        if draw(st.booleans()):
            layers.append(nn.LayerNorm(width, bias=draw(st.booleans())))
        layers.append(draw(st.sampled_from([nn.ReLU(), nn.Tanh(), nn.GELU(), nn.SiLU()])))
    count = width * torch.Size(places).numel()
    layers += [nn.Flatten(), nn.Linear(count, 3)]
    return nn.Sequential(*layers), shape


@settings(max_examples=40, deadline=None)
@given(
    chains(),
    st.integers(0, 1 << 30),
    st.sampled_from([torch.float64, torch.float32]),
    st.sampled_from([1e-6, 1e-2, 1.0, 1e3]),
    st.sampled_from([1e-3, 1.0, 1e6]),
)
def test_no_record_gives_more_than_the_clip(
    chain: tuple[nn.Module, tuple[int, ...]],
    seed: int,
    dtype: torch.dtype,
    clip: float,
    size: float,
) -> None:
    model, shape = chain[0].to(dtype), chain[1]
    with reproducibly(seed):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        x, y = size * torch.randn(4, *shape, dtype=dtype), torch.randint(0, 3, (4,))
    alone = [ours(model, x[at : at + 1], y[at : at + 1], clip)[0] for at in range(4)]
    slack = 1 + (1e-5 if dtype is torch.float32 else 1e-12)
    assert all(float(one.double().norm()) <= clip * slack for one in alone)
    together, _ = ours(model, x, y, clip)
    total = torch.stack(alone).sum(0)
    limit = (1e-4 if dtype is torch.float32 else 1e-10) * clip
    assert float((together - total).norm()) <= limit + 1e-6 * float(total.norm())

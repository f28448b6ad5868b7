"""First values: the same for equal seeds whatever the private widths, and the user's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import random_split

from consortium.torch import HospitalNet, RemainingLife
from consortium.torch.build import built, built_apart


def shared(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach().clone()
        for name, tensor in model.named_parameters()
        if not name.startswith("adapter")
    }


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def apart(n_features: int, seed: int = 3) -> dict[str, torch.Tensor]:
    def staying(model: HospitalNet) -> list[torch.Tensor]:
        return list(model.adapter.parameters())

    return shared(built_apart(lambda: HospitalNet(n_features), seed, staying))


def test_private_widths_do_not_move_shared_values() -> None:
    ten, fifteen = (shared(built(lambda n=n: HospitalNet(n), 3)) for n in (10, 15))
    assert equal(ten, fifteen)
    assert equal(apart(10), apart(15))


@given(st.sampled_from([1, 2, 64, 127, 128, 129, 256]))
def test_not_even_when_a_private_shape_is_that_of_a_shared_layer(n_features: int) -> None:
    assert equal(apart(n_features), apart(10))


def test_the_plain_way_cannot_tell_equal_shapes_apart() -> None:
    """Why `built_apart` is there: with 128 features the adapter has a shape of the head."""
    assert not equal(*(shared(built(lambda n=n: HospitalNet(n), 3)) for n in (10, 128)))


def test_other_seeds_give_other_values() -> None:
    one, other = apart(10, seed=3), apart(10, seed=4)
    assert not any(
        torch.equal(one[name], other[name])
        for name in one
        if not name.startswith(("encoder.2", "encoder.6"))
    )  # BatchNorm starts at ones and zeros


def test_equal_layers_get_different_values() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 0)
    assert not torch.equal(model[0].weight, model[1].weight)


def test_values_are_drawn_from_the_usual_distribution() -> None:
    weight = built(lambda: nn.Linear(100, 2000), 0).weight.detach()
    assert weight.abs().max() <= 0.1
    assert abs(float(weight.std()) - 0.1 / 3**0.5) < 1e-3  # 200,000 draws: 60 times the error
    assert torch.unique(weight).numel() > 100_000


def own_initialisation(init: Callable[[torch.Tensor], object]) -> nn.Linear:
    layer = nn.Linear(3, 3)
    init(layer.weight)
    return layer


@pytest.mark.parametrize(
    "init", [nn.init.zeros_, nn.init.eye_, lambda w: w.data.copy_(torch.arange(9.0).view(3, 3))]
)
def test_the_users_own_values_are_kept(init: Callable[[torch.Tensor], object]) -> None:
    wanted = own_initialisation(init).weight
    assert torch.equal(built(lambda: own_initialisation(init), 1).weight, wanted)


def test_torchs_own_generator_is_neither_used_nor_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = shared(built(lambda: RemainingLife(3, hidden=4), 7))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert equal(one, shared(built(lambda: RemainingLife(3, hidden=4), 7)))


def test_a_generator_of_the_users_own_is_left_alone() -> None:
    def draw() -> torch.Tensor:
        return torch.randn(3, generator=torch.Generator().manual_seed(1))

    assert torch.equal(built(draw, 0), built(draw, 1))


def test_a_random_split_follows_the_seed() -> None:
    def split() -> list[int]:
        return list(random_split(range(20), [10, 10])[0].indices)  # type: ignore[arg-type]

    assert built(split, 0) == built(split, 0) != built(split, 1)

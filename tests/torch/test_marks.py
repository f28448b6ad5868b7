"""What leaves and what stays: marks, the plan's layers, tied weights, buffers."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from consortium.errors import ImpossiblePlanError, LayoutError, TaskResultError
from consortium.plan.values import PersonalSection
from consortium.torch import HospitalNet, frozen, private
from consortium.torch.marks import Parts, sort_tensors
from tests.torch.sites import Net

NONE = PersonalSection()


def parts(model: nn.Module, **personal: Any) -> Parts:
    return sort_tensors(model, PersonalSection(**personal))


def net(**layers: nn.Module) -> nn.Module:
    model = nn.Module()
    for name, layer in layers.items():
        model.add_module(name, layer)
    return model


def test_parameters_are_shared_and_buffers_stay() -> None:
    found = parts(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    assert found.shared == ("0.bias", "0.weight", "1.bias", "1.weight")
    assert found.buffers == ("1.num_batches_tracked", "1.running_mean", "1.running_var")
    assert found.private == found.frozen == ()


def test_a_private_layer_stays_with_all_below_it() -> None:
    found = parts(Net(4))
    assert all(name.startswith("adapter.") for name in found.private)
    assert len(found.private) == 4
    assert not any(name.startswith("adapter.") for name in found.shared)
    assert "adapter.1.running_mean" in found.buffers


def test_a_frozen_layer_is_neither_shared_nor_kept() -> None:
    found = parts(
        net(base=frozen(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))), head=nn.Linear(2, 2))
    )
    assert found.shared == ("head.bias", "head.weight")
    assert "base.1.running_mean" in found.frozen
    assert found.staying == ()
    assert found.frozen_layers == ("base", "base.0", "base.1")


def test_the_innermost_mark_holds() -> None:
    lora = net(inner=private(nn.Linear(2, 2)), rest=nn.Linear(2, 2))
    found = parts(net(base=frozen(lora), head=nn.Linear(2, 2)))
    assert found.private == ("base.inner.bias", "base.inner.weight")
    assert found.frozen == ("base.rest.bias", "base.rest.weight")


def test_marks_survive_a_copy() -> None:
    assert parts(deepcopy(Net(4))) == parts(Net(4))


def test_only_layers_can_be_marked() -> None:
    with pytest.raises(TaskResultError, match="only a layer can be private"):
        private(torch.zeros(2))  # type: ignore[type-var]


def test_layers_named_in_the_plan_stay() -> None:
    found = parts(Net(4), name="fedper", layers=("head",))
    assert {"head.bias", "head.weight"} <= set(found.private)
    assert parts(Net(4), layers=("body.1",)).shared == (
        "body.2.bias", "body.2.weight", "head.bias", "head.weight",
    )  # fmt: skip
    assert "head.bias" in parts(Net(4), layers=("head.bias",)).private


def test_a_layers_name_is_not_a_prefix_of_letters() -> None:
    model = net(head=nn.Linear(2, 2), header=nn.Linear(2, 2))
    assert parts(model, layers=("head",)).shared == ("header.bias", "header.weight")


def test_an_unknown_layer_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ImpossiblePlanError, match="`haed`") as caught:
        parts(Net(4), layers=("haed",))
    assert "adapter, body, head" in caught.value.hint


def test_fedbn_keeps_batch_norm_and_no_other_normalisation() -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.Linear(4, 2)
    )
    found = parts(model, name="fedbn")
    assert found.private == ("1.bias", "1.weight")
    assert "2.weight" in found.shared and "3.weight" in found.shared


def test_fedbn_leaves_frozen_layers_frozen() -> None:
    model = net(base=frozen(nn.BatchNorm1d(2)), norm=nn.BatchNorm1d(2), head=nn.Linear(2, 2))
    found = parts(model, name="fedbn")
    assert found.private == ("norm.bias", "norm.weight")
    assert "base.weight" in found.frozen


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbn"])
def test_a_personalisation_with_nothing_private_is_refused(name: str) -> None:
    with pytest.raises(ImpossiblePlanError, match="the model has none"):
        parts(nn.Linear(2, 2), name=name)


def test_a_model_of_which_nothing_is_shared_is_refused() -> None:
    with pytest.raises(LayoutError, match="no tensor at all"):
        parts(private(nn.Linear(2, 2)))


def test_tied_weights_have_one_name() -> None:
    model = net(one=nn.Linear(3, 3), two=nn.Linear(3, 3))
    model.two.weight = model.one.weight  # type: ignore[union-attr]
    assert parts(model).shared == ("one.bias", "one.weight", "two.bias")


@pytest.mark.parametrize("by_memory", [False, True])
def test_weights_tied_to_a_private_layer_stay(by_memory: bool) -> None:
    model = net(decoder=nn.Linear(3, 3), encoder=private(nn.Linear(3, 3)))
    one, two = model.decoder, model.encoder
    if by_memory:
        one.weight.data = two.weight.data  # type: ignore[union-attr]
    else:
        one.weight = two.weight  # type: ignore[union-attr]
    found = parts(model)
    assert found.shared == ("decoder.bias",)


def test_a_layer_used_twice_and_marked_once_stays() -> None:
    layer = nn.Linear(2, 2)
    model = net(first=layer, second=private(layer), head=nn.Linear(2, 2))
    assert parts(model).shared == ("head.bias", "head.weight")


def test_a_layer_without_a_shape_is_refused() -> None:
    with pytest.raises(TaskResultError, match="no shape yet"):
        parts(net(lazy=nn.LazyLinear(2)))


def test_buffers_that_are_not_stored_are_not_kept() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("table", torch.zeros(3), persistent=False)
    assert parts(model).staying == ()


@given(st.integers(1, 300), st.sampled_from(["none", "fedbn", "fedper", "fedrep"]))
def test_nothing_of_the_adapter_is_ever_shared(n_features: int, name: str) -> None:
    model = HospitalNet(n_features)
    found = parts(model, name=name)
    buffers = {name for name, _ in model.named_buffers()}
    assert not any(name.startswith("adapter") or name in buffers for name in found.shared)
    every = [*found.shared, *found.private, *found.buffers, *found.frozen]
    assert sorted(every) == sorted(model.state_dict())

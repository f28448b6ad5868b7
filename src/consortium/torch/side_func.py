"""Gradients of many sites by torch.func: for models and losses that are no chain of known layers.

`vmap` runs the user's own forward once for all sites. It cannot do everything: a model that
draws (dropout), keeps statistics, or uses what vmap has no rule for is trained alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from consortium.torch.batches import TensorRecords
from consortium.torch.losses import Loss, loss_of
from consortium.torch.marks import batch_norms
from consortium.torch.side_descent import Slot
from consortium.torch.side_layers import Batch

# Convolutions of many sites in one call are slower than one after the other.
_ALONE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, nn.RNNCellBase)
_TRIED = 2  # sites, and records of each, that a way is tried on


@dataclass(frozen=True, eq=False)
class FuncWay:
    """One model and one loss: equal to nothing but itself."""

    model: nn.Module
    loss: Loss
    parameters: tuple[str, ...]
    open_weight: None = None
    looks_across_records: bool = False
    starts_in_common: bool = False

    def begin(
        self, slots: Mapping[str, Slot], _buffers: Mapping[str, Tensor], _seeds: Sequence[int]
    ) -> FuncPass:
        return FuncPass(self, slots)

    def gradients(self, values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Any:
        """Of every site's mean loss, (k, ...) by name."""
        return vmap(grad(self._loss))(values, inputs, targets)

    def _loss(self, values: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        if inputs.is_floating_point():
            inputs = inputs.to(next(iter(values.values())).dtype)
        return loss_of(self.loss, functional_call(self.model, values, (inputs,)), targets)


@dataclass(frozen=True, slots=True)
class FuncPass:
    way: FuncWay
    slots: Mapping[str, Slot]

    def hand_out_gradients(
        self, inputs: Tensor, targets: Tensor, batch: Batch, names: frozenset[str]
    ) -> None:
        """Sites with one number of records at a time: a mean is over those that there are."""
        values = {name: slot.value[: batch.k] for name, slot in self.slots.items()}
        self.way.model.train()
        counts = torch.tensor(batch.counts)
        whole = {name: torch.zeros_like(values[name]) for name in names}
        for count in sorted(set(batch.counts)):
            here = torch.nonzero(counts == count).squeeze(1)
            some = {name: value.index_select(0, here) for name, value in values.items()}
            x, y = inputs.index_select(0, here), targets.index_select(0, here)
            found = self.way.gradients(some, x[:, :count], y[:, :count])
            for name in names:
                whole[name].index_copy_(0, here, found[name])
        for name, gradient in whole.items():
            self.slots[name].add(gradient)


def func_way(model: nn.Module, loss: Loss, records: TensorRecords) -> FuncWay | None:
    """The way for this model and loss, if a try with these records succeeds."""
    has_buffers = next(model.buffers(), None) is not None
    if has_buffers or any(isinstance(module, _ALONE) for module in model.modules()):
        return None
    if next(batch_norms(model), None) is not None:  # batches of one record are joined for these
        return None
    way = FuncWay(model, loss, tuple(name for name, _ in model.named_parameters()))
    values = {
        name: value.detach().repeat(_TRIED, *[1] * value.ndim)
        for name, value in model.named_parameters()
    }
    rows = torch.zeros(_TRIED, dtype=torch.int64)
    inputs, targets = (
        tensor.index_select(0, rows).unsqueeze(0).repeat(_TRIED, 1, *[1] * (tensor.ndim - 1))
        for tensor in (records.inputs, records.targets)
    )
    try:
        model.train()
        way.gradients(values, inputs, targets)
        one = way._loss(dict(model.named_parameters()), inputs[0], targets[0])
        wanted = [tensor for tensor in model.parameters() if tensor.requires_grad]
        found = torch.autograd.grad(one, wanted, allow_unused=True)
    except Exception:  # the user's own code under vmap: it may raise anything
        return None
    # Torch's optimisers leave a parameter alone that the loss does not use; vmap says zero.
    return None if any(gradient is None for gradient in found) else way

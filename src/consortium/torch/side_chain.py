"""Gradients of many sites whose models are chains of common layers: all layers by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from consortium.torch.batches import TensorRecords
from consortium.torch.chain import shapes_through
from consortium.torch.layers import Kind, Layer
from consortium.torch.losses import Kind as Outputs
from consortium.torch.masks import Masks
from consortium.torch.side_descent import Slot
from consortium.torch.side_layers import Batch, SideLayer, side_layers

_MINUS_ONE = torch.tensor(-1.0)


@dataclass(frozen=True, slots=True)
class ChainWay:
    """A chain, with the first layer's width left open where sites may differ in it."""

    chain: tuple[Layer, ...]
    outputs: Outputs  # as the loss takes them
    starts_in_common: bool = True

    @property
    def parameters(self) -> tuple[str, ...]:
        found = ((layer.weight, layer.bias) for layer in self.chain)
        return tuple(name for pair in found for name in pair if name is not None)

    @property
    def open_weight(self) -> str | None:
        first = self.chain[0]
        return first.weight if first.kind is Kind.LINEAR and not first.size_in else None

    @property
    def looks_across_records(self) -> bool:
        return any(layer.kind is Kind.BATCH_NORM for layer in self.chain)

    def begin(
        self, slots: Mapping[str, Slot], buffers: Mapping[str, Tensor], seeds: Sequence[int]
    ) -> ChainPass:
        draws = any(layer.kind is Kind.DROPOUT for layer in self.chain)
        masks = Masks(seeds if draws else ())
        return ChainPass(self, side_layers(self.chain, slots, buffers, masks))


@dataclass(frozen=True, slots=True)
class ChainPass:
    way: ChainWay
    layers: list[SideLayer]
    _firsts: dict[frozenset[str], int] = field(default_factory=dict)

    def hand_out_gradients(
        self, inputs: Tensor, targets: Tensor, batch: Batch, names: frozenset[str]
    ) -> None:
        x = inputs
        for layer in self.layers:
            x = layer.forward(x, batch)
        grad: Tensor | None = loss_gradient(self.way.outputs, x, targets, batch)
        first = self._firsts.get(names)
        if first is None:
            first = self._firsts[names] = self.first_trained(names)
        for at in range(len(self.layers) - 1, first - 1, -1):
            assert grad is not None
            grad = self.layers[at].backward(grad, batch, at > first)

    def first_trained(self, names: frozenset[str]) -> int:
        """The first layer that learns: no gradient is needed before it."""
        learns = ({layer.weight, layer.bias} & names for layer in self.way.chain)
        return next(at for at, found in enumerate(learns) if found)


def loss_gradient(kind: Outputs, outputs: Tensor, targets: Tensor, batch: Batch) -> Tensor:
    """Of the mean over each site's own records; rows that do not count get zeros."""
    width = 1
    if kind is Outputs.CLASSES and outputs.shape[-1] == 2:
        # Of two classes it is the sigmoid of their difference, which takes half of the time.
        zero, one = outputs.unbind(-1)
        apart = torch.sub(one, zero)
        second = torch.sigmoid(apart).sub_(targets.reshape(apart.shape))
        second.add_(apart.sub_(apart))  # nothing, or what is not finite: it must not be hidden
        return second.unsqueeze(-1) * batch.opposed
    if kind is Outputs.CLASSES:
        # Torch's own softmax takes several times as long for rows of a few numbers.
        found = (outputs - outputs.amax(-1, keepdim=True)).exp_()
        found.div_(found.sum(-1, keepdim=True))
        wanted = targets.reshape(*outputs.shape[:-1], 1)
        found.scatter_add_(-1, wanted, _MINUS_ONE.to(found.dtype).expand(wanted.shape))
    else:
        wanted = targets.reshape(outputs.shape).to(outputs.dtype)
        is_logit = kind is Outputs.LOGIT
        found = torch.sigmoid(outputs).sub_(wanted) if is_logit else (outputs - wanted).mul_(2.0)
        width = outputs[0, 0].numel()
    shares = batch.shares if width == 1 else batch.shares / width
    if shares.ndim:
        shares = shares.reshape(*shares.shape, *[1] * (found.ndim - 2))
    return found.mul_(shares)


def fits(way: ChainWay, records: TensorRecords, chain: tuple[Layer, ...]) -> bool:
    """Whether these records can go through the model as it is at their site, and their labels
    through the loss. What does not fit is trained alone, where an error is told as ever."""
    inputs, targets, first = records.inputs, records.targets, chain[0]
    shapes = shapes_through(chain, tuple(inputs.shape[1:]))
    if shapes is None or (way.looks_across_records and len(records) == 1):
        return False
    if any(
        layer.kind is Kind.BATCH_NORM and len(shape) != 1
        for layer, shape in zip(chain, shapes, strict=True)
    ):
        return False
    if first.kind is Kind.EMBEDDING:
        if inputs.dtype is not torch.int64 or not _are_below(inputs, first.size_in):
            return False
    elif not inputs.is_floating_point():
        return False
    if way.outputs is not Outputs.CLASSES:
        return targets[0].numel() == torch.Size(shapes[-1]).numel()
    is_flat = targets.ndim == 1 or targets.shape[1:] == (1,)
    is_class = targets.dtype is torch.int64 and is_flat and len(shapes[-1]) == 1
    return is_class and _are_below(targets, shapes[-1][0])


def _are_below(values: Tensor, limit: int) -> bool:
    return int(values.min()) >= 0 and int(values.max()) < limit


def loss_is_known(loss: object) -> bool:
    """Whether the gradient of a loss is written down here: torch's own in its usual form."""
    if not isinstance(loss, nn.Module):
        return loss in _FUNCTIONS
    is_usual = getattr(loss, "reduction", "") == "mean" and not any(
        getattr(loss, name, None) is not None for name in ("weight", "pos_weight")
    )
    if type(loss) is nn.CrossEntropyLoss:
        return is_usual and loss.label_smoothing == 0.0 and loss.ignore_index < 0
    return is_usual and type(loss) in (nn.BCEWithLogitsLoss, nn.MSELoss)


_FUNCTIONS = (
    functional.cross_entropy,
    functional.binary_cross_entropy_with_logits,
    functional.mse_loss,
)

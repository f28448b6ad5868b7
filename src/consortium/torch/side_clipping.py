"""Sums of clipped gradients of many sites, side by side: see `private_clipping` for one site.

Norms are those of records, whosever they are; only sums are taken site by site. A tensor is
(k, n, ...): k sites, n records each, of which those at the end may not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from consortium.torch.layers import Kind, Layer
from consortium.torch.private_clipping import clip_factors
from consortium.torch.private_norms import can_clip, table_squares
from consortium.torch.private_rows import row_squares, without
from consortium.torch.side_chain import ChainPass, loss_gradient
from consortium.torch.side_descent import Slot
from consortium.torch.side_layers import Batch

_WITH_PARTS = (Kind.LINEAR, Kind.LAYER_NORM, Kind.EMBEDDING)


def can_clip_side_by_side(chain: Sequence[Layer], dimensions: int) -> bool:
    """Whether there is a part for every layer of a chain that takes records of so many
    dimensions. A linear layer over several places of a record has none."""
    for layer in chain:
        has_part = layer.kind in _WITH_PARTS or (layer.weight is None and layer.bias is None)
        if not has_part or not can_clip(layer) or (layer.kind is Kind.LINEAR and dimensions > 1):
            return False
        dimensions += layer.kind is Kind.EMBEDDING
        dimensions = 1 if layer.kind is Kind.FLATTEN else dimensions
    return True


class ClippedStack:
    """The layers of a group at work. `layers` must hand out no gradients of their own; `slots`
    are the trained parameters, whose `into` gets the sums."""

    def __init__(self, layers: ChainPass, slots: Mapping[str, Slot], clip: float) -> None:
        self._layers, self._clip = layers, clip
        self._parts = [_part(layer, slots) for layer in layers.way.chain]
        self._first = layers.first_trained(frozenset(slots))

    def add(self, inputs: Tensor, targets: Tensor, batch: Batch) -> int:
        """Add each record's gradient, clipped, to its site's; how many were left out because
        theirs is not finite. `batch.shares` are one for records that count, and else zero."""
        norms = self._norms(inputs, targets, batch)
        parts = [part for part in self._parts if part is not None]
        is_bad = ~torch.isfinite(norms)
        rejected = 0
        if bool(is_bad.any()):
            norms[is_bad] = 0.0
            rejected = int((is_bad if batch.real is None else is_bad & (batch.real > 0)).sum())
            for part in parts:
                part.leave_out(is_bad)
        factors = clip_factors(norms, self._clip, batch.sizes.dtype)
        for part in parts:
            part.add(factors)
        return rejected

    def _norms(self, inputs: Tensor, targets: Tensor, batch: Batch) -> Tensor:
        """(k, n)"""
        x, whole = inputs, self._layers
        for layer, part in zip(whole.layers, self._parts, strict=True):
            if part is not None:
                part.keep(x)
            x = layer.forward(x, batch)
        d: Tensor | None = loss_gradient(whole.way.outputs, x, targets, batch)
        squares = torch.zeros(x.shape[:2], dtype=torch.float64)
        for at in range(len(self._parts) - 1, self._first - 1, -1):
            assert d is not None
            part = self._parts[at]
            if part is not None:
                squares += part.squares(d)
            d = whole.layers[at].backward(d, batch, at > self._first)
        return squares.sqrt_()


class _Part(Protocol):
    """As `private_norms.Part`, for records (k, n, ...) and factors (k, n)."""

    def keep(self, x: Tensor) -> None: ...

    def squares(self, d: Tensor) -> Tensor: ...

    def leave_out(self, is_bad: Tensor) -> None: ...

    def add(self, factors: Tensor) -> None: ...


def _part(layer: Layer, slots: Mapping[str, Slot]) -> _Part | None:
    weight = None if layer.weight is None else slots.get(layer.weight)
    bias = None if layer.bias is None else slots.get(layer.bias)
    if weight is None and bias is None:
        return None
    if layer.kind is Kind.LINEAR:
        return _Linear(weight, bias)
    if layer.kind is Kind.LAYER_NORM:
        return _LayerNorm(layer, weight, bias)
    assert layer.kind is Kind.EMBEDDING and weight is not None
    return _Embedding(layer, weight)


class _Linear:
    """x is (k, n, i), d is (k, n, o)."""

    def __init__(self, weight: Slot | None, bias: Slot | None) -> None:
        self.weight, self.bias = weight, bias
        self.x: Tensor
        self.d: Tensor

    def keep(self, x: Tensor) -> None:
        self.x = x

    def squares(self, d: Tensor) -> Tensor:
        self.d = d
        found = row_squares(d, 2)
        if self.weight is None:
            return found
        inputs = row_squares(self.x, 2)
        return found.mul_(inputs if self.bias is None else inputs.add_(1.0))

    def leave_out(self, is_bad: Tensor) -> None:
        self.x, self.d = without(self.x, is_bad), without(self.d, is_bad)

    def add(self, factors: Tensor) -> None:
        scaled = self.d.mul_(factors.unsqueeze(2))
        if self.weight is not None:
            self.weight.add_product(scaled.transpose(1, 2), self.x)
        if self.bias is not None:
            self.bias.add(scaled.sum(1))


class _LayerNorm:
    def __init__(self, layer: Layer, weight: Slot | None, bias: Slot | None) -> None:
        self.layer, self.weight, self.bias = layer, weight, bias
        self.x: Tensor
        self.written: list[tuple[Slot, Tensor]]  # the sum's place, and records' shares (k, n, f)

    def keep(self, x: Tensor) -> None:
        self.x = x

    def squares(self, d: Tensor) -> Tensor:
        self.written = []
        if self.bias is not None:
            self.written.append((self.bias, self._over_places(d)))
        if self.weight is not None:
            normal = functional.layer_norm(self.x, self.layer.shape, eps=self.layer.eps)
            self.written.append((self.weight, self._over_places(normal * d)))
        return torch.stack([row_squares(rows, 2) for _, rows in self.written]).sum(0)

    def leave_out(self, is_bad: Tensor) -> None:
        self.written = [(into, without(rows, is_bad)) for into, rows in self.written]

    def add(self, factors: Tensor) -> None:
        for into, rows in self.written:
            into.add(torch.bmm(factors.unsqueeze(1), rows).view(len(rows), *self.layer.shape))

    def _over_places(self, numbers: Tensor) -> Tensor:
        features = torch.Size(self.layer.shape).numel()
        return numbers.reshape(*numbers.shape[:2], -1, features).sum(2)


class _Embedding:
    def __init__(self, layer: Layer, weight: Slot) -> None:
        self.layer, self.weight = layer, weight
        self.x: Tensor
        self.d: Tensor

    def keep(self, x: Tensor) -> None:
        self.x = x

    def squares(self, d: Tensor) -> Tensor:
        self.d = d
        found = table_squares(self.x.flatten(0, 1), d.flatten(0, 1), self.layer)
        return found.view(d.shape[:2])

    def leave_out(self, is_bad: Tensor) -> None:
        self.d = without(self.d, is_bad)

    def add(self, factors: Tensor) -> None:
        k, size, width = len(factors), self.layer.size_in, self.layer.size_out
        scaled = self.d * factors.view(*factors.shape, *[1] * (self.d.ndim - 2))
        rows = (self.x.reshape(k, -1) + size * torch.arange(k).unsqueeze(1)).flatten()
        table = scaled.new_zeros(k * size, width).index_add_(0, rows, scaled.reshape(-1, width))
        self.weight.add(table.view(k, size, width))

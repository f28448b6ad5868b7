"""Layers of many sites side by side, forward and backward, without autograd.

A tensor is (k, n, ...): k sites at work, n records each. A site with fewer records in its
batch than others has rows at the end that do not count: they are computed with the others
and get no gradient. Only BatchNorm, which looks across records, must know which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from consortium.torch.layers import Kind, Layer
from consortium.torch.masks import Masks
from consortium.torch.products import product, product_with_one, sum_and_product
from consortium.torch.side_descent import Slot, first

_aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Batch:
    """Which records of (k, n) count."""

    counts: tuple[int, ...]  # records of each of the k sites
    sizes: Tensor  # (k,), the same as numbers
    real: Tensor | None  # (k, n), one or zero; None: all count
    shares: Tensor  # of a record in its site's mean: (k, n) with zeros, or one for all
    _found: dict[str, Tensor] = field(default_factory=dict, compare=False)

    @property
    def k(self) -> int:
        return len(self.counts)

    @property
    def opposed(self) -> Tensor:
        """(..., 2): minus a record's share, and its share, as two classes get it."""
        if "opposed" not in self._found:
            with torch.inference_mode(False):  # a batch may be kept for others
                self._found["opposed"] = torch.stack((-self.shares, self.shares), -1)
        return self._found["opposed"]


class SideLayer(Protocol):
    """One layer. `backward` follows the `forward` of the same batch."""

    def forward(self, x: Tensor, batch: Batch, /) -> Tensor: ...

    def backward(self, grad: Tensor, batch: Batch, wants_input: bool, /) -> Tensor | None:
        """Hand gradients to the slots; the gradient of the input, if it is wanted."""
        ...


class _Linear:
    def __init__(self, weight: Slot, bias: Slot | None) -> None:
        self._weight, self._bias = weight, bias
        self._x = torch.empty(0)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        k, shape = batch.k, x.shape
        self._x = x = x if x.ndim == 3 else x.reshape(k, -1, shape[-1])
        if self._weight.is_common and (self._bias is None or self._bias.is_common):
            same = product_with_one(x, self._weight.value[0].t())
            if self._bias is not None:
                same.add_(self._bias.value[0])
            return same if len(shape) == 3 else same.reshape(*shape[:-1], same.shape[-1])
        across = first(self._weight.value, k).transpose(1, 2)  # (k, in, out)
        if self._bias is None:
            out = product(x, across)
        else:
            out = sum_and_product(first(self._bias.value, k).unsqueeze(1), x, across)
        return out if len(shape) == 3 else out.reshape(*shape[:-1], out.shape[-1])

    def backward(self, grad: Tensor, batch: Batch, wants_input: bool) -> Tensor | None:
        shape = grad.shape
        grad = grad if grad.ndim == 3 else grad.reshape(batch.k, -1, shape[-1])
        # Before the step: it may change the weights at once.
        back = self._back(grad, batch.k) if wants_input else None
        self._weight.add_product(grad.transpose(1, 2), self._x)
        if self._bias is not None and self._bias.into is not None:
            self._bias.add(grad.sum(1))
        if back is None or len(shape) == 3:
            return back
        return back.reshape(*shape[:-1], back.shape[-1])

    def _back(self, grad: Tensor, k: int) -> Tensor:
        if self._weight.is_common:
            return product_with_one(grad, self._weight.value[0])
        return product(grad, first(self._weight.value, k))


class _Embedding:
    def __init__(self, weight: Slot) -> None:
        self._weight = weight
        self._sites, self._rows = torch.empty(0), torch.empty(0)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        table = self._weight.value[: batch.k]
        sites = torch.arange(batch.k).repeat_interleave(x[0].numel())
        self._sites, self._rows = sites, x.reshape(-1)
        places = sites * table.shape[1] + self._rows
        found = table.reshape(-1, table.shape[-1]).index_select(0, places)
        return found.reshape(*x.shape, table.shape[-1])

    def backward(self, grad: Tensor, batch: Batch, _: bool) -> Tensor | None:
        gradients = grad.reshape(-1, grad.shape[-1])
        self._weight.add_rows(self._sites, self._rows, gradients, batch.k)
        return None


class _LayerNorm:
    def __init__(self, layer: Layer, weight: Slot | None, bias: Slot | None) -> None:
        self._shape, self._eps = list(layer.shape), layer.eps
        self._weight, self._bias = weight, bias
        self._saved: tuple[Tensor, ...] = ()

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        x = x.contiguous()
        y: Tensor
        y, mean, rstd = _aten.native_layer_norm(x, self._shape, None, None, self._eps)
        self._saved = x, y, mean, rstd
        if self._weight is not None:
            y = y * _over_records(self._weight.value[: batch.k], y)
        if self._bias is not None:
            y = y + _over_records(self._bias.value[: batch.k], y)
        return y

    def backward(self, grad: Tensor, batch: Batch, wants_input: bool) -> Tensor | None:
        x, y, mean, rstd = self._saved
        back = grad
        if self._weight is not None:
            back = grad * _over_records(self._weight.value[: batch.k], grad)
            self._weight.add(_summed_over_records(grad * y, self._weight.value))
        if self._bias is not None:
            self._bias.add(_summed_over_records(grad, self._bias.value))
        if not wants_input:
            return None
        wanted = [True, False, False]
        found: Tensor = _aten.native_layer_norm_backward(
            back.contiguous(), x, self._shape, mean, rstd, None, None, wanted
        )[0]
        return found


class _BatchNorm:
    """Over the records (k, n, c) of each site by itself."""

    def __init__(
        self,
        layer: Layer,
        weight: Slot | None,
        bias: Slot | None,
        statistics: tuple[Tensor, Tensor, Tensor] | None,
    ) -> None:
        self._eps, self._momentum = layer.eps, layer.momentum
        self._weight, self._bias, self._statistics = weight, bias, statistics
        self._normal, self._rstd = torch.empty(0), torch.empty(0)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        k, real = batch.k, batch.real
        n = batch.sizes.reshape(k, 1, 1)
        mean = (x if real is None else x * real.unsqueeze(2)).sum(1, keepdim=True) / n
        normal = x - mean
        if real is not None:
            normal.mul_(real.unsqueeze(2))
        variance = normal.square().sum(1, keepdim=True) / n  # var_mean takes ten times as long
        rstd = (variance + self._eps).rsqrt_()
        normal.mul_(rstd)
        self._normal, self._rstd = normal, rstd
        self._note(mean.squeeze(1), (variance * (n / (n - 1))).squeeze(1), k)
        if self._weight is not None:
            normal = normal * self._weight.value[:k].unsqueeze(1)
        if self._bias is not None:
            normal = normal + self._bias.value[:k].unsqueeze(1)
        return normal

    def _note(self, mean: Tensor, variance: Tensor, k: int) -> None:
        if self._statistics is None or self._momentum is None:
            return
        means, variances, counters = self._statistics
        means[:k].lerp_(mean, self._momentum)
        variances[:k].lerp_(variance, self._momentum)
        counters[:k].add_(1)

    def backward(self, grad: Tensor, batch: Batch, wants_input: bool) -> Tensor | None:
        normal, rstd, n = self._normal, self._rstd, batch.sizes.reshape(batch.k, 1, 1)
        total, along = grad.sum(1, keepdim=True), (grad * normal).sum(1, keepdim=True)
        scale = rstd
        if self._weight is not None:
            scale = rstd * self._weight.value[: batch.k].unsqueeze(1)
            self._weight.add(along.squeeze(1))
        if self._bias is not None:
            self._bias.add(total.squeeze(1))
        if not wants_input:
            return None
        back = torch.addcmul(grad, normal, along / n, value=-1).sub_(total / n).mul_(scale)
        return back if batch.real is None else back.mul_(batch.real.unsqueeze(2))


class _Dropout:
    def __init__(self, p: float, masks: Masks) -> None:
        self._kept, self._masks = 1 - p, masks
        self._mask = torch.empty(0)

    def forward(self, x: Tensor, _batch: Batch) -> Tensor:
        self._mask = self._masks.draw(x.shape, self._kept, x.dtype)
        return x * self._mask

    def backward(self, grad: Tensor, _batch: Batch, _wants_input: bool) -> Tensor | None:
        return grad * self._mask


class _Flatten:
    def __init__(self) -> None:
        self._shape = torch.Size()

    def forward(self, x: Tensor, _: Batch) -> Tensor:
        self._shape = x.shape
        return x.reshape(*x.shape[:2], -1)

    def backward(self, grad: Tensor, _batch: Batch, _wants_input: bool) -> Tensor | None:
        return grad.reshape(self._shape)


class _Activation:
    """Number by number. `back(grad, saved)` is the gradient of the input; what it needs is the
    output, or the input."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        back: Callable[[Tensor, Tensor], Tensor],
        needs_input: bool = False,
    ) -> None:
        self._function, self._back, self._needs_input = function, back, needs_input
        self._saved = torch.empty(0)

    def forward(self, x: Tensor, _: Batch) -> Tensor:
        y = self._function(x)
        self._saved = x if self._needs_input else y
        return y

    def backward(self, grad: Tensor, _: Batch, wants_input: bool) -> Tensor | None:
        return self._back(grad, self._saved) if wants_input else None


def _back_through_relu(grad: Tensor, y: Tensor) -> Tensor:
    """In place: what a layer's `backward` gives is nobody's but the layer's before it."""
    found: Tensor = _aten.threshold_backward.grad_input(grad, y, 0, grad_input=grad)
    return found


def _activation(layer: Layer, may_overwrite: bool) -> SideLayer | None:
    slope, way = layer.slope, "tanh" if layer.approximates_tanh else "none"
    match layer.kind:
        case Kind.RELU:
            relu = torch.relu_ if may_overwrite else torch.relu
            return _Activation(relu, _back_through_relu)
        case Kind.LEAKY_RELU:
            return _Activation(
                lambda x: functional.leaky_relu(x, slope),
                lambda grad, x: _aten.leaky_relu_backward(grad, x, slope, False),
                needs_input=True,
            )
        case Kind.ELU:
            return _Activation(
                lambda x: functional.elu(x, slope),
                lambda grad, x: _aten.elu_backward(grad, slope, 1, 1, False, x),
                needs_input=True,
            )
        case Kind.TANH:
            return _Activation(torch.tanh, _aten.tanh_backward)
        case Kind.SIGMOID:
            return _Activation(torch.sigmoid, _aten.sigmoid_backward)
        case Kind.SILU:
            return _Activation(functional.silu, _aten.silu_backward, needs_input=True)
        case Kind.GELU:
            return _Activation(
                lambda x: functional.gelu(x, approximate=way),
                lambda grad, x: _aten.gelu_backward(grad, x, approximate=way),
                needs_input=True,
            )
    return None


# Kinds that can stand side by side. Pictures cannot: convolutions of many sites in one call
# are slower than one after the other.
_NUMBER_BY_NUMBER = {
    Kind.RELU,
    Kind.LEAKY_RELU,
    Kind.ELU,
    Kind.TANH,
    Kind.SIGMOID,
    Kind.SILU,
    Kind.GELU,
}
_NORMS = {Kind.LAYER_NORM, Kind.BATCH_NORM}
_KINDS = {Kind.LINEAR, Kind.EMBEDDING, Kind.DROPOUT, Kind.FLATTEN} | _NORMS | _NUMBER_BY_NUMBER


def can_stand_side_by_side(chain: Sequence[Layer]) -> bool:
    """Whether every layer of a chain is one of these."""
    norms = [layer for layer in chain if layer.kind is Kind.BATCH_NORM]
    return (
        all(layer.kind in _KINDS for layer in chain)
        and all(layer.momentum is not None for layer in norms)
        # An embedding takes whole numbers, which only records are.
        and all(layer.kind is not Kind.EMBEDDING for layer in chain[1:])
    )


def side_layers(
    chain: Sequence[Layer],
    slots: Mapping[str, Slot],
    buffers: Mapping[str, Tensor],
    masks: Masks,
) -> list[SideLayer]:
    """The chain's layers for sites whose parameters and buffers are these, (sites, ...)."""
    # A linear layer does not need its own output any more.
    after_linear = [False, *(layer.kind is Kind.LINEAR for layer in chain)]
    return [
        _side_layer(layer, may_overwrite, slots, buffers, masks)
        for layer, may_overwrite in zip(chain, after_linear, strict=False)
    ]


def _side_layer(
    layer: Layer,
    may_overwrite: bool,
    slots: Mapping[str, Slot],
    buffers: Mapping[str, Tensor],
    masks: Masks,
) -> SideLayer:
    weight = slots[layer.weight] if layer.weight is not None else None
    bias = slots[layer.bias] if layer.bias is not None else None
    match layer.kind:
        case Kind.LINEAR if weight is not None:
            return _Linear(weight, bias)
        case Kind.EMBEDDING if weight is not None:
            return _Embedding(weight)
        case Kind.LAYER_NORM:
            return _LayerNorm(layer, weight, bias)
        case Kind.BATCH_NORM:
            names = layer.statistics
            kept = None if names is None else tuple(buffers[name] for name in names)
            return _BatchNorm(layer, weight, bias, kept)  # type: ignore[arg-type]  # three
        case Kind.DROPOUT:
            return _Dropout(layer.p, masks)
        case Kind.FLATTEN:
            return _Flatten()
    found = _activation(layer, may_overwrite)
    assert found is not None, layer.kind
    return found


def _over_records(values: Tensor, like: Tensor) -> Tensor:
    """(k, ...) so that it is the same for every record of (k, n, ..., ...)."""
    return values.reshape(len(values), *[1] * (like.ndim - values.ndim), *values.shape[1:])


def _summed_over_records(grad: Tensor, values: Tensor) -> Tensor:
    """(k, n, ..., ...) summed to (k, ...)."""
    return grad.reshape(len(grad), -1, *values.shape[1:]).sum(1)

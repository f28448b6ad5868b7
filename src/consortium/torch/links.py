"""Links of a chain: forward and backward of single layers by hand, without autograd.

A link keeps from its forward what its backward needs, so each is used for one batch at a
time. Its backward takes the gradient of its output, gives that of its input if somebody wants
it, and hands out those of its parameters once their old values have been used.

House rules: pictures (n, c, h, w) lie in memory channels last, both ways, because pooling is
then ten times as fast and convolutions lose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from consortium.torch.layers import Kind, Layer
from consortium.torch.masks import Masks, one_sites_masks
from consortium.torch.pointwise import pointwise_link

_aten: Any = torch.ops.aten  # torch does not type its table of operations


class Link(Protocol):
    """One layer at work."""

    def forward(self, x: Tensor) -> Tensor: ...

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        """The gradient of the input; where it is not wanted, any tensor."""
        ...


class Taker(Protocol):
    """What a parameter's gradients are handed to."""

    def by_product(self, left: Tensor, right: Tensor) -> None:
        """Take the gradient left @ right."""
        ...

    def by(self, gradient: Tensor) -> None: ...


def link_of(layer: Layer, tensors: Mapping[str, Tensor], steps: Mapping[str, Taker]) -> Link:
    """The link for a layer. `tensors` has its parameters and buffers by name, `steps` those
    parameters that are trained."""
    return pointwise_link(layer) or _LINKS[layer.kind](layer, tensors, steps)


def channels_last(x: Tensor) -> Tensor:
    """The same numbers; pictures with their channels last in memory."""
    if x.ndim != 4:
        return x
    n, c, h, w = x.shape
    if c == 1 and x.is_contiguous():  # torch takes both orders for the same, unless strides tell
        return x.as_strided((n, c, h, w), (h * w, 1, w, 1))
    return x.contiguous(memory_format=torch.channels_last)


# ---- layers with parameters ------------------------------------------------------------


class _Weighted:
    """What layers with weight and bias have in common: their values and their steps."""

    def __init__(
        self, layer: Layer, tensors: Mapping[str, Tensor], steps: Mapping[str, Taker]
    ) -> None:
        self.layer = layer
        self.weight = None if layer.weight is None else tensors[layer.weight]
        self.bias = None if layer.bias is None else tensors[layer.bias]
        self.weight_step = None if layer.weight is None else steps.get(layer.weight)
        self.bias_step = None if layer.bias is None else steps.get(layer.bias)
        self.x: Tensor  # the input of the batch at work

    def step(self, weight: Tensor | None, bias: Tensor | None) -> None:
        if self.weight_step is not None and weight is not None:
            self.weight_step.by(weight)
        if self.bias_step is not None and bias is not None:
            self.bias_step.by(bias)

    def wants(self, is_wanted: bool) -> list[bool]:
        """Which gradients to compute, in torch's order: input, weight, bias."""
        return [is_wanted, self.weight_step is not None, self.bias_step is not None]


class _Linear(_Weighted):
    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        self.x = x.reshape(-1, self.layer.size_in)
        if self.bias is None:
            y = torch.mm(self.x, self.weight.t())
        else:
            y = torch.addmm(self.bias, self.x, self.weight.t())
        return y if x.ndim == 2 else y.view(*x.shape[:-1], self.layer.size_out)

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        assert self.weight is not None
        flat = d.reshape(-1, self.layer.size_out)
        dx = torch.mm(flat, self.weight) if is_wanted else flat
        if self.weight_step is not None:
            self.weight_step.by_product(flat.t(), self.x)
        if self.bias_step is not None:
            self.bias_step.by(flat.sum(0))
        return dx.view(*d.shape[:-1], self.layer.size_in) if is_wanted else dx


class _Conv2d(_Weighted):
    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        self.x = x
        return torch.conv2d(x, self.weight, self.bias, self.layer.stride, self.layer.padding)

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        layer = self.layer
        dx, weight, bias = _aten.convolution_backward.default(
            d,
            self.x,
            self.weight,
            [layer.size_out],
            layer.stride,
            layer.padding,
            (1, 1),
            False,  # not transposed
            (0, 0),
            1,
            self.wants(is_wanted),
        )
        self.step(weight, bias)
        return dx if is_wanted else d


class _LayerNorm(_Weighted):
    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        y, self.mean, self.deviation = torch.native_layer_norm(
            x, layer.shape, self.weight, self.bias, layer.eps
        )
        self.x = x
        return channels_last(y)

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        dx, weight, bias = _aten.native_layer_norm_backward.default(
            d,
            self.x,
            self.layer.shape,
            self.mean,
            self.deviation,
            self.weight,
            self.bias,
            self.wants(is_wanted),
        )
        self.step(weight, bias)
        return channels_last(dx) if is_wanted else d


class _BatchNorm(_Weighted):
    def __init__(
        self, layer: Layer, tensors: Mapping[str, Tensor], steps: Mapping[str, Taker]
    ) -> None:
        super().__init__(layer, tensors, steps)
        self.running: tuple[Tensor, Tensor, Tensor] | tuple[None, None, None] = None, None, None
        if layer.statistics is not None:
            mean, variance, counter = (tensors[name] for name in layer.statistics)
            self.running = mean, variance, counter

    def forward(self, x: Tensor) -> Tensor:
        mean, variance, counter = self.running
        momentum = self.layer.momentum
        if counter is not None:
            counter.add_(1)
            momentum = 1.0 / float(counter) if momentum is None else momentum
        y, self.mean, self.deviation = _aten.native_batch_norm.default(
            x, self.weight, self.bias, mean, variance, True, momentum or 0.0, self.layer.eps
        )
        self.x = x
        return channels_last(y)

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        mean, variance, _ = self.running
        dx, weight, bias = _aten.native_batch_norm_backward.default(
            d,
            self.x,
            self.weight,
            mean,
            variance,
            self.mean,
            self.deviation,
            True,
            self.layer.eps,
            self.wants(is_wanted),
        )
        self.step(weight, bias)
        return channels_last(dx) if is_wanted else d


class _Embedding(_Weighted):
    """Words come in, so nobody can want the gradient of the input."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        self.x = x
        return torch.embedding(self.weight, x)

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:  # noqa: ARG002
        if self.weight_step is not None:
            size = self.layer.size_in
            self.weight_step.by(_aten.embedding_dense_backward.default(d, self.x, size, -1, False))
        return d


# ---- layers without parameters -----------------------------------------------------------


class _Bare:
    """What layers without parameters have in common."""

    def __init__(
        self,
        layer: Layer,
        tensors: Mapping[str, Tensor],  # noqa: ARG002  # as for the others, for one table
        steps: Mapping[str, Taker],  # noqa: ARG002
    ) -> None:
        self.layer = layer


class _MaxPool2d(_Bare):
    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        y, self.chosen = _aten.max_pool2d_with_indices.default(
            x, layer.kernel, layer.stride, layer.padding, (1, 1), layer.ceil_mode
        )
        self.x = x
        return y  # type: ignore[no-any-return]  # a tensor, which torch does not say

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        layer = self.layer
        if not is_wanted:
            return d
        return _aten.max_pool2d_with_indices_backward.default(  # type: ignore[no-any-return]
            d,
            self.x,
            layer.kernel,
            layer.stride,
            layer.padding,
            (1, 1),
            layer.ceil_mode,
            self.chosen,
        )


class _AvgPool2d(_Bare):
    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return _aten.avg_pool2d.default(x, *self._settings())  # type: ignore[no-any-return]

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        if not is_wanted:
            return d
        return _aten.avg_pool2d_backward.default(d, self.x, *self._settings(), None)  # type: ignore[no-any-return]

    def _settings(self) -> tuple[Any, ...]:
        layer = self.layer
        return layer.kernel, layer.stride, layer.padding, layer.ceil_mode, layer.count_include_pad


class _GlobalAvgPool2d(_Bare):
    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return x.mean((2, 3), keepdim=True)

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        if not is_wanted:
            return d
        shares = d / (self.x.shape[2] * self.x.shape[3])
        return torch.empty_like(self.x).copy_(shares)


class _Flatten(_Bare):
    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.reshape(x.shape[0], -1)

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        return channels_last(d.view(self.shape)) if is_wanted else d


class _Dropout(_Bare):
    masks: Masks | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.masks is None:
            self.masks = one_sites_masks()
        x = channels_last(x) if x.ndim == 4 else x.contiguous()
        flat = self.masks.draw((1, x.numel()), 1 - self.layer.p, x.dtype)
        self.mask = flat.as_strided(x.shape, x.stride())  # as x lies: no two have one place
        return x * self.mask

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        return d * self.mask if is_wanted else d


_LINKS: dict[Kind, Callable[..., Link]] = {
    Kind.LINEAR: _Linear,
    Kind.CONV2D: _Conv2d,
    Kind.LAYER_NORM: _LayerNorm,
    Kind.BATCH_NORM: _BatchNorm,
    Kind.EMBEDDING: _Embedding,
    Kind.MAX_POOL2D: _MaxPool2d,
    Kind.AVG_POOL2D: _AvgPool2d,
    Kind.GLOBAL_AVG_POOL2D: _GlobalAvgPool2d,
    Kind.FLATTEN: _Flatten,
    Kind.DROPOUT: _Dropout,
}

"""Functions of single numbers, such as relu, as links of a chain: forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from consortium.torch.layers import Kind, Layer

_aten: Any = torch.ops.aten  # torch does not type its table of operations
_Functions = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]]


def pointwise_link(layer: Layer) -> PointwiseLink | None:
    """The link for a layer of this kind; None for layers of other kinds."""
    functions = _FUNCTIONS.get(layer.kind)
    return None if functions is None else PointwiseLink(*functions(layer))


class PointwiseLink:
    """A function of single numbers: its value, and the gradient from input and output."""

    def __init__(
        self,
        value: Callable[[Tensor], Tensor],
        gradient: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> None:
        self.value = value
        self.gradient = gradient

    def forward(self, x: Tensor) -> Tensor:
        self.x, self.y = x, self.value(x)
        return self.y

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        return self.gradient(d, self.x, self.y) if is_wanted else d


def _relu(_: Layer) -> _Functions:
    return torch.relu, lambda d, _x, y: _aten.threshold_backward.default(d, y, 0)


def _leaky_relu(layer: Layer) -> _Functions:
    slope = layer.slope
    return (
        lambda x: _aten.leaky_relu.default(x, slope),
        lambda d, x, _: _aten.leaky_relu_backward.default(d, x, slope, False),
    )


def _elu(layer: Layer) -> _Functions:
    alpha = layer.slope
    return (
        lambda x: _aten.elu.default(x, alpha),
        lambda d, x, _: _aten.elu_backward.default(d, alpha, 1, 1, False, x),
    )


def _gelu(layer: Layer) -> _Functions:
    form = "tanh" if layer.approximates_tanh else "none"
    return (
        lambda x: _aten.gelu.default(x, approximate=form),
        lambda d, x, _: _aten.gelu_backward.default(d, x, approximate=form),
    )


def _silu(_: Layer) -> _Functions:
    return _aten.silu.default, lambda d, x, _y: _aten.silu_backward.default(d, x)


def _tanh(_: Layer) -> _Functions:
    return torch.tanh, lambda d, _x, y: _aten.tanh_backward.default(d, y)


def _sigmoid(_: Layer) -> _Functions:
    return torch.sigmoid, lambda d, _x, y: _aten.sigmoid_backward.default(d, y)


def _log_softmax(_: Layer) -> _Functions:
    return (
        lambda x: torch.log_softmax(x, 1),
        lambda d, x, y: _aten._log_softmax_backward_data.default(d, y, 1, x.dtype),
    )


_FUNCTIONS: dict[Kind, Callable[[Layer], _Functions]] = {
    Kind.RELU: _relu,
    Kind.LEAKY_RELU: _leaky_relu,
    Kind.ELU: _elu,
    Kind.GELU: _gelu,
    Kind.SILU: _silu,
    Kind.TANH: _tanh,
    Kind.SIGMOID: _sigmoid,
    Kind.LOG_SOFTMAX: _log_softmax,
}

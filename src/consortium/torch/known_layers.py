"""Which torch modules and calls, such as `F.relu(x)`, are layers that we compute by hand.

What differs from the usual form in a way that we do not compute (dilation, groups, a
subclass, sparse gradients) is no layer: the readers then return None, and the model is
trained by torch's own means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from consortium.torch.layers import Kind, Layer, Pair

_IDENTITY = Layer(Kind.IDENTITY)


def layer_of_module(module: nn.Module, name: str) -> Layer | None:
    """The layer that this module is, or None; its parameters are named from `name`."""
    read = _MODULES.get(type(module))  # not isinstance: a subclass may do something else
    return None if read is None else read(module, name)


def layer_of_call(
    function: Any, arguments: tuple[Any, ...], options: dict[str, Any]
) -> Layer | None:
    """The layer that a call is; `function` is the function, or a method's name, and the
    arguments come without the tensor that it is called on."""
    read = _CALLS.get(function)
    if read is None:
        return None
    try:
        return read(*arguments, **options)
    except TypeError:  # an argument that the reader does not know, or of another type
        return None


def is_known_module(module: nn.Module) -> bool:
    """Whether we compute such modules ourselves, rather than what they consist of."""
    return type(module) in _MODULES


# ---- calls: readers have the parameters of what they stand for, after the tensor -------


def _relu(inplace: bool = False) -> Layer:  # noqa: ARG001  # the result is the same
    return Layer(Kind.RELU)


def _leaky_relu(negative_slope: float = 0.01, inplace: bool = False) -> Layer:  # noqa: ARG001
    return Layer(Kind.LEAKY_RELU, slope=float(negative_slope))


def _elu(alpha: float = 1.0, inplace: bool = False) -> Layer:  # noqa: ARG001
    return Layer(Kind.ELU, slope=float(alpha))


def _tanh() -> Layer:
    return Layer(Kind.TANH)


def _sigmoid() -> Layer:
    return Layer(Kind.SIGMOID)


def _silu(inplace: bool = False) -> Layer:  # noqa: ARG001
    return Layer(Kind.SILU)


def _gelu(approximate: str = "none") -> Layer:
    return Layer(Kind.GELU, approximates_tanh=approximate == "tanh")


def _log_softmax(dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Layer | None:
    return Layer(Kind.LOG_SOFTMAX) if dim in (1, -1) and dtype is None else None


def _flatten(start_dim: int = 0, end_dim: int = -1) -> Layer | None:
    return Layer(Kind.FLATTEN) if (start_dim, end_dim) == (1, -1) else None


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> Layer | None:  # noqa: ARG001
    if not training or p == 0.0:  # torch then returns its input and draws nothing
        return _IDENTITY
    return Layer(Kind.DROPOUT, p=float(p)) if 0.0 < p < 1.0 else None


def _bare_dropout(p: float, train: bool) -> Layer | None:  # torch.dropout has no defaults
    return _dropout(p, train)


def _max_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Layer | None:
    if _pair(dilation) != (1, 1) or return_indices:
        return None
    kernel, stride = _pair(kernel_size), _pair(stride or kernel_size)
    return Layer(
        Kind.MAX_POOL2D, kernel=kernel, stride=stride, padding=_pair(padding), ceil_mode=ceil_mode
    )


def _avg_pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Layer | None:
    if divisor_override is not None:
        return None
    return Layer(
        Kind.AVG_POOL2D,
        kernel=_pair(kernel_size),
        stride=_pair(stride or kernel_size),
        padding=_pair(padding),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )


def _adaptive_avg_pool(output_size: Any) -> Layer | None:
    return Layer(Kind.GLOBAL_AVG_POOL2D) if _pair(output_size) == (1, 1) else None


def _pair(value: Any) -> Pair:
    """Sizes are one number for both directions, or two."""
    if isinstance(value, tuple | list):
        rows, columns = value if len(value) == 2 else (value[0], value[0])
        return operator.index(rows), operator.index(columns)
    return operator.index(value), operator.index(value)


_CALLS: dict[Any, Callable[..., Layer | None]] = {
    functional.relu: _relu,
    torch.relu: _relu,
    torch.relu_: _relu,
    "relu": _relu,
    "relu_": _relu,
    functional.leaky_relu: _leaky_relu,
    functional.elu: _elu,
    torch.tanh: _tanh,
    "tanh": _tanh,
    torch.sigmoid: _sigmoid,
    "sigmoid": _sigmoid,
    functional.silu: _silu,
    functional.gelu: _gelu,
    functional.log_softmax: _log_softmax,
    torch.log_softmax: _log_softmax,
    "log_softmax": _log_softmax,
    torch.flatten: _flatten,
    "flatten": _flatten,
    functional.dropout: _dropout,
    torch.dropout: _bare_dropout,
    functional.max_pool2d: _max_pool,
    functional.avg_pool2d: _avg_pool,
    functional.adaptive_avg_pool2d: _adaptive_avg_pool,
}


# ---- modules -----------------------------------------------------------------------


def _named(module: nn.Module, name: str, part: str) -> str | None:
    """The full name of a module's weight or bias, if it has one."""
    return None if getattr(module, part, None) is None else f"{name}.{part}".lstrip(".")


def _linear(module: nn.Linear, name: str) -> Layer:
    return Layer(
        Kind.LINEAR,
        weight=_named(module, name, "weight"),
        bias=_named(module, name, "bias"),
        size_in=module.in_features,
        size_out=module.out_features,
    )


def _conv2d(module: nn.Conv2d, name: str) -> Layer | None:
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), module.padding
    if module.groups != 1 or _pair(module.dilation) != (1, 1) or module.padding_mode != "zeros":
        return None
    if isinstance(padding, str):
        if padding == "same" and any(size % 2 == 0 for size in kernel):
            return None  # torch then pads one side more than the other
        padding = (kernel[0] // 2, kernel[1] // 2) if padding == "same" else (0, 0)
    return Layer(
        Kind.CONV2D,
        weight=_named(module, name, "weight"),
        bias=_named(module, name, "bias"),
        size_in=module.in_channels,
        size_out=module.out_channels,
        kernel=kernel,
        stride=stride,
        padding=_pair(padding),
    )


def _layer_norm(module: nn.LayerNorm, name: str) -> Layer:
    return Layer(
        Kind.LAYER_NORM,
        weight=_named(module, name, "weight"),
        bias=_named(module, name, "bias"),
        eps=module.eps,
        shape=tuple(int(size) for size in module.normalized_shape),
    )


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, name: str) -> Layer:
    statistics = None
    if module.track_running_stats and module.running_mean is not None:
        mean, variance, counter = (
            f"{name}.{buffer}".lstrip(".")
            for buffer in ("running_mean", "running_var", "num_batches_tracked")
        )
        statistics = mean, variance, counter
    return Layer(
        Kind.BATCH_NORM,
        weight=_named(module, name, "weight"),
        bias=_named(module, name, "bias"),
        statistics=statistics,
        size_in=module.num_features,
        size_out=module.num_features,
        eps=module.eps,
        momentum=module.momentum,
    )


def _embedding(module: nn.Embedding, name: str) -> Layer | None:
    is_plain = module.padding_idx is None and module.max_norm is None
    if not is_plain or module.scale_grad_by_freq or module.sparse:
        return None
    return Layer(
        Kind.EMBEDDING,
        weight=_named(module, name, "weight"),
        bias=_named(module, name, "bias"),
        size_in=module.num_embeddings,
        size_out=module.embedding_dim,
    )


_MODULES: dict[type[nn.Module], Callable[[Any, str], Layer | None]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.LayerNorm: _layer_norm,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Embedding: _embedding,
    nn.Identity: lambda _module, _name: _IDENTITY,
    nn.Flatten: lambda module, _: _flatten(module.start_dim, module.end_dim),
    nn.Dropout: lambda module, _: _dropout(module.p),
    nn.ReLU: lambda _module, _name: _relu(),
    nn.LeakyReLU: lambda module, _: _leaky_relu(module.negative_slope),
    nn.ELU: lambda module, _: _elu(module.alpha),
    nn.Tanh: lambda _module, _name: _tanh(),
    nn.Sigmoid: lambda _module, _name: _sigmoid(),
    nn.SiLU: lambda _module, _name: _silu(),
    nn.GELU: lambda module, _: _gelu(module.approximate),
    nn.LogSoftmax: lambda module, _: _log_softmax(module.dim),
    nn.MaxPool2d: lambda module, _: _max_pool(
        module.kernel_size,
        module.stride,
        module.padding,
        module.dilation,
        module.ceil_mode,
        module.return_indices,
    ),
    nn.AvgPool2d: lambda module, _: _avg_pool(
        module.kernel_size,
        module.stride,
        module.padding,
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    ),
    nn.AdaptiveAvgPool2d: lambda module, _: _adaptive_avg_pool(module.output_size),
}

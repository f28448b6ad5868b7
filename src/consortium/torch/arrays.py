"""Between the tensors of a model and NumPy arrays, by name.

A parameter that is used in several places has one name here, the first. Arrays are always
copies, and tensors are always written in place, so that optimisers, tied weights and views
keep hold of what they had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from consortium.errors import LayoutError
from consortium.tensors import CODES, Tensors

Arrays = dict[str, npt.NDArray[Any]]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name. Look them up anew each time: a module may put another
    tensor in a buffer's place."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def array_of(name: str, tensor: Tensor) -> npt.NDArray[Any]:
    """A copy of a tensor; refuses types that a tensor file cannot hold, such as bfloat16."""
    try:
        array = tensor.detach().cpu().numpy().copy()
    except TypeError:
        array = None
    if array is None or array.dtype not in CODES:
        raise LayoutError(
            f"tensor `{name}` has type {tensor.dtype}, which cannot be stored",
            hint="use float32 for weights and int64 for counters",
        )
    return array


def read_arrays(model: nn.Module, names: Iterable[str]) -> Arrays:
    """Copies of the tensors of these names."""
    tensors = tensors_of(model)
    return {name: array_of(name, tensors[name]) for name in names}


def write_arrays(model: nn.Module, arrays: Tensors) -> None:
    """Set tensors in place. Names and shapes must fit: see `misfit`."""
    tensors = tensors_of(model)
    with torch.no_grad():
        for name, array in arrays.items():
            can_be_read = array.flags.writeable  # else torch warns
            tensors[name].copy_(torch.from_numpy(array if can_be_read else array.copy()))


def misfit(model: nn.Module, names: Iterable[str], arrays: Mapping[str, Any]) -> str:
    """The first difference between what the model wants under these names and what is
    there, in words; empty if there is none."""
    tensors, wanted = tensors_of(model), set(names)
    for name in sorted(wanted | set(arrays)):
        if name not in arrays:
            return f"`{name}` is missing"
        if name not in wanted:
            return f"`{name}` is not in the model"
        mine, other = list(tensors[name].shape), list(np.shape(arrays[name]))
        if mine != other:
            return f"`{name}` is {other}, the model here has {mine}"
    return ""


def float_type(model: nn.Module) -> torch.dtype:
    """The type that the model computes in: that of its first floating-point parameter."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return torch.get_default_dtype()

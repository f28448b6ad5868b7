"""All numbers that are trained, in one row, and the gradient that they get.

Differential privacy looks at a gradient as one vector: one norm, one clip, one draw of noise. So
what private training moves lies in one row of memory, shared parameters first, and the tensors
that layers compute with are views of it. An optimiser that treats every number alike takes one
step for the whole row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consortium.errors import TaskResultError


@dataclass(frozen=True, slots=True)
class Space:
    """The trained numbers (d,) and their gradient (d,), whole and by name."""

    values: nn.Parameter
    gradient: Tensor
    tensors: dict[str, Tensor]  # views of `values`
    gradients: dict[str, Tensor]  # views of `gradient`
    shared: int  # how many numbers at the beginning of the row are shared
    is_like_pictures: bool  # kernels lie channels last

    def row(self, arrays: Mapping[str, Any], names: Iterable[str]) -> Tensor:
        """What the strategy says of shared parameters, in this space's order."""
        into = torch.zeros_like(self.gradient)
        views = _views(into, self.tensors, self.is_like_pictures)
        for name in names:
            if name in views:
                views[name].copy_(torch.from_numpy(np.array(arrays[name])))
        return into[: self.shared]

    def parameters(self) -> list[nn.Parameter]:
        """Each tensor as a parameter of its own, over the same memory, with its gradient: for
        optimisers that do not treat every number alike."""
        found = []
        for name, tensor in self.tensors.items():
            parameter = nn.Parameter(tensor)
            parameter.grad = self.gradients[name]
            found.append(parameter)
        return found

    def bring_back(self, trained: Mapping[str, Tensor]) -> None:
        """Write what was learnt into the model's own parameters."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                trained[name].copy_(tensor)


def space_of(
    trained: Mapping[str, Tensor], shared: Iterable[str], *, is_like_pictures: bool
) -> Space:
    """A copy of the trained parameters, on which training works."""
    first = [name for name in shared if name in trained]
    names = first + [name for name in trained if name not in set(first)]
    ordered = {name: trained[name].detach() for name in names}
    kinds = {tensor.dtype for tensor in ordered.values()}
    if kinds not in ({torch.float32}, {torch.float64}):  # shorter ones round too much to clip
        raise TaskResultError(
            "private training needs parameters of one type, float32 or float64",
            hint="bring the model to one: model.float()",
        )
    count = sum(tensor.numel() for tensor in ordered.values())
    values = nn.Parameter(torch.empty(count, dtype=kinds.pop()))
    gradient = torch.zeros_like(values, requires_grad=False)
    values.grad = gradient
    tensors = _views(values.detach(), ordered, is_like_pictures)
    for name, tensor in ordered.items():
        tensors[name].copy_(tensor)
    gradients = _views(gradient, ordered, is_like_pictures)
    numbers = sum(ordered[name].numel() for name in first)
    return Space(values, gradient, tensors, gradients, numbers, is_like_pictures)


def _views(row: Tensor, like: Mapping[str, Tensor], is_like_pictures: bool) -> dict[str, Tensor]:
    """The row cut into tensors of these shapes."""
    views, at = {}, 0
    for name, tensor in like.items():
        part = row[at : at + tensor.numel()]
        at += tensor.numel()
        if is_like_pictures and tensor.ndim == 4:
            o, i, h, w = tensor.shape
            views[name] = part.view(o, h, w, i).permute(0, 3, 1, 2)
        else:
            views[name] = part.view(tensor.shape)
    return views

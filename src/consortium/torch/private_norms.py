"""How long the gradient of each record is in one layer, mostly without writing it down.

The gradient of a record in a linear layer is the product of its output gradient d and its input
x, so its squared norm is |d|² |x|² (Goodfellow 2015). Once the factors that clip are known, one
product with scaled output gradients is the sum of all clipped gradients. Where a record's
gradient has a few numbers only, it is written down. Records with several places in a layer are
in `private_places`.

House rule: squares are summed in float64, in which the square of no float32 overflows or
vanishes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from consortium.torch.chain import Shape
from consortium.torch.layers import Kind, Layer
from consortium.torch.private_places import Places
from consortium.torch.private_rows import row_squares, without

_aten: Any = torch.ops.aten  # torch does not type its table of operations


class Part(Protocol):
    """The parameters of one layer. For a batch: `keep` on the way forward, then `squares` on the
    way back, then `add`; before it `leave_out` if need be."""

    @property
    def written_numbers(self) -> int:
        """What it writes down for a record, in numbers: for the most records at once."""
        ...

    def keep(self, x: Tensor) -> None:
        """The layer's input (n, ...)."""
        ...

    def squares(self, d: Tensor) -> Tensor:
        """Squared norms (n,) of the records' gradients, in float64, from the gradient of the
        layer's output, which from now on belongs to this part."""
        ...

    def leave_out(self, is_bad: Tensor) -> None:
        """Forget these records (n,): a factor of zero times infinity is no number."""
        ...

    def add(self, factors: Tensor) -> None:
        """Add the records' gradients, each times its factor (n,), to those of the parameters."""
        ...


def part_of(layer: Layer, before: Shape, gradients: Mapping[str, Tensor]) -> Part | None:
    """The part for a layer that takes records of this shape, if any of its parameters is among
    those whose gradients are wanted."""
    weight = None if layer.weight is None else gradients.get(layer.weight)
    bias = None if layer.bias is None else gradients.get(layer.bias)
    if weight is None and bias is None:
        return None
    return _PARTS[layer.kind](layer, before, weight, bias)


def can_clip(layer: Layer) -> bool:
    """Whether such a layer takes each record by itself, and its parameters, if it has any, have a
    part."""
    if layer.kind is Kind.BATCH_NORM:
        return False
    return layer.kind in _PARTS or (layer.weight is None and layer.bias is None)


# ---- products ----------------------------------------------------------------------------


class _Linear:
    """A linear layer whose records have one place: x is (n, i), d is (n, o)."""

    written_numbers = 0

    def __init__(self, weight: Tensor | None, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.x: Tensor
        self.d: Tensor

    def keep(self, x: Tensor) -> None:
        self.x = x

    def squares(self, d: Tensor) -> Tensor:
        self.d = d
        found = row_squares(d)
        if self.weight is None:
            return found
        inputs = row_squares(self.x)
        return found.mul_(inputs if self.bias is None else inputs.add_(1.0))

    def leave_out(self, is_bad: Tensor) -> None:
        self.x, self.d = without(self.x, is_bad), without(self.d, is_bad)

    def add(self, factors: Tensor) -> None:
        scaled = self.d.mul_(factors.unsqueeze(1))  # new memory would cost more than the product
        if self.weight is not None:
            self.weight.addmm_(scaled.t(), self.x)
        if self.bias is not None:
            self.bias.add_(scaled.sum(0))


def _linear(layer: Layer, before: Shape, weight: Tensor | None, bias: Tensor | None) -> Part:
    if len(before) == 1:
        return _Linear(weight, bias)
    places = torch.Size(before[:-1]).numel()

    def split(numbers: Tensor) -> Tensor:
        return numbers.reshape(len(numbers), places, numbers.shape[-1])

    return Places(weight, bias, (split, split), (places, layer.size_in, layer.size_out))


def _conv2d(layer: Layer, before: Shape, weight: Tensor | None, bias: Tensor | None) -> Part:
    kernel, padding, stride = layer.kernel, layer.padding, layer.stride
    rows, columns = (
        (before[at + 1] + 2 * padding[at] - kernel[at]) // stride[at] + 1 for at in (0, 1)
    )

    def inputs(x: Tensor) -> Tensor:
        return functional.unfold(x, kernel, 1, padding, stride).transpose(1, 2)

    def outputs(d: Tensor) -> Tensor:
        return d.permute(0, 2, 3, 1).reshape(len(d), rows * columns, layer.size_out)

    sizes = rows * columns, layer.size_in * kernel[0] * kernel[1], layer.size_out
    return Places(weight, bias, (inputs, outputs), sizes)


# ---- other layers ------------------------------------------------------------------------


class _LayerNorm:
    """A record's gradient has a few numbers: it is written down."""

    def __init__(self, layer: Layer, weight: Tensor | None, bias: Tensor | None) -> None:
        self.layer, self.weight, self.bias = layer, weight, bias
        self.written_numbers = 2 * torch.Size(layer.shape).numel()
        self.x: Tensor
        self.written: list[tuple[Tensor, Tensor]]  # the sum's place, and records' shares of it

    def keep(self, x: Tensor) -> None:
        self.x = x

    def squares(self, d: Tensor) -> Tensor:
        self.written = []
        if self.bias is not None:
            self.written.append((self.bias, self._over_places(d)))
        if self.weight is not None:
            normal = functional.layer_norm(self.x, self.layer.shape, eps=self.layer.eps)
            self.written.append((self.weight, self._over_places(normal * d)))
        return torch.stack([row_squares(rows) for _, rows in self.written]).sum(0)

    def leave_out(self, is_bad: Tensor) -> None:
        self.written = [(into, without(rows, is_bad)) for into, rows in self.written]

    def add(self, factors: Tensor) -> None:
        for into, rows in self.written:
            into.add_((factors @ rows).view(into.shape))

    def _over_places(self, numbers: Tensor) -> Tensor:
        """(n, features)"""
        features = torch.Size(self.layer.shape).numel()
        return numbers.reshape(len(numbers), -1, features).sum(1)


class _Embedding:
    """A record's gradient has a row for each word in it: the sum over that word's places."""

    def __init__(self, layer: Layer, before: Shape, weight: Tensor) -> None:
        self.layer, self.weight = layer, weight
        self.written_numbers = 4 * torch.Size(before).numel() * layer.size_out
        self.x: Tensor
        self.d: Tensor

    def keep(self, x: Tensor) -> None:
        self.x = x

    def squares(self, d: Tensor) -> Tensor:
        self.d = d
        return table_squares(self.x, d, self.layer)

    def leave_out(self, is_bad: Tensor) -> None:
        self.d = without(self.d, is_bad)

    def add(self, factors: Tensor) -> None:
        scaled = self.d * factors.view(-1, *[1] * (self.d.ndim - 1))
        size = self.layer.size_in
        self.weight.add_(_aten.embedding_dense_backward.default(scaled, self.x, size, -1, False))


def table_squares(words: Tensor, d: Tensor, layer: Layer) -> Tensor:
    """Squared norms (n,) of what records (n, ...) of words do to an embedding's table."""
    if words.ndim == 1:
        return row_squares(d)
    n, words = len(d), words.reshape(len(d), -1).long()
    marked = words + layer.size_in * torch.arange(n).unsqueeze(1)  # its record's own
    found, place = torch.unique(marked, return_inverse=True)
    rows = torch.zeros(len(found), layer.size_out, dtype=torch.float64)
    rows.index_add_(0, place.flatten(), d.reshape(-1, layer.size_out).double())
    records = torch.div(found, layer.size_in, rounding_mode="floor")
    return torch.zeros(n, dtype=torch.float64).index_add_(0, records, row_squares(rows))


def _layer_norm(layer: Layer, _: Shape, weight: Tensor | None, bias: Tensor | None) -> Part:
    return _LayerNorm(layer, weight, bias)


def _embedding(layer: Layer, before: Shape, weight: Tensor | None, _: Tensor | None) -> Part:
    assert weight is not None  # it has no other parameter
    return _Embedding(layer, before, weight)


_PARTS: dict[Kind, Callable[[Layer, Shape, Tensor | None, Tensor | None], Part]] = {
    Kind.LINEAR: _linear,
    Kind.CONV2D: _conv2d,
    Kind.LAYER_NORM: _layer_norm,
    Kind.EMBEDDING: _embedding,
}

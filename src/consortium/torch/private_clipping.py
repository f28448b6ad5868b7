"""The sum of clipped gradients of a model that is a chain of layers, without autograd.

One pass forward and one back, as in `consortium.torch.fused`; on the way back every layer tells
how long each record's gradient is in it (`private_norms`). All parameters together are one vector
with one norm. Then each layer adds its share, with every record scaled down to the clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from consortium.torch.chain import Shape, shapes_through
from consortium.torch.fused import reordered
from consortium.torch.layers import Layer
from consortium.torch.links import Link, channels_last, link_of
from consortium.torch.private_losses import OutputGradient
from consortium.torch.private_norms import Part, part_of

AT_ONCE_BYTES = 64 << 20  # what the records of one pass may take
_VANISHING = 1e-30  # a factor that float32 does not hold exactly enough


class ClippedSum(Protocol):
    """Adds clipped gradients to those of a `Space`."""

    @property
    def at_once(self) -> int:
        """Most records for one call."""
        ...

    def add(self, inputs: Tensor, targets: Tensor) -> int:
        """Add each record's gradient, clipped; how many were left out because theirs is not
        finite."""
        ...

    def finish(self) -> None:
        """After the last step. Refuses a model that has kept something of its records."""
        ...


def clip_factors(norms: Tensor, clip: float, dtype: torch.dtype) -> Tensor:
    """What brings gradients of these norms (n,), in float64 and finite, to at most `clip`:
    C / max(norm, C). A little less than that, so that no rounding exceeds the clip; and zero where
    the factor itself would be rounded too much."""
    factors = clip * (1.0 - torch.finfo(dtype).eps) / norms.clamp(min=clip)
    return torch.where(factors < _VANISHING, 0.0, factors).to(dtype)


@dataclass(frozen=True, slots=True)
class _Place:
    """A layer at work, and what of it is trained."""

    link: Link
    part: Part | None
    is_wanted: bool  # the gradient of its input


class ClippedChain:
    """A chain of layers. `tensors` has all of its parameters, `gradients` the places of those
    that are trained."""

    def __init__(
        self,
        chain: tuple[Layer, ...],
        shape: Shape,
        tensors: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        loss: OutputGradient,
        clip: float,
    ) -> None:
        chain = reordered(chain)
        shapes = (shape, *(shapes_through(chain, shape) or ()))
        parts = [part_of(layer, shapes[at], gradients) for at, layer in enumerate(chain)]
        first = min(at for at, part in enumerate(parts) if part is not None)
        self._places = [
            _Place(link_of(layer, tensors, {}), part, at > first)
            for at, (layer, part) in enumerate(zip(chain, parts, strict=True))
        ]
        self._way_back = self._places[first:][::-1]
        self._dtype = next(iter(gradients.values())).dtype
        self._loss, self._clip = loss, clip
        numbers = 2 * sum(torch.Size(one).numel() for one in shapes)
        numbers += sum(part.written_numbers for part in parts if part is not None)
        self.at_once = max(1, AT_ONCE_BYTES // (self._dtype.itemsize * numbers))

    def add(self, inputs: Tensor, targets: Tensor) -> int:
        norms = self._norms(inputs, targets)
        parts = [place.part for place in self._way_back if place.part is not None]
        is_bad = ~torch.isfinite(norms)
        rejected = int(is_bad.sum())
        if rejected:
            norms[is_bad] = 0.0
            for part in parts:
                part.leave_out(is_bad)
        factors = clip_factors(norms, self._clip, self._dtype)
        for part in parts:
            part.add(factors)
        return rejected

    def finish(self) -> None:
        """Layers of a chain keep nothing."""

    def _norms(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The norms (n,) of the records' whole gradients."""
        x = channels_last(inputs.to(self._dtype) if inputs.is_floating_point() else inputs)
        for place in self._places:
            if place.part is not None:
                place.part.keep(x)
            x = place.link.forward(x)
        # A copy: a loss of the user's own may give one number for all, or its targets.
        d = self._loss(x, targets).clone(memory_format=torch.contiguous_format)
        squares = torch.zeros(len(x), dtype=torch.float64)
        for place in self._way_back:
            if place.part is not None:
                squares += place.part.squares(d)
            d = place.link.backward(d, place.is_wanted)
        return squares.sqrt_()

"""Dropout with the very masks that torch's own draws from a seed.

The faster engines draw other ones. With these in their place, all the rest can be compared with
the plain loop number by number.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from consortium.torch import links, side_layers
from consortium.torch.layers import Kind
from consortium.torch.links import _Bare, channels_last
from consortium.torch.masks import Masks
from consortium.torch.side_layers import Batch

_generators: dict[Masks, list[torch.Generator]] = {}


class SideDropout:
    """Of many sites: each has a generator of its own, which all its layers draw from."""

    def __init__(self, p: float, masks: Masks) -> None:
        self._kept, self._masks = 1 - p, masks
        if masks not in _generators:
            _generators[masks] = [torch.Generator().manual_seed(seed) for seed in masks.seeds]

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        self._mask = torch.zeros(x.shape, dtype=x.dtype)
        for site, count in enumerate(batch.counts):
            generator = _generators[self._masks][site]
            self._mask[site, :count].bernoulli_(self._kept, generator=generator)
        return x * self._mask.div_(self._kept)

    def backward(self, grad: Tensor, _batch: Batch, _wants_input: bool) -> Tensor | None:
        return grad * self._mask


class LinkDropout(_Bare):
    """Of one site, by torch's own generator; in the order of pictures that lie channels first."""

    def forward(self, x: Tensor) -> Tensor:
        kept = 1 - self.layer.p
        self.mask = channels_last(torch.empty(x.shape, dtype=x.dtype).bernoulli_(kept).div_(kept))
        return x * self.mask

    def backward(self, d: Tensor, is_wanted: bool) -> Tensor:
        return d * self.mask if is_wanted else d


def draw_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_layers, "_Dropout", SideDropout)
    monkeypatch.setitem(links._LINKS, Kind.DROPOUT, LinkDropout)
    _generators.clear()

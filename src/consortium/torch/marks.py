"""What of a model leaves the site, and what stays.

Parameters are shared unless a layer says otherwise: `private` ones are trained and stay,
`frozen` ones are not trained and stay (they must be the same at every site, which a digest
pins). Buffers never leave: running statistics describe the site's records, and counters
cannot be averaged. Where marks are nested, the innermost one holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from consortium.errors import ImpossiblePlanError, LayoutError, TaskResultError
from consortium.plan.values import PersonalSection

Layer = TypeVar("Layer", bound=nn.Module)
Fate = Literal["shared", "private", "frozen"]
_MARK = "_consortium_mark"  # an attribute, so that copies of a model keep their marks


def private(layer: Layer) -> Layer:
    """Mark a layer that is trained at the site and never leaves it, with all below it."""
    return _marked(layer, "private")


def frozen(layer: Layer) -> Layer:
    """Mark a layer that is neither trained nor sent, with all below it.

    Its values must be the same at every site: load them from a file, or draw them from a
    generator with a fixed seed.
    """
    return _marked(layer, "frozen")


def _marked(layer: Layer, mark: Fate) -> Layer:
    if not isinstance(layer, nn.Module):
        raise TaskResultError(
            f"only a layer can be {mark}, not a {type(layer).__name__}",
            hint="put it into an nn.Module and mark that",
        )
    setattr(layer, _MARK, mark)
    return layer


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's tensors by what happens to them: names in order, each tensor once."""

    shared: tuple[str, ...]  # parameters
    private: tuple[str, ...]  # parameters
    buffers: tuple[str, ...]  # of shared and private layers; they stay as well
    frozen: tuple[str, ...]  # parameters and buffers
    frozen_layers: tuple[str, ...]

    @property
    def count(self) -> int:
        """Tensors in all."""
        return len(self.shared) + len(self.private) + len(self.buffers) + len(self.frozen)

    @property
    def staying(self) -> tuple[str, ...]:
        """What a site keeps from one round to the next."""
        return tuple(sorted(self.private + self.buffers))


def sort_tensors(model: nn.Module, personal: PersonalSection) -> Parts:
    """Which tensors leave and which stay, by the task's marks and the plan's [personal].

    Refuses a layer that does not exist, a personalisation with nothing to keep, and a model
    of which nothing would be shared.
    """
    marks = _marks(model, personal)
    fates = _fates(model, marks)
    by_fate: dict[Fate, list[str]] = {"shared": [], "private": [], "frozen": []}
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise TaskResultError(
                f"`{name}` has no shape yet", hint="run one batch through the model first"
            )
        by_fate[fates[_place(parameter)]].append(name)
    _check(by_fate, personal)
    kept = set(model.state_dict())  # without buffers that the user does not want stored
    buffers = [name for name, _ in model.named_buffers() if name in kept]
    frozen_buffers = [name for name in buffers if _nearest(name, marks) == "frozen"]
    layers = (name for name, _ in model.named_modules())
    return Parts(
        shared=tuple(sorted(by_fate["shared"])),
        private=tuple(sorted(by_fate["private"])),
        buffers=tuple(sorted(set(buffers) - set(frozen_buffers))),
        frozen=tuple(sorted(by_fate["frozen"] + frozen_buffers)),
        frozen_layers=tuple(name for name in layers if _nearest(name, marks) == "frozen"),
    )


def batch_norms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Layers that normalise over a batch and keep running statistics."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield name, module


def _marks(model: nn.Module, personal: PersonalSection) -> dict[str, Fate]:
    """Marks by the name of the layer (or tensor) that they stand at."""
    marks: dict[str, Fate] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if hasattr(module, _MARK):
            marks[name] = getattr(module, _MARK)
    if personal.name == "fedbn":  # Li et al. 2021: normalisation over the batch, and no other
        for name, _ in batch_norms(model):
            if _nearest(name, marks) != "frozen":
                marks[name] = "private"
    names = {name for name, _ in model.named_modules(remove_duplicate=False) if name}
    names |= {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for layer in personal.layers:
        if layer not in names:
            layers = [name for name, _ in model.named_children()]
            there = ", ".join(layers or [name for name, _ in model.named_parameters()])
            raise ImpossiblePlanError(
                f"[personal] names the layer `{layer}`, which the model does not have",
                hint=f"its layers are: {there or 'none'}",
            )
        marks[layer] = "private"
    return marks


def _nearest(name: str, marks: dict[str, Fate]) -> Fate:
    """The mark at this name or at the closest layer above it."""
    while name:
        if name in marks:
            return marks[name]
        name = name.rpartition(".")[0]
    return marks.get("", "shared")


def _fates(model: nn.Module, marks: dict[str, Fate]) -> dict[int, Fate]:
    """What happens to each piece of memory. Weights that are tied have several names, or
    several parameters over the same memory: if one of them stays, all of them do."""
    order: tuple[Fate, ...] = ("shared", "frozen", "private")
    fates: dict[int, Fate] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        place, fate = _place(parameter), _nearest(name, marks)
        fates[place] = max(fates.get(place, "shared"), fate, key=order.index)
    return fates


def _place(tensor: Tensor) -> int:
    """Where a tensor's numbers lie; tensors without numbers lie nowhere, so take the object."""
    if is_lazy(tensor):
        return id(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _check(by_fate: dict[Fate, list[str]], personal: PersonalSection) -> None:
    if personal.name in ("fedper", "fedrep", "fedbn") and not by_fate["private"]:
        hint = 'name layers in [personal] layers = ["head"], or mark one with private(...)'
        raise ImpossiblePlanError(
            f'[personal] name = "{personal.name}" keeps private layers, and the model has none',
            hint=f"it has no BatchNorm layer; {hint}" if personal.name == "fedbn" else hint,
        )
    if not by_fate["shared"]:
        raise LayoutError(
            "the model shares no tensor at all", hint="leave some layer neither private nor frozen"
        )

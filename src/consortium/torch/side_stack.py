"""What the sites of a group compute with: every parameter of all of them in one tensor.

Sites of a group have the same layers. The first layer may take another number of features at
every site, if it stays there: narrower ones get columns of zeros, whose weights stay zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from consortium.tasks import Site
from consortium.torch.batches import TensorRecords
from consortium.torch.marks import Parts
from consortium.torch.side_descent import Slot
from consortium.torch.side_layers import Batch
from consortium.torch.steps import EffectiveSteps
from consortium.torch.training import Phase

Arrays = dict[str, npt.NDArray[Any]]


class Pass(Protocol):
    """Forward and backward of a group."""

    def hand_out_gradients(
        self, inputs: Tensor, targets: Tensor, batch: Batch, names: frozenset[str]
    ) -> None:
        """Give the slots of these names the gradients of each site's mean loss."""
        ...


class Way(Protocol):
    """How gradients of many sites are found at once. Equal ones compute the same function."""

    @property
    def parameters(self) -> tuple[str, ...]: ...

    @property
    def open_weight(self) -> str | None:
        """The parameter that may be narrower at some sites, as their records are."""
        ...

    @property
    def looks_across_records(self) -> bool: ...

    @property
    def starts_in_common(self) -> bool:
        """Whether it can take slots whose value is there once for all sites."""
        ...

    def begin(
        self, slots: Mapping[str, Slot], buffers: Mapping[str, Tensor], seeds: Sequence[int]
    ) -> Pass: ...


@dataclass(frozen=True, slots=True)
class Member:
    """One site of a group."""

    site: Site
    seed: int  # of what its layers draw
    records: TensorRecords
    inputs: Tensor  # of these records, as the group takes them: see `padded`
    staying: dict[str, Tensor]  # what it keeps, and what is frozen, as it is now
    count: int  # of the records

    def drawn_order(self) -> npt.NDArray[np.int64]:
        """All records, in the order of the next epoch."""
        return self.site.rng.permutation(self.count)


@dataclass(frozen=True, slots=True)
class GroupForm:
    """What the sites of a group have in common."""

    way: Way
    parts: Parts
    fixed: frozenset[str]  # parameters that the user has switched off
    dtype: torch.dtype
    shapes: dict[str, tuple[int, ...]] = field(hash=False)  # of the shared tensors
    records: tuple[object, ...]  # the form of one of them
    width: int  # of the records, rounded up where the first layer's is left open
    batch: int  # records of a full step, rounded up where a site has less than that
    joined: tuple[int, int] | None  # how many steps, and records of the last, if it is larger

    def learns_in(self, phases: Sequence[Phase]) -> bool:
        """Whether there is something to train in each of these phases."""
        return all(not self.fixed.issuperset(phase.names) for phase in phases)


class Stack:
    """The parameters, buffers and records of some members, in their order. `shared` is what they
    all start from."""

    def __init__(
        self, form: GroupForm, members: Sequence[Member], shared: dict[str, Tensor]
    ) -> None:
        self.form, self.members, self._shared = form, members, shared
        self.slots = {name: self._slot(name) for name in form.way.parameters}
        self.buffers = {name: self._stacked(name) for name in form.parts.buffers}
        self.inputs = torch.cat([member.inputs for member in members])
        self.targets = torch.cat([member.records.targets for member in members])
        counts = (member.count for member in members)
        self.starts = list(accumulate(counts, initial=0))[:-1]  # of each member's records

    def kept(self) -> list[Arrays]:
        """What each member keeps. The arrays are the group's own, which nobody else has."""
        found: list[Arrays] = [{} for _ in self.members]
        for name in self.form.parts.staying:
            tensor = self.slots[name].value if name in self.slots else self.buffers[name]
            is_open = name == self.form.way.open_weight
            for mine, member, array in zip(found, self.members, tensor.numpy(), strict=True):
                mine[name] = array[..., : member.staying[name].shape[-1]] if is_open else array
        return found

    def begin(self, phase: Phase) -> list[str]:
        """Set what the strategy asks for in a phase; the names of the parameters that learn."""
        names = [name for name in phase.names if name not in self.form.fixed]
        for slot in self.slots.values():
            slot.into = slot.base = slot.correction = None
        if not phase.rules.are_plain:
            self._set_rules(phase, names)
        return names

    def effective(self, phase: Phase, counts: Sequence[int]) -> list[float]:
        """So many steps of each member, as `steps` counts them."""
        site = self.members[0].site
        training = site.training
        if training.optimizer != "sgd":
            return [float(count) for count in counts]
        pull = training.lr_in(site.round) * (phase.rules.mu + training.weight_decay)
        known = {count: _effective(count, training.momentum, pull) for count in set(counts)}
        return [known[count] for count in counts]

    def _set_rules(self, phase: Phase, names: Sequence[str]) -> None:
        for name in set(names) & set(self.form.parts.shared):
            slot, like = self.slots[name], self._shared[name]
            if phase.rules.mu:
                slot.base = like
            if phase.rules.correction is not None:
                rules = (member.site.rules.correction or {} for member in self.members)
                found = np.stack([np.asarray(rule[name]) for rule in rules])
                slot.correction = torch.from_numpy(found).to(like.dtype)

    def _slot(self, name: str) -> Slot:
        shared = self._shared.get(name)
        if shared is None or not self.form.way.starts_in_common:
            return Slot(self._stacked(name))
        return Slot(shared.expand(len(self.members), *shared.shape), is_common=True)

    def _stacked(self, name: str) -> Tensor:
        """A tensor of all members, (sites, ...)."""
        count, shared = len(self.members), self._shared.get(name)
        if shared is not None:
            return shared.repeat(count, *[1] * shared.ndim)  # a copy, also for one member
        if name == self.form.way.open_weight:
            return torch.stack([padded(self.form, one.staying[name]) for one in self.members])
        return torch.stack([member.staying[name] for member in self.members])


def padded(form: GroupForm, values: Tensor) -> Tensor:
    """With columns of zeros up to the group's width, for records and weights of numbers."""
    if values.is_floating_point():
        values = values.to(form.dtype)
        if values.shape[-1] < form.width:
            return functional.pad(values, (0, form.width - values.shape[-1]))
    return values


def _effective(count: int, momentum: float, pull: float) -> float:
    steps = EffectiveSteps(momentum, pull)
    for _ in range(count):
        steps.count()
    return steps.total

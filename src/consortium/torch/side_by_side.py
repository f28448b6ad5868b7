"""Many sites' small models trained at once: one product of matrices for all of them.

A site alone trains a small model at a small part of what a core can do, because each step is
many short calls. Here a step is the same calls for a whole group of sites, without autograd.
Every site goes through its own records in its own order, drawn as it draws alone, and has an
optimiser of its own: what it gets is what it gets alone, but for rounding.

Sites of a group have the same layers. The first layer may take another number of features at
every site, if it stays there: narrower ones get columns of zeros, whose weights stay zero. All
shapes follow from a site's own numbers, rounded up. Its last bits still depend on its group:
products of matrices round by where a matrix lies. So groups are told by the round: see
`consortium.drive.cohort`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from consortium.tasks import Site
from consortium.torch.batches import TensorRecords, joined_sizes
from consortium.torch.marks import Parts
from consortium.torch.side_descent import Slot, begin_descent
from consortium.torch.side_layers import Batch
from consortium.torch.steps import EffectiveSteps
from consortium.torch.training import Phase

Arrays = dict[str, npt.NDArray[Any]]
_GATHERED_BYTES = 32 << 20  # records that are put in order at once


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


class Group:
    """Sites that train side by side. `shared` is what they all start from."""

    def __init__(
        self, form: GroupForm, members: Sequence[Member], shared: dict[str, Tensor]
    ) -> None:
        training = members[0].site.training
        self._form, self._training, self._shared = form, training, shared
        sizes = [_batch_sizes(form, len(member.records), training.batch_size) for member in members]
        order = sorted(range(len(members)), key=lambda at: -len(sizes[at]))
        self.order = order  # places of the members, those with most steps first
        self._members = [members[at] for at in order]
        self._sizes = [sizes[at] for at in order]
        self.slots = {name: Slot(self._stacked(name)) for name in form.way.parameters}
        self._buffers = {name: self._stacked(name) for name in form.parts.buffers}
        self.keeps = form.parts.staying  # what members keep
        seeds = [member.seed for member in self._members]
        self._pass = form.way.begin(self.slots, self._buffers, seeds)
        self._inputs = torch.cat([member.inputs for member in self._members])
        self._targets = torch.cat([member.records.targets for member in self._members])
        counts = (len(member.records) for member in self._members)
        self._starts = list(accumulate(counts, initial=0))[:-1]

    def train(self, phases: Sequence[Phase]) -> list[float]:
        """Train in place; the effective number of steps of the shared parameters, of each site
        in the order of `order`."""
        steps = [0.0] * len(self._members)
        with torch.no_grad():
            for phase in phases:
                taken = self._run(phase)
                steps = taken if self._form.parts.shared[0] in phase.names else steps
        return steps

    def kept(self, at: int) -> Arrays:
        """What the member at this place of `order` keeps."""
        member, found = self._members[at], {}
        for name in self.keeps:
            tensor = self.slots[name].value if name in self.slots else self._buffers[name]
            mine = tensor[at]
            if mine.shape != member.staying[name].shape:
                mine = mine[..., : member.staying[name].shape[-1]]
            found[name] = mine.numpy().copy()
        return found

    # ---- one phase ------------------------------------------------------------------

    def _run(self, phase: Phase) -> list[float]:
        site, training = self._members[0].site, self._training
        lr, mu = training.lr_in(site.round), phase.rules.mu
        names = [name for name in phase.names if name not in self._form.fixed]
        for slot in self.slots.values():
            slot.into = slot.base = slot.correction = None
        if not phase.rules.are_plain:
            self._set_rules(phase, names)
        descent = begin_descent([self.slots[name] for name in names], training, lr, mu)
        trained = frozenset(names)
        for inputs, targets, batch in self._batches(phase.epochs):
            self._pass.hand_out_gradients(inputs, targets, batch, trained)
            descent.step(batch.k)
        pull = lr * (mu + training.weight_decay)
        counts = [phase.epochs * len(sizes) for sizes in self._sizes]
        if training.optimizer != "sgd":
            return [float(count) for count in counts]
        known = {count: _effective(count, training.momentum, pull) for count in set(counts)}
        return [known[count] for count in counts]

    def _set_rules(self, phase: Phase, names: Sequence[str]) -> None:
        for name in set(names) & set(self._form.parts.shared):
            slot, like = self.slots[name], self._shared[name]
            if phase.rules.mu:
                slot.base = like
            if phase.rules.correction is not None:
                rules = (member.site.rules.correction or {} for member in self._members)
                found = np.stack([np.asarray(rule[name]) for rule in rules])
                slot.correction = torch.from_numpy(found).to(like.dtype)

    # ---- records --------------------------------------------------------------------

    def _batches(self, epochs: int) -> Iterator[tuple[Tensor, Tensor, Batch]]:
        """Every step's records, (k, n, ...) of those sites that still have some."""
        orders, counts = self._orders(epochs)
        most, start = orders[0].shape[1], 0
        record_bytes = 8 + self._inputs[0].numel() * self._inputs.element_size()
        while start < len(counts):
            active = int(np.count_nonzero(counts[start]))
            at_once = max(1, _GATHERED_BYTES // (record_bytes * active * most))
            rows = np.empty((min(at_once, len(counts) - start), active, most), np.int64)
            for at, order in enumerate(orders[:active]):
                part = order[start : start + len(rows)]
                rows[: len(part), at] = part
                rows[len(part) :, at] = self._starts[at]  # not looked at
            flat = torch.from_numpy(rows.reshape(-1))
            inputs = self._inputs.index_select(0, flat)
            inputs = inputs.reshape(*rows.shape, *self._inputs.shape[1:])
            targets = self._targets.index_select(0, flat)
            targets = targets.reshape(*rows.shape, *self._targets.shape[1:])
            for at in range(len(rows)):
                here = counts[start + at]
                k, n = int(np.count_nonzero(here)), self._form.batch
                if here.max() > n:  # at all of them at once
                    n = most
                real = None
                if here[:k].min() < n:
                    is_real = np.arange(n)[None, :] < here[:k, None]
                    real = torch.from_numpy(is_real).to(self._form.dtype)
                batch = Batch(tuple(here[:k].tolist()), real)
                yield inputs[at, :k, :n], targets[at, :k, :n], batch
            start += len(rows)

    def _orders(self, epochs: int) -> tuple[list[npt.NDArray[Any]], npt.NDArray[Any]]:
        """Of each site the rows of all inputs by (step, place in the batch); and how many count,
        by (step, site). Places that do not count have a row of the same site."""
        _, largest = self._form.joined or (0, 0)
        most = max(self._form.batch, largest)
        counts = np.zeros((epochs * len(self._sizes[0]), len(self._members)), np.int32)
        orders: list[npt.NDArray[Any]] = []
        for at, (member, sizes) in enumerate(zip(self._members, self._sizes, strict=True)):
            counts[: epochs * len(sizes), at] = sizes * epochs
            drawn = [member.site.rng.permutation(len(member.records)) for _ in range(epochs)]
            order = drawn[0] if epochs == 1 else np.concatenate(drawn)
            order += self._starts[at]
            if len(order) == epochs * len(sizes) * most:  # all batches are full
                orders.append(order.reshape(-1, most))
                continue
            each = np.array(sizes * epochs)
            rows = np.full((len(each), most), self._starts[at])
            rows[np.arange(most)[None, :] < each[:, None]] = order
            orders.append(rows)
        return orders, counts

    # ---- parameters -----------------------------------------------------------------

    def _stacked(self, name: str) -> Tensor:
        """A tensor of all members, (sites, ...)."""
        count, shared = len(self._members), self._shared.get(name)
        if shared is not None:
            return shared.repeat(count, *[1] * shared.ndim)  # a copy, also for one member
        if name == self._form.way.open_weight:
            return torch.stack([padded(self._form, one.staying[name]) for one in self._members])
        return torch.stack([member.staying[name] for member in self._members])


def padded(form: GroupForm, values: Tensor) -> Tensor:
    """With columns of zeros up to the group's width, for records and weights of numbers."""
    if values.is_floating_point():
        values = values.to(form.dtype)
        if values.shape[-1] < form.width:
            return functional.pad(values, (0, form.width - values.shape[-1]))
    return values


def _batch_sizes(form: GroupForm, records: int, batch_size: int) -> list[int]:
    """How many records each step of an epoch has, as the loop cuts them."""
    sizes = [min(batch_size, records - at) for at in range(0, records, batch_size)]
    return list(joined_sizes(sizes)) if form.way.looks_across_records else sizes


def rounded(number: int) -> int:
    """Up to a power of two: few different ones, and none much too large.

    >>> [rounded(number) for number in (1, 8, 9, 100)]
    [8, 8, 16, 128]
    """
    return max(8, 1 << (number - 1).bit_length())


def _effective(count: int, momentum: float, pull: float) -> float:
    steps = EffectiveSteps(momentum, pull)
    for _ in range(count):
        steps.count()
    return steps.total

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

    def kept(self) -> list[Arrays]:
        """What each member keeps, in the order of `order`. The arrays are the group's own, which
        nobody else has."""
        found: list[Arrays] = [{} for _ in self._members]
        for name in self._form.parts.staying:
            tensor = self.slots[name].value if name in self.slots else self._buffers[name]
            is_open = name == self._form.way.open_weight
            for mine, member, array in zip(found, self._members, tensor.numpy(), strict=True):
                mine[name] = array[..., : member.staying[name].shape[-1]] if is_open else array
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
        rows, counts = self._orders(epochs)
        steps, most, start = len(counts), rows.shape[2], 0
        record_bytes = 8 + self._inputs[0].numel() * self._inputs.element_size()
        before: tuple[npt.NDArray[Any], Batch, int] | None = None
        while start < steps:
            active = int(np.count_nonzero(counts[start]))
            stop = min(steps, start + max(1, _GATHERED_BYTES // (record_bytes * active * most)))
            here = rows[:active, start:stop].swapaxes(0, 1)
            flat = torch.from_numpy(here.reshape(-1))
            inputs = self._inputs.index_select(0, flat)
            inputs = inputs.reshape(*here.shape, *self._inputs.shape[1:])
            targets = self._targets.index_select(0, flat)
            targets = targets.reshape(*here.shape, *self._targets.shape[1:])
            for at in range(start, stop):
                if before is None or not np.array_equal(before[0], counts[at]):
                    before = (counts[at], *self._batch(counts[at], most))
                _, batch, n = before
                yield inputs[at - start, : batch.k, :n], targets[at - start, : batch.k, :n], batch
            start = stop

    def _batch(self, counts: npt.NDArray[Any], most: int) -> tuple[Batch, int]:
        """A step in which sites have so many records, and how many places it takes."""
        k, n = int(np.count_nonzero(counts)), self._form.batch
        if counts.max() > n:  # at all of them at once
            n = most
        here, sizes = tuple(counts[:k].tolist()), torch.from_numpy(counts[:k]).to(self._form.dtype)
        if min(here) == n:
            return Batch(here, sizes, None, torch.ones((), dtype=sizes.dtype) / n), n
        is_real = np.arange(n)[None, :] < counts[:k, None]
        real = torch.from_numpy(is_real).to(self._form.dtype)
        return Batch(here, sizes, real, real / sizes.unsqueeze(1)), n

    def _orders(self, epochs: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Rows of all inputs by (site, step, place in the batch); and how many of them count, by
        (step, site). Places that do not count have a row of the same site."""
        _, largest = self._form.joined or (0, 0)
        most = max(self._form.batch, largest)
        steps, members = epochs * len(self._sizes[0]), len(self._members)
        rows, counts = np.empty((members, steps, most), np.int64), np.zeros((steps, members), int)
        for at, (member, sizes) in enumerate(zip(self._members, self._sizes, strict=True)):
            draw, count = member.site.rng.permutation, len(member.records)
            drawn = [draw(count) for _ in range(epochs)]
            order = drawn[0] if epochs == 1 else np.concatenate(drawn)
            each = sizes * epochs
            counts[: len(each), at] = each
            if len(order) == steps * most:  # all batches are full
                np.add(order.reshape(steps, most), self._starts[at], out=rows[at])
                continue
            rows[at] = self._starts[at]
            rows[at, : len(each)][np.arange(most)[None, :] < np.array(each)[:, None]] += order
        return rows, counts

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


def rounded(number: int, least: int = 8) -> int:
    """Up to a power of two: few different ones, and none much too large.

    >>> [rounded(number) for number in (1, 8, 9, 100)]
    [8, 8, 16, 128]
    """
    return max(least, 1 << (number - 1).bit_length())


def _effective(count: int, momentum: float, pull: float) -> float:
    steps = EffectiveSteps(momentum, pull)
    for _ in range(count):
        steps.count()
    return steps.total

"""Many sites' small models trained at once: one product of matrices for all of them.

A site alone trains a small model at a small part of what a core can do, because each step is
many short calls. Here a step is the same calls for a whole group of sites, without autograd.
Every site goes through its own records in its own order, drawn as it draws alone, and has an
optimiser of its own: what it gets is what it gets alone, but for rounding.

All shapes follow from a site's own numbers, rounded up. Its last bits still depend on its group:
products of matrices round by where a matrix lies. So groups are told by the round: see
`consortium.drive.cohort`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consortium.torch.batches import joined_sizes
from consortium.torch.side_descent import begin_descent
from consortium.torch.side_layers import Batch
from consortium.torch.side_stack import Arrays, GroupForm, Member, Stack
from consortium.torch.training import Phase

_GATHERED_BYTES = 32 << 20  # records that are put in order at once


class Group:
    """Sites that train side by side. `shared` is what they all start from."""

    def __init__(
        self, form: GroupForm, members: Sequence[Member], shared: dict[str, Tensor]
    ) -> None:
        training = members[0].site.training
        self._form, self._training = form, training
        known = {n: _batch_sizes(form, n, training.batch_size) for n in {m.count for m in members}}
        sizes = [known[member.count] for member in members]
        order = list(range(len(members)))
        if len(known) > 1:
            order.sort(key=lambda at: -len(sizes[at]))
        self.order = order  # places of the members, those with most steps first
        self._members = [members[at] for at in order]
        self._sizes = [sizes[at] for at in order]
        self._forms = list(known.values())  # of their sizes, each once
        self._stack = Stack(form, self._members, shared)
        self.slots = self._stack.slots
        seeds = [member.seed for member in self._members]
        self._pass = form.way.begin(self.slots, self._stack.buffers, seeds)
        self._inputs, self._targets = self._stack.inputs, self._stack.targets

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
        """What each member keeps, in the order of `order`."""
        return self._stack.kept()

    # ---- one phase ------------------------------------------------------------------

    def _run(self, phase: Phase) -> list[float]:
        training = self._training
        lr = training.lr_in(self._members[0].site.round)
        names = self._stack.begin(phase)
        slots = [self.slots[name] for name in names]
        descent, trained = begin_descent(slots, training, lr, phase.rules.mu), frozenset(names)
        for inputs, targets, batch in self._batches(phase.epochs):
            self._pass.hand_out_gradients(inputs, targets, batch, trained)
            descent.step(batch.k)
        return self._stack.effective(phase, [phase.epochs * len(sizes) for sizes in self._sizes])

    # ---- records --------------------------------------------------------------------

    def _batches(self, epochs: int) -> Iterator[tuple[Tensor, Tensor, Batch]]:
        """Every step's records, (k, n, ...) of those sites that still have some."""
        rows, counts = self._orders(epochs)
        (members, steps, most), start = rows.shape, 0
        record_bytes = 8 + self._inputs[0].numel() * self._inputs.element_size()
        here = None if counts is not None else (_full_batch(members, most, self._form.dtype), most)
        before: npt.NDArray[Any] | None = None
        while start < steps:
            active = members if counts is None else int(np.count_nonzero(counts[start]))
            stop = min(steps, start + max(1, _GATHERED_BYTES // (record_bytes * active * most)))
            places = rows[:active, start:stop].swapaxes(0, 1)
            flat = torch.from_numpy(places.reshape(-1))
            inputs = self._inputs.index_select(0, flat)
            inputs = inputs.reshape(*places.shape, *self._inputs.shape[1:])
            targets = self._targets.index_select(0, flat)
            targets = targets.reshape(*places.shape, *self._targets.shape[1:])
            for at, x, y in zip(range(start, stop), inputs.unbind(), targets.unbind(), strict=True):
                if counts is not None and (before is None or (before != counts[at]).any()):
                    before = counts[at]
                    here = self._batch(before, most)
                assert here is not None
                batch, n = here
                if (batch.k, n) == places.shape[1:]:  # a view takes time too
                    yield x, y, batch
                else:
                    yield x[: batch.k, :n], y[: batch.k, :n], batch
            start = stop

    def _batch(self, counts: npt.NDArray[Any], most: int) -> tuple[Batch, int]:
        """A step in which sites have so many records, and how many places it takes."""
        k, n = int(np.count_nonzero(counts)), self._form.batch
        if counts.max() > n:  # at all of them at once
            n = most
        if counts[:k].min() == n:
            return _full_batch(k, n, self._form.dtype), n
        here, sizes = tuple(counts[:k].tolist()), torch.from_numpy(counts[:k]).to(self._form.dtype)
        is_real = np.arange(n)[None, :] < counts[:k, None]
        real = torch.from_numpy(is_real).to(self._form.dtype)
        return Batch(here, sizes, real, real / sizes.unsqueeze(1)), n

    def _orders(self, epochs: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        """Rows of all inputs by (site, step, place in the batch); and how many of them count, by
        (step, site), or None if all do. Places that do not count have a row of the same site."""
        _, largest = self._form.joined or (0, 0)
        most = max(self._form.batch, largest)
        steps, members = epochs * len(self._sizes[0]), len(self._members)
        starts = self._stack.starts
        orders = [member.drawn_order() for member in self._members for _ in range(epochs)]
        if all(min(sizes) == most and len(sizes) * epochs == steps for sizes in self._forms):
            drawn = np.concatenate(orders)
            return drawn.reshape(members, steps, most) + np.array(starts)[:, None, None], None
        rows, counts = np.empty((members, steps, most), np.int64), np.zeros((steps, members), int)
        for at, sizes in enumerate(self._sizes):
            own, each = orders[at * epochs : (at + 1) * epochs], sizes * epochs
            counts[: len(each), at] = each
            rows[at] = starts[at]
            is_real = np.arange(most)[None, :] < np.array(each)[:, None]
            rows[at, : len(each)][is_real] += np.concatenate(own)
        return rows, counts


@lru_cache(maxsize=64)
def _full_batch(k: int, n: int, dtype: torch.dtype) -> Batch:
    """A step of k sites with n records each: most steps are the same one."""
    with torch.inference_mode(False):  # it is kept for others, who may ask torch for gradients
        share = torch.ones((), dtype=dtype) / n
        return Batch((n,) * k, torch.full((k,), n, dtype=dtype), None, share)


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

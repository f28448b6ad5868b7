"""Private training of many simulated sites at once: see `private_training` for one site.

Every site has its own coins, its own noise and its own clipped sum, drawn and added up as if it
were alone: what it gets is what it gets alone, but for rounding. Samples have different sizes;
short ones are filled up with records that do not count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consortium.tasks import RecordPrivacy
from consortium.torch.private_clipping import AT_ONCE_BYTES
from consortium.torch.private_sampling import sample, secret_seed, with_divisor
from consortium.torch.private_training import checked_privacy, shares
from consortium.torch.side_chain import ChainPass
from consortium.torch.side_clipping import ClippedStack
from consortium.torch.side_descent import Slot, begin_descent
from consortium.torch.side_layers import Batch
from consortium.torch.side_stack import Arrays, GroupForm, Member, Stack
from consortium.torch.training import Phase

_log = logging.getLogger(__name__)


class PrivateGroup:
    """Sites that train side by side, on the same terms of privacy."""

    def __init__(
        self, form: GroupForm, members: Sequence[Member], shared: dict[str, Tensor]
    ) -> None:
        terms = [checked_privacy(member.site) for member in members]
        seeds = [secret_seed(privacy.noise) for privacy in terms]
        self._terms = [
            with_divisor(privacy, len(member.records))
            for privacy, member in zip(terms, members, strict=True)
        ]
        self.order = list(range(len(members)))
        self._form, self._members = form, members
        self._stack = Stack(form, members, shared)
        self.slots = self._stack.slots
        for slot in self.slots.values():
            slot.own()
        # Layers compute with the same values, and have no gradients to hand out.
        bare = {name: Slot(slot.value) for name, slot in self.slots.items()}
        begun = form.way.begin(bare, self._stack.buffers, seeds)
        assert isinstance(begun, ChainPass)
        self._pass = begun
        self._rejected = 0

    def train(self, phases: Sequence[Phase]) -> list[float]:
        """Train in place; the effective number of steps of the shared parameters."""
        steps = [0.0] * len(self._members)
        counts = shares([phase.epochs for phase in phases], self._terms[0].steps)
        with torch.no_grad():
            for phase, count in zip(phases, counts, strict=True):
                self._run(phase, count)
                if self._form.parts.shared[0] in phase.names:
                    steps = self._stack.effective(phase, [count] * len(self._members))
        if self._rejected:
            _log.warning(
                "%d gradients of records were not finite and counted as zero", self._rejected
            )
        return steps

    def kept(self) -> list[Arrays]:
        """What each member keeps."""
        return self._stack.kept()

    def _run(self, phase: Phase, count: int) -> None:
        site = self._members[0].site
        lr, trained = site.training.lr_in(site.round), set(self._stack.begin(phase))
        # The order in which a site alone draws its noise: see `private_space`.
        names = [name for name in self._form.parts.shared if name in trained]
        names += [name for name in phase.names if name in trained and name not in set(names)]
        slots = {name: self.slots[name] for name in names}
        descent = begin_descent(
            list(slots.values()), site.training, lr, phase.rules.mu, is_collected=True
        )
        sums = _Sums(slots, self._own_numbers(names), self._terms)
        clipped = ClippedStack(self._pass, slots, self._terms[0].clip)
        for _ in range(count):
            for inputs, targets, batch in self._samples():
                self._rejected += clipped.add(inputs, targets, batch)
            sums.finish()
            descent.step(len(self._members))
            sums.rows.zero_()

    def _own_numbers(self, names: Sequence[str]) -> list[npt.NDArray[np.bool_] | None]:
        """Which numbers of its row a site has itself; None for all of them. Columns that only
        others have get no noise."""
        found: list[npt.NDArray[np.bool_] | None] = []
        for member in self._members:
            parts = []
            for name in names:
                is_own = np.ones(self.slots[name].value.shape[1:], np.bool_)
                if name == self._form.way.open_weight:
                    is_own[..., member.staying[name].shape[-1] :] = False
                parts.append(is_own.reshape(-1))
            row = np.concatenate(parts)
            found.append(None if row.all() else row)
        return found

    def _samples(self) -> Iterator[tuple[Tensor, Tensor, Batch]]:
        """One sample of every site, (k, n, ...), in parts that fit into memory. None at all if
        no site has picked anybody."""
        pairs = zip(self._members, self._terms, self._stack.starts, strict=True)
        places = [start + sample(member.records, terms) for member, terms, start in pairs]
        sizes = np.array([len(one) for one in places])
        rows = np.repeat(np.array(self._stack.starts)[:, None], sizes.max(), axis=1)
        for row, one in zip(rows, places, strict=True):
            row[: len(one)] = one
        at_once = self._at_once()
        for start in range(0, rows.shape[1], at_once):
            here = rows[:, start : start + at_once]
            index = torch.from_numpy(here.reshape(-1))
            inputs, targets = (
                tensor.index_select(0, index).reshape(*here.shape, *tensor.shape[1:])
                for tensor in (self._stack.inputs, self._stack.targets)
            )
            yield (
                inputs,
                targets,
                self._batch((sizes - start).clip(0, here.shape[1]), here.shape[1]),
            )

    def _batch(self, sizes: npt.NDArray[np.int64], n: int) -> Batch:
        dtype = self._form.dtype
        counts, numbers = tuple(sizes.tolist()), torch.from_numpy(sizes).to(dtype)
        if sizes.min() == n:
            return Batch(counts, numbers, None, torch.ones((), dtype=dtype))
        real = torch.from_numpy(np.arange(n)[None, :] < sizes[:, None]).to(dtype)
        return Batch(counts, numbers, real, real)

    def _at_once(self) -> int:
        """The most records of each site. What a record takes is about what its layers give."""
        widths = [max(layer.size_in, layer.size_out) for layer in self._pass.way.chain]
        numbers = 4 * (self._stack.inputs[0].numel() + sum(widths))
        return max(1, AT_ONCE_BYTES // (self._form.dtype.itemsize * numbers * len(self._members)))


class _Sums:
    """The gradients of all sites in rows (k, d), of which the slots' are views."""

    def __init__(
        self,
        slots: dict[str, Slot],
        own: Sequence[npt.NDArray[np.bool_] | None],
        terms: Sequence[RecordPrivacy],
    ) -> None:
        values = [slot.value for slot in slots.values()]
        sizes = [value[0].numel() for value in values]
        self.rows = torch.zeros(len(terms), sum(sizes), dtype=values[0].dtype)
        for slot, part in zip(slots.values(), torch.split(self.rows, sizes, 1), strict=True):
            slot.into, slot.beta, slot.alpha = part.view(slot.value.shape), 1.0, 1.0
        self._own, self._terms = own, terms
        divisors = [one.expected_batch for one in terms]
        self._divisors = torch.tensor(divisors, dtype=self.rows.dtype).unsqueeze(1)

    def finish(self) -> None:
        """Add every site's own noise, and divide."""
        drawn = np.zeros(self.rows.shape)
        for row, own, terms in zip(drawn, self._own, self._terms, strict=True):
            if own is None:
                row[:] = terms.noise.normal(len(row))
            else:
                row[own] = terms.noise.normal(int(own.sum()))
        scale = self._terms[0].sigma * self._terms[0].clip
        self.rows.add_(torch.from_numpy(drawn).to(self.rows.dtype), alpha=scale)
        self.rows.div_(self._divisors)

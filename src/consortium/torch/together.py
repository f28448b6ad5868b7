"""Which way a torch model is trained in a simulation, and training several sites that way.

Three engines: "loop" is torch's own autograd and optimiser, one site after the other, as at a
real site; "batched" trains many sites' small models side by side; "fused" trains one model at
a time without autograd. The choice is a rule on the task, the plan and the model. What an
engine cannot do at some site (records from a loader, labels that are wrong) the loop does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from consortium.aggregate.block import BLOCK
from consortium.errors import QualityError, UsageError
from consortium.tasks import AUTO, LOOP, Pace, Site, Trained, TrainedTogether
from consortium.torch.batches import TensorRecords, joined_sizes
from consortium.torch.fused import can_fuse
from consortium.torch.layers import Kind
from consortium.torch.losses import Loss, kind_of
from consortium.torch.side_by_side import Group, rounded
from consortium.torch.side_chain import ChainWay, fits, loss_is_known
from consortium.torch.side_clipping import can_clip_side_by_side
from consortium.torch.side_func import FuncWay, func_way
from consortium.torch.side_layers import can_stand_side_by_side
from consortium.torch.side_private import PrivateGroup
from consortium.torch.side_stack import GroupForm, Member, padded
from consortium.torch.training import Method, Phase, phases
from consortium.torch.workshop import Bench, Workshop

BATCHED, FUSED = "batched", "fused"
ENGINES = (LOOP, BATCHED, FUSED)
# Numbers in a model up to which many are trained at once: above, one fills a core by itself.
_SMALL = 300_000
_AT_ONCE, _AT_ONCE_NUMBERS = BLOCK, 8 << 20  # sites, and numbers of all of them
_WIDE = 64  # columns that a first layer of its own width gets at least: one group, and not four

Alone = Callable[[Site, int], Trained]  # train at one site with this seed
Told = Callable[[Site], AbstractContextManager[None]]  # errors within are told as this site's


@dataclass(frozen=True, slots=True)
class Ways:
    """How the sites of one task can be trained."""

    workshop: Workshop
    method: Method
    is_ours: bool  # not by a loop of the user's own

    @property
    def loss(self) -> Loss:
        return self.method.loss

    def pace(self, bench: Bench, site: Site, wanted: str) -> Pace:
        """The engine for models like this one."""
        if wanted not in (AUTO, *ENGINES):
            raise UsageError(f"there is no engine `{wanted}`", hint=f"take {', '.join(ENGINES)}")
        if wanted == LOOP:
            return Pace(LOOP)
        form = self.form(bench, site)
        numbers = sum(tensor.numel() for tensor in bench.model.parameters())
        if form is not None and (wanted == BATCHED or (wanted == AUTO and numbers <= _SMALL)):
            return Pace(BATCHED, max(1, min(_AT_ONCE, _AT_ONCE_NUMBERS // max(numbers, 1))))
        if wanted != BATCHED and self.is_ours and can_fuse(bench.place, site, self.method):
            return Pace(FUSED)
        if wanted != AUTO:
            raise UsageError(
                f"engine `{wanted}` cannot train this task",
                hint='it is for usual layers, losses and optimisers; take "auto", or "loop"',
            )
        return Pace(LOOP)

    def form(self, bench: Bench, site: Site) -> GroupForm | None:
        """What this site's model has in common with others, if it can stand beside them."""
        if "form" not in bench.memo:
            bench.memo["form"] = self._form(bench, site.training.batch_size)
        usual = self.is_ours and self.method.step is None and self.method.optimizer is None
        if not usual or site.training.max_seconds is not None:
            return None
        found: GroupForm | None = bench.memo["form"]
        return found

    def _form(self, bench: Bench, batch_size: int) -> GroupForm | None:
        records, parts = bench.train, bench.parts
        if not isinstance(records, TensorRecords):
            return None
        way = self._way(bench, records)
        tensors = dict(bench.model.named_parameters())
        fixed = frozenset(name for name, tensor in tensors.items() if not tensor.requires_grad)
        if way is None or not set(parts.shared) - fixed:
            return None
        width, count = records.inputs.shape[-1], len(records)
        sizes = [min(batch_size, count - at) for at in range(0, count, batch_size)]
        if way.looks_across_records:
            sizes = list(joined_sizes(sizes))
        batch = batch_size if count >= batch_size else min(batch_size, rounded(count))
        form = GroupForm(
            way=way,
            parts=parts,
            fixed=fixed,
            dtype=next(iter(tensors.values())).dtype,
            shapes={name: tuple(tensors[name].shape) for name in parts.shared},
            records=_form_of(records, way.open_weight is not None),
            width=width if way.open_weight is None else rounded(width, _WIDE),
            batch=batch,
            joined=(len(sizes), max(sizes)) if max(sizes) > batch else None,
        )
        if isinstance(way, FuncWay):
            return form
        found: GroupForm = self.workshop.interned(form)
        return found

    def _way(self, bench: Bench, records: TensorRecords) -> ChainWay | FuncWay | None:
        chain, parts = bench.chain, bench.parts
        if chain is None or not can_stand_side_by_side(chain) or not loss_is_known(self.loss):
            return self._func_way(bench, records)
        behave_otherwise = (Kind.DROPOUT, Kind.BATCH_NORM)  # when their layer is frozen
        if parts.frozen_layers and any(layer.kind in behave_otherwise for layer in chain):
            return None
        common = chain
        if chain[0].kind is Kind.LINEAR and chain[0].weight in parts.private:
            common = (replace(chain[0], size_in=0), *chain[1:])
        way = ChainWay(common, kind_of(self.loss))
        return way if fits(way, records, chain) else None

    def _func_way(self, bench: Bench, records: TensorRecords) -> FuncWay | None:
        """One for all benches that have the same model: those that are built alike."""
        common = bench.common
        if common is None or bench.parts.frozen_layers:
            return None
        if "func" not in common.memo:
            common.memo["func"] = func_way(common.model, self.loss, records)
        found: FuncWay | None = common.memo["func"]
        return found

    def train(
        self,
        sites: Sequence[Site],
        shared: dict[str, Any],
        engine: str,
        alone: Alone,
        told: Told,
    ) -> TrainedTogether:
        """Train at each of these sites, groups of them side by side."""
        made, groups = _Made(len(sites), shared), _Groups(shared)
        for at, site in enumerate(sites):
            seed = drawn_seed(site.rng)
            bench = self.workshop.known(site)
            if bench is None:
                try:
                    with told(site):
                        bench = self.workshop.bench(site)
                except QualityError:  # the findings stay at the site
                    made.put_nothing(at, shared)
                    continue
            form = self.form(bench, site) if engine == BATCHED else None
            if site.privacy is not None and not _can_be_private(form, bench):
                form = None
            group = None if form is None else groups.of(form, site)
            if group is None:
                with told(site):
                    made.put(at, alone(site, seed))
                continue
            group.members[at] = _member(site, seed, bench, group.form)
        for group in groups.all():
            values = {name: torch.from_numpy(np.array(array)) for name, array in shared.items()}
            group.train(values, made, alone, told)
        return made.together()


def drawn_seed(rng: np.random.Generator) -> int:
    """What `rng.integers(2**63)` gives, as the loop draws it, in a fifth of the time: the upper
    63 of the next 64 bits. The generators of sites give 64 at a time."""
    return int(rng.bit_generator.random_raw()) >> 1


def _can_be_private(form: GroupForm | None, bench: Bench) -> bool:
    """Whether gradients of single records can be clipped for a whole group."""
    if form is None or not isinstance(form.way, ChainWay) or bench.follows_records:
        return False
    assert isinstance(bench.train, TensorRecords)
    return can_clip_side_by_side(form.way.chain, bench.train.inputs.ndim - 1)


def _member(site: Site, seed: int, bench: Bench, form: GroupForm) -> Member:
    found: tuple[TensorRecords, Tensor, int] | None = bench.memo.get("records")
    if found is None:
        assert isinstance(bench.train, TensorRecords)
        found = bench.train, padded(form, bench.train.inputs), len(bench.train)
        bench.memo["records"] = found
    records, inputs, count = found
    return Member(site, seed, records, inputs, bench.staying(site), count)


@dataclass(frozen=True, slots=True)
class _Together:
    """Sites that can stand side by side, by their places among all."""

    form: GroupForm
    steps: list[Phase]
    is_private: bool
    members: dict[int, Member] = field(default_factory=dict)

    def train(self, shared: dict[str, Tensor], made: _Made, alone: Alone, told: Told) -> None:
        is_ours = isinstance(self.form.way, ChainWay)
        drawn = {} if is_ours else {at: deepcopy(m.site.rng) for at, m in self.members.items()}
        try:
            kind = PrivateGroup if self.is_private else Group
            with torch.inference_mode(is_ours):  # gradients by hand: nothing to watch for torch
                group = kind(self.form, list(self.members.values()), shared)
                steps = group.train(self.steps)
            made.put_group(list(self.members), group, steps, self.members)
        except Exception:  # the user's own code or loss under vmap: each alone says more
            if is_ours:
                raise
            for at, member in self.members.items():
                with told(member.site):
                    made.put(at, alone(replace(member.site, rng=drawn[at]), member.seed))


class _Groups:
    """The groups of some sites in one round, which all follow one plan."""

    def __init__(self, shared: dict[str, Any]) -> None:
        self._shapes = {name: np.shape(array) for name, array in shared.items()}
        self._groups: dict[Hashable, _Together] = {}
        # To hash a form takes long. A form is kept here, so that no other gets its identity.
        self._known: dict[Hashable, tuple[GroupForm, _Together | None]] = {}

    def of(self, form: GroupForm, site: Site) -> _Together | None:
        """The group of a site; None if it has to train alone. What sites do differs only by
        whether they have trained before."""
        key = id(form), site.state is None, _terms(site)
        if key not in self._known:
            self._known[key] = form, self._found(form, site)
        return self._known[key][1]

    def _found(self, form: GroupForm, site: Site) -> _Together | None:
        steps = list(phases(form.parts, site))
        if form.shapes != self._shapes or not form.learns_in(steps):
            return None
        terms = _terms(site)
        key = (form, terms, *((phase.names, phase.epochs) for phase in steps))
        return self._groups.setdefault(key, _Together(form, steps, terms is not None))

    def all(self) -> list[_Together]:
        return list(self._groups.values())


def _terms(site: Site) -> tuple[float, ...] | None:
    """What sites that train privately side by side have in common."""
    found = site.privacy
    return None if found is None else (found.clip, found.sigma, found.rate, found.steps)


def _form_of(records: TensorRecords, is_open: bool) -> tuple[object, ...]:
    """What must be the same for records to lie side by side; an open width is made so."""
    inputs, targets = records.inputs, records.targets
    shape = tuple(inputs.shape[1:-1] if is_open else inputs.shape[1:])
    return shape, inputs.dtype, tuple(targets.shape[1:]), targets.dtype


class _Made:
    """Results by the place of their site."""

    def __init__(self, count: int, shared: dict[str, Any]) -> None:
        self._shared = {
            name: np.empty((count, *np.shape(array)), np.asarray(array).dtype)
            for name, array in shared.items()
        }  # takes no memory before it is written
        self.records: list[int | None] = [0] * count
        self._states: list[Any] = [None] * count
        self._steps: list[float | None] = [None] * count

    def put_nothing(self, at: int, shared: dict[str, Any]) -> None:
        """Of a site that did not train."""
        for name, array in shared.items():
            self._shared[name][at] = array
        self.records[at] = None

    def put(self, at: int, trained: Trained) -> None:
        if len(self.records) == 1:  # large models come one by one
            self._shared = {name: array[None] for name, array in trained.shared.items()}
        else:
            for name, array in trained.shared.items():
                self._shared[name][at] = array
        self.records[at], self._states[at] = trained.records, trained.state
        self._steps[at] = trained.steps

    def put_group(
        self,
        places: Sequence[int],
        group: Group | PrivateGroup,
        steps: Sequence[float],
        members: dict[int, Member],
    ) -> None:
        ordered = [places[at] for at in group.order]
        if ordered == list(range(len(self.records))):  # all there are, as they stand
            self._shared = {name: group.slots[name].value.numpy() for name in self._shared}
        else:
            for name, stacked in self._shared.items():
                stacked[ordered] = group.slots[name].value.numpy()
        for place, taken, kept in zip(ordered, steps, group.kept(), strict=True):
            self.records[place] = members[place].count
            self._states[place] = kept or None
            self._steps[place] = taken

    def together(self) -> TrainedTogether:
        return TrainedTogether(self._shared, self.records, self._states, self._steps)

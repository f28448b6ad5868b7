"""Models and records of sites, made once and kept for a while.

Reading data and making a model may take longer than a round of training. What is kept is
never trusted to be as it was left: before each use every tensor is set anew, shared ones
from the round's model, the others from what the site kept or from their first values.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consortium.errors import LayoutError, SiteDataError, TaskResultError
from consortium.plan.values import PersonalSection, TrainingSection
from consortium.tasks import LocalRules, Site
from consortium.torch.arrays import misfit, tensors_of, write_arrays
from consortium.torch.batches import Records, TensorRecords, adopt
from consortium.torch.build import built, built_apart
from consortium.torch.chain import chain_of, is_plain
from consortium.torch.fingerprint import fingerprint
from consortium.torch.layers import Layer
from consortium.torch.marks import Parts, sort_tensors
from consortium.torch.reproducible import reproducibly
from consortium.torch.training import Workplace

Make = Callable[[Site], tuple[nn.Module, Any, Any]]
MAX_SITES = 64  # that are kept whatever they cost
# Of all that are kept, if there are more: memory must not follow the population.
MAX_BYTES = 16 << 20
MAX_MODELS, MAX_MODEL_BYTES = 512, 32 << 20
_OBJECTS_BYTES = 4096  # of a bench without its numbers


@dataclass(frozen=True, slots=True)
class Bench:
    """One site's model, its parts, its records, and the first values of what stays."""

    model: nn.Module
    parts: Parts
    train: Records
    test: Records
    given_train: Any  # as the user's function returned it, for a loop of the user's own
    first: dict[str, Tensor]
    data: Any  # kept, so that no other object gets its identity
    chain: tuple[Layer, ...] | None  # the model's layers, if it is a chain that we know
    common: Common | None  # what is known of models that are built like this one, and are this one
    model_bytes: int  # of the model, at the first site that has it
    training: TrainingSection  # the terms that the user's function was called with
    personal: PersonalSection
    memo: dict[str, Any] = field(default_factory=dict)  # what an engine found out about it

    @property
    def place(self) -> Workplace:
        return Workplace(self.model, self.parts, self.train)

    @property
    def follows_records(self) -> bool:
        """Whether what the records are depends on each other: see `consortium.data.table`."""
        return bool(getattr(self.given_train, "follows_records", False))

    def check_private(self) -> None:
        """Refuse records that private training cannot hide."""
        if self.follows_records:
            raise TaskResultError(
                "the training records were chosen, filled or scaled by each other: "
                "one record moves all others, and no noise hides it",
                hint='read_csv(..., split="record", missing="drop", scale={"age": (50, 15)})',
            )

    def is_for(self, site: Site) -> bool:
        """Whether the terms are the same. Mostly they are the same objects: that is quick."""
        return (self.training is site.training or self.training == site.training) and (
            self.personal is site.personal or self.personal == site.personal
        )

    @property
    def size_bytes(self) -> int:
        """Roughly what keeping it costs."""
        tensors, total = list(self.first.values()), _OBJECTS_BYTES + self.model_bytes
        for records in (self.train, self.test):
            if isinstance(records, TensorRecords):
                tensors += [records.inputs, records.targets]
            else:  # somebody else's objects, of unknown size
                total += MAX_BYTES // MAX_SITES
        return total + sum(map(_bytes_of, tensors))

    def load(self, site: Site, shared: dict[str, Any]) -> None:
        """Set every tensor: as if the model had just been made, whatever it was used for."""
        wrong = misfit(self.model, self.parts.shared, shared)
        if wrong:
            raise LayoutError(f"site {site.name}: shared tensors differ: {wrong}")
        tensors = tensors_of(self.model)
        for name, value in self.staying(site).items():
            tensors[name].data.copy_(value)
        write_arrays(self.model, shared)

    def staying(self, site: Site) -> dict[str, Tensor]:
        """What is not shared: as the site kept it, or with its first values."""
        if site.state is None:
            return self.first
        if "staying" not in self.memo:
            self.memo["staying"] = {name: self.first[name].shape for name in self.parts.staying}
        # No names here: what stays at a site is not told, not even in an error.
        if self.memo["staying"] != {name: np.shape(array) for name, array in site.state.items()}:
            raise SiteDataError(
                f"site {site.name}: what was kept here does not fit the model any more",
                hint="the site's columns or the task have changed: start its state anew",
            )
        found = self.first.copy()
        for name, array in site.state.items():
            kept = torch.from_numpy(array if array.flags.writeable else array.copy())
            found[name] = kept if kept.dtype is found[name].dtype else kept.to(found[name].dtype)
        return found


@dataclass(frozen=True, slots=True)
class Common:
    """A model that many sites use in turn, because theirs are built alike."""

    model: nn.Module
    chain: tuple[Layer, ...] | None
    parts: Parts
    memo: dict[str, Any] = field(default_factory=dict)  # what an engine found out about it


class Workshop:
    """Benches of the sites used last: some at least, and more if they are small. Models that
    are built alike are one model, because every use sets all of its tensors."""

    def __init__(self, make: Make, shares_models: bool = True) -> None:
        """Code of the user's own that trains may leave something on a model: then each site
        has its own."""
        self._make, self._shares_models = make, shares_models
        self._benches: OrderedDict[Hashable, Bench] = OrderedDict()
        self._bytes = 0
        self._models: OrderedDict[Hashable, Common] = OrderedDict()
        self._model_bytes = 0
        self._interned: dict[Any, Any] = {}

    def bench(self, site: Site) -> Bench:
        """The site's bench; what stays at the site gets its first values from `own_seed`."""
        found = self.known(site)
        if found is not None:
            return found
        with reproducibly(0):
            made = built(lambda: self._made(site, site.own_seed), site.own_seed)
        key = _key(site)
        old = self._benches.pop(key, None)  # of other terms
        self._bytes -= 0 if old is None else old.size_bytes
        found = self._benches[key] = self._bench(site, made)
        self._bytes += found.size_bytes
        while len(self._benches) > MAX_SITES and self._bytes > MAX_BYTES:
            _, old = self._benches.popitem(last=False)
            self._bytes -= old.size_bytes
        return found

    def known(self, site: Site) -> Bench | None:
        """The site's bench, if there is one."""
        key = _key(site)
        found = self._benches.get(key)
        if found is None or not found.is_for(site):
            return None
        self._benches.move_to_end(key)
        return found

    def interned(self, value: Any) -> Any:
        """The first of all values that are equal to this one."""
        return self._interned.setdefault(value, value)

    def _bench(self, site: Site, made: tuple[nn.Module, Any, Any]) -> Bench:
        model, train, test = made
        common = self._common(model, site.personal)
        parts = sort_tensors(model, site.personal) if common is None else common.parts
        is_all_shared = common is not None and len(parts.shared) == parts.count
        shared = set(parts.shared)
        first = {
            name: tensor.detach().clone()
            for name, tensor in ({} if is_all_shared else tensors_of(model)).items()
            if name not in shared
        }
        try:
            records = adopt(train, "training"), adopt(test, "test")
        except SiteDataError as error:
            raise SiteDataError(f"site {site.name}: {error.message}", hint=error.hint) from None
        is_new = common is None or common.model is model
        cost = sum(map(_bytes_of, model.parameters())) if is_new else 0
        chain = chain_of(model) if common is None else common.chain
        if common is not None:
            model = common.model
        what = model, parts, *records, train, first, site.data, chain, common, cost
        return Bench(*what, site.training, site.personal)

    def _common(self, model: nn.Module, personal: PersonalSection) -> Common | None:
        """What is known of models that are built like this one; None for one that is nobody's
        but its site's. Finding it out takes longer than building a model."""
        mark = fingerprint(model) if self._shares_models else None
        if mark is None:
            return None
        found = self._models.get((mark, personal))
        if found is None:
            if not is_plain(model):
                return None
            found = Common(model, chain_of(model), sort_tensors(model, personal))
            self._models[mark, personal] = found
            self._model_bytes += sum(map(_bytes_of, model.parameters()))
            while len(self._models) > MAX_MODELS or (
                self._model_bytes > MAX_MODEL_BYTES and len(self._models) > 1
            ):
                _, old = self._models.popitem(last=False)
                self._model_bytes -= sum(map(_bytes_of, old.model.parameters()))
        else:
            self._models.move_to_end((mark, personal))
        return found

    def fresh_model(self, site: Site, seed: int) -> tuple[nn.Module, Parts]:
        """A model of which the shared values follow from the seed alone."""

        def staying(made: tuple[nn.Module, Any, Any]) -> list[Tensor]:
            tensors = tensors_of(made[0])
            shared = set(sort_tensors(made[0], site.personal).shared)
            return [tensor for name, tensor in tensors.items() if name not in shared]

        model, _, _ = built_apart(lambda: self._made(site, seed), seed, staying)
        return model, sort_tensors(model, site.personal)

    def _made(self, site: Site, seed: int) -> tuple[nn.Module, Any, Any]:
        """Call the user's function. It sees nothing of the round, because what it makes is
        kept for others."""
        rng = np.random.Generator(np.random.Philox(key=seed))
        made = self._make(replace(site, round=0, rng=rng, rules=LocalRules(), state=None))
        if not isinstance(made, tuple) or len(made) != 3 or not isinstance(made[0], nn.Module):
            raise TaskResultError(
                f"the task returned {_form(made)}",
                hint="return (model, train, test); the model is a torch nn.Module",
            )
        return made


def _key(site: Site) -> Hashable:
    return site.name, _key_of(site.data), site.own_seed


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _key_of(data: Any) -> Hashable:
    """What tells one site's data from another's, or from what it was before."""
    if isinstance(data, str | Path):
        try:
            found = os.stat(data)
        except OSError:
            return str(data)
        return str(data), found.st_mtime_ns, found.st_size
    if isinstance(data, int):  # a client of a population: made anew whenever it is asked
        return int, data
    return id(data)


def _form(made: object) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(part).__name__ for part in made)})"
    return f"a {type(made).__name__}"

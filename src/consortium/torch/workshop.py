"""Models and records of sites, made once and kept for a while.

Reading data and making a model may take longer than a round of training. What is kept is
never trusted to be as it was left: before each use every tensor is set anew, shared ones
from the round's model, the others from what the site kept or from their first values.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from consortium.errors import LayoutError, SiteDataError, TaskResultError
from consortium.tasks import LocalRules, Site
from consortium.torch.arrays import misfit, tensors_of, write_arrays
from consortium.torch.batches import Records, adopt
from consortium.torch.build import built, built_apart
from consortium.torch.marks import Parts, sort_tensors
from consortium.torch.training import Workplace

Make = Callable[[Site], tuple[nn.Module, Any, Any]]
MAX_SITES = 64


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

    @property
    def place(self) -> Workplace:
        return Workplace(self.model, self.parts, self.train)

    def load(self, site: Site, shared: dict[str, Any]) -> None:
        """Set every tensor: as if the model had just been made, whatever it was used for."""
        wrong = misfit(self.model, self.parts.shared, shared)
        if wrong:
            raise LayoutError(f"site {site.name}: shared tensors differ: {wrong}")
        tensors = tensors_of(self.model)
        for name, value in self.first.items():
            tensors[name].data.copy_(value)
        if site.state is not None:
            # No names here: what stays at a site is not told, not even in an error.
            if misfit(self.model, self.parts.staying, site.state):
                raise SiteDataError(
                    f"site {site.name}: what was kept here does not fit the model any more",
                    hint="the site's columns or the task have changed: start its state anew",
                )
            write_arrays(self.model, site.state)
        write_arrays(self.model, shared)


class Workshop:
    """Benches of the sites used last."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._benches: OrderedDict[Hashable, Bench] = OrderedDict()

    def bench(self, site: Site) -> Bench:
        """The site's bench; what stays at the site gets its first values from `own_seed`."""
        key = (site.name, _key_of(site.data), site.own_seed, site.training, site.personal)
        found = self._benches.get(key)
        if found is None:
            made = built(lambda: self._made(site, site.own_seed), site.own_seed)
            found = self._benches[key] = _bench(site, made)
        self._benches.move_to_end(key)
        if len(self._benches) > MAX_SITES:
            self._benches.popitem(last=False)
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


def _bench(site: Site, made: tuple[nn.Module, Any, Any]) -> Bench:
    model, train, test = made
    parts = sort_tensors(model, site.personal)
    tensors = tensors_of(model)
    first = {
        name: tensor.detach().clone()
        for name, tensor in tensors.items()
        if name not in set(parts.shared)
    }
    try:
        return Bench(
            model, parts, adopt(train, "training"), adopt(test, "test"), train, first, site.data
        )
    except SiteDataError as error:
        raise SiteDataError(f"site {site.name}: {error.message}", hint=error.hint) from None


def _key_of(data: Any) -> Hashable:
    """What tells one site's data from another's, or from what it was before."""
    if isinstance(data, str | Path):
        try:
            found = os.stat(data)
        except OSError:
            return str(data)
        return str(data), found.st_mtime_ns, found.st_size
    return id(data)


def _form(made: object) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(part).__name__ for part in made)})"
    return f"a {type(made).__name__}"

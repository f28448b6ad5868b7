"""Tasks of torch models: one function that makes a model and finds the site's records.

    @task(loss=nn.CrossEntropyLoss(), metrics=["accuracy", "auroc"])
    def heart(site):
        train, test = read_csv(site.data, label="num")
        return Net(train.n_features), train, test

The function is called once for each site and its result kept for later rounds: it must
depend on the site's data only. What it draws follows from the site's own seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from consortium.core.terms import Metric
from consortium.drive.local import SEE_MORE, named, where
from consortium.errors import (
    ConsortiumError,
    LayoutError,
    SiteDataError,
    TaskEntryError,
    TaskResultError,
)
from consortium.model import digest_of
from consortium.tasks import Inventory, Pace, Site, Trained, TrainedTogether
from consortium.tensors import TensorSpec, save_tensors, spec_of
from consortium.torch.arrays import Arrays, array_of, float_type, read_arrays, tensors_of
from consortium.torch.batches import Records
from consortium.torch.complete import SiteModel
from consortium.torch.fused import can_fuse, run_fused
from consortium.torch.losses import Kind, Loss, kind_of, outputs_of
from consortium.torch.metrics import Measures, MetricChoice, measures
from consortium.torch.private_models import check_records_stay_apart
from consortium.torch.private_sampling import check_can_be_sampled
from consortium.torch.private_training import train_privately
from consortium.torch.reproducible import reproducibly
from consortium.torch.together import FUSED, Ways
from consortium.torch.training import (
    MakeOptimizer,
    Method,
    RunPhase,
    Step,
    calibrate,
    fine_tune,
    only_training,
    train_locally,
    warm_up,
)
from consortium.torch.workshop import Bench, Make, Workshop

Loop = Callable[[nn.Module, Any, Site], float | None]
EVALUATION_BATCH = 1024


def task(
    *,
    loss: Loss,
    metrics: Sequence[MetricChoice] = (),
    step: Step | None = None,
    optimizer: MakeOptimizer | None = None,
    loop: Loop | None = None,
) -> Callable[[Make], TorchTask]:
    """Makes a task of a function `fn(site) -> (model, train, test)`.

    Metrics are names (accuracy, f1, auroc, mse, rmse, mae) or pairs of a `Metric` and a
    function of all outputs and targets; the loss is always reported. To go your own way, in
    order of how much you take over: `step(model, inputs, targets) -> loss`,
    `optimizer(parameters, training) -> Optimizer`, and `loop(model, train, site)`, which
    trains in place, may return its number of steps, and has to follow no rule of a strategy
    (FedProx and SCAFFOLD are then refused).
    """
    given = {"loss": loss, "step": step, "optimizer": optimizer, "loop": loop}
    for name, function in given.items():
        if not callable(function) and (function is not None or name == "loss"):
            raise TaskEntryError(
                f"{name} is a {type(function).__name__}, which cannot be called",
                hint="write @co.task(loss=nn.CrossEntropyLoss(), ...)",
            )
    if isinstance(loss, type):
        raise TaskEntryError("loss is a class", hint=f"write loss=nn.{loss.__name__}()")
    if isinstance(metrics, str):
        raise TaskEntryError("metrics is a text, not a list", hint=f'write metrics=["{metrics}"]')
    method, chosen = Method(loss, step, optimizer), measures(loss, metrics)

    def decorate(make: Make) -> TorchTask:
        return TorchTask(make, method, chosen, loop)

    return decorate


class TorchTask:
    """A task of a torch model. Make one with `task`."""

    def __init__(self, make: Make, method: Method, chosen: Measures, loop: Loop | None) -> None:
        self.__name__ = getattr(make, "__name__", "task")
        self._make = make
        self._method = method
        self._measures = chosen
        self._loop = loop
        is_ours = loop is None and method.step is None and method.optimizer is None
        self._workshop = Workshop(make, shares_models=is_ours)
        self._ways = Ways(self._workshop, method, is_ours=loop is None)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return self._measures.metrics

    @property
    def trains_privately(self) -> bool:
        """Whether single records can be hidden in what training makes: by our own steps only."""
        return self._loop is None and self._method.step is None

    def check_private(self, site: Site) -> None:
        """Refuse, before any round, what private training would refuse of this site's model and
        records."""
        with reproducibly(0), self._users_code(site):
            bench = self._workshop.bench(site)
        bench.check_private()
        check_can_be_sampled(bench.train)
        check_records_stay_apart(bench.place)

    @property
    def measures_by_us(self) -> frozenset[str]:
        """Metrics that no function of the user's own computes: what one record does to them is
        known."""
        own = {name for name, _ in self._measures.own}
        return frozenset(metric.name for metric in self.metrics) - own

    @property
    def follows_rules(self) -> bool:
        return self._loop is None

    @property
    def prefers_workers(self) -> bool:
        """Yes: torch works here on one thread, and one task at a time in a process."""
        return True

    def inventory(self, site: Site) -> Inventory:
        """What leaves and what stays. The buffers of shared layers stay: they are private."""
        with reproducibly(0), self._users_code(site):
            bench = self._workshop.bench(site)
            parts = bench.parts
            frozen = {name: array_of(name, bench.first[name]) for name in parts.frozen}
            return Inventory(
                leaves=_specs(read_arrays(bench.model, parts.shared)),
                private=_specs(read_arrays(bench.model, parts.staying)),
                frozen=_specs(frozen),
                pinned=digest_of(save_tensors(frozen)) if frozen else None,
                columns=_columns(bench),
            )

    def first(self, site: Site) -> Arrays:
        """The shared tensors of a model that is made from `site.rng`, with the user's own
        initialisation."""
        seed = int(site.rng.integers(2**63))
        with self._users_code(site), reproducibly(seed):
            model, parts = self._workshop.fresh_model(site, seed)
        return read_arrays(model, parts.shared)

    def train(self, site: Site, shared: dict[str, Any]) -> Trained:
        """Train locally, starting from `shared` and from what the site kept.

        Numbers that are not finite are returned as they are: the caller drops the update.
        """
        with self._at_work(site, shared) as bench:
            return self._result(bench, self._trained(bench, site))

    def pace(self, site: Site, wanted: str) -> Pace:
        """How a simulation trains sites like this one: see `consortium.torch.together`."""
        with self._users_code(site):
            return self._ways.pace(self._workshop.bench(site), site, wanted)

    def train_together(
        self, sites: Sequence[Site], shared: dict[str, Any], engine: str
    ) -> TrainedTogether:
        """Train at several sites, side by side where they can be."""

        def alone(site: Site, seed: int) -> Trained:
            with self._at_work(site, shared, seed) as bench:
                way = run_fused if engine == FUSED else None
                if way is not None and not can_fuse(bench.place, site, self._method):
                    way = None
                return self._result(bench, self._trained(bench, site, way))

        with reproducibly(0), self._users_code(sites[0]):
            return self._ways.train(sites, shared, engine, alone, self._named)

    def evaluate(self, site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        """Each metric over the site's test records, and how many those are.

        Under "finetune" the model is first fitted to the site's training records; not where
        training is private, because metrics leave and the fit is not private.
        """
        with self._at_work(site, shared) as bench:
            if site.noise is None:
                self._settle(bench, site)
            bench.model.eval()
            outputs, targets = _outputs(bench.model, bench.test)
            return self._measures.of(outputs, targets), len(bench.test)

    def complete(self, site: Site, shared: dict[str, Any]) -> SiteModel:
        """The whole model of this site, its own layers and the shared ones: what `evaluate`
        measures. It is a copy, and no later round changes it."""
        with self._at_work(site, shared) as bench:
            self._settle(bench, site)
            return SiteModel(deepcopy(bench.model), self.kind, bench.given_train)

    @property
    def kind(self) -> Kind:
        """What the model's outputs are, as far as the loss tells."""
        return kind_of(self._method.loss)

    def new_model(self, site: Site) -> nn.Module:
        """A model of this site's form, with first values."""
        with reproducibly(0), self._users_code(site):
            bench = self._workshop.bench(site)
            model = deepcopy(bench.model)
        tensors = tensors_of(model)
        for name, value in bench.first.items():
            tensors[name].data.copy_(value)
        return model

    def _trained(self, bench: Bench, site: Site, way: RunPhase | None = None) -> float | None:
        if site.privacy is not None:  # before all else: no other way is private
            bench.check_private()
            has_own_loop = self._loop is not None
            return train_privately(
                bench.place, site, self._method, has_own_loop=has_own_loop
            ).effective
        if self._loop is None:
            return train_locally(bench.place, site, self._method, way)
        with only_training(bench.place, bench.parts.shared + bench.parts.private):
            steps = self._loop(bench.model, bench.given_train, site)
        if steps is None or (isinstance(steps, int | float) and steps > 0):
            return steps
        raise TaskResultError("loop returns its number of steps, or nothing")

    def _result(self, bench: Bench, steps: float | None) -> Trained:
        state = read_arrays(bench.model, bench.parts.staying)
        after = read_arrays(bench.model, bench.parts.shared)
        return Trained(after, len(bench.train), state or None, steps)

    def _settle(self, bench: Bench, site: Site) -> None:
        """Make the model the site's own, as far as the plan says."""
        warm_up(bench.place, site, self._method)
        calibrate(bench.place)
        if site.personal.name == "finetune":
            fine_tune(bench.place, site, self._method)
        bench.model.eval()

    @contextmanager
    def _at_work(
        self, site: Site, shared: dict[str, Any], seed: int | None = None
    ) -> Iterator[Bench]:
        drawn = int(site.rng.integers(2**63)) if seed is None else seed
        with reproducibly(drawn), self._users_code(site):
            bench = self._workshop.bench(site)
            bench.load(site, shared)
            yield bench

    @contextmanager
    def _named(self, site: Site) -> Iterator[None]:
        """Errors within are this site's."""
        try:
            with self._users_code(site):
                yield
        except (LayoutError, SiteDataError, TaskResultError) as error:
            raise named(error, site.name) from error.__cause__

    @contextmanager
    def _users_code(self, site: Site) -> Iterator[None]:
        """The text of an error in the user's code may carry data: tell only its type and the
        last line of the user's file that led to it."""
        try:
            yield
        except ConsortiumError:
            raise
        except Exception as error:
            raise TaskResultError(
                f"site {site.name}: {where(error, self._make)}", hint=SEE_MORE
            ) from error


def _outputs(model: nn.Module, records: Records) -> tuple[Tensor, Tensor]:
    """All outputs and all targets, in the order of the records."""
    dtype, outputs, targets = float_type(model), [], []
    with torch.no_grad():
        for inputs, wanted in records.batches(EVALUATION_BATCH, None):
            outputs.append(outputs_of(model, inputs, dtype).cpu())
            targets.append(wanted)
    return torch.cat(outputs), torch.cat(targets)


def _columns(bench: Bench) -> tuple[str, ...] | None:
    """The columns that the model takes, where they must be everybody's: where the first layer
    is shared. A private one may take any."""
    first = next(name for name, _ in bench.model.named_parameters())
    found = getattr(bench.given_train, "columns", None)
    return found if isinstance(found, tuple) and first not in bench.parts.private else None


def _specs(arrays: Arrays) -> tuple[TensorSpec, ...]:
    return tuple(spec_of(name, arrays[name]) for name in sorted(arrays))

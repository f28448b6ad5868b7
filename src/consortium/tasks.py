"""The task: what every site computes. A user writes this, and nothing else but the plan.

Here is the contract that every task keeps, and its plainest form, for NumPy: a function
that trains and one that evaluates, both on a dictionary of arrays. Tasks of torch models
are made in `consortium.torch`. The same object runs in simulation and at real sites.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.errors import ConsortiumError, TaskEntryError, TaskResultError, UsageError
from consortium.plan.values import PersonalSection, TrainingSection
from consortium.privacy.noise import Noise
from consortium.tensors import Tensors, TensorSpec, spec_of

# Which way is better, for the metrics that everybody means the same by.
KNOWN_METRICS = {
    "loss": False,
    "mse": False,
    "rmse": False,
    "mae": False,
    "accuracy": True,
    "auroc": True,
    "f1": True,
}


@dataclass(frozen=True, slots=True)
class LocalRules:
    """What the strategy asks of local training: terms to add to every gradient.

    FedProx pulls towards the round's model (Li et al. 2020): mu (x - base). SCAFFOLD adds
    what the others' gradients have and this site's lack (Karimireddy et al. 2020): c - c_i.
    """

    mu: float = 0.0
    base: Tensors = field(default_factory=dict)
    correction: Tensors | None = None

    @property
    def are_plain(self) -> bool:
        return self.mu == 0.0 and self.correction is None

    def adjusted(self, values: Tensors, gradients: Tensors) -> dict[str, Any]:
        """The gradients at `values` with what the strategy adds to them."""
        result = {}
        for name, gradient in gradients.items():
            if self.mu:
                gradient = gradient + self.mu * (values[name] - self.base[name])
            if self.correction is not None:
                gradient = gradient + self.correction[name]
            result[name] = gradient
        return result


@dataclass(frozen=True, slots=True)
class RecordPrivacy:
    """What local training must do so that no single record shows in the update: `steps` steps,
    each on a sample into which every record comes by a coin of probability `rate`; each
    record's gradient clipped to `clip`; noise of `sigma` times `clip` on their sum; the sum
    divided by `expected_batch`, which does not depend on who was picked.

    Where that is None, it is `rate` times the site's own number of records, which is private too:
    noise of `count_sigma` comes on it, once a round."""

    clip: float
    sigma: float
    rate: float
    steps: int
    expected_batch: float | None
    noise: Noise
    count_sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class Site:
    """What a task gets to know about where it runs."""

    name: str
    data: Any  # a path, an array, a data frame: whatever the site's data is to this task
    round: int
    rng: np.random.Generator  # fresh for each site and round, and the same when seeded
    training: TrainingSection
    personal: PersonalSection = field(default_factory=PersonalSection)
    rules: LocalRules = LocalRules()
    state: Tensors | None = None  # what the task kept here when it last trained; None: nothing yet
    own_seed: int = 0  # for the first values of what stays here: the same in every round
    privacy: RecordPrivacy | None = None  # None: training is not private
    noise: Noise | None = None  # for what else leaves; None: it leaves as it is


@dataclass(frozen=True, slots=True)
class Trained:
    """What local training gives: the shared tensors, how many records they were trained on,
    what the site keeps for the next time, and how many gradient steps it took.

    `steps` is the sum of the weights that the gradients got (Wang et al. 2020, ||a||_1): the
    number of steps for plain SGD, more with momentum. FedNova and SCAFFOLD need it.
    """

    shared: Tensors
    records: int
    state: Tensors | None = None
    steps: float | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """What of a model leaves a site and what stays."""

    leaves: tuple[TensorSpec, ...]
    private: tuple[TensorSpec, ...] = ()
    frozen: tuple[TensorSpec, ...] = ()
    pinned: Digest | None = None  # of the frozen tensors' bytes: the same at every site
    columns: tuple[str, ...] | None = (
        None  # of the records, if sites must have the same: stays here
    )


@dataclass(frozen=True, slots=True)
class TrainedTogether:
    """What local training gives at n sites side by side: each shared tensor as (n, ...), and a
    value a site of everything else. `records` is None where the data failed its check."""

    shared: Mapping[str, npt.NDArray[Any]]
    records: Sequence[int | None]
    states: Sequence[Tensors | None]
    steps: Sequence[float | None]

    def at(self, place: int) -> Trained:
        """One site's, without its shared tensors."""
        records = self.records[place]
        assert records is not None
        return Trained({}, records, self.states[place], self.steps[place])


Start = Callable[[np.random.Generator], Tensors]
Train = Callable[[Site, dict[str, Any]], Trained | tuple[Tensors, int]]
Evaluate = Callable[[Site, dict[str, Any]], tuple[Mapping[str, float], int]]


@runtime_checkable
class Task(Protocol):
    """What the drivers need of a task."""

    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    @property
    def follows_rules(self) -> bool:
        """Whether training does what `site.rules` ask."""
        ...

    @property
    def prefers_workers(self) -> bool:
        """Whether a simulation had better train it in one process a core."""
        ...

    def inventory(self, site: Site) -> Inventory:
        """What leaves and what stays, with this site's data."""
        ...

    def first(self, site: Site) -> Tensors:
        """The first model's shared tensors. They depend on `site.rng` and not on the data,
        but for its form."""
        ...

    def train(self, site: Site, shared: dict[str, Any]) -> Trained | tuple[Tensors, int]:
        """Train locally, starting from `shared`."""
        ...

    def evaluate(self, site: Site, shared: dict[str, Any]) -> tuple[Mapping[str, float], int]:
        """(mean of each metric over the site's test records, how many those are)."""
        ...


AUTO, LOOP = "auto", "loop"  # engines that every task knows


@dataclass(frozen=True, slots=True)
class Pace:
    """How a simulation had better train a task: by which engine, and how many sites at once."""

    engine: str
    at_once: int = 1


class SideBySide(Protocol):
    """A task that has faster ways than one site after the other."""

    def pace(self, site: Site, wanted: str) -> Pace:
        """By a rule on the task, the plan and a site's model, never by timing; `wanted` is an
        engine's name, or AUTO. Refuses an engine that cannot train this task."""
        ...

    def train_together(
        self, sites: Sequence[Site], shared: dict[str, Any], engine: str
    ) -> TrainedTogether:
        """Train at each of these sites, starting from `shared`: what `train` would give, within
        rounding."""
        ...


def pace_of(task: Task, site: Callable[[], Site], wanted: str) -> Pace:
    """How to train this task. Refuses an engine that is not for it; `site` is asked for only
    if the task has something to say about its model."""
    if _trains_together(task):
        return cast(SideBySide, task).pace(site(), wanted)
    if wanted not in (AUTO, LOOP):
        raise UsageError(
            f"engine `{wanted}` is for torch models, and this task trains by itself",
            hint="leave the engine out",
        )
    return Pace(LOOP)


def _trains_together(task: Task) -> bool:
    """Whether the task's own class has both ways to train. A class that puts another `train`
    before one that it inherits or passes on must not be got round."""
    classes = type(task).__mro__
    alone, together = (
        next((at for at, one in enumerate(classes) if name in vars(one)), None)
        for name in ("train", "train_together")
    )
    return alone is not None and together is not None and together <= alone


@dataclass(frozen=True, slots=True)
class NumpyTask:
    """A task of plain functions. Make one with `numpy_task`."""

    start: Start
    train: Train
    evaluate: Evaluate
    metrics: tuple[Metric, ...]
    follows_rules: bool = False
    prefers_workers: bool = False

    def first(self, site: Site) -> Tensors:
        return self.start(site.rng)

    def inventory(self, site: Site) -> Inventory:
        shared = self.first(site)
        leaves = tuple(spec_of(name, np.asarray(shared[name])) for name in sorted(shared))
        return Inventory(leaves)


def numpy_task(
    *,
    start: Start,
    evaluate: Evaluate,
    metrics: Sequence[str | Metric] = ("loss",),
    follows_rules: bool = False,
) -> Callable[[Train], NumpyTask]:
    """Makes a task of a training function.

    `start(rng)` gives the first shared arrays. The decorated function gets
    `(site, shared)`, may change `shared`, and returns `(shared, records)`, or a `Trained`
    when the site keeps something or the strategy counts steps. `evaluate(site, shared)`
    returns `({metric: mean}, records)`. Other metrics than loss, mse, rmse, mae, accuracy,
    auroc and f1 are given as `Metric(name, higher_is_better)`. `follows_rules` says that
    training uses `site.rules.adjusted`, without which FedProx and SCAFFOLD are refused.
    """
    known = tuple(known_metric(metric) for metric in metrics)

    def decorate(train: Train) -> NumpyTask:
        return NumpyTask(start, train, evaluate, known, follows_rules)

    return decorate


def known_metric(metric: str | Metric) -> Metric:
    """A metric with its direction, by its name if everybody means the same by it."""
    if isinstance(metric, Metric):
        return metric
    if metric not in KNOWN_METRICS:
        close = difflib.get_close_matches(metric, KNOWN_METRICS, n=1)
        own = f'write consortium.Metric("{metric}", higher_is_better=True)'
        raise TaskResultError(
            f"metric `{metric}` is not known",
            hint=f"did you mean {close[0]}? for one of your own, {own}" if close else own,
        )
    return Metric(metric, KNOWN_METRICS[metric])


def load_task(entry: str, folder: Path) -> Task:
    """The task that a plan names as "file.py:name", from a file in `folder`.

    This runs the file: it is for the lead's own machine. A site runs a task only after
    somebody there has approved its hash.
    """
    file_name, _, name = entry.partition(":")
    path = folder / file_name
    if not file_name.endswith(".py") or not name.isidentifier():
        raise TaskEntryError(f"`{entry}` is not of the form file.py:name")
    if not path.is_file():
        raise TaskEntryError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"consortium_task_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and the like look their module up
    sys.path.insert(0, str(folder.resolve()))  # so that the task finds its own files
    try:
        spec.loader.exec_module(module)
    except ConsortiumError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code: it may raise anything
        raise TaskEntryError(
            f"{path} cannot be run: {_told(error, str(module.__file__))}",
            hint=f"python {path}    # shows where",
        ) from error
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if found is None:
        raise TaskEntryError(f"{path} has no `{name}`")
    if not isinstance(found, Task):
        raise TaskEntryError(
            f"`{name}` in {path} is a {type(found).__name__}, not a task",
            hint="put @co.task(loss=...) above it" if callable(found) else "",
        )
    return found


def _told(error: BaseException, file_name: str) -> str:
    """What went wrong in a task's file: its kind and line. Its text is shown only where it
    speaks of code; that of others may carry data, if the file reads some."""
    kind = type(error).__name__
    if isinstance(error, ImportError | NameError | SyntaxError):
        return f"{kind}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file_name]
    return f"{kind} in line {lines[-1]}" if lines else kind

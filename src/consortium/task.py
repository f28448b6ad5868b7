"""The task: what every site computes. A user writes this, and nothing else but the plan.

This is the plain form, for NumPy: a function that trains and one that evaluates, both on
a dictionary of arrays. The same object runs in simulation and at real sites.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from consortium.core.terms import Metric
from consortium.errors import ConsortiumError, TaskEntryError, TaskResultError
from consortium.model import Tensors
from consortium.plan.values import TrainingSection

# Which way is better, for the metrics that everybody means the same by.
_KNOWN_METRICS = {
    "loss": False,
    "rmse": False,
    "mae": False,
    "accuracy": True,
    "auroc": True,
    "f1": True,
}


@dataclass(frozen=True, slots=True)
class Site:
    """What a task gets to know about where it runs."""

    name: str
    data: Any  # a path, an array, a data frame: whatever the site's data is to this task
    round: int
    rng: np.random.Generator  # fresh for each site and round, and the same when seeded
    training: TrainingSection


Start = Callable[[np.random.Generator], Tensors]
Train = Callable[[Site, dict[str, Any]], tuple[Tensors, int]]
Evaluate = Callable[[Site, dict[str, Any]], tuple[dict[str, float], int]]


class Task(Protocol):
    """What the drivers need of a task."""

    @property
    def metrics(self) -> tuple[Metric, ...]: ...

    def start(self, rng: np.random.Generator) -> Tensors:
        """The first model's shared tensors."""
        ...

    def train(self, site: Site, shared: dict[str, Any]) -> tuple[Tensors, int]:
        """(shared tensors after local training, records trained on)."""
        ...

    def evaluate(self, site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        """(mean of each metric over the site's test records, how many those are)."""
        ...


@dataclass(frozen=True, slots=True)
class NumpyTask:
    """A task of plain functions. Make one with `numpy_task`."""

    start: Start
    train: Train
    evaluate: Evaluate
    metrics: tuple[Metric, ...]


def numpy_task(
    *, start: Start, evaluate: Evaluate, metrics: Sequence[str | Metric] = ("loss",)
) -> Callable[[Train], NumpyTask]:
    """Makes a task of a training function.

    `start(rng)` gives the first shared arrays. The decorated function gets
    `(site, shared)`, may change `shared`, and returns `(shared, records)`. `evaluate(site,
    shared)` returns `({metric: mean}, records)`. Other metrics than loss, rmse, mae,
    accuracy, auroc and f1 are given as `Metric(name, higher_is_better)`.
    """
    known = tuple(_metric(metric) for metric in metrics)

    def decorate(train: Train) -> NumpyTask:
        return NumpyTask(start, train, evaluate, known)

    return decorate


def _metric(metric: str | Metric) -> Metric:
    if isinstance(metric, Metric):
        return metric
    if metric not in _KNOWN_METRICS:
        raise TaskResultError(
            f"metric `{metric}` is not known",
            hint=f'write consortium.Metric("{metric}", higher_is_better=True)',
        )
    return Metric(metric, _KNOWN_METRICS[metric])


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
            f"{path} cannot be run: {type(error).__name__}: {error}",
            hint=f"python {path}    # shows where",
        ) from error
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if found is None:
        raise TaskEntryError(f"{path} has no `{name}`")
    if not isinstance(found, NumpyTask):
        raise TaskEntryError(f"`{name}` in {path} is a {type(found).__name__}, not a task")
    return found

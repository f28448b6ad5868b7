"""Local work, one site after the other: the plain engine that every faster one is tested
against. It runs the user's functions and holds them to their contract."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from consortium.core.ids import Seat
from consortium.core.terms import ReportValue
from consortium.drive.rng import stream
from consortium.errors import ConsortiumError, LayoutError, TaskResultError
from consortium.model import Layout, Vector
from consortium.plan.values import TrainingSection
from consortium.task import Site, Task

_SEE_MORE = "run again with -vv (before the command) to see the whole error; it may show data"


@dataclass(frozen=True, slots=True)
class SimulatedSite:
    """A site of a simulation: its name, its data, what it reports of itself."""

    name: str
    data: Any
    report: tuple[tuple[str, ReportValue], ...] = ()


@dataclass(frozen=True, slots=True)
class LoopEngine:
    """Trains and evaluates the sites of a simulation one by one."""

    task: Task
    layout: Layout
    sites: Sequence[SimulatedSite]  # seat 1 is the first
    training: TrainingSection
    seed: int

    def train(self, seat: Seat, base: Vector, round_number: int) -> tuple[Vector, int]:
        """(the step away from `base`, records trained on) of one site."""
        site = self._site(seat, round_number, "train")
        shared = self.layout.unflatten(base)
        result = _call(site, "train", self.task.train, site, shared)
        try:
            tensors, records = result
            trained = self.layout.flatten(tensors)
        except LayoutError as error:
            raise LayoutError(f"site {site.name}: {error.message}", hint=error.hint) from None
        except (TypeError, ValueError, AttributeError):
            raise TaskResultError(
                f"site {site.name}: train returned {type(result).__name__}, not (shared, records)"
            ) from None
        return trained - base, _count(site, "train", records)

    def evaluate(self, seat: Seat, model: Vector, round_number: int) -> tuple[list[float], int]:
        """(sum of each metric over the test records, how many those are) of one site."""
        site = self._site(seat, round_number, "evaluate")
        shared = self.layout.unflatten(model)
        result = _call(site, "evaluate", self.task.evaluate, site, shared)
        try:
            means, records = result
            values = [float(means[metric.name]) for metric in self.task.metrics]
        except KeyError as error:
            raise TaskResultError(f"site {site.name}: evaluate left out {error}") from None
        except (TypeError, ValueError):
            raise TaskResultError(
                f"site {site.name}: evaluate returned {type(result).__name__}, "
                "not ({metric: mean}, records)"
            ) from None
        count = _count(site, "evaluate", records)
        if not all(math.isfinite(value) for value in values):
            raise TaskResultError(f"site {site.name}: evaluate gave a mean that is not finite")
        return [value * count for value in values], count

    def _site(self, seat: Seat, round_number: int, purpose: str) -> Site:
        site = self.sites[seat - 1]
        rng = stream(self.seed, purpose, round_number, seat)
        return Site(site.name, site.data, round_number, rng, self.training)


def first_model(task: Task, seed: int) -> tuple[Layout, Vector]:
    """The layout that the task shares, and the model that round one starts from."""
    try:
        tensors = task.start(stream(seed, "start"))
        layout = Layout.of(tensors)
    except ConsortiumError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code: it may raise anything
        raise TaskResultError(
            f"start failed: {_where(error, task.start)}", hint=_SEE_MORE
        ) from error
    vector = layout.flatten(tensors)
    if not np.isfinite(vector).all():
        raise TaskResultError("start gave numbers that are not finite")
    return layout, vector


def _call(site: Site, what: str, function: Any, *arguments: Any) -> Any:
    """Run the user's code. Its error text may carry data, so only type and place are told."""
    try:
        return function(*arguments)
    except ConsortiumError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code: it may raise anything
        raise TaskResultError(
            f"site {site.name}: {what} failed: {_where(error, function)}", hint=_SEE_MORE
        ) from error


def _where(error: BaseException, function: Any) -> str:
    """The error's type and the last line of the user's own file that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    frame = (own or frames)[-1]
    return f"{type(error).__name__} in {frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"


def _count(site: Site, what: str, records: object) -> int:
    if not isinstance(records, int | np.integer) or isinstance(records, bool) or records < 1:
        raise TaskResultError(
            f"site {site.name}: {what} must say how many records it used, at least one"
        )
    return int(records)

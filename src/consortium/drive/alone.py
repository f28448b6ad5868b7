"""The comparison that every study owes its readers: each site on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from consortium.core.ids import Seat
from consortium.drive.engine import LocalEngine
from consortium.drive.simulate import Run
from consortium.errors import ImpossiblePlanError, QualityError
from consortium.model import STEP, Vector
from consortium.plan.compression import CompressionSection
from consortium.plan.security import SecuritySection
from consortium.plan.strategy import StrategySection
from consortium.tensors import TensorSpec

Kept = tuple[Vector, bytes | None]  # a model, and what its site keeps


def train_alone(engine: LocalEngine, seat: Seat, start: Vector, rounds: int) -> Kept:
    """The model of one site that trains as often as in a federation, with nobody else."""
    model, state = start, None
    form = engine.local.plan.strategy.form(engine.local.layout)
    for number in range(1, rounds + 1):
        result = engine.train_one(seat, number, model, None, state)
        model, state = model + form.part(result.row, STEP), result.state
    return model, state


def mean_metric(
    engine: LocalEngine, kept: Kept, seats: Sequence[Seat], index: int, made_in: int = 0
) -> float:
    """One metric over all test records of these sites, of a model that a round made."""
    total, records = 0.0, 0
    for seat in seats:
        sums, count = engine.evaluate_one(seat, made_in, *kept)
        total += sums[index]
        records += count
    return total / records


@dataclass(frozen=True, slots=True)
class CrossSite:
    """One metric of every site's own model, and of the common one, at every site."""

    metric: str
    sites: tuple[str, ...]
    own: tuple[tuple[float | None, ...], ...]  # [trained at][tried at]; None: cannot be tried
    common: tuple[float | None, ...]  # tried at


def cross_site(run: Run, metric: str) -> CrossSite:
    """Train each site alone, as long as the run, and try every model everywhere. Where sites
    keep layers of different shapes, a site's own model can be tried at home only."""
    engine = alone_engine(run)
    names = [known.name for known in run.local.task.metrics]
    if metric not in names:
        raise ImpossiblePlanError(
            f"the task does not report `{metric}`", hint=f"it reports: {', '.join(names)}"
        )
    index, rounds, made_in = names.index(metric), len(run.history.rounds), run.model_round
    seats = [Seat(number) for number in range(1, len(run.sites) + 1)]
    shapes = [_shape(engine, seat) for seat in seats]
    own: list[tuple[float | None, ...]] = []
    for seat, shape in zip(seats, shapes, strict=True):
        if shape is None:  # its data is not fit to train on
            own.append((None,) * len(seats))
            continue
        kept = train_alone(engine, seat, run.first, rounds)
        tried = [
            mean_metric(engine, kept, [other], index, rounds) if there == shape else None
            for other, there in zip(seats, shapes, strict=True)
        ]
        own.append(tuple(tried))
    common = tuple(
        None
        if shape is None
        else mean_metric(engine, (run.model, run.states.current(seat)), [seat], index, made_in)
        for seat, shape in zip(seats, shapes, strict=True)
    )
    return CrossSite(metric, tuple(site.name for site in run.sites), tuple(own), common)


def alone_engine(run: Run) -> LocalEngine:
    """The sites of a run as they would train by themselves: nobody to be pulled towards, and
    nobody to send anything to."""
    alone = {
        "strategy": StrategySection(),
        "compression": CompressionSection(),
        "security": SecuritySection(),
    }
    plan = run.plan.model_copy(update=alone)
    return LocalEngine(replace(run.local, plan=plan), run.sites, run.seed)


def _shape(engine: LocalEngine, seat: Seat) -> tuple[TensorSpec, ...] | None:
    """The form of what stays at a site; None where the data is not fit to be used."""
    try:
        return engine.local.inventory(engine.site(seat, 0, "start")).private
    except QualityError:
        return None

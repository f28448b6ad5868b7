"""The comparison that every study owes its readers: each site on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from consortium.core.ids import Seat
from consortium.drive.engine import LoopEngine
from consortium.drive.simulate import Run
from consortium.errors import ImpossiblePlanError
from consortium.model import STEP, Vector
from consortium.plan.strategy import StrategySection

Kept = tuple[Vector, bytes | None]  # a model, and what its site keeps


def train_alone(engine: LoopEngine, seat: Seat, start: Vector, rounds: int) -> Kept:
    """The model of one site that trains as often as in a federation, with nobody else."""
    model, state = start, None
    form = engine.local.plan.strategy.form(engine.local.layout)
    for number in range(1, rounds + 1):
        result = engine.train_one(seat, number, model, None, state)
        model, state = model + form.part(result.row, STEP), result.state
    return model, state


def mean_metric(engine: LoopEngine, kept: Kept, seats: Sequence[Seat], index: int) -> float:
    """One metric over all test records of these sites."""
    total, records = 0.0, 0
    for seat in seats:
        sums, count = engine.evaluate_one(seat, 0, *kept)
        total += sums[index]
        records += count
    return total / records


@dataclass(frozen=True, slots=True)
class CrossSite:
    """One metric of every site's own model, and of the common one, at every site."""

    metric: str
    sites: tuple[str, ...]
    own: tuple[tuple[float | None, ...], ...]  # [trained at][tried at]; None: cannot be tried
    common: tuple[float, ...]  # tried at


def cross_site(run: Run, metric: str) -> CrossSite:
    """Train each site alone, as long as the run, and try every model everywhere. Where sites
    keep layers of different shapes, a site's own model can be tried at home only."""
    engine = alone_engine(run)
    names = [known.name for known in run.local.task.metrics]
    if metric not in names:
        raise ImpossiblePlanError(
            f"the task does not report `{metric}`", hint=f"it reports: {', '.join(names)}"
        )
    index, rounds = names.index(metric), len(run.history.rounds)
    seats = [Seat(number) for number in range(1, len(run.sites) + 1)]
    shapes = [engine.local.task.inventory(engine.site(seat, 0, "start")).private for seat in seats]
    own = []
    for seat in seats:
        kept = train_alone(engine, seat, run.first, rounds)
        can_travel = all(shape == shapes[0] for shape in shapes)
        own.append(
            tuple(
                mean_metric(engine, kept, [other], index) if other == seat or can_travel else None
                for other in seats
            )
        )
    common = tuple(
        mean_metric(engine, (run.model, run.states.current(seat)), [seat], index) for seat in seats
    )
    return CrossSite(metric, tuple(site.name for site in run.sites), tuple(own), common)


def alone_engine(run: Run) -> LoopEngine:
    """The sites of a run as they would train by themselves: nobody to be pulled towards."""
    plan = run.plan.model_copy(update={"strategy": StrategySection()})
    return LoopEngine(replace(run.local, plan=plan), run.sites, run.seed)

"""The comparison that every study owes its readers: each site on its own."""

from __future__ import annotations

from consortium.core.ids import Seat
from consortium.drive.engine import LoopEngine
from consortium.model import Vector


def train_alone(engine: LoopEngine, seat: Seat, start: Vector, rounds: int) -> Vector:
    """The model of one site that trains as often as in a federation, with nobody else."""
    model = start
    for number in range(1, rounds + 1):
        step, _ = engine.train(seat, model, number)
        model = model + step
    return model


def mean_metric(engine: LoopEngine, model: Vector, seats: list[Seat], index: int) -> float:
    """One metric over all test records of these sites."""
    total, records = 0.0, 0
    for seat in seats:
        sums, count = engine.evaluate(seat, model, 0)
        total += sums[index]
        records += count
    return total / records

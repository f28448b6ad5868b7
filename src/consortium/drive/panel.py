"""The members of a simulated round as judges: each tries candidate and base on its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from consortium.core.ids import Digest, Seat
from consortium.drive.engine import Engine, States, Trial
from consortium.drive.local import Scores
from consortium.drive.states import SiteStates
from consortium.model import Vector, digest_of

Seats = Sequence[Seat]
_Known = dict[Seat, tuple[Digest | None, Scores]]  # the state that it was measured with


@dataclass(frozen=True, slots=True)
class Measured:
    """A model to be tried: its name, its numbers, and the round that made it. A model is tried
    alike whenever it is tried, so its own round says which random numbers are drawn."""

    name: Digest
    vector: Vector
    round: int


class Panel:
    """Measures what is not known yet: the candidate with what each site made in this round,
    the base with what went with it. A round's candidate is the next one's base, so it is
    measured once."""

    def __init__(self, engine: Engine, states: SiteStates, on_site: Callable[[int], None]) -> None:
        self._engine, self._states, self._on_site = engine, states, on_site
        self._known: dict[Digest, _Known] = {}
        self._done: tuple[int, Digest] | None = None

    def measure(
        self, number: int, candidate: Measured, base: Measured, seats: Mapping[Seat, int]
    ) -> None:
        """Make sure that both models' scores are known for these seats in this round. Each seat
        comes with the round that it was asked in to train what is in the candidate."""
        if self._done == (number, candidate.name):
            return
        self._known = {model.name: self._known.get(model.name, {}) for model in (candidate, base)}

        def after(seat: Seat) -> bytes | None:
            made = self._states.pending(seat, seats[seat])
            return self._states.current(seat) if made is None else made

        def before(seat: Seat) -> bytes | None:
            # A site that is new has nothing that went with the base: then what it just made.
            held = self._states.current(seat)
            return after(seat) if held is None else held

        trials = [
            (model, kept, self._missing(model, kept, list(seats)))
            for model, kept in ((candidate, after), (base, before))
        ]
        total = sum(len(marks) for _, _, marks in trials)
        for model, kept, marks in trials:
            known = self._known[model.name]
            work = Trial(model.round, model.vector, kept)
            for seat, scores in zip(marks, self._engine.evaluate(list(marks), work), strict=True):
                known[seat] = marks[seat], scores
                self._on_site(total)
        self._done = number, candidate.name

    def _missing(self, model: Measured, kept: States, seats: Seats) -> dict[Seat, Digest | None]:
        """Those seats at which the model is not measured yet, with what they keep."""
        known, marks = self._known[model.name], {seat: _mark(kept(seat)) for seat in seats}
        return {seat: mark for seat, mark in marks.items() if known.get(seat, (b"",))[0] != mark}

    def scores(self, model: Digest, seats: Sequence[Seat]) -> list[Scores]:
        """What was measured of a model at these seats."""
        return [self._known[model][seat][1] for seat in seats]

    def means(self, model: Digest) -> dict[Seat, list[float]]:
        """Each site's mean of each metric for a model that was just measured."""
        known = self._known.get(model, {})
        return {
            seat: [total / records for total in sums]
            for seat, (_, (sums, records)) in known.items()
        }


def _mark(state: bytes | None) -> Digest | None:
    return None if state is None else digest_of(state)


def totals(scores: Sequence[Scores]) -> tuple[float, ...]:
    """Sums over several sites, rounded once."""
    return tuple(math.fsum(column) for column in zip(*(sums for sums, _ in scores), strict=True))

"""The members of a simulated round as judges: each tries candidate and base on its records."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from consortium.core.ids import Digest, Seat
from consortium.drive.engine import Engine, Trial
from consortium.drive.local import Scores
from consortium.drive.states import SiteStates
from consortium.model import Vector, digest_of

_Known = dict[Seat, tuple[Digest | None, Scores]]  # the state that it was measured with


class Panel:
    """Measures what is not known yet: the candidate with what each site made in this round,
    the base with what went with it. A round's candidate is the next one's base, so it is
    measured once."""

    def __init__(self, engine: Engine, states: SiteStates, on_site: Callable[[], None]) -> None:
        self._engine, self._states, self._on_site = engine, states, on_site
        self._known: dict[Digest, _Known] = {}
        self._done: tuple[int, Digest] | None = None

    def measure(
        self,
        number: int,
        candidate: tuple[Digest, Vector],
        base: tuple[Digest, Vector],
        seats: Sequence[Seat],
    ) -> None:
        """Make sure that both models' scores are known for these seats in this round."""
        if self._done == (number, candidate[0]):
            return
        self._known = {name: self._known.get(name, {}) for name in (candidate[0], base[0])}
        present = {seat: self._states.current(seat) for seat in seats}
        after = {seat: self._states.pending(seat, number) or present[seat] for seat in seats}
        for (name, vector), kept in ((candidate, after), (base, present)):
            known = self._known[name]
            marks = {
                seat: None if state is None else digest_of(state) for seat, state in kept.items()
            }
            missing = [seat for seat in seats if known.get(seat, (b"",))[0] != marks[seat]]
            results = self._engine.evaluate(missing, Trial(number, vector, kept.__getitem__))
            for seat, scores in zip(missing, results, strict=True):
                known[seat] = marks[seat], scores
                self._on_site()
        self._done = number, candidate[0]

    def scores(self, model: Digest, seats: Sequence[Seat]) -> list[Scores]:
        """What was measured of a model at these seats."""
        return [self._known[model][seat][1] for seat in seats]

    def unusable(self, models: Sequence[Digest], seats: Sequence[Seat]) -> Seat | None:
        """The first of these sites where a model gives no finite number, if there is one."""
        for seat in seats:
            sums = [value for model in models for value in self._known[model][seat][1][0]]
            if not all(map(math.isfinite, sums)):
                return seat
        return None

    def means(self, model: Digest) -> dict[Seat, list[float]]:
        """Each site's mean of each metric for a model that was just measured."""
        known = self._known.get(model, {})
        return {
            seat: [total / records for total in sums]
            for seat, (_, (sums, records)) in known.items()
            if all(map(math.isfinite, sums))
        }


def totals(scores: Sequence[Scores]) -> tuple[float, ...]:
    """Sums over several sites, rounded once."""
    return tuple(math.fsum(column) for column in zip(*(sums for sums, _ in scores), strict=True))

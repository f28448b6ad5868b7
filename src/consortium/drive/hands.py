"""The coordinator's own work in one process: draw, check, sum, judge, release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from consortium.aggregate.weighted import BLOCK, Partial, WeightedMean, blocks, step
from consortium.checks import Expected, check_update
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import RoundEnd
from consortium.core.ids import Digest
from consortium.core.state import Federation
from consortium.drive.clock import Clock
from consortium.errors import InternalError
from consortium.gate import judge
from consortium.model import Layout, Vector, load_model, load_update, save_model
from consortium.plan.values import StrategySection
from consortium.store.ports import Blobs

_FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class CoordinatorHands:
    """Performs duties against a blob store. Doing one twice gives the same bytes."""

    layout: Layout
    strategy: StrategySection
    blobs: Blobs
    clock: Clock
    draw_seed: Callable[[int], bytes]

    def perform(self, duty: d.Duty, state: Federation) -> i.Input:
        now_ms = self.clock.now_ms()
        match duty:
            case d.Draw():
                return i.Drawn(duty.round, self.draw_seed(duty.round), now_ms)
            case d.Check():
                return self._check(duty, state, now_ms)
            case d.Aggregate():
                return self._aggregate(duty, now_ms)
            case d.Judge():
                assert state.terms is not None
                outcome = judge(state.terms, duty).outcome
                return i.Verdict(duty.round, duty.model, outcome, now_ms)
            case d.Release():
                self.model(duty.model)  # it is there, has its layout and is finite
                return i.Released(duty.round, duty.model, now_ms)
            case d.WakeAt():
                raise InternalError("waking is the driver's duty")

    def model(self, digest: Digest) -> Vector:
        """The vector of a stored model."""
        return load_model(self.layout, self.blobs.get(digest))

    def _check(self, duty: d.Check, state: Federation, now_ms: int) -> i.Checked:
        assert state.round is not None
        expected = Expected(
            self.layout.size, self.layout.dtype, state.round.base, self.strategy.clip
        )
        found = check_update(self.blobs.get(duty.update), expected)
        return i.Checked(
            duty.round, duty.seat, duty.update, found.fault, found.weight, found.norm, now_ms
        )

    def _aggregate(self, duty: d.Aggregate, now_ms: int) -> i.Summed | i.NotSummed:
        mean = WeightedMean()
        for partial in self._partials(duty):
            mean.merge(partial)
        base = self.model(duty.base)
        with np.errstate(over="ignore", invalid="ignore"):
            candidate = step(base, mean.finish(), self.strategy.server_lr)
        if not np.isfinite(candidate).all():
            return i.NotSummed(duty.round, duty.count, RoundEnd.NOT_FINITE, now_ms)
        model = self.blobs.put(save_model(self.layout, candidate))
        return i.Summed(duty.round, duty.count, model, None, now_ms)

    def _partials(self, duty: d.Aggregate) -> Iterator[Partial]:
        """Block sums in ascending order: of simulated cohorts, or of single updates."""
        if duty.partials:
            for rank, weight, digest in duty.partials:
                stored = load_update(self.blobs.get(digest), self.layout.size, _FLOAT64)
                total = stored.step.astype(np.float64)
                yield Partial(rank // BLOCK, total, weight)
        else:
            yield from blocks(self._updates(duty))

    def _updates(self, duty: d.Aggregate) -> Iterator[tuple[int, Vector, float]]:
        for rank, digest in duty.updates:
            update = load_update(self.blobs.get(digest), self.layout.size, self.layout.dtype)
            yield rank, update.step, update.weight

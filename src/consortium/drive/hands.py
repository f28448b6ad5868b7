"""The coordinator's own work in one process: draw, check, sum, judge, release."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby

import numpy as np

from consortium.aggregate.weighted import BLOCK, Partial, WeightedMean, blocks, joined, step
from consortium.checks import Expected, Findings, check_update
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import Fault, RoundEnd
from consortium.core.ids import Digest
from consortium.core.state import Federation
from consortium.drive.clock import Clock
from consortium.errors import CorruptBlobError, InternalError, MissingBlobError, ModelFileError
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
        try:
            found = check_update(self.blobs.get(duty.update), self.expected(state.round.base))
        except (MissingBlobError, CorruptBlobError):
            found = Findings(Fault.FORMAT)  # it was here; the round must not wait for it
        return i.Checked(
            duty.round, duty.seat, duty.update, found.fault, found.weight, found.norm, now_ms
        )

    def expected(self, base: Digest) -> Expected:
        """What an update trained from `base` must be under this plan."""
        limits = self.strategy.weighing().limits()
        layout = self.layout
        return Expected(layout.size, layout.dtype, base, self.strategy.clip, limits)

    def _aggregate(self, duty: d.Aggregate, now_ms: int) -> i.Summed | i.NotSummed:
        mean = WeightedMean()
        try:
            for partial in self._partials(duty):
                mean.merge(partial)
        except (MissingBlobError, CorruptBlobError):
            return i.NotSummed(duty.round, duty.count, RoundEnd.AGGREGATION, now_ms)
        with np.errstate(over="ignore", invalid="ignore"):
            candidate = step(self.model(duty.base), mean.finish(), self.strategy.server_lr)
            stored = save_model(self.layout, candidate)
        try:
            load_model(self.layout, stored)  # finite also after the cast to the tensors' types
        except ModelFileError:
            return i.NotSummed(duty.round, duty.count, RoundEnd.NOT_FINITE, now_ms)
        return i.Summed(duty.round, duty.count, self.blobs.put(stored), None, now_ms)

    def _partials(self, duty: d.Aggregate) -> Iterator[Partial]:
        """Block sums in ascending order, of simulated cohorts and of single updates."""
        both = heapq.merge(
            self._cohorts(duty), blocks(self._updates(duty)), key=lambda partial: partial.block
        )
        for _, same in groupby(both, key=lambda partial: partial.block):
            yield reduce(joined, same)

    def _cohorts(self, duty: d.Aggregate) -> Iterator[Partial]:
        for rank, weight, digest in duty.partials:
            stored = load_update(self.blobs.get(digest), self.layout.size, _FLOAT64)
            yield Partial(rank // BLOCK, stored.step.astype(np.float64), weight)

    def _updates(self, duty: d.Aggregate) -> Iterator[tuple[int, Vector, float]]:
        for rank, digest in duty.updates:
            update = load_update(self.blobs.get(digest), self.layout.size, self.layout.dtype)
            yield rank, update.step, update.weight

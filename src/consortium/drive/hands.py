"""The coordinator's own work in one process: draw, check, screen, sum, judge, release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from consortium.checks import Expected, Findings, check_update
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import Fault, RoundEnd
from consortium.core.ids import Digest
from consortium.core.state import Federation
from consortium.drive.clock import Clock
from consortium.drive.combine import Combination, server_state_of
from consortium.drive.rows import open_rows
from consortium.errors import (
    CorruptBlobError,
    InternalError,
    MissingBlobError,
    ModelFileError,
)
from consortium.gate import judge
from consortium.model import Form, Layout, Vector, load_model, save_model
from consortium.plan.strategy import VARIATE, StrategySection
from consortium.screen import screen
from consortium.store.ports import Blobs


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
            case d.Screen():
                return self._screen(duty, now_ms)
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

    @property
    def form(self) -> Form:
        """What an update consists of."""
        return self.strategy.form(self.layout)

    def model(self, digest: Digest) -> Vector:
        """The vector of a stored model."""
        return load_model(self.layout, self.blobs.get(digest))

    def variate(self, server_state: Digest | None) -> Vector | None:
        """The server's control variate, which sites of a SCAFFOLD round need; else None."""
        if not self.strategy.has_variates:
            return None
        return server_state_of(self.strategy, self.layout, self.blobs, server_state)[VARIATE]

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
        return Expected(self.form, base, self.strategy.clip, limits)

    def _screen(self, duty: d.Screen, now_ms: int) -> i.Screened:
        """Who stands out. An update whose bytes are gone is left for the sum to stumble over:
        then the round fails, and says why."""
        ranked = [(rank, digest) for _, rank, digest in duty.updates]
        try:
            rows = open_rows(self.blobs, self.form, ranked, ())
        except (MissingBlobError, CorruptBlobError):
            return i.Screened(duty.round, duty.count, (), now_ms)
        seats = [seat for seat, _, _ in duty.updates]
        found = screen(rows, self.layout.size)
        excluded = tuple(sorted((seats[at], fault) for at, fault in found.items()))
        return i.Screened(duty.round, duty.count, excluded, now_ms)

    def _aggregate(self, duty: d.Aggregate, now_ms: int) -> i.Summed | i.NotSummed:
        try:
            rows = open_rows(self.blobs, self.form, duty.updates, duty.partials)
            state = server_state_of(self.strategy, self.layout, self.blobs, duty.server_state)
            base = self.model(duty.base)
        except (MissingBlobError, CorruptBlobError):
            return i.NotSummed(duty.round, duty.count, RoundEnd.AGGREGATION, now_ms)
        share = duty.count / max(duty.eligible, duty.count)  # of those who could have answered
        combination = Combination(self.strategy, self.layout, share)
        candidate, moved = combination.step(base, rows, state)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # the next line looks for both
                stored = save_model(self.layout, candidate)
            load_model(self.layout, stored)  # finite also after the cast to the tensors' types
            kept = combination.save_state(moved)
        except ModelFileError:
            return i.NotSummed(duty.round, duty.count, RoundEnd.NOT_FINITE, now_ms)
        model = self.blobs.put(stored)
        server_state = None if kept is None else self.blobs.put(kept)
        return i.Summed(duty.round, duty.count, model, server_state, now_ms)

"""The sites of a simulation: what they answer when the coordinator's state asks them.

Sites that were admitted as a cohort answer in blocks, one fact a block; sites that were
admitted one by one answer one by one, as real ones do. The numbers are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice

import numpy as np

from consortium.aggregate.weighted import BLOCK, sum_block
from consortium.core import inputs as i
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.core.terms import Close
from consortium.drive.engine import LoopEngine
from consortium.drive.hands import CoordinatorHands
from consortium.model import Update, Vector, save_update
from consortium.store.ports import Blobs
from consortium.update.stage import Chain, Rows

Drops = Callable[[int, str], bool]  # whether a site falls out of a round
OnWork = Callable[[int, str, int, int], None]  # round, what, done, of

_Score = tuple[list[float], int]


class Cohort:
    """Plays every site. `answer` gives the next thing that some site says, or None."""

    def __init__(
        self,
        engine: LoopEngine,
        hands: CoordinatorHands,
        pipeline: Chain,
        drops: Drops | None = None,
        on_work: OnWork | None = None,
    ) -> None:
        self._engine, self._hands, self._pipeline = engine, hands, pipeline
        self._blobs: Blobs = hands.blobs
        self._drops = drops
        self._on_work = on_work
        self._trained: dict[Seat, tuple[Vector, int]] = {}  # of the present block only
        self._trained_in = 0  # the round that they were trained in
        self._scores: dict[Digest, dict[Seat, _Score]] = {}
        self._vectors: dict[Digest, Vector] = {}  # candidate and base, read once

    def answer(self, state: Federation, now_ms: int) -> i.Input | None:
        open_round = state.round
        if open_round is None:
            return None
        if open_round.step is Step.TRAINING and open_round.waiting:
            return self._train(state, open_round, now_ms)
        if open_round.step is Step.EVALUATING and open_round.unheard:
            return self._evaluate(state, open_round, now_ms)
        return None

    # ---- training -------------------------------------------------------------------

    def _train(self, state: Federation, open_round: Round, now_ms: int) -> i.Input:
        if self._trained_in != open_round.number:
            self._trained, self._trained_in = {}, open_round.number
        seats: list[Seat] = []
        wanted = _still_wanted(state, open_round)
        for seat in self._next_block(state, open_round):
            failure = self._try(open_round, seat)
            if failure is not None:
                return i.Fail(open_round.number, seat, failure, None, now_ms)
            seats.append(seat)
            if len(seats) == wanted:  # one by one, the round would close here too
                break
        rows = self._rows(seats)
        self._trained.clear()
        if state.roster.is_simulated(seats[0]):
            return self._block_answer(open_round, seats, rows, now_ms)
        return self._single_answer(open_round, seats[0], rows, now_ms)

    def _try(self, open_round: Round, seat: Seat) -> Failure | None:
        """Train one site, unless it has been; why it falls out of the round, if it does."""
        if self._falls_out(open_round, seat):
            return Failure.RESOURCES
        if seat not in self._trained:
            base = self._vector(open_round.base)
            self._trained[seat] = self._engine.train(seat, base, open_round.number)
            self._progress(open_round, "train", len(open_round.invited))
        return None if np.isfinite(self._trained[seat][0]).all() else Failure.TRAINING

    def _next_block(self, state: Federation, open_round: Round) -> list[Seat]:
        """Waiting seats of the lowest block of the summation; a real site comes alone."""
        ranks = open_round.invited
        waiting = list(islice(open_round.waiting, BLOCK))  # kept in the order of invitation
        if not state.roster.is_simulated(waiting[0]):
            return waiting[:1]
        block = ranks[waiting[0]] // BLOCK
        return [seat for seat in waiting if ranks[seat] // BLOCK == block]

    def _falls_out(self, open_round: Round, seat: Seat) -> bool:
        name = self._engine.sites[seat - 1].name
        return self._drops is not None and self._drops(open_round.number, name)

    def _rows(self, seats: list[Seat]) -> Rows:
        """What these sites send: trained, weighed, clipped."""
        values = np.stack([self._trained[seat][0] for seat in seats])  # (n, d)
        samples = np.array([self._trained[seat][1] for seat in seats], np.float64)  # (n,)
        return self._pipeline.apply(Rows(values, samples, samples))

    def _block_answer(
        self, open_round: Round, seats: list[Seat], rows: Rows, now_ms: int
    ) -> i.TrainedCohort:
        partial = sum_block(
            (open_round.invited[seat], values, float(weight))
            for seat, values, weight in zip(seats, rows.values, rows.weights, strict=True)
        )
        stored = Update(partial.total, partial.weight, open_round.base)
        digest = self._blobs.put(save_update(stored))
        members = tuple(sorted(seats))
        return i.TrainedCohort(open_round.number, members, partial.weight, digest, now_ms)

    def _single_answer(self, open_round: Round, seat: Seat, rows: Rows, now_ms: int) -> i.Submit:
        update = Update(rows.values[0], float(rows.weights[0]), open_round.base)
        digest = self._blobs.put(save_update(update))
        return i.Submit(open_round.number, seat, digest, None, now_ms)

    # ---- evaluation -----------------------------------------------------------------

    def _evaluate(self, state: Federation, open_round: Round, now_ms: int) -> i.Input:
        seats = list(open_round.unheard)
        if not state.roster.is_simulated(seats[0]):
            seats = seats[:1]
        assert open_round.model is not None
        candidates = [self._score(open_round, seat, open_round.model) for seat in seats]
        bases = [self._score(open_round, seat, open_round.base) for seat in seats]
        samples = sum(records for _, records in candidates)
        number, model = open_round.number, open_round.model
        sums = _totals(candidates), _totals(bases)
        if state.roster.is_simulated(seats[0]):
            return i.ScoredCohort(number, tuple(sorted(seats)), model, samples, *sums, now_ms)
        return i.Score(number, seats[0], model, samples, *sums, None, now_ms)

    def _score(self, open_round: Round, seat: Seat, model: Digest) -> _Score:
        """A site's sums for a model. The next round's base is this round's candidate, so
        what was measured is kept for one round."""
        scores = self._scores.setdefault(model, {})
        if len(self._scores) > 2:
            live = (open_round.model, open_round.base)
            self._scores = {digest: old for digest, old in self._scores.items() if digest in live}
        if seat not in scores:
            vector = self._vector(model)
            scores[seat] = self._engine.evaluate(seat, vector, open_round.number)
            self._progress(open_round, "evaluate", len(open_round.members))
        return scores[seat]

    def _vector(self, model: Digest) -> Vector:
        if model not in self._vectors:
            if len(self._vectors) > 1:
                self._vectors.clear()
            self._vectors[model] = self._hands.model(model)
        return self._vectors[model]

    def _progress(self, open_round: Round, what: str, total: int) -> None:
        if self._on_work is not None:
            self._on_work(open_round.number, what, 1, total)


def _still_wanted(state: Federation, open_round: Round) -> int:
    """Updates until the round closes by itself."""
    assert state.terms is not None
    at_quorum = state.terms.close is Close.QUORUM
    goal = open_round.quorum if at_quorum else open_round.target
    return max(1, goal - len(open_round.accepted))


def _totals(scores: list[_Score]) -> tuple[float, ...]:
    return tuple(math.fsum(column) for column in zip(*(sums for sums, _ in scores), strict=True))

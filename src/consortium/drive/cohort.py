"""The sites of a simulation: what they answer when the coordinator's state asks them.

Sites that were admitted as a cohort answer in blocks, one fact a block; sites that were
admitted one by one answer one by one, as real ones do. The numbers are the same. A row is
added to its block's sum as soon as it is there, so memory does not grow with the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter

import numpy as np

from consortium.aggregate.block import BLOCK, BlockSum
from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.core.terms import Close
from consortium.drive.contribution import Contribution, Contributions, joined
from consortium.drive.engine import Engine, Training
from consortium.drive.hands import CoordinatorHands
from consortium.drive.panel import Measured, Panel, totals
from consortium.drive.states import SiteStates
from consortium.model import Form, Update, Vector, save_update, update_bytes

Drops = Callable[[int, str], bool]  # whether a site falls out of a round
OnWork = Callable[[int, str, int, int], None]  # round, what, done, of

_FLOAT64 = np.dtype(np.float64)


@dataclass(slots=True)
class _Running:
    """Training that is under way: seats in the order of their invitation, whose results
    come in that order."""

    round: int
    seats: list[Seat]  # asked, and not yet taken
    results: Generator[Contributions, None, None]
    ready: Contributions | None = None  # of the first of these seats
    block: BlockSum = field(default_factory=BlockSum)
    summed: list[Seat] = field(default_factory=list)  # in this block

    def take(self, most: int) -> tuple[list[Seat], Contributions]:
        """The next seats with what they made: some, and `most` at most."""
        ready = next(self.results) if self.ready is None else self.ready
        taken = ready.part(0, most)
        self.ready = ready.part(most, len(ready)) if len(ready) > most else None
        seats, self.seats = self.seats[: len(taken)], self.seats[len(taken) :]
        return seats, taken

    def put_back(self, seats: list[Seat], results: Contributions) -> None:
        """Seats that were taken too early; nothing lies ready before them."""
        if seats:
            self.seats = seats + self.seats
            self.ready = results if self.ready is None else joined(results, self.ready)


@dataclass(frozen=True, slots=True)
class _Begun:
    """What a site was asked to train: as much of a `Train` as its answer needs."""

    round: int
    seat: Seat
    base: Digest


class Cohort:
    """Plays every site. `answer` gives the next thing that some site says, or None."""

    def __init__(
        self,
        engine: Engine,
        hands: CoordinatorHands,
        states: SiteStates,
        drops: Drops | None = None,
        on_work: OnWork | None = None,
    ) -> None:
        self._engine, self._hands = engine, hands
        self._states, self._drops, self._on_work = states, drops, on_work
        self._running: _Running | None = None
        self._panel = Panel(engine, states, self._one_evaluated)
        self._asked: Round | None = None  # the round whose members are evaluating
        self._vectors: dict[Digest, Vector] = {}  # candidate and base, read once
        self._sent: dict[int, list[float]] = {}  # by round, the weights of updates

    def sent_bytes(self) -> int:
        """Of the updates that sites sent since this was asked last. In blocks no file is made; its
        size is known all the same."""
        sent, self._sent = self._sent, {}
        return sum(
            update_bytes(self._hands.sent_form(at), *weights) for at, weights in sent.items()
        )

    def answer(self, state: Federation, now_ms: int) -> i.Input | None:
        open_round = state.round
        if open_round is None:
            return None
        if open_round.step is Step.TRAINING and open_round.waiting:
            return self._train(state, open_round, now_ms)
        if open_round.step is Step.EVALUATING and open_round.unheard:
            return self._evaluate(state, open_round, now_ms)
        return None

    def means(self, model: Digest) -> dict[str, list[float]]:
        """Each member's mean of each metric for a model that was just evaluated."""
        return {self._name(seat): means for seat, means in self._panel.means(model).items()}

    def close(self) -> None:
        self._engine.close()  # first: nobody waits for what is still being trained
        self._stop()

    # ---- training -------------------------------------------------------------------

    def _train(self, state: Federation, open_round: Round, now_ms: int) -> i.Input:
        lost = self._first_to_fall_out(open_round)
        if lost is not None:
            return i.Fail(open_round.number, lost, Failure.RESOURCES, None, now_ms)
        running = self._continued(state, open_round)
        ranks, wanted = open_round.invited, _still_wanted(state, open_round)
        while running.seats or self._has_more(state, open_round, running):
            first = running.seats[0]
            if not state.roster.is_simulated(first):
                (seat,), results = running.take(1)
                self._progress(open_round, "train", 1)
                duty = _Begun(open_round.number, seat, open_round.base)
                return self.told(duty, results.each()[0], now_ms)
            block = ranks[running.summed[0] if running.summed else first] // BLOCK
            together = [seat for seat in running.seats if ranks[seat] // BLOCK == block]
            most = min(len(together), wanted - len(running.summed))
            if not most:
                break
            failed = self._add(open_round, running, most, now_ms)
            if failed is not None:
                return failed
        return self._block_answer(open_round, running, now_ms)

    def _add(self, open_round: Round, running: _Running, most: int, now_ms: int) -> i.Fail | None:
        """Add what the next sites made to the block's sum, until one of them has failed."""
        seats, made = running.take(most)
        failures = list(made.failures)
        good = next((at for at, failure in enumerate(failures) if failure), len(seats))
        for seat, state in zip(seats[:good], made.states, strict=False):
            if state is not None:
                self._states.keep(seat, open_round.number, state)
        fine = made.part(0, good)
        ranks = [open_round.invited[seat] for seat in seats[:good]]
        running.block.add(ranks, fine.rows, fine.weights, fine.total)
        running.summed += seats[:good]
        self._sent.setdefault(open_round.number, []).extend(fine.weights)
        if good == len(seats):
            self._progress(open_round, "train", good)
            return None
        self._progress(open_round, "train", good + 1)
        running.put_back(seats[good + 1 :], made.part(good + 1, len(seats)))
        failure = failures[good]
        assert failure is not None
        return i.Fail(open_round.number, seats[good], failure, None, now_ms)

    def train(self, duty: d.Train, seats: Sequence[Seat]) -> Generator[Contribution, None, None]:
        """What these seats train by an invitation like this one."""
        variate = self._hands.variate(duty.server_state)
        work = Training(duty.round, self._vector(duty.base), variate, self._states.current)
        for made in self._engine.train(tuple(seats), work):
            for one in made.each():
                yield replace(one, row=one.row.copy())  # the engine uses its rows again

    def told(self, duty: d.Train | _Begun, result: Contribution, now_ms: int) -> i.Submit | i.Fail:
        """What a site says that has trained: the update, which is stored once what stays is kept,
        or why there is none."""
        if result.failure is not None:
            return i.Fail(duty.round, duty.seat, result.failure, None, now_ms)
        if result.state is not None:
            self._states.keep(duty.seat, duty.round, result.state)
        update = Update(result.row, result.weight, duty.base, result.packed)
        form = self._hands.sent_form(duty.round)
        digest = self._hands.blobs.put(save_update(update, form))
        self._sent.setdefault(duty.round, []).append(result.weight)
        return i.Submit(duty.round, duty.seat, digest, None, now_ms)

    def lost(self, duty: d.Train, now_ms: int) -> i.Fail | None:
        """What a site says that is to fall out of this round."""
        if self._drops is None or not self._drops(duty.round, self._name(duty.seat)):
            return None
        return i.Fail(duty.round, duty.seat, Failure.RESOURCES, None, now_ms)

    def _first_to_fall_out(self, open_round: Round) -> Seat | None:
        """A waiting site that will not answer in this block of invitations, if there is one."""
        if self._drops is None:
            return None
        ahead = islice(open_round.waiting, BLOCK)
        return next((seat for seat in ahead if self._falls_out(open_round, seat)), None)

    def _continued(self, state: Federation, open_round: Round) -> _Running:
        """The training under way, or new training of the sites that come next."""
        running = self._running
        if running is not None and running.round == open_round.number:
            pending = [*running.summed, *running.seats]
            if pending and list(islice(self._answering(open_round), len(pending))) == pending:
                return running
        self._stop()
        seats = self._next_seats(state, open_round, [])
        results = self._asked_for(state, open_round, seats)
        self._running = _Running(open_round.number, seats, results)
        return self._running

    def _has_more(self, state: Federation, open_round: Round, running: _Running) -> bool:
        """Backups that were called meanwhile: with those of the same block it is one sum in the
        order of ranks, as it would be one by one."""
        running.seats = self._next_seats(state, open_round, running.summed)
        if running.seats:
            running.results = self._asked_for(state, open_round, running.seats)
        return bool(running.seats)

    def _asked_for(
        self, state: Federation, open_round: Round, seats: list[Seat]
    ) -> Generator[Contributions, None, None]:
        is_summed = bool(seats) and state.roster.is_simulated(seats[0])
        return self._engine.train(tuple(seats), self._work(open_round, is_summed))

    def _work(self, open_round: Round, is_summed: bool) -> Training:
        return Training(
            open_round.number,
            self._vector(open_round.base),
            self._hands.variate(open_round.server_state),
            self._states.current,
            self._groups(open_round),
            open_round.invited if is_summed else {},
        )

    def _groups(self, open_round: Round) -> list[list[Seat]]:
        """Who trains side by side: everybody who was invited and will answer, by ranks. The same
        after a crash, with any number of workers, and one by one."""
        size, drops = group_size(open_round.target, self._engine.at_once), self._drops
        groups: dict[int, list[Seat]] = {}
        for seat, rank in sorted(open_round.invited.items(), key=itemgetter(1)):
            if drops is None or not self._falls_out(open_round, seat):
                groups.setdefault(rank // size, []).append(seat)
        return list(groups.values())

    def _next_seats(self, state: Federation, open_round: Round, summed: list[Seat]) -> list[Seat]:
        """Waiting seats, in the order of their invitation, whose updates would be used."""
        wanted, done = _still_wanted(state, open_round) - len(summed), set(summed)
        waiting = (seat for seat in self._answering(open_round) if seat not in done)
        return list(islice(waiting, max(wanted, 0)))

    def _answering(self, open_round: Round) -> Iterator[Seat]:
        """Waiting seats that will not fall out. Who falls out of a later block says so when its
        turn comes, and is not trained meanwhile."""
        if self._drops is None:
            return iter(open_round.waiting)
        return (seat for seat in open_round.waiting if not self._falls_out(open_round, seat))

    def _falls_out(self, open_round: Round, seat: Seat) -> bool:
        return self._drops is not None and self._drops(open_round.number, self._name(seat))

    def _stop(self) -> None:
        if self._running is not None:
            self._running.results.close()
            self._running = None

    def _block_answer(self, open_round: Round, running: _Running, now_ms: int) -> i.TrainedCohort:
        partial, members = running.block.finish(), tuple(sorted(running.summed))
        running.block, running.summed = BlockSum(), []
        stored = Update(partial.total, partial.weight, open_round.base)
        form = Form(self._hands.form.vectors, _FLOAT64)
        digest = self._hands.blobs.put(save_update(stored, form))
        return i.TrainedCohort(open_round.number, members, partial.weight, digest, now_ms)

    # ---- evaluation -----------------------------------------------------------------

    def _evaluate(self, state: Federation, open_round: Round, now_ms: int) -> i.Input:
        assert open_round.model is not None
        number, model, base = open_round.number, open_round.model, open_round.base
        self._stop()  # a round that closed early leaves training behind that nobody wants
        unheard = list(open_round.unheard)
        self._asked = open_round
        made_in = state.versions[open_round.version].round
        candidate = Measured(model, self._vector(model), number)
        before = Measured(base, self._vector(base), made_in)
        begun = {seat: open_round.number_of(seat) for seat in unheard}
        self._panel.measure(number, candidate, before, begun)
        seats = unheard if state.roster.is_simulated(unheard[0]) else unheard[:1]
        candidates = self._panel.scores(model, seats)
        samples = sum(records for _, records in candidates)
        sums = totals(candidates), totals(self._panel.scores(base, seats))
        if state.roster.is_simulated(seats[0]):
            return i.ScoredCohort(number, tuple(sorted(seats)), model, samples, *sums, now_ms)
        return i.Score(begun[seats[0]], seats[0], model, samples, *sums, None, now_ms)

    def _vector(self, model: Digest) -> Vector:
        if model not in self._vectors:
            if len(self._vectors) > 1:
                self._vectors.clear()
            self._vectors[model] = self._hands.model(model)
        return self._vectors[model]

    def _name(self, seat: Seat) -> str:
        return self._engine.sites[seat - 1].name

    def _one_evaluated(self, total: int) -> None:
        assert self._asked is not None
        if self._on_work is not None:
            self._on_work(self._asked.number, "evaluate", 1, total)

    def _progress(self, open_round: Round, what: str, done: int) -> None:
        if self._on_work is not None:
            total = open_round.invited if what == "train" else open_round.members
            self._on_work(open_round.number, what, done, len(total))


def group_size(target: int, most: int) -> int:
    """Sites side by side in a round of `target`: an even number of groups of nearly one size, so
    that two cores have as much to do.

    >>> [group_size(target, 50) for target in (1, 10, 100, 150, 1000)]
    [1, 5, 50, 38, 50]
    """
    count = max(-(-target // most), 2)
    return max(1, -(-target // (count + count % 2)))


def _still_wanted(state: Federation, open_round: Round) -> int:
    """Updates until the round closes by itself."""
    assert state.terms is not None
    at_quorum = state.terms.close is Close.QUORUM
    goal = open_round.quorum if at_quorum else open_round.target
    return max(1, goal - len(open_round.accepted))

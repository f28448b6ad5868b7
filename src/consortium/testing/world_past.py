"""The durable log as a `World` knows it: every fact is judged as it is committed.

`Past` folds the log a second time, from its encoded records: it is what a coordinator
would know that has just been started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.evolve import evolve
from consortium.core.ids import Digest, Seat
from consortium.core.legal import why_illegal
from consortium.core.state import Federation, Round
from consortium.errors import ModelFileError
from consortium.ledger.merkle import EMPTY_ROOT, leaf_hash, node_hash
from consortium.model import Vector, load_model, load_update, plain_form
from consortium.testing.world_coordinator import CoordinatorPlayer
from consortium.testing.world_invitations import Invitations
from consortium.testing.world_violation import Violation, must

__all__ = ["Violation", "must"]

if TYPE_CHECKING:
    from consortium.testing.world import World

_TOLERANCE = 1e-9  # of sums of a handful of numbers near one, in float64


@dataclass(frozen=True, slots=True)
class Made:
    """Who made an update, for which round, from which model; whether its bytes are sound."""

    seat: Seat
    round: int
    base: Digest
    is_sound: bool


class Roots:
    """The Merkle root at every length, computed as the log grows and not by `ledger.tree`."""

    def __init__(self) -> None:
        self.at = [EMPTY_ROOT]
        self._peaks: list[tuple[int, bytes]] = []  # (height, hash), the largest first

    def add(self, record: bytes) -> None:
        height, node = 0, leaf_hash(record)
        while self._peaks and self._peaks[-1][0] == height:
            node = node_hash(self._peaks.pop()[1], node)
            height += 1
        self._peaks.append((height, node))
        found = self._peaks[-1][1]
        for _, peak in reversed(self._peaks[:-1]):
            found = node_hash(peak, found)
        self.at.append(found)


def root_of(records: Sequence[bytes]) -> bytes:
    roots = Roots()
    for record in records:
        roots.add(record)
    return roots.at[-1]


def name_of(value: object) -> str:
    number = getattr(value, "round", None)
    return type(value).__name__ + (f" of round {number}" if number else "")


class Past:
    """What is durable, and what follows from it for ever."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.state = Federation()
        self.roots = Roots()
        self.commits: list[int] = []  # the log's length after each of them
        self.last_candidate: tuple[int, Digest | None] = (0, None)
        self.ends: dict[int, f.RoundCompleted | f.RoundFailed] = {}
        self.updates: dict[Digest, Made] = {}
        self.received: dict[tuple[int, Seat], Digest] = {}
        self.scored: dict[tuple[int, Seat], f.Evaluated] = {}
        self.counted: dict[int, set[Seat]] = {}
        self.candidates: dict[int, Digest] = {}
        self.models: dict[int, Digest] = {}
        self.invitations = Invitations()
        self._departed: set[Seat] = set()
        self.rotations: set[int] = set()  # positions of new keys after the first
        self._rules: dict[type[Any], Callable[[Any], None]] = {
            f.LogKeyAdopted: self._key_adopted,
            f.ModelInstalled: self._installed,
            f.SiteDeparted: lambda fact: self._departed.add(fact.seat),
            f.DeadlineExtended: self._extended,
            f.UpdateReceived: self._update_received,
            f.RoundClosed: self._closed,
            f.BaseScored: self._base_scored,
            f.Aggregated: self._aggregated,
            f.Evaluated: self._evaluated,
            f.ModelPublished: self._published,
            f.RoundCompleted: self._ended,
            f.RoundFailed: self._ended,
        }

    # ---- commits --------------------------------------------------------------------

    def append(self, player: CoordinatorPlayer, records: Sequence[bytes]) -> None:
        """These records are durable from now on."""
        for record in records:
            fact = decode(record)
            at_ms = player.clock.now_ms()
            must(fact.at_ms == at_ms, "I-T1", f"{name_of(fact)} has another clock's time")
            if isinstance(fact, f.RoundClosed) and self._world.veil is not None:
                self._world.veil.closed(fact, self._open())
            self.invitations.add(fact)
            if self._world.money is not None:
                self._world.money.add(fact)
            rule = self._rules.get(type(fact))
            if rule is not None:
                rule(fact)
            wrong = why_illegal(self.state, fact)
            must(wrong is None, "I-R2", f"{name_of(fact)}: {wrong}")
            evolve(self.state, fact)
            if self._world.money is not None:
                self._world.money.recorded()
            if self._world.veil is not None:
                self._world.veil.recorded(self.state)
            self.roots.add(record)
            self._world.trace(f"{player.name}: {name_of(fact)} is fact {len(self.roots.at) - 2}")
        self.commits.append(len(self.roots.at) - 1)

    def _open(self) -> Round:
        must(self.state.round is not None, "I-R2", "a fact of a round, and none is open")
        assert self.state.round is not None
        return self.state.round

    def _key_adopted(self, fact: f.LogKeyAdopted) -> None:
        if self.state.log_keys:
            self.rotations.add(len(self.roots.at) - 1)

    def _installed(self, fact: f.ModelInstalled) -> None:
        self._has(fact.model)
        self.models[fact.version] = fact.model

    def _extended(self, fact: f.DeadlineExtended) -> None:
        allowed = self._world.setting.terms.max_extensions
        must(self._open().extensions < allowed, "I-R2", "the deadline moved too often")

    def _update_received(self, fact: f.UpdateReceived) -> None:
        self._has(fact.update)
        key = fact.round, fact.seat
        must(key not in self.received, "I-R5", f"seat {fact.seat} was received twice")
        self.received[key] = fact.update

    def _closed(self, fact: f.RoundClosed) -> None:
        for seat in fact.members:
            asked = self.invitations.of[seat]
            made = self.updates.get(self.received.get((asked.round, seat), Digest(b"")))
            must(made is not None, "I-A1", f"seat {seat} is counted and sent nothing")
            assert made is not None
            must(made.is_sound, "I-A1", f"an unsound update of seat {seat} is counted")
            same = (made.seat, made.base) == (seat, asked.base)
            must(same, "I-A1", f"seat {seat} is counted with an update made for something else")
            # A liar may call its own update whatever it likes, if the base is the same.
            is_now = made.round == asked.round or not self._world.is_honest(seat)
            must(is_now, "I-A1", f"seat {seat} is counted with an update of another round")
        self._nobody_departed(fact.members)

    def _nobody_departed(self, members: Sequence[Seat]) -> None:
        gone = sorted(self._departed.intersection(members))
        must(not gone, "I-A1", f"seats {gone} had left the roster and are counted")

    def _base_scored(self, fact: f.BaseScored) -> None:
        """Who was summed is in the sum's scores, and nobody else."""
        veil = self._world.veil
        must(veil is not None, "I-X2", "scores in a sum that everybody sees the parts of")
        if veil is not None:
            veil.scored(self._open(), fact)

    def _aggregated(self, fact: f.Aggregated) -> None:
        must(fact.round not in self.candidates, "I-R7", "a round was summed twice")
        open_round = self._open()
        members = sorted(open_round.members)
        self._nobody_departed(members)
        self.candidates[fact.round] = fact.model
        self.last_candidate = fact.round, fact.model
        self.counted[fact.round] = set(members)
        found = self.fetched(fact.model)
        if self._world.veil is not None:
            base = self.fetched(open_round.base)
            self._world.veil.aggregated(open_round, base, found)
            return
        base, steps = self.fetched(open_round.base), self._steps(open_round)
        is_same = any(
            np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
            for expected in self._world.sums(fact.round, base, steps)
        )
        must(is_same, "I-R3", f"the sum of round {fact.round} is not each of {members} once")

    def _steps(self, open_round: Round) -> list[tuple[Vector, float]]:
        layout, steps = self._world.layout, []
        for seat in sorted(open_round.members, key=lambda seat: open_round.invited[seat]):
            data = self._world.blobs.get(open_round.submitted[seat])
            update = load_update(data, plain_form(layout.size, layout.dtype))
            steps.append((self.invitations.factor(seat) * update.row[:], update.weight))
        return steps

    def _evaluated(self, fact: f.Evaluated) -> None:
        is_member = fact.seat in self.counted.get(self._open().number, ())
        must(is_member, "I-A1", f"seat {fact.seat} evaluated, and is no member")
        self.scored[fact.round, fact.seat] = fact

    def _published(self, fact: f.ModelPublished) -> None:
        must(fact.version not in self.models, "I-R1", f"version {fact.version} is there twice")
        is_candidate = self.candidates.get(fact.round) == fact.model
        must(is_candidate, "I-R7", f"round {fact.round} publishes another model than its sum")
        self.models[fact.version] = fact.model

    def _ended(self, fact: f.RoundCompleted | f.RoundFailed) -> None:
        must(fact.round not in self.ends, "I-R1", f"round {fact.round} ended twice")
        self.ends[fact.round] = fact

    def _has(self, digest: Digest) -> None:
        must(self._world.blobs.has(digest), "I-R4", "a fact names a blob that is not there")

    def fetched(self, model: Digest) -> Vector:
        """The model as anybody would load it."""
        self._has(model)
        try:
            return load_model(self._world.layout, self._world.blobs.get(model))
        except ModelFileError as error:
            raise Violation("I-M1", error.message) from None

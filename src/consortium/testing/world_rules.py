"""The invariants of a `World`, checked at every commit, every answer and every reply.

`Watch` folds the durable log a second time, from its encoded records, into what is called
the truth here: what a coordinator would know that has just been started. The names of
rules are those of docs/explanation/reliability.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import participant as p
from consortium.core.answers import Receipt, Status
from consortium.core.codec import decode, encode
from consortium.core.evolve import evolve, replay
from consortium.core.federation import decide, owed
from consortium.core.ids import Digest, Seat
from consortium.core.legal import why_illegal
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.errors import ModelFileError, Refusal
from consortium.ledger.merkle import EMPTY_ROOT, leaf_hash, node_hash
from consortium.ledger.notary import origin_of
from consortium.ledger.note import parse_text
from consortium.ledger.proof import verify_proof
from consortium.model import Vector, digest_of, load_model, load_update
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer
from consortium.testing.world_site import SitePlayer, fold
from consortium.testing.world_wire import Reply, Request

if TYPE_CHECKING:
    from consortium.testing.world import World

_TOLERANCE = 1e-9  # of sums of a handful of numbers near one, in float64
_FINAL = (Status.COUNTED, Status.NOT_COUNTED)


class Violation(Exception):
    """A rule was broken."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule, self.message = rule, message


def _must(holds: bool, rule: str, message: str) -> None:
    if not holds:
        raise Violation(rule, message)


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


class Watch:
    """Sees every commit, answer and reply of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_off = False  # while another log than the true one is in place
        self.truth = Federation()
        self.roots = Roots()
        self.last_candidate: tuple[int, Digest | None] = (0, None)
        self.ends: dict[int, f.RoundCompleted | f.RoundFailed] = {}
        self._updates: dict[Digest, Made] = {}
        self._received: dict[tuple[int, Seat], Digest] = {}
        self._scored: dict[tuple[int, Seat], f.Evaluated] = {}
        self._counted: dict[int, set[Seat]] = {}
        self._candidates: dict[int, Digest] = {}
        self._models: dict[int, Digest] = {}
        self._departed: set[Seat] = set()
        self._finals: dict[tuple[int, Seat], Status] = {}
        self._acknowledged: list[tuple[int, Seat, Digest]] = []
        self._rules: dict[type[Any], Callable[[Any], None]] = {
            f.ModelInstalled: self._installed,
            f.SiteDeparted: lambda fact: self._departed.add(fact.seat),
            f.DeadlineExtended: self._extended,
            f.UpdateReceived: self._update_received,
            f.RoundClosed: self._closed,
            f.Aggregated: self._aggregated,
            f.Evaluated: self._evaluated,
            f.ModelPublished: self._published,
            f.RoundCompleted: self._ended,
            f.RoundFailed: self._ended,
        }

    # ---- commits --------------------------------------------------------------------

    def appended(self, player: CoordinatorPlayer, records: Sequence[bytes]) -> None:
        """These records are durable from now on."""
        if self.is_off:
            return
        for record in records:
            fact = decode(record)
            at_ms = player.clock.now_ms()
            _must(fact.at_ms == at_ms, "I-T1", f"{_name(fact)} has another clock's time")
            rule = self._rules.get(type(fact))
            if rule is not None:
                rule(fact)
            wrong = why_illegal(self.truth, fact)
            _must(wrong is None, "I-R2", f"{_name(fact)}: {wrong}")
            evolve(self.truth, fact)
            self.roots.add(record)
            self._world.trace(f"{player.name}: {_name(fact)} is fact {len(self.roots.at) - 2}")

    def _open(self) -> Round:
        _must(self.truth.round is not None, "I-R2", "a fact of a round, and none is open")
        assert self.truth.round is not None
        return self.truth.round

    def _installed(self, fact: f.ModelInstalled) -> None:
        self._has(fact.model)
        self._models[fact.version] = fact.model

    def _extended(self, fact: f.DeadlineExtended) -> None:
        allowed = self._world.setting.terms.max_extensions
        _must(self._open().extensions < allowed, "I-R2", "the deadline moved too often")

    def _update_received(self, fact: f.UpdateReceived) -> None:
        self._has(fact.update)
        key = fact.round, fact.seat
        _must(key not in self._received, "I-R5", f"seat {fact.seat} was received twice")
        self._received[key] = fact.update

    def _closed(self, fact: f.RoundClosed) -> None:
        for seat in fact.members:
            made = self._updates.get(self._received.get((fact.round, seat), Digest(b"")))
            _must(made is not None, "I-A1", f"seat {seat} is counted and sent nothing")
            assert made is not None
            _must(made.is_sound, "I-A1", f"an unsound update of seat {seat} is counted")
            same = (made.seat, made.base) == (seat, self._open().base)
            _must(same, "I-A1", f"seat {seat} is counted with an update made for something else")
            # A liar may call its own update whatever it likes, if the base is the same.
            is_now = made.round == fact.round or not self._world.is_honest(seat)
            _must(is_now, "I-A1", f"seat {seat} is counted with an update of another round")
        self._nobody_departed(fact.members)

    def _nobody_departed(self, members: Sequence[Seat]) -> None:
        gone = sorted(self._departed.intersection(members))
        _must(not gone, "I-A1", f"seats {gone} had left the roster and are counted")

    def _aggregated(self, fact: f.Aggregated) -> None:
        _must(fact.round not in self._candidates, "I-R7", "a round was summed twice")
        open_round = self._open()
        members = sorted(open_round.members)
        self._nobody_departed(members)
        self._candidates[fact.round] = fact.model
        self.last_candidate = fact.round, fact.model
        self._counted[fact.round] = set(members)
        found = self.fetched(fact.model)
        expected = self._world.combine(self.fetched(open_round.base), self._steps(open_round))
        is_same = np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
        _must(is_same, "I-R3", f"the sum of round {fact.round} is not each of {members} once")

    def _steps(self, open_round: Round) -> list[tuple[Vector, float]]:
        layout, steps = self._world.layout, []
        for seat in sorted(open_round.members, key=lambda seat: open_round.invited[seat]):
            data = self._world.blobs.get(open_round.submitted[seat])
            update = load_update(data, layout.size, layout.dtype)
            steps.append((update.step, update.weight))
        return steps

    def _evaluated(self, fact: f.Evaluated) -> None:
        is_member = fact.seat in self._counted.get(fact.round, ())
        _must(is_member, "I-A1", f"seat {fact.seat} evaluated, and is no member")
        self._scored[fact.round, fact.seat] = fact

    def _published(self, fact: f.ModelPublished) -> None:
        _must(fact.version not in self._models, "I-R1", f"version {fact.version} is there twice")
        is_candidate = self._candidates.get(fact.round) == fact.model
        _must(is_candidate, "I-R7", f"round {fact.round} publishes another model than its sum")
        self._models[fact.version] = fact.model

    def _ended(self, fact: f.RoundCompleted | f.RoundFailed) -> None:
        _must(fact.round not in self.ends, "I-R1", f"round {fact.round} ended twice")
        self.ends[fact.round] = fact

    def _has(self, digest: Digest) -> None:
        _must(self._world.blobs.has(digest), "I-R4", "a fact names a blob that is not there")

    # ---- answers, as they are given -------------------------------------------------

    def taken(self, player: CoordinatorPlayer, item: i.Input, facts: Sequence[f.Fact]) -> None:
        """An input was taken: its facts are the newest, or nothing was left to say."""
        if self.is_off:
            return
        records = self._world.records()
        if facts:
            are_there = records[-len(facts) :] == [encode(fact) for fact in facts]
            _must(are_there, "I-R4", f"{_name(item)} was taken, and its facts are not durable")
        again = self._outcome(item)
        _must(again == (), "I-R5", f"{_name(item)} was taken; asked again it would be {again}")
        if isinstance(item, i.Report):
            member = self.truth.roster.members[item.seat]
            _must(member.report == item.report, "I-R4", "a report was taken and is not on record")
        self._is_same(player)

    def refused(self, player: CoordinatorPlayer, request: Request, item: i.Input | None) -> None:
        """The log as it is must say no as well: an old state is no reason."""
        if self.is_off:
            return
        if item is None:
            member = self.truth.roster.members.get(request.seat)
            is_stranger = member is None or member.key != request.key
            _must(is_stranger, "I-R6", f"seat {request.seat} was taken for a stranger")
            return
        outcome = self._outcome(item)
        _must(outcome is None, "I-R6", f"{_name(item)} was refused by a state that is out of date")
        self._is_same(player)

    def _outcome(self, item: i.Input) -> Sequence[f.Fact] | None:
        """What the truth says to an input; None for a refusal."""
        try:
            return decide(self.truth, item)
        except Refusal:
            return None

    def rests(self, player: CoordinatorPlayer) -> None:
        """A coordinator that knows all had nothing to do: then nothing may be overdue."""
        driver = player.coordinator().driver
        if self.is_off or driver.position != len(self._world.records()):
            return
        self._is_same(player)
        now_ms = player.clock.now_ms()
        for duty in owed(self.truth):
            if not isinstance(duty, d.WakeAt):
                raise Violation("I-R2", f"{_name(duty)} is owed, and nothing came of it")
        open_round, terms = self.truth.round, self.truth.terms
        if open_round is not None and terms is not None:
            ends_ms = {
                Step.SELECTING: open_round.deadline_ms,
                Step.TRAINING: open_round.deadline_ms + terms.grace_ms,
                Step.EVALUATING: open_round.evaluate_by_ms,
            }[open_round.step]
            _must(now_ms <= ends_ms, "I-R2", f"round {open_round.number} is overdue")

    def _is_same(self, player: CoordinatorPlayer) -> None:
        driver = player.coordinator().driver
        if driver.position == len(self._world.records()):
            _must(driver.state == self.truth, "I-R8", f"{player.name} is not what its log says")

    # ---- replies, as they arrive ----------------------------------------------------

    def acknowledged(self, site: SitePlayer, work: p.SiteWork, reply: Reply) -> None:
        """A site was told that its answer is in."""
        if self.is_off:
            return
        if isinstance(work, p.SendUpdate):
            key = work.round, site.seat
            _must(self._received.get(key) == work.update, "I-R4", f"update {key} is not durable")
            self._acknowledged.append((*key, work.update))
            self._receipt(site, work, reply.receipt)
            self._proof(reply)
        elif isinstance(work, p.SendScore):
            score = work.score
            held = self._scored.get((score.round, site.seat))
            told = (score.samples, score.candidate, score.base)
            is_kept = held is not None and (held.samples, held.candidate, held.base) == told
            _must(is_kept, "I-R4", f"the evaluation of seat {site.seat} is not durable")

    def _receipt(self, site: SitePlayer, work: p.SendUpdate, given: Receipt | None) -> None:
        is_right = given is not None and given.update == work.update and given.seat == site.seat
        _must(is_right, "I-R5", f"seat {site.seat} got no receipt for what it sent")
        assert given is not None
        key = work.round, site.seat
        if given.status in _FINAL:
            first = self._finals.setdefault(key, given.status)
            _must(first is given.status, "I-R5", f"receipt {key} was {first}, now {given.status}")
        if given.status is Status.COUNTED:
            _must(site.seat in self._counted[work.round], "I-R3", f"{key} is said to be counted")

    def _proof(self, reply: Reply) -> None:
        _must(reply.proof is not None, "I-L1", "a receipt came without a proof")
        assert reply.proof is not None
        verifiers = self._world.keyring.verifiers()
        checkpoint = verify_proof(reply.proof, origin_of(STREAM), verifiers)
        self._checkpoint(checkpoint.size, checkpoint.root)
        record = self._world.records()[reply.proof.index]
        _must(record == reply.proof.record, "I-L1", "a proof of something that is not in the log")

    def shown(self, site: SitePlayer, reply: Reply) -> None:
        """A site was shown a checkpoint, a duty and the present model."""
        if self.is_off:
            return
        assert reply.offer is not None and reply.model is not None
        checkpoint = parse_text(reply.offer.note.partition("\n\n")[0] + "\n")
        self._checkpoint(checkpoint.size, checkpoint.root)
        version, model = reply.model
        _must(self._models.get(version) == model, "I-R1", f"version {version} has two digests")
        duty = reply.duty
        if isinstance(duty, d.Evaluate):
            is_candidate = self._candidates.get(duty.round) == duty.model
            _must(is_candidate, "I-R7", "a site is asked to evaluate what is not in the log")

    def _checkpoint(self, size: int, root: bytes) -> None:
        _must(size < len(self.roots.at), "I-L2", f"a checkpoint of {size} facts, not durable")
        _must(self.roots.at[size] == root, "I-L2", f"two roots at {size} facts")

    def alarmed(self, site: SitePlayer) -> None:
        _must(self.is_off, "I-L2", f"seat {site.seat} raised a false alarm: {site.alarm}")

    # ---- sites and models -----------------------------------------------------------

    def made(self, update: Digest, seat: Seat, number: int, base: Digest) -> None:
        self._updates[update] = Made(seat, number, base, True)

    def made_bytes(
        self, data: bytes, seat: Seat, number: int, base: Digest, is_sound: bool
    ) -> None:
        self._updates[digest_of(data)] = Made(seat, number, base, is_sound)

    def leaves(self, site: SitePlayer, work: p.SendUpdate) -> None:
        """An update leaves a site. A site trains once a round, however often it restarts."""
        may_differ = site.forgot_since is not None and work.round >= site.forgot_since
        is_one = len(site.sent[work.round]) == 1
        _must(is_one or may_differ, "I-R3", f"seat {site.seat} sends a second update")

    def fetched(self, model: Digest) -> Vector:
        """The model as anybody would load it."""
        self._has(model)
        try:
            return load_model(self._world.layout, self._world.blobs.get(model))
        except ModelFileError as error:
            raise Violation("I-M1", error.message) from None

    # ---- at the end -----------------------------------------------------------------

    def finish(self) -> None:
        """Everything once more, from the records alone."""
        records = self._world.records()
        facts = [decode(record) for record in records]
        _must(replay(facts) == self.truth, "I-R8", "replaying the log gives another state")
        held = {(x.round, x.seat, x.update) for x in facts if isinstance(x, f.UpdateReceived)}
        for entry in self._acknowledged:
            _must(entry in held, "I-R4", f"{entry[:2]} was acknowledged and is gone")
        for site in self._world.honest:
            _must(fold(site.records) == site.state, "I-R8", f"seat {site.seat} forgot something")
            for proof in site.proofs:
                kept = records[proof.index] == proof.record
                _must(kept, "I-L1", f"a receipt of seat {site.seat} is not in the log any more")


def _name(value: object) -> str:
    number = getattr(value, "round", None)
    return type(value).__name__ + (f" of round {number}" if number else "")

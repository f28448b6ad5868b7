"""The invariants of a `World`, checked at every commit, every answer and every reply.

Commits are judged by `world_past`; here are the rules about what is said of them. What each
rule means stands in docs/how-to/run-a-world-of-faults.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import participant as p
from consortium.core.answers import Receipt, Status
from consortium.core.codec import decode, encode
from consortium.core.evolve import replay
from consortium.core.federation import decide, owed
from consortium.core.ids import Digest, Seat
from consortium.core.state import Round
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.errors import Refusal
from consortium.ledger.notary import origin_of
from consortium.ledger.note import parse_text
from consortium.ledger.proof import verify_proof
from consortium.model import digest_of
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer
from consortium.testing.world_past import Made, Past, Violation, must, name_of
from consortium.testing.world_site import SitePlayer, fold
from consortium.testing.world_wire import Reply, Request

if TYPE_CHECKING:
    from consortium.testing.world import World

_FINAL = (Status.COUNTED, Status.NOT_COUNTED)
_EXCHANGES = (Step.KEYING, Step.SHARING, Step.AGREEING, Step.UNMASKING)


def _exchange_ends_ms(open_round: Round, terms: Terms, awake_ms: int) -> int:
    """When a phase of a secret sum is over, for a coordinator that was down before."""
    phase_ms = terms.masking.phase_ms if terms.masking is not None else 0
    return max(open_round.deadline_ms, awake_ms + phase_ms)


class Watch:
    """Sees every commit, answer and reply of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.past = Past(world)
        self.is_off = False  # while another log than the true one is in place
        self._kept_size = 0  # of the newest checkpoint that was written down
        self._finals: dict[tuple[int, Seat], Status] = {}
        self._acknowledged: list[tuple[int, Seat, Digest]] = []
        self._settled: list[tuple[int, Seat, bool]] = []  # what sites were told for good

    def appended(self, player: CoordinatorPlayer, records: Sequence[bytes]) -> None:
        """These records are durable from now on."""
        if not self.is_off:
            self.past.append(player, records)

    # ---- answers, as they are given -------------------------------------------------

    def taken(self, player: CoordinatorPlayer, item: i.Input, facts: Sequence[f.Fact]) -> None:
        """An input was taken: its facts are the newest, or nothing was left to say."""
        if self.is_off:
            return
        records = self._world.records()
        if facts:
            are_there = records[-len(facts) :] == [encode(fact) for fact in facts]
            must(are_there, "I-R4", f"{name_of(item)} was taken, and its facts are not durable")
        again = self._outcome(item)
        must(again == (), "I-R5", f"{name_of(item)} was taken; asked again it would be {again}")
        if isinstance(item, i.Report):
            member = self.past.state.roster.members[item.seat]
            must(member.report == item.report, "I-R4", "a report was taken and is not on record")
        self._is_same(player)

    def refused(self, player: CoordinatorPlayer, request: Request, item: i.Input | None) -> None:
        """The log as it is must say no as well: an old state is no reason."""
        if self.is_off:
            return
        if item is None:
            member = self.past.state.roster.members.get(request.seat)
            is_stranger = member is None or member.key != request.key
            must(is_stranger, "I-R6", f"seat {request.seat} was taken for a stranger")
            return
        outcome = self._outcome(item)
        must(outcome is None, "I-R6", f"{name_of(item)} was refused by a state that is out of date")
        self._is_same(player)

    def _outcome(self, item: i.Input) -> Sequence[f.Fact] | None:
        """What the truth says to an input; None for a refusal."""
        try:
            return decide(self.past.state, item)
        except Refusal:
            return None

    def is_behind(self, player: CoordinatorPlayer, refusal: Refusal) -> None:
        """What a coordinator did was refused: then it was not owed any more."""
        driver = player.coordinator().driver
        is_old = self.is_off or driver.position < len(self._world.records())
        must(is_old, "I-R2", f"what is owed is refused: {refusal.message}")

    def rests(self, player: CoordinatorPlayer) -> None:
        """A coordinator that knows all had nothing to do: then nothing may be overdue."""
        driver = player.coordinator().driver
        if self.is_off or driver.position != len(self._world.records()):
            return
        self._is_same(player)
        now_ms = player.clock.now_ms()
        for duty in owed(self.past.state):
            if not isinstance(duty, d.WakeAt):
                raise Violation("I-R2", f"{name_of(duty)} is owed, and nothing came of it")
        open_round, terms = self.past.state.round, self.past.state.terms
        if open_round is not None and terms is not None:
            ends_ms = {
                Step.SELECTING: open_round.deadline_ms,
                Step.TRAINING: max(open_round.deadline_ms, player.awake_ms) + terms.grace_ms,
                Step.EVALUATING: open_round.evaluate_by_ms,
                **dict.fromkeys(_EXCHANGES, _exchange_ends_ms(open_round, terms, player.awake_ms)),
            }[open_round.step]
            must(now_ms <= ends_ms, "I-R2", f"round {open_round.number} is overdue")

    def _is_same(self, player: CoordinatorPlayer) -> None:
        driver = player.coordinator().driver
        if driver.position == len(self._world.records()):
            must(driver.state == self.past.state, "I-R8", f"{player.name} is not what its log says")

    # ---- replies, as they arrive ----------------------------------------------------

    def acknowledged(self, site: SitePlayer, work: p.SiteWork, reply: Reply) -> None:
        """A site was told that its answer is in."""
        if self.is_off:
            return
        if isinstance(work, p.SendUpdate):
            key = work.round, site.seat
            must(self.past.received.get(key) == work.update, "I-R4", f"update {key} is not durable")
            self._acknowledged.append((*key, work.update))
            self._receipt(site, work, reply.receipt)
            self._proof(reply)
        elif isinstance(work, p.SendScore):
            score = work.score
            held = self.past.scored.get((score.round, site.seat))
            told = (score.samples, score.candidate, score.base)
            is_kept = held is not None and (held.samples, held.candidate, held.base) == told
            must(is_kept, "I-R4", f"the evaluation of seat {site.seat} is not durable")

    def _receipt(self, site: SitePlayer, work: p.SendUpdate, given: Receipt | None) -> None:
        is_right = given is not None and given.update == work.update and given.seat == site.seat
        must(is_right, "I-R5", f"seat {site.seat} got no receipt for what it sent")
        assert given is not None
        key = work.round, site.seat
        if given.status in _FINAL:
            first = self._finals.setdefault(key, given.status)
            must(first is given.status, "I-R5", f"receipt {key} was {first}, now {given.status}")
        if given.status is Status.COUNTED:
            number = self.past.invitations.counted_in.get(key, 0)
            is_in = site.seat in self.past.counted.get(number, ())
            must(is_in, "I-R3", f"{key} is said to be counted")

    def _proof(self, reply: Reply) -> None:
        must(reply.proof is not None, "I-L1", "a receipt came without a proof")
        assert reply.proof is not None
        verifiers = self._world.keyring.verifiers()
        verify_proof(reply.proof, origin_of(STREAM), verifiers)
        self._checkpoint(reply.proof.note)
        record = self._world.records()[reply.proof.index]
        must(record == reply.proof.record, "I-L1", "a proof of something that is not in the log")

    def shown(self, site: SitePlayer, reply: Reply) -> None:
        """A site was shown a checkpoint, a duty and the present model."""
        if self.is_off:
            return
        assert reply.offer is not None and reply.model is not None
        self._checkpoint(reply.offer.note)
        version, model = reply.model
        must(self.past.models.get(version) == model, "I-R1", f"version {version} has two digests")
        duty = reply.duty
        if isinstance(duty, d.Evaluate):
            number = self.past.invitations.counted_in.get((duty.round, site.seat), 0)
            is_candidate = self.past.candidates.get(number) == duty.model
            must(is_candidate, "I-R7", "a site is asked to evaluate what is not in the log")
            if self._world.money is not None:
                self._world.money.tells(number, duty.model)
        if reply.settled is not None:
            number, is_counted = reply.settled
            self._settled.append((number, site.seat, is_counted))

    def kept(self, notes: Sequence[bytes]) -> None:
        """Checkpoints were written down for auditors."""
        for note in notes if not self.is_off else ():
            self._kept_size = self._checkpoint(note.decode())

    def _checkpoint(self, note: str) -> int:
        """Of a durable log, with its root; until one that covers a new key is kept, with
        the old key's signature too. Its size."""
        text, _, signatures = note.partition("\n\n")
        checkpoint = parse_text(text + "\n")
        size = checkpoint.size
        must(size < len(self.past.roots.at), "I-L2", f"a checkpoint of {size} facts, not durable")
        must(self.past.roots.at[size] == checkpoint.root, "I-L2", f"two roots at {size} facts")
        newest = max((at for at in self.past.rotations if at < size), default=-1)
        is_vouched = newest < self._kept_size or signatures.count("\n") == 2
        must(is_vouched or newest < 0, "I-L2", "a new key came without the old")
        return size

    def alarmed(self, site: SitePlayer) -> None:
        must(self.is_off, "I-L2", f"seat {site.seat} raised a false alarm: {site.alarm}")

    # ---- sites and models -----------------------------------------------------------

    def made(self, update: Digest, seat: Seat, number: int, base: Digest) -> None:
        self.past.updates[update] = Made(seat, number, base, True)

    def made_bytes(
        self, data: bytes, seat: Seat, number: int, base: Digest, is_sound: bool
    ) -> None:
        self.past.updates[digest_of(data)] = Made(seat, number, base, is_sound)

    def leaves(self, site: SitePlayer, work: p.SendUpdate) -> None:
        """An update leaves a site. A site trains once a round, however often it restarts."""
        may_differ = site.forgot_since is not None and work.round >= site.forgot_since
        is_one = len(site.sent[work.round]) == 1
        must(is_one or may_differ, "I-R3", f"seat {site.seat} sends a second update")
        if site.account is not None and self._world.money is not None:
            self._world.money.leaves(site, work.round)

    # ---- at the end -----------------------------------------------------------------

    def finish(self) -> None:
        """Everything once more, from the records alone."""
        records = self._world.records()
        facts = [decode(record) for record in records]
        must(replay(facts) == self.past.state, "I-R8", "replaying the log gives another state")
        held = {(x.round, x.seat, x.update) for x in facts if isinstance(x, f.UpdateReceived)}
        for entry in self._acknowledged:
            must(entry in held, "I-R4", f"{entry[:2]} was acknowledged and is gone")
        for number, seat, is_counted in self._settled:
            is_true = self.past.invitations.is_counted(number, seat) is is_counted
            must(is_true, "I-R5", f"seat {seat} was told {is_counted} about round {number}")
        if self._world.money is not None and not self._world.is_over:
            self._world.money.finish()
        if self._world.veil is not None:
            self._world.veil.finish()
        for site in self._world.honest:
            must(fold(site.records) == site.state, "I-R8", f"seat {site.seat} forgot something")
            for proof in site.proofs:
                kept = records[proof.index] == proof.record
                must(kept, "I-L1", f"a receipt of seat {site.seat} is not in the log any more")

"""Small federations for tests: a state with its encoded log, moved by inputs.

`World.give` is what every driver does: decide, encode, record. It checks on the way that
`decide` left the state alone and that the encoded facts fold into the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from consortium.core import inputs as i
from consortium.core.codec import decode, encode
from consortium.core.duties import Aggregate, Judge, Screen
from consortium.core.facts import Departure, Failure, Fault, Outcome
from consortium.core.federation import decide, evolve, is_legal, owed, replay
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.secagg import two_thirds
from consortium.core.state import Federation, Round
from consortium.core.terms import Masking, Metric, Terms

START_MS = 1_000_000
SEED = bytes(range(32))
TERMS = Terms(rounds=100, quorum=3, wait_for=3, target=3, retry_ms=1000)
JUDGED = replace(
    TERMS,
    metrics=(Metric("accuracy", True), Metric("loss", False)),
    judged_by="loss",
    evaluation_quorum=2,
)


SCREENED = replace(TERMS, target=5, is_screened=True)
PHASE_MS = 60_000
# Of four sites three are a quorum: one can drop out of a secret sum.
MASKED = replace(TERMS, target=4, norm_factor=0, masking=Masking(PHASE_MS))
# Scores come inside the sums, of the model that a round begins from.
SCORED = replace(JUDGED, is_gated=False, evaluation_quorum=0, has_scored_sums=True)


def digest(name: str) -> Digest:
    return Digest(sha256(name.encode()).digest())


@dataclass
class World:
    """One federation, its clock and its log."""

    state: Federation = field(default_factory=Federation)
    records: list[bytes] = field(default_factory=list)
    now_ms: int = START_MS

    def give(self, item: i.Input) -> tuple[Any, ...]:
        """Decide, encode, record; the facts."""
        before = self.state.clone()
        try:
            facts = decide(self.state, item)
        finally:
            assert self.state == before, f"deciding {item} changed the state"
        written = [encode(fact) for fact in facts]
        for record, fact in zip(written, facts, strict=True):
            assert is_legal(self.state, fact), f"{fact} is not legal here"
            assert decode(record) == fact
            evolve(self.state, fact)
        self.records += written
        return facts

    def replayed(self) -> Federation:
        return replay([decode(record) for record in self.records])

    @property
    def round(self) -> Round:
        assert self.state.round is not None
        return self.state.round

    # ---- one line per thing that happens ------------------------------------------

    def tick(self, now_ms: int | None = None) -> tuple[Any, ...]:
        self.now_ms = self.now_ms if now_ms is None else now_ms
        return self.give(i.Tick(self.now_ms))

    def open(self, seed: bytes = SEED) -> tuple[Any, ...]:
        opened = self.give(i.OpenRound(self.now_ms))
        return opened + self.give(i.Drawn(self.state.last_number, seed, self.now_ms))

    def submit(self, seat: int, name: str = "", number: int = 0) -> tuple[Any, ...]:
        update = digest(name or f"update {seat}")
        number = number or self.state.last_number
        return self.give(i.Submit(number, Seat(seat), update, None, self.now_ms))

    def check(
        self, seat: int, fault: Fault | None = None, norm: float | None = 1.0, name: str = ""
    ) -> tuple[Any, ...]:
        update = digest(name or f"update {seat}")
        number = self.state.last_number
        return self.give(i.Checked(number, Seat(seat), update, fault, 1.0, norm, self.now_ms))

    def send(self, *seats: int, norm: float | None = 1.0) -> tuple[Any, ...]:
        """Submitted and found good."""
        facts: tuple[Any, ...] = ()
        for seat in seats:
            facts += self.submit(seat) + self.check(seat, norm=norm)
        return facts

    def fail(self, seat: int, failure: Failure = Failure.TRAINING) -> tuple[Any, ...]:
        return self.give(i.Fail(self.state.last_number, Seat(seat), failure, None, self.now_ms))

    def dismiss(self, seat: int) -> tuple[Any, ...]:
        return self.give(i.Dismiss(Seat(seat), Departure.REVOKED, self.now_ms))

    def screen(self, *excluded: int, fault: Fault = Fault.NORM) -> tuple[Any, ...]:
        (duty,) = owed(self.state)
        assert isinstance(duty, Screen)
        named = tuple((Seat(seat), fault) for seat in excluded)
        return self.give(i.Screened(duty.round, duty.count, named, self.now_ms))

    def sum(
        self, name: str = "", samples: int = 0, scores: tuple[float, ...] = ()
    ) -> tuple[Any, ...]:
        (duty,) = owed(self.state)
        assert isinstance(duty, Aggregate)
        model = digest(name or f"model {duty.round}")
        told = model, digest("state"), self.now_ms, samples, scores
        return self.give(i.Summed(duty.round, duty.count, *told))

    def score(
        self,
        seat: int,
        candidate: tuple[float, ...] = (80.0, 20.0),
        base: tuple[float, ...] = (70.0, 30.0),
        samples: int = 100,
    ) -> tuple[Any, ...]:
        asked = self.state.round or self.state.ended
        assert asked is not None and asked.model is not None
        return self.give(
            i.Score(
                asked.number, Seat(seat), asked.model, samples, candidate, base, None, self.now_ms
            )
        )

    def judge(self, outcome: Outcome = Outcome.ACCEPTED) -> tuple[Any, ...]:
        (duty,) = owed(self.state)
        assert isinstance(duty, Judge)
        return self.give(i.Verdict(duty.round, duty.model, outcome, self.now_ms))

    def release(self) -> tuple[Any, ...]:
        assert self.round.model is not None
        return self.give(i.Released(self.round.number, self.round.model, self.now_ms))

    def keys(self, *seats: int, name: str = "") -> tuple[Any, ...]:
        """Keys for a secret sum."""
        facts: tuple[Any, ...] = ()
        for seat in seats:
            facts += self.give(keys_of(self.state.last_number, seat, self.now_ms, name))
        return facts

    def share(self, *seats: int, name: str = "") -> tuple[Any, ...]:
        number, facts = self.state.last_number, tuple[Any, ...]()
        for seat in seats:
            shares = digest(name or f"shares {seat}")
            facts += self.give(i.GiveShares(number, Seat(seat), shares, None, self.now_ms))
        return facts

    def agree(self, *seats: int, name: str = "") -> tuple[Any, ...]:
        """Signatures on the split; without seats, of as many members as it takes."""
        number, facts = self.state.last_number, tuple[Any, ...]()
        for seat in seats or list(self.round.members)[: two_thirds(len(self.round.keys))]:
            signature = 2 * digest(name or f"signature {seat}")
            facts += self.give(i.GiveConsent(number, Seat(seat), signature, self.now_ms))
        return facts

    def answer(self, *seats: int, name: str = "") -> tuple[Any, ...]:
        number, facts = self.state.last_number, tuple[Any, ...]()
        for seat in seats:
            answer = digest(name or f"answer {seat}")
            facts += self.give(i.GiveAnswer(number, Seat(seat), answer, None, self.now_ms))
        return facts

    def finish_round(self) -> tuple[Any, ...]:
        """From the closing to the publication, without evaluation."""
        return self.sum() + self.judge() + self.release()

    def adopt(self, terms: Terms, name: str = "plan") -> tuple[Any, ...]:
        return self.give(
            i.AdoptPlan(digest(name), digest("task"), digest("layout"), terms, self.now_ms)
        )


def founded(name: str = "f1") -> World:
    world = World()
    world.give(i.Found(name, world.now_ms))
    return world


def ready(sites: int = 4, terms: Terms = TERMS) -> World:
    """A federation with a plan, a first model and `sites` sites in the seats 1, 2, 3 …"""
    world = founded()
    world.adopt(terms)
    world.give(i.InstallModel(digest("model 0"), world.now_ms))
    for number in range(1, sites + 1):
        world.give(i.Admit(SiteId(f"s{number}"), b"key %d" % number, world.now_ms))
    return world


def training(sites: int = 3, terms: Terms = TERMS) -> World:
    """A round is open and its sites train. With as many sites as the target: all of them."""
    world = ready(sites, terms)
    world.open()
    return world


def summing(sites: int = 3, terms: Terms = TERMS) -> World:
    world = training(sites, terms)
    world.send(*world.round.invited)
    return world


def keys_of(number: int, seat: int, now_ms: int, name: str = "") -> i.GiveKeys:
    """Keys that no other site has, nor this one in another round."""
    whose = name or f"{number} {seat}"
    parts = [digest(f"{part} of {whose}") for part in ("mask", "seal", "commitment")]
    return i.GiveKeys(number, Seat(seat), *parts, bytes(64), now_ms)


def keying(sites: int = 4, terms: Terms = MASKED) -> World:
    """A round whose sum is secret is open, and its sites are asked for keys."""
    return training(sites, terms)


def sharing(sites: int = 4, terms: Terms = MASKED) -> World:
    world = keying(sites, terms)
    world.keys(*world.round.invited)
    return world


def masked_training(sites: int = 4, terms: Terms = MASKED) -> World:
    world = sharing(sites, terms)
    world.share(*world.round.invited)
    return world


def agreeing(sites: int = 4, terms: Terms = MASKED) -> World:
    world = masked_training(sites, terms)
    world.send(*world.round.invited, norm=None)
    return world


def unmasking(sites: int = 4, terms: Terms = MASKED) -> World:
    world = agreeing(sites, terms)
    world.agree()
    return world


def masked_summing(sites: int = 4, terms: Terms = MASKED) -> World:
    world = unmasking(sites, terms)
    world.answer(1, 2, 3)
    return world


def screening(sites: int = 5, terms: Terms = SCREENED) -> World:
    """A closed round of `sites` members, of whom three are a quorum."""
    world = training(sites, terms)
    world.send(*world.round.invited)
    return world


def evaluating(sites: int = 3, terms: Terms = JUDGED) -> World:
    world = summing(sites, terms)
    world.sum()
    return world

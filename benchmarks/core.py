"""What the protocol costs: decide, evolve, owed, encode and leaf hash, with a memory store.

    python -m benchmarks.core --json

Signatures and tensors are left out; every site answers on its own and evaluates. Times
are CPU time, best of several.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from hashlib import sha256

from benchmarks.report import Line, main
from consortium.aggregate.block import BLOCK
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode, encode
from consortium.core.federation import decide, evolve, owed
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.state import Federation
from consortium.core.terms import Metric, Terms
from consortium.ledger.merkle import leaf_hash
from consortium.store.memory import MemoryLog

SITES = 10_000
CLOSED_ROUNDS = 300


def digest(text: object) -> Digest:
    return Digest(sha256(str(text).encode()).digest())


class Federated:
    """A federation that is fed by hand and keeps its log in memory."""

    def __init__(self, sites: int, *, as_cohort: bool = False) -> None:
        self.state = Federation()
        self.log = MemoryLog()
        self.length = 0
        terms = Terms(
            rounds=1_000_000,
            quorum=sites // 2,
            wait_for=sites,
            target=sites,
            metrics=(Metric("loss", higher_is_better=False),),
            judged_by="loss",
            evaluation_quorum=1,
        )
        self.feed(i.Found("benchmark", 0))
        self.feed(i.AdoptPlan(digest("plan"), digest("task"), digest("layout"), terms, 0))
        self.feed(i.InstallModel(digest("model"), 0))
        if as_cohort:
            self.feed(i.AdmitCohort(sites, 0))
            return
        for number in range(sites):
            self.feed(i.Admit(SiteId(f"site-{number}"), b"", 0))

    def feed(self, item: i.Input) -> None:
        facts = decide(self.state, item)
        records = [encode(fact) for fact in facts]
        for record in records:
            leaf_hash(record)
        self.length = self.log.append("benchmark", self.length, records)
        for fact in facts:
            evolve(self.state, fact)
        owed(self.state)

    def play_round(self, updates: list[Digest]) -> None:
        """One whole round, one site after the other."""
        number = self.state.last_number + 1
        self.open(number)
        for seat, update in enumerate(updates, start=1):
            self.feed(i.Submit(number, Seat(seat), update, None, 2))
            self.feed(i.Checked(number, Seat(seat), update, None, 100.0, 1.0, 3))
        model = digest(("model", number))
        self.feed(i.Summed(number, len(updates), model, None, 4))
        for seat in range(1, len(updates) + 1):
            self.feed(i.Score(number, Seat(seat), model, 10, (1.0,), (1.0,), None, 5))
        self.close(number, model)

    def play_round_in_blocks(self, sites: int) -> None:
        number = self.state.last_number + 1
        self.open(number)
        for first in range(1, sites + 1, BLOCK):
            seats = tuple(Seat(seat) for seat in range(first, min(first + BLOCK, sites + 1)))
            self.feed(i.TrainedCohort(number, seats, 64.0, digest(first), 2))
        model = digest(("model", number))
        self.feed(i.Summed(number, sites, model, None, 4))
        members = tuple(self.state.round.members) if self.state.round else ()
        self.feed(i.ScoredCohort(number, members, model, 10, (1.0,), (1.0,), 5))
        self.close(number, model)

    def open(self, number: int) -> None:
        self.feed(i.OpenRound(0))
        self.feed(i.Drawn(number, digest(("seed", number)), 1))

    def close(self, number: int, model: Digest) -> None:
        self.feed(i.Verdict(number, model, f.Outcome.ACCEPTED, 6))
        self.feed(i.Released(number, model, 7))
        assert self.state.ended is not None and self.state.ended.number == number


class Rounds:
    """Repeated rounds of one size; keeps the best time and what the last round wrote."""

    def __init__(self, sites: int) -> None:
        self._federated = Federated(sites)
        self._updates = [digest(("update", seat)) for seat in range(sites)]
        self.best = float("inf")
        self.before = self._federated.state.clone()
        self.records: list[bytes] = []

    def play(self) -> None:
        federated = self._federated
        self.before, start = federated.state.clone(), federated.length
        gc.collect()
        begun = time.process_time()
        federated.play_round(self._updates)
        self.best = min(self.best, time.process_time() - begun)
        self.records = list(federated.log.read("benchmark", start))


def seconds_of_json(facts: list[f.Fact]) -> float:
    """The base: the same facts as JSON, hashed and put into a list; no rules at all."""
    log: list[bytes] = []
    begun = time.process_time()
    for fact in facts:
        names = type(fact).__slots__  # type: ignore[attr-defined]  # every fact has slots
        values = {name: getattr(fact, name) for name in names}
        record = json.dumps(values, default=lambda value: value.hex()).encode()
        sha256(b"\0" + record).digest()
        log.append(record)
    return time.process_time() - begun


def seconds_of_replay(records: list[bytes], before: Federation) -> float:
    best = float("inf")
    for _ in range(3):
        state = before.clone()
        gc.collect()
        begun = time.process_time()
        for record in records:
            evolve(state, decode(record))
        best = min(best, time.process_time() - begun)
    return best


def seconds_of_owed(federated: Federated) -> float:
    times, best = 2000, float("inf")
    federated.feed(i.OpenRound(0))
    for _ in range(20):
        begun = time.process_time()
        for _ in range(times):
            owed(federated.state)
        best = min(best, (time.process_time() - begun) / times)
    federated.feed(i.CancelRound(federated.state.last_number, 0))
    return best


def measure() -> Iterator[Line]:
    many, few = Rounds(SITES), Rounds(SITES // 10)
    for _ in range(4):  # in turn, so that a busy machine slows both alike
        many.play()
        for _ in range(3):
            few.play()
    records, large, small = many.records, many.best, few.best
    facts = [decode(record) for record in records]
    plain = min(seconds_of_json(facts) for _ in range(3))
    detail = f"{len(records)} facts; base: the same facts as JSON, hashed, without rules"
    yield Line("round of 10,000 sites", large, plain, "s", detail)

    replay = seconds_of_replay(records, many.before)
    yield Line("decode and evolve it", replay, large, "s", "base: deciding it")

    growth = large / small
    detail = f"{growth:.2f} x a round of 1,000; base: ten rounds of 1,000"
    yield Line("growth from 1,000 to 10,000", large, 10 * small, "s", detail)

    federated = Federated(20)
    first = seconds_of_owed(federated)
    updates = [digest(seat) for seat in range(20)]
    for _ in range(CLOSED_ROUNDS):
        federated.play_round(updates)
    later = seconds_of_owed(federated)
    detail = f"after {CLOSED_ROUNDS} closed rounds; base: after none"
    yield Line("owed", later * 1e6, first * 1e6, "us", detail)

    clients = 1000
    cohort = Federated(clients, as_cohort=True)
    best = float("inf")
    for _ in range(20):
        begun = time.process_time()
        cohort.play_round_in_blocks(clients)
        best = min(best, time.process_time() - begun)
    detail = f"{clients} clients in blocks of {BLOCK}; base: one by one"
    yield Line("simulated round in blocks", best * 1e3, small * 1e3, "ms", detail)


if __name__ == "__main__":
    main(measure, __doc__)

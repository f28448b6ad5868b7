"""Coordinator and sites talk over a wire that loses, doubles and reorders everything.

Both halves are the real ones. Whatever is under way (requests, replies, the reports of
those who perform duties) lies in one bag, and a seeded random generator picks what
arrives next. Anybody may crash between any two events: its state is then rebuilt from its
own encoded log and nothing else. A failure names its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.answers import Status, receipt
from consortium.core.codec import decode, encode
from consortium.core.federation import decide, evolve, owed, owed_by, replay
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.state import Federation
from consortium.core.terms import MINUTE_MS, Close, Metric, Terms
from consortium.drive.rounds import is_counted
from consortium.errors import Refusal

from .fact_text import read
from .invariants import check_state
from .small import digest

SITES = 7
ROUNDS = 3
STEP_MS = (3000, 10_000, 30_000)  # how far the clock goes between two events: hurried or slow
MAX_STEPS = 20_000
TERMS = Terms(
    rounds=ROUNDS,
    quorum=3,
    wait_for=4,
    target=4,
    overselect_ppm=1_250_000,
    duration_ms=10 * MINUTE_MS,
    extension_ms=5 * MINUTE_MS,
    retry_ms=MINUTE_MS,
    metrics=(Metric("loss", False),),
    evaluation_quorum=2,
    evaluation_ms=5 * MINUTE_MS,
)


@dataclass
class Coordinator:
    state: Federation = field(default_factory=Federation)
    log: list[bytes] = field(default_factory=list)

    def give(self, item: i.Input) -> None:
        for fact in decide(self.state, item):
            self.log.append(encode(fact))
            evolve(self.state, fact)
        check_state(self.state)

    def crash(self) -> None:
        before, self.state = self.state, replay([decode(record) for record in self.log])
        assert self.state == before


@dataclass
class Site:
    seat: Seat
    state: p.Participant = field(default_factory=p.Participant)
    log: list[bytes] = field(default_factory=list)

    def give(self, item: p.SiteInput) -> None:
        for fact in p.decide(self.state, item):
            self.log.append(encode(fact))
            p.evolve(self.state, fact)

    def crash(self) -> None:
        before, self.state = self.state, p.Participant()
        for record in self.log:
            p.evolve(self.state, read(record))
        assert self.state == before


Event = Callable[[], None]


class World:
    """Everybody, the bag of what is under way, and the truth about who trained what."""

    def __init__(self, seed: int, loss: float) -> None:
        self.rng = Random(seed)
        self.loss = loss
        self.now_ms = 1_000_000
        self.step_ms = self.rng.choice(STEP_MS)
        self.weakness = self.rng.choice([0.1, 0.4])  # how often training fails
        self.bag: list[Event] = []
        self.made: dict[Digest, tuple[int, Seat]] = {}  # update → who made it, for which round
        self.summed: dict[int, dict[Digest, list[Seat]]] = {}  # round → model → who is in it
        self.coordinator = Coordinator()
        self.sites = [Site(Seat(seat)) for seat in range(1, SITES + 1)]
        judged_by = self.rng.choice(["", "loss"])
        close = self.rng.choice(list(Close))
        is_screened = self.rng.random() < 0.5
        self.set_up(replace(TERMS, judged_by=judged_by, close=close, is_screened=is_screened))

    def set_up(self, terms: Terms) -> None:
        give = self.coordinator.give
        give(i.Found("f", self.now_ms))
        plan, task = digest("plan"), digest("task")
        give(i.AdoptPlan(plan, task, digest("layout"), terms, self.now_ms))
        give(i.InstallModel(digest("model 0"), self.now_ms))
        for site in self.sites:
            give(i.Admit(SiteId(f"s{site.seat}"), b"", self.now_ms))
            site.give(p.Approve(task, plan, self.now_ms))

    # ---- the wire -------------------------------------------------------------------

    def send(self, event: Event) -> None:
        """It arrives once, twice, or never."""
        if self.rng.random() >= self.loss:
            self.bag.append(event)
        if self.rng.random() < self.loss:
            self.bag.append(event)

    def deliver(self) -> None:
        if self.bag:
            self.bag.pop(self.rng.randrange(len(self.bag)))()

    # ---- a site ---------------------------------------------------------------------

    def act(self, site: Site) -> None:
        work = p.owed(site.state)
        match work:
            case None:
                self.send(lambda: self.ask(site))
            case p.TrainHere():
                self.send(lambda: self.train(site, work.round))
                self.send(lambda: self.ask(site))  # the deadline may have moved
            case p.EvaluateHere():
                scored = p.Scored(work.round, 10, (1.0,), (2.0,), self.now_ms)
                self.send(lambda: site.give(scored))
            case _:
                self.send(lambda: self.request(site, work))

    def ask(self, site: Site) -> None:
        number = site.state.unsettled
        settled = self.settlement(number, site.seat) if number else None
        duty = owed_by(self.coordinator.state, site.seat)
        if duty is not None or settled is not None:
            self.send(lambda: self.invite(site, duty, settled))

    def settlement(self, number: int, seat: Seat) -> p.Settled | None:
        """How a round ended for a site, as the coordinator's log says."""
        facts = [decode(record) for record in self.coordinator.log]
        of_round = [fact for fact in facts if getattr(fact, "round", 0) == number]
        counted = is_counted(of_round, seat)
        return None if counted is None else p.Settled(number, counted, self.now_ms)

    def invite(self, site: Site, duty: d.SiteDuty | None, settled: p.Settled | None) -> None:
        if settled is not None:
            site.give(settled)
        with suppress(Refusal):  # it may be an invitation from the past
            if duty is not None:
                site.give(p.Asked(duty, self.now_ms))

    def train(self, site: Site, number: int) -> None:
        """Training is not deterministic: done again, it gives another update."""
        if self.rng.random() < self.weakness:
            site.give(p.Broke(number, f.Failure.TRAINING, self.now_ms))
            return
        update = Digest(self.rng.randbytes(32))
        self.made[update] = number, site.seat
        site.give(p.Trained(number, update, None, 32, self.now_ms))

    def request(self, site: Site, work: p.SiteWork) -> None:
        """A site's answer arrives at the coordinator, whose reply goes out in turn."""
        reply: p.SiteInput = p.Heard(work, self.now_ms)
        try:
            self.coordinator.give(_as_input(site.seat, work, self.now_ms))
        except Refusal:
            reply = p.TurnedAway(work, self.now_ms)
        self.send(lambda: site.give(reply))

    # ---- the coordinator ------------------------------------------------------------

    def serve(self) -> None:
        for duty in owed(self.coordinator.state):
            if isinstance(duty, d.WakeAt):
                if duty.at_ms <= self.now_ms:
                    self.coordinator.give(i.Tick(self.now_ms))
            else:
                report = self.perform(duty)
                self.send(lambda report=report: self.coordinator.give(report))  # type: ignore[misc]

    def perform(self, duty: d.Duty) -> i.Input:
        number: int = duty.round  # type: ignore[union-attr]
        match duty:
            case d.Check(seat=seat, update=update):
                fault = f.Fault.FORMAT if update[0] < 10 else None
                return i.Checked(number, seat, update, fault, 1.0, 1.0, self.now_ms)
            case d.Screen():
                return self.screen(duty)
            case d.Aggregate():
                return self.sum(duty)
            case d.Judge(model=model):
                return i.Verdict(number, model, f.Outcome.ACCEPTED, self.now_ms)
            case d.Release(model=model):
                return i.Released(number, model, self.now_ms)
            case _:
                return i.Drawn(number, self.rng.randbytes(32), self.now_ms)

    def screen(self, duty: d.Screen) -> i.Input:
        """Every coordinator that looks finds something else."""
        seats = sorted(seat for seat, _, _ in duty.updates if self.rng.random() < 0.1)
        excluded = tuple((seat, f.Fault.DISTANCE) for seat in seats)
        return i.Screened(duty.round, duty.count, excluded, self.now_ms)

    def sum(self, duty: d.Aggregate) -> i.Input:
        seats = []
        for _, update in duty.updates:
            number, seat = self.made[update]
            assert number == duty.round, "an update of another round is summed"
            seats.append(seat)
        model = digest(f"{duty.updates}")
        self.summed.setdefault(duty.round, {})[model] = seats
        return i.Summed(duty.round, duty.count, model, None, self.now_ms)

    # ---- the run --------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(MAX_STEPS):
            if self.coordinator.state.finished is not None:
                return
            self.now_ms += self.rng.randrange(2 * self.step_ms)
            self.act(self.rng.choice(self.sites))
            self.serve()
            for _ in range(self.rng.randrange(6)):
                self.deliver()
            if self.rng.random() < 0.02:
                self.coordinator.crash()
            if self.rng.random() < 0.05:
                self.rng.choice(self.sites).crash()
        raise AssertionError("the rounds did not end")


def _as_input(seat: Seat, work: p.SiteWork, now_ms: int) -> i.Input:
    match work:
        case p.SendUpdate(number, update):
            return i.Submit(number, seat, update, None, now_ms)
        case p.TellFailure(number, failure):
            return i.Fail(number, seat, failure, None, now_ms)
        case p.SendScore(score):
            return i.Score(
                score.round,
                seat,
                score.model,
                score.samples,
                score.candidate,
                score.base,
                None,
                now_ms,
            )
        case _:
            raise AssertionError(f"{work} does not leave the site")


# ---- what must have come out --------------------------------------------------------


def _facts(log: list[bytes], *kinds: type[Any]) -> list[Any]:
    return [fact for fact in map(read, log) if isinstance(fact, kinds)]


def _check(world: World) -> None:
    log = world.coordinator.log
    opened = [fact.round for fact in _facts(log, f.RoundOpened)]
    ended = [fact.round for fact in _facts(log, f.RoundCompleted, f.RoundFailed)]
    assert opened == ended == list(range(1, ROUNDS + 1)), "every round ends, once"
    _check_sums(world, log)
    _check_sites(world, log)
    world.coordinator.crash()
    for site in world.sites:
        site.crash()


def _check_sums(world: World, log: list[bytes]) -> None:
    lost = _facts(log, f.MemberRemoved, f.UpdateExcluded)
    removed = {(fact.round, fact.seat) for fact in lost}
    for closed in _facts(log, f.RoundClosed):
        members = [seat for seat in closed.members if (closed.round, seat) not in removed]
        for published in _facts(log, f.ModelPublished):
            if published.round == closed.round:
                counted = world.summed[closed.round][published.model]
                assert Counter(counted) == Counter(members), "each member is counted once"


def _check_sites(world: World, log: list[bytes]) -> None:
    received = {(fact.round, fact.seat): fact.update for fact in _facts(log, f.UpdateReceived)}
    for site in world.sites:
        spooled = Counter(fact.round for fact in _facts(site.log, s.UpdateSpooled))
        assert all(count == 1 for count in spooled.values()), "a round is trained once"
        for kept in _facts(site.log, s.ReceiptKept):
            assert received[kept.round, site.seat] == kept.update, "acknowledged is durable"
        last = receipt(world.coordinator.state, ROUNDS, site.seat)
        assert last is None or last.status in (Status.COUNTED, Status.NOT_COUNTED)


@pytest.mark.parametrize("seed", range(100))
def test_rounds_end_and_nothing_is_lost_or_counted_twice(seed: int) -> None:
    world = World(seed, loss=(0.0, 0.1, 0.3, 0.5)[seed % 4])
    world.run()
    _check(world)


@pytest.mark.parametrize("seed", range(10))
def test_site_revoked_in_the_middle_is_in_no_later_sum(seed: int) -> None:
    world = World(seed, loss=0.2)
    revoked = Seat(world.rng.randrange(1, SITES + 1))
    at_step = world.rng.randrange(20, 300)
    serve, steps = world.serve, 0

    def serve_and_revoke() -> None:
        nonlocal steps
        steps += 1
        if steps == at_step:
            world.coordinator.give(i.Dismiss(revoked, f.Departure.REVOKED, world.now_ms))
        serve()

    world.serve = serve_and_revoke  # type: ignore[method-assign]
    world.run()
    _check(world)
    kinds = (f.SiteDeparted, f.Aggregated, f.RoundClosed, f.MemberRemoved)
    facts = _facts(world.coordinator.log, *kinds)
    departed = next((at for at, fact in enumerate(facts) if type(fact) is f.SiteDeparted), None)
    for fact in facts[departed:] if departed is not None else ():
        assert not (isinstance(fact, f.RoundClosed) and revoked in fact.members)


def test_without_faults_every_round_publishes_a_model() -> None:
    world = World(0, loss=0.0)
    world.step_ms = STEP_MS[0]
    world.train = lambda site, number: _always_train(world, site, number)  # type: ignore[method-assign]
    world.run()
    _check(world)
    assert len(_facts(world.coordinator.log, f.ModelPublished)) == ROUNDS


def _always_train(world: World, site: Site, number: int) -> None:
    update = digest(f"sound {number} {site.seat}")  # its first byte passes the check
    world.made[update] = number, site.seat
    site.give(p.Trained(number, update, None, 32, world.now_ms))


def test_planted_double_count_is_noticed() -> None:
    world = World(0, loss=0.0)
    world.run()
    for models in world.summed.values():
        for seats in models.values():
            seats.append(seats[0])
    with pytest.raises(AssertionError, match="counted once"):
        _check(world)

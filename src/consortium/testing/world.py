"""A federation on a bad day: the real core, driver, hands and ledger among seeded faults.

    python -m consortium.testing.world --seeds 2000          many worlds, each by its seed
    python -m consortium.testing.world --seed 1234 --trace   one of them, event by event
    python -m consortium.testing.world --planted             whether planted bugs are found
    python -m consortium.testing.world --seeds 1000 --budgets    every round costs something
    python -m consortium.testing.world --seeds 1000 --masked     every sum is secret

Two coordinators share one log; sites talk to either over a network that loses, doubles,
delays and reorders; processes die at any write; disks fill up, clocks jump, a site lies, an
old backup is put back. After every event the invariants of `world_rules` are checked; in
the end the faults stop, and every round must end. A seed decides everything, so it replays.
For a plan or an aggregation of your own:

    from consortium.testing.world import World
    World(seed=7, terms=plan.terms(), make_hands=..., combine=...).run()
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random

import numpy as np

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import participant as p
from consortium.core.federation import owed
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.roster import eligible
from consortium.core.state import Federation
from consortium.core.terms import HOUR_MS, MINUTE_MS, SECOND_MS, Terms
from consortium.drive.accounts import Accounts, stream_of
from consortium.drive.clock import Clock
from consortium.drive.driver import Hands
from consortium.drive.hands import CoordinatorHands
from consortium.model import Layout, Vector, save_model
from consortium.plan.strategy import StrategySection
from consortium.store.memory import MemoryBlobs
from consortium.store.ports import Blobs
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer, Keyring
from consortium.testing.world_faults import Crash, Durable, Faults
from consortium.testing.world_hostile import HostileSite
from consortium.testing.world_masked_hostile import MaskedHostileSite
from consortium.testing.world_masked_site import MaskedSitePlayer
from consortium.testing.world_masks import Numbers, masked_hands, with_masks
from consortium.testing.world_money import Money
from consortium.testing.world_network import START_MS, Calendar, Event, Network
from consortium.testing.world_pace import Pace
from consortium.testing.world_past import Violation
from consortium.testing.world_paying import AccountLog, Leaps, Neighbour, paying_hands, stress_of
from consortium.testing.world_purse import ACCOUNT, Purse, draw_purse, plan_digest, price
from consortium.testing.world_rules import Watch
from consortium.testing.world_setting import (
    READY,
    REGION,
    Setting,
    draw_setting,
    without_a_barrier,
)
from consortium.testing.world_site import SitePlayer, one_hot
from consortium.testing.world_trouble import Trouble
from consortium.testing.world_veil import Veil
from consortium.testing.world_wire import Reply, Request

__all__ = ["Outcome", "Setting", "Violation", "World", "main", "weighted_mean"]

Site = SitePlayer | HostileSite
Combine = Callable[[Vector, Sequence[tuple[Vector, float]]], Vector]
MakeHands = Callable[[Blobs, Clock], Hands]

_TAIL = 30  # events that go on after a federation has finished: late ones among them
# Events within which everything must settle once the faults have stopped. A deadline that was moved
# while a clock was a day ahead is waited for, and sites ask all the time.
_PATIENCE = 8000
_RECORDED = 40
_BUFFERED = 0.3  # of the seeds


def weighted_mean(base: Vector, steps: Sequence[tuple[Vector, float]]) -> Vector:
    """The next model by the plain formula: base + Σ wᵢΔᵢ / Σ wᵢ."""
    total = np.sum([step * weight for step, weight in steps], axis=0)
    moved: Vector = base + total / sum(weight for _, weight in steps)
    return moved


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to."""

    seed: int
    steps: int
    faults: Counter[str]
    completed: int
    failed: int
    digest: str  # of the trace: the same seed, the same digest


class World:
    """One seeded run. `run` returns what came of it, or raises `Violation`.

    `make_hands` makes the hands of a coordinator, and `combine` says by the plain formula
    what they should make of a model and the members' (step, weight): the rule about sums
    compares the two. Sites send a one-hot step, so that a sum shows who is in it. Of the
    seeds, some have no barrier; `is_buffered` says so for all of them, or for none. With
    `has_budgets`, rounds are paid for; the hands are then those of `world_paying`. With
    `is_masked`, sums are secret; the hands are then those of `world_masks`.
    """

    def __init__(
        self,
        seed: int,
        *,
        terms: Terms | None = None,
        sites: int | None = None,
        make_hands: MakeHands | None = None,
        combine: Combine = weighted_mean,
        is_buffered: bool | None = None,
        has_budgets: bool = False,
        is_masked: bool = False,
    ) -> None:
        self.seed, self.rng = seed, Random(seed)
        self.setting = draw_setting(self.rng, terms, sites)
        # By a die of its own: a seed that has a barrier goes as it always went.
        die = Random(f"{seed} without a barrier")
        is_passing = die.random() < _BUFFERED if is_buffered is None else is_buffered
        if terms is None and is_passing and not is_masked:
            self.setting = without_a_barrier(self.setting, die)
        if is_masked:
            self.setting = with_masks(self.setting, Random(f"{seed} with masks"))
        self.purse: Purse | None = None
        if has_budgets:
            self.setting, self.purse = draw_purse(self.setting, Random(f"{seed} with budgets"))
        self.combine = combine
        self.calendar = Calendar()
        self.lines: list[str] = []  # the trace
        self.layout = Layout.of({"w": np.zeros(self.setting.sites)})  # one number a seat
        has_scores = self.setting.terms.has_scored_sums
        self.numbers = Numbers(self.layout, self.setting.sites, has_scores) if is_masked else None
        self.veil, self.veil_rng = Veil(self) if is_masked else None, Random(f"{seed} seeds")
        self.make_hands = make_hands or self._default_hands
        self.faults = Faults(self.rng, self.setting.intensity, self.trace)
        self._network = Network(self.calendar, self.faults)
        self.log, self.blobs, self.keyring = Durable(), MemoryBlobs(), Keyring(seed)
        self.watch = Watch(self)
        self.money = Money(self) if self.purse else None
        self.neighbour: Neighbour | None = None
        self.recorded: list[Request] = []
        self.steps = 0
        self.is_over = False
        self.coordinators = [CoordinatorPlayer(name, self) for name in ("A", "B")]
        self.honest: list[SitePlayer] = []
        self.sites: list[Site] = []
        self.trouble, self.pace = Trouble(self), Pace(self)
        self._set_up()

    def _default_hands(self, blobs: Blobs, clock: Clock) -> Hands:
        return CoordinatorHands(
            self.layout, StrategySection(), blobs, clock, lambda number: self.rng.randbytes(32)
        )

    def hands_of(self, player: CoordinatorPlayer) -> Hands:
        if self.purse is not None:
            return paying_hands(self, player)
        if self.numbers is not None:
            return masked_hands(self, player)
        return self.make_hands(player.blobs, player.clock)

    def _set_up(self) -> None:
        """Found the federation, without faults; then everybody begins."""
        self.faults.is_quiet = True
        first, second = self.coordinators
        first.start()
        task, plan = Digest(sha256(b"task").digest()), plan_digest(0)
        model = self.blobs.put(save_model(self.layout, np.zeros(self.layout.size)))
        now_ms = self.now_ms
        if self.purse is not None:
            accounts = Accounts(AccountLog(self, first), first.clock, price)
            accounts.open(self.purse.budgets[0], self.purse.limits)
        first.take(i.AdoptPlan(plan, task, self.layout.digest, self.setting.terms, now_ms))
        first.take(i.InstallModel(model, now_ms))
        for number in range(1, self.setting.sites + 1):
            self._admit(Seat(number), first, p.Approve(task, plan, now_ms))
        if self.purse is not None:
            self._set_up_paying(self.purse, p.Approve(task, plan_digest(1), now_ms))
        second.start()
        self.faults.is_quiet = False
        for player in self.coordinators:
            self.later(player, self.rng.randrange(SECOND_MS), self.pace.tending(player))
        for site in self.sites:
            self.later(site, self.rng.randrange(MINUTE_MS), self.pace.waking(site))
        self.trouble.begin()

    def _set_up_paying(self, purse: Purse, approval: p.Approve) -> None:
        """Sites open their own accounts and approve of the other plan too; others begin."""
        for site in self.honest:
            site.feed(approval)
            if site.account is not None:
                site.account.open()
        if purse.has_neighbour:
            self.neighbour = Neighbour(self)
            self.neighbour.begin()
        if purse.is_leaping:
            Leaps(self).begin()

    def _admit(self, seat: Seat, first: CoordinatorPlayer, approval: p.Approve) -> None:
        is_hostile = self.setting.has_hostile and seat == self.setting.sites
        site = self._site(seat, is_hostile=is_hostile)
        first.take(i.Admit(SiteId(f"site-{seat}"), site.key, self.now_ms))
        region = "north" if seat % 2 else "south"
        first.take(i.Report(seat, ((READY, True), (REGION, region)), self.now_ms))
        self.sites.append(site)
        if isinstance(site, SitePlayer):
            site.feed(approval)
            self.honest.append(site)

    def _site(self, seat: Seat, *, is_hostile: bool) -> Site:
        if self.veil is not None:
            kind = MaskedHostileSite if is_hostile else MaskedSitePlayer
            return kind(seat, self)
        return HostileSite(seat, self) if is_hostile else SitePlayer(seat, self)

    # ---- what players see of the world ----------------------------------------------

    @property
    def now_ms(self) -> int:
        """The true time."""
        return self.calendar.now_ms

    def records(self) -> list[bytes]:
        return self.log.records(STREAM)

    def account(self) -> list[bytes]:
        """The facts of the account that rounds are paid from."""
        return self.log.records(stream_of(ACCOUNT))

    @property
    def denominator(self) -> float:
        """What a noised sum is divided by."""
        return float(self.setting.sites)

    def weight(self, seat: Seat) -> float:
        """How much a seat's update weighs: under noise, one."""
        return 1.0 if self.purse is not None and self.purse.is_central else float(seat)

    def sums(
        self, number: int, base: Vector, steps: Sequence[tuple[Vector, float]]
    ) -> list[Vector]:
        """What a round may make of its members' steps: one model, or one for each noise."""
        if self.money is not None and self.purse is not None and self.purse.is_central:
            return self.money.noised(number, base, steps)
        return [self.combine(base, steps)]

    def stress(self, records: Sequence[bytes]) -> tuple[str, float]:
        return ("commit", 1.0) if self.purse is None else stress_of(records)

    def is_honest(self, seat: Seat) -> bool:
        return self.sites[seat - 1].is_honest

    def next_id(self) -> int:
        return self.calendar.next_number()

    def trace(self, line: str) -> None:
        self.lines.append(f"{(self.now_ms - START_MS) / 1000:10.3f}  {line}")

    def one_hot(self, seat: Seat) -> Vector:
        """A step of this seat that no other training gives."""
        return one_hot(self.layout.size, seat, 1.0 + self.rng.randrange(1 << 20) / (1 << 21))

    def appended(self, node: object, stream: str, records: Sequence[bytes]) -> None:
        assert isinstance(node, CoordinatorPlayer)
        if stream == STREAM:
            self.watch.appended(node, records)
        elif stream == stream_of(ACCOUNT):
            assert self.money is not None
            self.money.appended(records)
        else:
            self.watch.kept(records)

    def meanwhile(self, node: object) -> None:
        self.pace.meanwhile(node)

    def later(self, who: object, delay_ms: int, run: Callable[[], None]) -> None:
        self.calendar.enter(delay_ms, Event(run))

    # ---- the network ----------------------------------------------------------------

    def send(self, site: Site, request: Request) -> None:
        """To either coordinator."""
        self.recorded = [*self.recorded[-_RECORDED:], request]
        player = self.rng.choice(self.coordinators)
        self.trace(f"site {site.seat} → {player.name}: {request}")
        link = f"{site.seat} {player.name}"
        self._network.carry(link, player, lambda: self._arrive(player, request, site))

    def reply(self, player: CoordinatorPlayer, site: Site, reply: Reply) -> None:
        self.trace(f"{player.name} → site {site.seat}: {reply}")
        self._network.carry(f"{player.name} {site.seat}", None, lambda: site.receive(reply))

    def _arrive(self, player: CoordinatorPlayer, request: Request, sender: Site) -> None:
        if player.is_up:
            player.receive(request, sender)
            self.later(player, self.rng.randrange(100, 800), lambda: self.pace.look(player))

    # ---- crashes --------------------------------------------------------------------

    def crashed(self, crash: Crash) -> None:
        victim = crash.victim
        assert isinstance(victim, CoordinatorPlayer | SitePlayer | HostileSite)
        victim.crash()
        if isinstance(victim, CoordinatorPlayer):
            self.trace(f"{victim.name}: CRASH")
            slow = 6 if self.rng.random() < 0.2 else 1
            delay_ms = self.rng.randrange(SECOND_MS, 90 * SECOND_MS) * slow
            self.later(victim, delay_ms, lambda: self._restart(victim))
        else:
            self.trace(f"site {victim.seat}: CRASH")

    def _restart(self, player: CoordinatorPlayer) -> None:
        if player.running is None:
            player.start()
            self.trace(f"{player.name}: starts again")

    # ---- the run --------------------------------------------------------------------

    def run(self) -> Outcome:
        """Faults first, then none: all that is open must end. Raises `Violation`."""
        tail = _TAIL
        while self.steps < self.setting.steps and tail and not self.is_over:
            self.step()
            tail -= self.watch.past.state.finished is not None
        if not self.is_over:
            self._calm_down()
            self._settle()
        self.watch.finish()
        ends = self.watch.past.ends.values()
        completed = sum(isinstance(end, f.RoundCompleted) for end in ends)
        return Outcome(
            self.seed,
            self.steps,
            self.faults.counts,
            completed,
            len(ends) - completed,
            self.digest(),
        )

    def digest(self) -> str:
        """Of the trace so far."""
        return sha256("\n".join(self.lines).encode()).hexdigest()

    def step(self) -> None:
        """The next event."""
        event = self.calendar.take()
        self.steps += 1
        try:
            event.run()
        except Crash as crash:
            self.crashed(crash)

    def _calm_down(self) -> None:
        """The faults stop: processes run, clocks are right, the disk has space."""
        self.trace("the faults stop")
        self.faults.is_quiet = True
        for node in (*self.coordinators, *self.sites):
            node.clock.offset_ms = 0
        if self.neighbour is not None:
            self.neighbour.rest()
        for site in self.honest:
            if site.account is not None:
                site.account.put_back_newest()
        for player in self.coordinators:
            player.is_paused = False
            self._restart(player)
            player.coordinator().driver.catch_up()
        self.coordinators[0].order(i.Resume(self.now_ms))

    def _settle(self) -> None:
        for _ in range(_PATIENCE):
            if self._is_settled():
                return
            self.step()
        raise Violation("I-R2", "the faults have stopped, and something does not end")

    def _is_settled(self) -> bool:
        truth = self.watch.past.state
        if truth.round is not None or truth.unsettled:
            return False
        is_far = truth.frees_ms > self.now_ms + HOUR_MS  # the budget makes all wait
        if owed(truth) and not is_far and self._can_open(truth):
            return False
        return all(p.owed(site.state) is None for site in self.honest)

    def _can_open(self, truth: Federation) -> bool:
        """Whether the next round could open: while too few are eligible, it waits for them."""
        terms = truth.terms
        assert terms is not None
        return len(eligible(truth.roster, terms, self.now_ms)) >= terms.wait_for


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    from consortium.testing.world_campaign import run_command  # it imports this module

    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main())

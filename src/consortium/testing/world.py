"""A federation on a bad day: the real core, driver, hands and ledger among seeded faults.

    python -m consortium.testing.world --seeds 2000          many worlds, each by its seed
    python -m consortium.testing.world --seed 1234 --trace   one of them, event by event
    python -m consortium.testing.world --planted             whether planted bugs are found

Two coordinators share one log; sites talk to either over a network that loses, doubles,
delays and reorders; processes die at any write; disks fill up, clocks jump, a site lies, an
old backup is put back. After every event the invariants of `world_rules` are checked; in
the end the faults stop, and every round must end. A seed decides everything, so it replays.
For a plan or an aggregation of your own:

    from consortium.testing.world import World
    World(seed=7, terms=plan.terms(), make_hands=..., combine=...).run()
"""

from __future__ import annotations

import heapq
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
from consortium.core.terms import DAY_MS, MINUTE_MS, SECOND_MS, Terms
from consortium.drive.clock import Clock
from consortium.drive.driver import Hands
from consortium.drive.hands import CoordinatorHands
from consortium.model import Layout, Vector, save_model
from consortium.plan.values import StrategySection
from consortium.store.memory import MemoryBlobs
from consortium.store.ports import Blobs
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer, Keyring
from consortium.testing.world_faults import (
    DELAYED,
    DOUBLED,
    LOST,
    RACE,
    Crash,
    Durable,
    Faults,
)
from consortium.testing.world_hostile import HostileSite
from consortium.testing.world_rules import Violation, Watch
from consortium.testing.world_setting import READY, REGION, Setting, draw_setting
from consortium.testing.world_site import SitePlayer, one_hot
from consortium.testing.world_trouble import Trouble
from consortium.testing.world_wire import Reply, Request

__all__ = ["Outcome", "Setting", "Violation", "World", "main", "weighted_mean"]

Site = SitePlayer | HostileSite
Combine = Callable[[Vector, Sequence[tuple[Vector, float]]], Vector]
MakeHands = Callable[[Blobs, Clock], Hands]

_START_MS = 30 * DAY_MS  # clocks may jump back from here
_WIDTH = 8  # numbers in the model: one a seat, and some to spare
_TAIL = 30  # events that go on after a federation has finished: late ones among them
_PATIENCE = 4000  # events within which everything must settle once the faults have stopped
_RECORDED = 40


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


@dataclass(slots=True)
class _Event:
    run: Callable[[], None]
    to: CoordinatorPlayer | None = None  # a request under way to this coordinator
    is_message: bool = False
    is_gone: bool = False


class World:
    """One seeded run. `run` returns what came of it, or raises `Violation`.

    `make_hands` makes the hands of a coordinator, and `combine` says by the plain formula
    what they should make of a model and the members' (step, weight): the rule about sums
    compares the two. Sites send a one-hot step, so that a sum shows who is in it.
    """

    def __init__(
        self,
        seed: int,
        *,
        terms: Terms | None = None,
        sites: int | None = None,
        make_hands: MakeHands | None = None,
        combine: Combine = weighted_mean,
    ) -> None:
        self.seed, self.rng = seed, Random(seed)
        self.setting = draw_setting(self.rng, terms, sites)
        self.combine = combine
        self.now_ms = _START_MS
        self.layout = Layout.of({"w": np.zeros(_WIDTH)})
        self.make_hands = make_hands or self._default_hands
        self.faults = Faults(self.rng, self.setting.intensity)
        self.log, self.blobs, self.keyring = Durable(), MemoryBlobs(), Keyring(seed)
        self.watch = Watch(self)
        self.recorded: list[Request] = []
        self.lines: list[str] = []
        self.steps = 0
        self.is_over = False
        self._queue: list[tuple[int, int, _Event]] = []  # (time, number, what happens)
        self._numbers = 0
        self._newest: dict[str, int] = {}  # link → newest message delivered
        self._is_racing = False
        self.coordinators = [CoordinatorPlayer(name, self) for name in ("A", "B")]
        self.honest: list[SitePlayer] = []
        self.sites: list[Site] = []
        self._trouble = Trouble(self)
        self._set_up()

    def _default_hands(self, blobs: Blobs, clock: Clock) -> Hands:
        return CoordinatorHands(
            self.layout, StrategySection(), blobs, clock, lambda number: self.rng.randbytes(32)
        )

    def _set_up(self) -> None:
        """Found the federation, without faults; then everybody begins."""
        self.faults.is_quiet = True
        first, second = self.coordinators
        first.start()
        task, plan = (Digest(sha256(word).digest()) for word in (b"task", b"plan"))
        model = self.blobs.put(save_model(self.layout, np.zeros(_WIDTH)))
        now_ms = self.now_ms
        first.take(i.AdoptPlan(plan, task, self.layout.digest, self.setting.terms, now_ms))
        first.take(i.InstallModel(model, now_ms))
        for number in range(1, self.setting.sites + 1):
            self._admit(Seat(number), first, p.Approve(task, plan, now_ms))
        second.start()
        self.faults.is_quiet = False
        for player in self.coordinators:
            self.later(player, self.rng.randrange(SECOND_MS), self._tending(player))
        for site in self.sites:
            self.later(site, self.rng.randrange(MINUTE_MS), self._waking(site))
        self._trouble.begin()

    def _admit(self, seat: Seat, first: CoordinatorPlayer, approval: p.Approve) -> None:
        is_hostile = self.setting.has_hostile and seat == self.setting.sites
        site = HostileSite(seat, self) if is_hostile else SitePlayer(seat, self)
        first.take(i.Admit(SiteId(f"site {seat}"), site.key, self.now_ms))
        region = "north" if seat % 2 else "south"
        first.take(i.Report(seat, ((READY, True), (REGION, region)), self.now_ms))
        self.sites.append(site)
        if isinstance(site, SitePlayer):
            site.feed(approval)
            self.honest.append(site)

    # ---- what players see of the world ----------------------------------------------

    def records(self) -> list[bytes]:
        return self.log.records(STREAM)

    def is_honest(self, seat: Seat) -> bool:
        return self.sites[seat - 1].is_honest

    def next_id(self) -> int:
        self._numbers += 1
        return self._numbers

    def trace(self, line: str) -> None:
        self.lines.append(f"{(self.now_ms - _START_MS) / 1000:10.3f}  {line}")

    def one_hot(self, seat: Seat) -> Vector:
        """A step of this seat that no other training gives."""
        return one_hot(_WIDTH, seat, 1.0 + self.rng.randrange(1 << 20) / (1 << 21))

    def appended(self, node: object, stream: str, records: Sequence[bytes]) -> None:
        if stream == STREAM and isinstance(node, CoordinatorPlayer):
            self.watch.appended(node, records)

    def later(self, who: object, delay_ms: int, run: Callable[[], None]) -> None:
        self._push(delay_ms, self.next_id(), _Event(run))

    def _push(self, delay_ms: int, number: int, event: _Event) -> None:
        heapq.heappush(self._queue, (self.now_ms + delay_ms, number, event))

    # ---- the network ----------------------------------------------------------------

    def send(self, site: Site, request: Request) -> None:
        """To either coordinator."""
        self.recorded = [*self.recorded[-_RECORDED:], request]
        player = self.rng.choice(self.coordinators)
        self.trace(f"site {site.seat} → {player.name}: {request}")
        link = f"{site.seat} {player.name}"
        self._transmit(link, player, lambda: self._arrive(player, request, site))

    def reply(self, player: CoordinatorPlayer, site: Site, reply: Reply) -> None:
        self.trace(f"{player.name} → site {site.seat}: {reply}")
        self._transmit(f"{player.name} {site.seat}", None, lambda: site.receive(reply))

    def _transmit(self, link: str, to: CoordinatorPlayer | None, run: Callable[[], None]) -> None:
        if self.faults.strikes("message lost" if to else "reply lost", LOST):
            return
        copies = 2 if self.faults.strikes("message duplicated", DOUBLED) else 1
        for _ in range(copies):
            delay_ms = self.rng.randrange(50, 2 * SECOND_MS)
            if self.faults.strikes("message delayed", DELAYED):
                delay_ms += self.rng.randrange(20 * SECOND_MS, 10 * MINUTE_MS)
            number = self.next_id()
            self._push(delay_ms, number, _Event(self._on_link(link, number, run), to, True))

    def _on_link(self, link: str, number: int, run: Callable[[], None]) -> Callable[[], None]:
        def deliver() -> None:
            newest = self._newest.get(link, 0)
            if number < newest and not self.faults.is_quiet:
                self.faults.counts["message reordered"] += 1
            self._newest[link] = max(newest, number)
            run()

        return deliver

    def _arrive(self, player: CoordinatorPlayer, request: Request, sender: Site) -> None:
        if player.is_up:
            player.receive(request, sender)
            self.later(player, self.rng.randrange(100, 800), lambda: self._look(player))

    def hush(self) -> None:
        """Whatever is under way never arrives."""
        for _, _, event in self._queue:
            event.is_gone |= event.is_message

    # ---- everybody's own time -------------------------------------------------------

    def _waking(self, site: Site) -> Callable[[], None]:
        def wake() -> None:
            pause_ms = 5 * SECOND_MS
            try:
                pause_ms = site.wake()
            except Crash as crash:
                self.crashed(crash)
            self.later(site, pause_ms, wake)

        return wake

    def _tending(self, player: CoordinatorPlayer) -> Callable[[], None]:
        pause_ms = SECOND_MS

        def tend() -> None:
            nonlocal pause_ms
            has_worked = False
            try:
                has_worked = self._tend(player)
            except Crash as crash:
                self.crashed(crash)
            pause_ms = SECOND_MS if has_worked else min(2 * pause_ms, 60 * MINUTE_MS)
            self.later(player, self._until_wake(player, pause_ms), tend)

        return tend

    def _look(self, player: CoordinatorPlayer) -> None:
        """Something came in: there may be something to do."""
        if player.is_up:
            self._tend(player)

    def _tend(self, player: CoordinatorPlayer) -> bool:
        """Look what is new, and perform some duties."""
        if not player.is_up:
            return False
        if self.faults.is_quiet or self.rng.random() < 0.6:
            player.coordinator().driver.catch_up()
        has_worked = False
        for _ in range(self.rng.randrange(1, 4)):
            if not player.work():
                break
            has_worked = True
        return has_worked

    def _until_wake(self, player: CoordinatorPlayer, pause_ms: int) -> int:
        if not player.is_up:
            return 10 * SECOND_MS
        at_ms = player.coordinator().driver.wakes_at_ms()
        if at_ms is not None:
            pause_ms = min(pause_ms, max(1, at_ms - player.clock.now_ms()))
        return pause_ms

    def meanwhile(self, node: object) -> None:
        """Perhaps the other coordinator does something in the middle of this one's doing."""
        if self._is_racing or not self.faults.chance(RACE):
            return
        other = self.coordinators[node is self.coordinators[0]]
        if other.is_up:
            self._race(lambda: self._do_something(other))

    def _race(self, run: Callable[[], object]) -> None:
        self._is_racing = True
        try:
            run()
        except Crash as crash:
            self.crashed(crash)
        finally:
            self._is_racing = False

    def _do_something(self, player: CoordinatorPlayer) -> None:
        self.trace(f"{player.name}: acts in the middle of this")
        under_way = [
            (at_ms, number, event)
            for at_ms, number, event in self._queue
            if event.to is player and not event.is_gone
        ]
        if under_way and self.rng.random() < 0.5:
            _, _, event = min(under_way, key=lambda entry: entry[:2])
            event.is_gone = True
            event.run()
        else:
            player.coordinator().driver.catch_up()
            player.work()

    def dismiss_a_member(self, node: CoordinatorPlayer) -> None:
        """The lead revokes a member while its update is being summed."""
        other = self.coordinators[node is self.coordinators[0]]
        if self._is_racing or not other.is_up:
            return
        other.coordinator().driver.catch_up()
        order = other.a_member()
        if order is not None and self._trouble.may_dismiss():
            self.trace(f"{other.name}: seat {order.seat} is revoked in the middle of this")
            self._race(lambda: other.order(order))

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
            tail -= self.watch.truth.finished is not None
        if not self.is_over:
            self._calm_down()
            self._settle()
        self.watch.finish()
        ends = self.watch.ends.values()
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
        at_ms, _, event = heapq.heappop(self._queue)
        if event.is_gone:
            return
        self.steps += 1
        self.now_ms = max(self.now_ms, at_ms)
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
        truth = self.watch.truth
        if truth.round is not None or owed(truth):
            return False
        return all(p.owed(site.state) is None for site in self.honest)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    from consortium.testing.world_campaign import run_command  # it imports this module

    return run_command(arguments)


if __name__ == "__main__":
    sys.exit(main())

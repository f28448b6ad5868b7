"""How coordinators pay in a `World`: the real accounts on a disk that fails, noise from a seed that
is another one in every draw, a neighbour who spends from the same account, and time that leaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from consortium.core import facts as f
from consortium.core.account import Standing
from consortium.core.terms import DAY_MS, HOUR_MS, MINUTE_MS
from consortium.drive.accounts import Accounts, Ledger
from consortium.drive.driver import Hands
from consortium.drive.hands import CoordinatorHands
from consortium.drive.release import Release
from consortium.errors import PrivacyBudgetExceededError
from consortium.plan.strategy import StrategySection
from consortium.privacy.noise import Noise, SimulatedNoise
from consortium.testing.world_faults import Durable, FaultyLog, NodeClock
from consortium.testing.world_purse import ACCOUNT, CLIP, price

if TYPE_CHECKING:
    from consortium.testing.world import World
    from consortium.testing.world_coordinator import CoordinatorPlayer

_NEIGHBOUR = "neighbour"
_CLOSE_CALLS = 0.3  # the neighbour acts in the middle of a commit
_STRESS = 5.0  # of commits that charge, hold ready or tell
_STRESSED = {
    fact.KIND
    for fact in (f.BudgetReserved, f.BudgetCharged, f.BudgetSettled, f.Aggregated, f.ModelPublished)
}


def stress_of(records: Sequence[bytes]) -> tuple[str, float]:
    """What a commit of the federation is called, and how much likelier faults are around it."""
    is_stressed = any(record[0] in _STRESSED for record in records)
    return ("charge or release", _STRESS) if is_stressed else ("commit", 1.0)


class AccountLog(FaultyLog):
    """The shared log as one coordinator reaches its accounts."""

    def __init__(self, world: World, player: CoordinatorPlayer) -> None:
        super().__init__(world.log, world, player)
        self._world = world

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        neighbour = self._world.neighbour
        if neighbour is not None and self._world.faults.chance(_CLOSE_CALLS):
            neighbour.act()
        return super().append(stream, expected, records)

    def stress(self, records: Sequence[bytes]) -> tuple[str, float]:
        return "commit of an account", _STRESS


class _NewNoise:
    """Another seed in every call, so that whoever draws twice tells something else."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._number = world, number

    def discrete(self, count: int, sigma: float) -> npt.NDArray[np.int64]:
        seed = self._world.seed, self._number, self._world.next_id()
        drawn = SimulatedNoise(np.random.default_rng(seed)).discrete(count, sigma)
        assert self._world.money is not None
        self._world.money.drawn(self._number, drawn)
        return drawn

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        raise AssertionError("a sum takes discrete noise")

    def coins(self, count: int, rate: float) -> npt.NDArray[np.bool_]:
        raise AssertionError("a sum takes discrete noise")


def paying_hands(world: World, player: CoordinatorPlayer) -> Hands:
    """The real hands with the real accounts, and noise on sums where the coordinators make it."""
    assert world.purse is not None
    accounts = Accounts(AccountLog(world, player), player.clock, price)
    is_central = world.purse.is_central
    strategy = StrategySection(clip=CLIP, weight="uniform") if is_central else StrategySection()

    def noise_at(number: int, _column: int) -> Noise:
        return _NewNoise(world, number)

    def release(number: int) -> Release | None:
        terms = player.coordinator().driver.state.terms
        assert terms is not None and terms.budget is not None
        sigma = terms.budget.costs[0].sigma
        return Release(sigma, CLIP, world.denominator, number, noise_at) if is_central else None

    def seed(_number: int) -> bytes:
        return world.rng.randbytes(32)

    parts = world.layout, strategy, player.blobs, player.clock, seed, None, release, accounts
    return CoordinatorHands(*parts)


class Neighbour:
    """Another federation that spends from the same account. It is honest, and forgets nothing."""

    def __init__(self, world: World) -> None:
        self._world, self._rng, self._number = world, world.rng, 0
        self._ledger = Ledger(_OwnLog(world), ACCOUNT, NodeClock(lambda: world.now_ms), price)

    def begin(self) -> None:
        pause_ms = self._rng.randrange(2 * MINUTE_MS, 40 * MINUTE_MS)
        self._world.later(self, pause_ms, self._wake)

    def _wake(self) -> None:
        if not self._world.faults.is_quiet:
            self.act()
            self.begin()

    def act(self) -> None:
        """Reserve, or decide what becomes of what is reserved."""
        assert self._world.purse is not None
        ledger, costs = self._ledger, self._rng.choice(self._world.purse.budgets).costs
        ledger.catch_up()
        held = [
            number
            for (who, number), one in ledger.state.spent.items()
            if who == _NEIGHBOUR and one.standing is Standing.RESERVED
        ]
        if held:
            ledger.settle(_NEIGHBOUR, held[0], is_charged=self._rng.random() < 0.3)
            return
        try:
            ledger.reserve(_NEIGHBOUR, self._number + 1, costs)
            self._number += 1
        except PrivacyBudgetExceededError:
            return

    def rest(self) -> None:
        """Hold nothing any more."""
        self._ledger.catch_up()
        for (who, number), one in list(self._ledger.state.spent.items()):
            if who == _NEIGHBOUR and one.standing is Standing.RESERVED:
                self._ledger.give_back(who, number)


class _OwnLog(Durable):
    """The shared log as the neighbour reaches it: without faults."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._streams = world, world.log._streams

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        length = super().append(stream, expected, records)
        assert self._world.money is not None
        self._world.money.appended(records)
        return length


class Leaps:
    """While all wait for a window to move on, time leaps."""

    def __init__(self, world: World) -> None:
        self._world = world

    def begin(self) -> None:
        self._world.later(
            self, self._world.rng.randrange(5 * MINUTE_MS, 20 * MINUTE_MS), self._leap
        )

    def _leap(self) -> None:
        world, rng = self._world, self._world.rng
        if world.faults.is_quiet:
            return
        truth, calendar = world.watch.past.state, world.calendar
        wait_ms = truth.frees_ms - world.now_ms
        if truth.round is None and wait_ms > HOUR_MS:
            short_ms = rng.choice((-HOUR_MS, MINUTE_MS, 10 * MINUTE_MS, DAY_MS))
            calendar.now_ms += max(0, wait_ms - short_ms)
            world.trace("days pass")
        elif truth.round is None and rng.random() < 0.3:
            calendar.now_ms += rng.randrange(rng.choice((4, 4, 70)) * DAY_MS)
            world.trace("some days pass")
        self.begin()

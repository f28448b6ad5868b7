"""Who acts when in a `World`: sites wake, coordinators look what is owed, and sometimes one
coordinator acts in the middle of what the other is doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from consortium.core.terms import MINUTE_MS, SECOND_MS
from consortium.testing.world_coordinator import CoordinatorPlayer
from consortium.testing.world_faults import RACE, Crash

if TYPE_CHECKING:
    from consortium.testing.world import Site, World


class Pace:
    """Keeps everybody going, and lets coordinators race."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_racing = False
        self._has_dismissed = False

    def waking(self, site: Site) -> Callable[[], None]:
        def wake() -> None:
            pause_ms = 5 * SECOND_MS
            try:
                pause_ms = site.wake()
            except Crash as crash:
                self._world.crashed(crash)
            self._world.later(site, pause_ms, wake)

        return wake

    def tending(self, player: CoordinatorPlayer) -> Callable[[], None]:
        pause_ms = SECOND_MS

        def tend() -> None:
            nonlocal pause_ms
            has_worked = False
            try:
                has_worked = self._tend(player)
            except Crash as crash:
                self._world.crashed(crash)
            pause_ms = SECOND_MS if has_worked else min(2 * pause_ms, 60 * MINUTE_MS)
            self._world.later(player, self._until_wake(player, pause_ms), tend)

        return tend

    def look(self, player: CoordinatorPlayer) -> None:
        """Something came in: there may be something to do."""
        if player.is_up:
            self._tend(player)

    def _tend(self, player: CoordinatorPlayer) -> bool:
        """Look what is new, and perform some duties."""
        if not player.is_up:
            return False
        if self._world.faults.is_quiet or self._world.rng.random() < 0.6:
            player.coordinator().driver.catch_up()
        has_worked = False
        for _ in range(self._world.rng.randrange(1, 4)):
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
        if self._is_racing or not self._world.faults.chance(RACE):
            return
        other = self._other(node)
        if other.is_up:
            self._race(lambda: self._do_something(other))

    def _race(self, run: Callable[[], object]) -> None:
        self._is_racing = True
        try:
            run()
        except Crash as crash:
            self._world.crashed(crash)
        finally:
            self._is_racing = False

    def _do_something(self, player: CoordinatorPlayer) -> None:
        self._world.trace(f"{player.name}: acts in the middle of this")
        event = (
            self._world.calendar.pull_forward(player) if self._world.rng.random() < 0.5 else None
        )
        if event is not None:
            event.run()
        else:
            player.coordinator().driver.catch_up()
            player.work()

    def dismiss_a_member(self, node: CoordinatorPlayer) -> None:
        """The lead revokes a member while its update is being summed: through the other
        coordinator, or through this one if the other is away."""
        other = self._other(node)
        if self._is_racing or self._has_dismissed:
            return
        player = other if other.is_up else node
        player.coordinator().driver.catch_up()
        order = player.a_member()
        if order is None:
            return
        self._has_dismissed = True
        self._world.trace(f"seat {order.seat} is revoked in the middle of this")
        if player is other:
            self._race(lambda: other.order(order))
        else:
            node.order(order)

    def interrupt(
        self, node: CoordinatorPlayer, run: Callable[[CoordinatorPlayer], object]
    ) -> None:
        """The lead has an order in the middle of something: for the other coordinator, or for this
        one if the other is away."""
        other = self._other(node)
        if self._is_racing:
            return
        if other.is_up:
            self._race(lambda: run(other))
        else:
            run(node)

    def _other(self, node: object) -> CoordinatorPlayer:
        first, second = self._world.coordinators
        return second if node is first else first

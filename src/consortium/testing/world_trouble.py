"""What happens to a `World` from outside: crashes, pauses, full disks, clocks that jump, the
lead's orders, and old backups that are put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from consortium.core import inputs as i
from consortium.core.facts import Departure
from consortium.core.ids import Seat
from consortium.core.terms import DAY_MS, MINUTE_MS, SECOND_MS
from consortium.drive.coordinate import checkpoints_of
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer
from consortium.testing.world_faults import Crash
from consortium.testing.world_past import Violation, root_of
from consortium.testing.world_site import SitePlayer
from consortium.testing.world_wire import Ask

if TYPE_CHECKING:
    from consortium.testing.world import World

_PAUSE_MS = 90 * SECOND_MS  # between two troubles, at intensity one
_MAX_DISMISSALS = 2


class Trouble:
    """Plans the trouble of one world, and makes it happen."""

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.rng
        self._dismissals = 0
        self._founding = 0  # facts before the first round
        self._kinds: tuple[tuple[str, Callable[[], bool]], ...] = (
            ("coordinator crash before a commit", self._crash_coordinator),
            ("coordinator paused", self._pause),
            ("coordinator paused", self._pause),
            ("disk full", self._fill_disk),
            ("clock jump of a coordinator", self._jump_coordinator),
            ("clock jump of a site", self._jump_site),
            ("site crash at rest", self._crash_site),
            ("site crash at rest", self._crash_site),
            ("old backup of a site's log", self._restore_site),
        )
        self._orders: tuple[Callable[[CoordinatorPlayer], bool], ...] = (
            self._dismiss,
            self._dismiss,
            self._cancel,
            self._roll_back,
            self._hold,
            self._rotate,
            self._rotate,
            lambda player: player.order(i.OpenRound(player.clock.now_ms())),
            lambda player: player.order(i.Stop(player.clock.now_ms())),
        )

    def begin(self) -> None:
        """Put the trouble of this world on its calendar."""
        world, rng = self._world, self._rng
        self._founding = len(world.records())
        world.later(self, self._pause_ms(), self._strike)
        for _ in range(world.setting.orders):
            world.later(self, rng.randrange(12 * MINUTE_MS), self._order)
        if world.setting.backup:
            world.later(self, rng.randrange(2 * MINUTE_MS, 8 * MINUTE_MS), self._old_backup)

    def _pause_ms(self) -> int:
        return round(self._rng.randrange(_PAUSE_MS) / self._world.setting.intensity)

    # ---- faults ---------------------------------------------------------------------

    def _strike(self) -> None:
        if self._world.faults.is_quiet:
            return
        kind, happen = self._rng.choice(self._kinds)
        self._world.later(self, self._pause_ms(), self._strike)
        if happen():  # some are counted elsewhere, or did not come about
            self._world.faults.happened(kind)

    def _crash_coordinator(self) -> bool:
        player = self._rng.choice(self._world.coordinators)
        if player.running is not None:
            self._world.crashed(Crash(player))
        return player.running is None

    def _pause(self) -> bool:
        player = self._rng.choice(self._world.coordinators)
        if not player.is_up:
            return False
        player.is_paused = True
        delay_ms = self._rng.randrange(20 * SECOND_MS, 6 * MINUTE_MS)
        self._world.later(self, delay_ms, lambda: setattr(player, "is_paused", False))
        return True

    def _fill_disk(self) -> bool:
        """What it refuses is counted, not that it is full."""
        faults = self._world.faults
        self._world.trace("the disk is full")
        faults.is_disk_full = True
        delay_ms = self._rng.randrange(5 * SECOND_MS, 90 * SECOND_MS)
        self._world.later(self, delay_ms, lambda: setattr(faults, "is_disk_full", False))
        return False

    def _jump_coordinator(self) -> bool:
        return self._jump(self._rng.choice(self._world.coordinators))

    def _jump_site(self) -> bool:
        return self._jump(self._rng.choice(self._world.honest))

    def _jump(self, node: CoordinatorPlayer | SitePlayer) -> bool:
        span_ms = self._rng.choice((MINUTE_MS, 10 * MINUTE_MS, DAY_MS))
        node.clock.offset_ms = self._rng.randrange(-span_ms, span_ms)
        delay_ms = self._rng.randrange(30 * SECOND_MS, 6 * MINUTE_MS)
        self._world.later(self, delay_ms, lambda: setattr(node.clock, "offset_ms", 0))
        return True

    def _crash_site(self) -> bool:
        self._world.crashed(Crash(self._rng.choice(self._world.honest)))
        return True

    def _restore_site(self) -> bool:
        site = self._rng.choice(self._world.honest)
        if len(site.records) < 3 or self._rng.random() < 0.5:
            return False
        site.restore(self._rng.randrange(1, len(site.records)))
        return True

    # ---- the lead -------------------------------------------------------------------

    def _order(self) -> None:
        player = self._rng.choice(self._world.coordinators)
        if player.is_up and not self._world.faults.is_quiet:
            self._rng.choice(self._orders)(player)

    def _dismiss(self, player: CoordinatorPlayer) -> bool:
        """At most two, so that a quorum is left."""
        self._dismissals += 1
        if self._dismissals > _MAX_DISMISSALS:
            return False
        seat = Seat(self._rng.randrange(1, self._world.setting.sites + 1))
        return player.order(i.Dismiss(seat, Departure.REVOKED, player.clock.now_ms()))

    def _cancel(self, player: CoordinatorPlayer) -> bool:
        number = self._world.watch.past.state.last_number
        return player.order(i.CancelRound(number, player.clock.now_ms()))

    def _roll_back(self, player: CoordinatorPlayer) -> bool:
        version = self._rng.choice(sorted(self._world.watch.past.state.versions))
        return player.order(i.RollBack(version, player.clock.now_ms()))

    def _hold(self, player: CoordinatorPlayer) -> bool:
        def resume() -> None:
            other = self._rng.choice(self._world.coordinators)
            if not other.is_up or not other.order(i.Resume(other.clock.now_ms())):
                self._world.later(self, 30 * SECOND_MS, resume)

        self._world.later(self, 2 * MINUTE_MS, resume)
        return player.order(i.Hold(player.clock.now_ms()))

    def _rotate(self, player: CoordinatorPlayer) -> bool:
        player.rotate()
        return True

    # ---- an old backup of the coordinators' log -------------------------------------

    def _old_backup(self) -> None:
        """The log is put back to an earlier length. Whoever has seen more must notice."""
        world, rng = self._world, self._rng
        records = world.records()
        if len(records) <= self._founding + 2 or world.faults.is_quiet:
            return
        world.faults.happened("old backup of the coordinators' log")
        notes = world.log.records(checkpoints_of(STREAM))
        true_log, true_notes = list(records), list(notes)
        del records[rng.randrange(self._founding, len(records)) :]
        notes[:] = [note for note in notes if int(note.split(b"\n")[1]) <= len(records)]
        world.trace(f"a backup of {len(records)} facts is in the place of {len(true_log)}")
        self._begin_again()
        world.watch.is_off = world.faults.is_quiet = True
        for _ in range(rng.choice((0, 0, 2, 5))):  # it goes on from there, another way
            self._world.coordinators[0].work()
        self._ask_around()
        records[:], notes[:] = true_log, true_notes
        world.watch.is_off = world.faults.is_quiet = False
        world.is_over = world.setting.backup == "kept"
        self._begin_again()

    def _begin_again(self) -> None:
        self._world.calendar.hush()
        for player in self._world.coordinators:
            player.crash()
            player.start()
        for site in self._world.honest:
            site.alarm = ""

    def _ask_around(self) -> None:
        """Every site that has seen what is gone asks once; if the backup stays, every site."""
        player, records = self._world.coordinators[0], self._world.records()
        for site in self._world.honest:
            size = site.state.seen_size
            is_other = size > len(records) or (
                size > 0 and root_of(records[:size]) != site.state.seen_root
            )
            if not is_other and self._world.setting.backup == "undone":
                continue
            length = len(site.records)
            site.receive(player.answer(site.request(Ask(size))))
            if is_other != bool(site.alarm):
                what = "was not noticed" if is_other else "was a false alarm"
                raise Violation("I-L2", f"an old log {what} by seat {site.seat}")
            if is_other and len(site.records) != length:
                raise Violation("I-L2", f"seat {site.seat} works with an old log")

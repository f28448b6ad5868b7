"""What happens to a `World` from outside: crashes, pauses, full disks, clocks that jump, the
lead's orders, and old backups that are put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.core.facts import BudgetReserved, Departure
from consortium.core.ids import Seat
from consortium.core.terms import DAY_MS, MINUTE_MS, SECOND_MS
from consortium.drive.coordinate import checkpoints_of
from consortium.errors import RestoredBackupError, StoreFailedError
from consortium.testing.world_coordinator import STREAM, CoordinatorPlayer
from consortium.testing.world_faults import Crash
from consortium.testing.world_past import Violation, must, root_of
from consortium.testing.world_purse import ACCOUNT, plan_digest
from consortium.testing.world_site import SitePlayer
from consortium.testing.world_site_account import SiteAccount
from consortium.testing.world_wire import Ask

if TYPE_CHECKING:
    from consortium.testing.world import World

_PAUSE_MS = 90 * SECOND_MS  # between two troubles, at intensity one
_MAX_DISMISSALS = 2
_MAX_CHANGES = 2
_OVERSLEPT = 0.3


class Trouble:
    """Plans the trouble of one world, and makes it happen."""

    def __init__(self, world: World) -> None:
        self._world, self._rng = world, world.rng
        self._dismissals = 0
        self._changes = 0
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
            *((self._replan,) * 4 if world.purse else ()),
        )
        if world.purse:
            more = (("old backup of an account", self._old_account),)
            self._kinds += (*more, ("old backup of a site's log", self._restore_site))

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
        self.pause(player, self._rng.randrange(20 * SECOND_MS, 6 * MINUTE_MS))
        return True

    def pause(self, player: CoordinatorPlayer, delay_ms: int) -> None:
        """It goes on later, with old memory."""
        player.is_paused = True
        self._world.later(self, delay_ms, lambda: setattr(player, "is_paused", False))

    def oversleep(self, player: CoordinatorPlayer) -> None:
        """A coordinator is about to ask an account, and does so much later, if at all."""
        if self._world.faults.strikes("coordinator paused before it asks an account", _OVERSLEPT):
            self.pause(player, self._rng.randrange(2 * MINUTE_MS, 12 * MINUTE_MS))
            raise StoreFailedError("nobody is there to ask")

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
        if len(site.records) < 3 or self._rng.random() < 0.5 or site.has_old_account:
            return False
        length = self._rng.randrange(1, len(site.records))
        if site.account is None or self._rng.random() < 0.3:
            site.restore(length)
        elif self._rng.random() < 0.5:
            site.restore(length, with_account=False)
        else:
            return self._restore_account(site, site.account)
        return True

    def _restore_account(self, site: SitePlayer, account: SiteAccount) -> bool:
        """An old copy of a site's own account, until somebody finds the newest."""
        if account.put_back_old():
            self._world.faults.happened("old backup of a site's account")
            delay_ms = self._rng.randrange(2 * MINUTE_MS, 20 * MINUTE_MS)
            self._world.later(site, delay_ms, account.put_back_newest)
        return False

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

    def _replan(self, player: CoordinatorPlayer) -> bool:
        """A plan with more or less noise, and so at another price."""
        purse, state = self._world.purse, self._world.watch.past.state
        assert purse is not None and state.task is not None and state.layout is not None
        number = int(state.plan == plan_digest(0))
        terms = purse.terms(self._world.setting.terms, number)
        now_ms = player.clock.now_ms()
        task, layout = state.task, state.layout
        return player.order(i.AdoptPlan(plan_digest(number), task, layout, terms, now_ms))

    def change_plans(self, node: CoordinatorPlayer) -> None:
        """The lead adopts another plan, or stops, while an account is being asked."""
        if self._changes == _MAX_CHANGES:
            return
        self._changes += 1
        is_last = self._rng.random() < 0.1

        def change(player: CoordinatorPlayer) -> object:
            stop = i.Stop(player.clock.now_ms())
            return player.order(stop) if is_last else self._replan(player)

        self._world.pace.interrupt(node, change)

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
        account = world.account()
        true_account = list(account)
        length = rng.randrange(self._founding, len(records))
        if world.money is not None:  # the backup was of both, at one time and between commits
            length = max(one for one in world.watch.past.commits if one <= length)
            del account[world.money.lengths[length] :]
        del records[length:]
        notes[:] = [note for note in notes if int(note.split(b"\n")[1]) <= len(records)]
        world.trace(f"a backup of {len(records)} facts is in the place of {len(true_log)}")
        self._begin_again()
        world.watch.is_off = world.faults.is_quiet = True
        for _ in range(rng.choice((0, 0, 2, 5))):  # it goes on from there, another way
            self._world.coordinators[0].work()
        self._ask_around()
        records[:], notes[:], account[:] = true_log, true_notes, true_account
        world.watch.is_off = world.faults.is_quiet = False
        world.is_over = world.setting.backup == "kept"
        self._begin_again()

    def _old_account(self) -> bool:
        """The account alone is put back to before what the federation's log tells of it. Whoever
        asks it to pay for a round must notice. Then all is as it was."""
        world = self._world
        truth, records, account = world.watch.past.state, world.records(), world.account()
        newest = truth.newest_paid.get(ACCOUNT)
        if newest is None or truth.round or truth.finished is not None or truth.is_held:
            return False
        assert world.money is not None
        paid_at = world.money.book.entries[STREAM, newest].at
        true_log, true_account = list(records), list(account)
        del account[self._rng.randrange(2, paid_at + 1) :]
        world.trace(f"a backup of the account, of {len(account)} facts, is in place")
        self._begin_again()
        world.watch.is_off = world.faults.is_quiet = True
        player = world.coordinators[0]
        has_noticed = any(self._is_refused(player) for _ in range(4))
        new = [decode(record) for record in records[len(true_log) :]]
        is_taken = any(isinstance(fact, BudgetReserved) for fact in new)
        must(not is_taken, "I-P3", "a round is paid for by an account that has forgotten")
        records[:], account[:] = true_log, true_account
        world.watch.is_off = world.faults.is_quiet = False
        self._begin_again()
        return has_noticed

    def _is_refused(self, player: CoordinatorPlayer) -> bool:
        player.order(i.OpenRound(player.clock.now_ms()))
        try:
            player.work()
        except RestoredBackupError:
            return True
        return False

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

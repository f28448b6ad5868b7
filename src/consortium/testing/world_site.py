"""A site in a `World`: the real participant machine with its own durable log and spool.

It polls, trains, sends until it is heard or turned away, keeps receipts with their proofs,
and witnesses every checkpoint before it works on anything that came with it. It can be
killed before and after every write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core.codec import decode, encode, site_kinds
from consortium.core.facts import Failure
from consortium.core.ids import Digest, Seat
from consortium.core.terms import MINUTE_MS, SECOND_MS
from consortium.errors import Refusal, RestoredBackupError, WitnessError, WrongRoundError
from consortium.ledger.merkle import EMPTY_ROOT
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Checkpoint
from consortium.ledger.proof import Proof
from consortium.ledger.witness import Offer, examine
from consortium.model import Update, save_update
from consortium.store.memory import MemoryBlobs
from consortium.testing.world_coordinator import STREAM
from consortium.testing.world_faults import SITE_CRASH, Crash, NodeClock
from consortium.testing.world_setting import READY, REGION
from consortium.testing.world_site_account import SiteAccount
from consortium.testing.world_wire import About, Ask, Body, Failing, Reply, Request, Scores, Send

if TYPE_CHECKING:
    from consortium.testing.world import World

_PATIENCE_MS = 40 * SECOND_MS  # before a request without a reply is made again
_POLL_MS = 15 * SECOND_MS
_LAZY_MS = 120 * MINUTE_MS  # the longest pause of a site that has nothing to do
_BREAKS, _REPORTS = 0.04, 0.06


def fold(records: list[bytes]) -> p.Participant:
    """The state that a site's log folds into."""
    state = p.Participant()
    for record in records:
        p.evolve(state, decode(record, site_kinds))
    return state


@dataclass(slots=True)
class _Outstanding:
    """A request whose reply is awaited: in memory only."""

    id: int
    body: Body
    work: p.SiteWork | None
    sent_ms: int


class SitePlayer:
    """One honest site."""

    is_honest = True

    def __init__(self, seat: Seat, world: World) -> None:
        self.seat, self.world = seat, world
        self.key = b"key of seat %d" % seat
        self.clock = NodeClock(lambda: world.now_ms)
        self.records: list[bytes] = []  # its log
        self.spool = MemoryBlobs()
        self.proofs: list[Proof] = []
        self.sent: dict[int, set[Digest]] = {}  # round → what ever left the site
        # From this round on it may train again: an old backup of all that it has was put back.
        self.forgot_since: int | None = None
        limits = world.purse.site_limits if world.purse else ()
        self.account = SiteAccount(self, limits[seat - 1]) if limits else None
        self.life = 0  # processes so far
        self.alarm: str = ""
        self._begin()

    def _begin(self) -> None:
        self.life += 1
        self.state = self.recover()
        self._waiting: _Outstanding | None = None
        self._training = -1
        self._pause_ms = _POLL_MS

    def recover(self) -> p.Participant:
        return fold(self.records)

    def crash(self) -> None:
        """Everything but the log, the spool and the kept proofs is gone."""
        self._begin()

    def restore(self, length: int, *, with_account: bool = True) -> None:
        """An old backup of the site's log is put back; of its account too, if it has one."""
        del self.records[length:]
        self._begin()
        if self.account is not None and not with_account:
            return  # the account knows what was spent
        known, money = self.state.round, self.world.money
        self.forgot_since = known if self.forgot_since is None else min(self.forgot_since, known)
        if self.account is not None and money is not None:
            money.forgets(self, self.account.forget(self.state.account_position))

    @property
    def has_old_account(self) -> bool:
        return self.account is not None and self.account.is_old

    # ---- persist, then act ----------------------------------------------------------

    def feed(self, item: p.SiteInput) -> p.SiteFacts:
        facts = p.decide(self.state, item)
        if facts:
            self.may_crash("before its own commit")
            self.persist(facts)
            self.may_crash("after its own commit")
            for fact in facts:
                p.evolve(self.state, fact)
            self._pause_ms = _POLL_MS
            self.world.trace(f"site {self.seat}: {type(facts[0]).__name__}")
        return facts

    def persist(self, facts: p.SiteFacts) -> None:
        self.records += [encode(fact) for fact in facts]

    def may_crash(self, where: str, stress: float = 1.0) -> None:
        if self.world.faults.strikes(f"site crash {where}", SITE_CRASH * stress):
            raise Crash(self)

    # ---- what it does by itself -----------------------------------------------------

    def wake(self) -> int:
        """Do what is to be done now; how long to sleep, in milliseconds."""
        now_ms, rng = self.world.now_ms, self.world.rng
        if self.alarm:
            return _LAZY_MS
        if self._waiting and now_ms - self._waiting.sent_ms < _PATIENCE_MS:
            return _POLL_MS
        try:
            self._act()
        except RestoredBackupError:
            self.world.trace(f"site {self.seat}: refuses to spend by an old account")
        self._pause_ms = min(2 * self._pause_ms, self.longest_pause_ms)
        return rng.randrange(self._pause_ms // 2, self._pause_ms)

    @property
    def longest_pause_ms(self) -> int:
        return _LAZY_MS

    def _act(self) -> None:
        if self.account is not None:
            self.account.settle()
        work = p.owed(self.state)
        match work:
            case p.TrainHere():
                if not self._train(work):
                    self._act()
                    return
                self.send(self._question())  # the deadline may have moved
            case p.EvaluateHere():
                self._evaluate(work)
            case p.SendUpdate():
                self.sent.setdefault(work.round, set()).add(work.update)
                self.world.watch.leaves(self, work)
                self.send(Send(work.round, self.spool.get(work.update)), work)
            case p.SendScore():
                self.send(Scores(work.score), work)
            case p.TellFailure():
                self.send(Failing(work.round, work.failure), work)
            case None:
                is_report = self.world.rng.random() < _REPORTS
                self.send(About(self._report()) if is_report else self._question())

    def _question(self) -> Ask:
        return Ask(self.state.seen_size, self.state.unsettled)

    def send(self, body: Body, work: p.SiteWork | None = None) -> None:
        self.world.send(self, self.request(body, work))

    def request(self, body: Body, work: p.SiteWork | None = None) -> Request:
        """A request whose reply is awaited from now on."""
        request = Request(self.world.next_id(), self.seat, self.key, self.clock.now_ms(), body)
        self._waiting = _Outstanding(request.id, body, work, self.world.now_ms)
        return request

    def _report(self) -> tuple[tuple[str, bool | str], ...]:
        is_ready = self.world.faults.is_quiet or self.world.rng.random() < 0.85
        return ((READY, is_ready), (REGION, "north" if self.seat % 2 else "south"))

    def _train(self, work: p.TrainHere) -> bool:
        """Begin, unless that was done; whether it can be paid for."""
        if self._training == work.round:
            return True
        if self.account is not None and not self.account.hold(work.round):
            return False
        self._training = work.round
        minutes = 0.3 if self.world.faults.is_quiet else self.world.rng.choice((0.3, 0.3, 1, 3, 9))
        life = self.life
        self.world.later(self, round(minutes * MINUTE_MS), lambda: self._end_training(work, life))
        return True

    def _end_training(self, work: p.TrainHere, life: int) -> None:
        try:
            self._trained(work, life)
        except RestoredBackupError:
            self.world.trace(f"site {self.seat}: refuses to spend by an old account")
            self._training = -1  # once the newest is back, it trains again

    def _trained(self, work: p.TrainHere, life: int) -> None:
        """Training is not deterministic: done again, it gives another update."""
        if life != self.life or p.owed(self.state) != work:
            return  # that process is gone, or the round is
        now_ms = self.clock.now_ms()
        if self.world.faults.chance(_BREAKS):
            self.feed(p.Broke(work.round, Failure.TRAINING, now_ms))
            return
        data = self.made(work)
        update = self.spool.put(data)
        self.world.watch.made(update, self.seat, work.round, work.base)
        self.may_crash("before the spool is named")
        self.spool_paid(p.Trained(work.round, update, None, len(data), now_ms))
        self._act()

    def made(self, work: p.TrainHere) -> bytes:
        """The file of an update."""
        step = self.world.one_hot(self.seat)
        return save_update(Update(step, self.world.weight(self.seat), work.base))

    def spool_paid(self, item: p.Trained) -> None:
        """What was made may leave from here on; where it costs something, it was spent before."""
        if self.account is not None:
            self.account.check()
            self.account.pay(item.round)
        self.feed(item)

    def _evaluate(self, work: p.EvaluateHere) -> None:
        rng, now_ms = self.world.rng, self.clock.now_ms()
        self.world.watch.past.fetched(work.model)
        if self.world.faults.chance(_BREAKS):
            self.feed(p.Broke(work.round, Failure.NO_TEST_DATA, now_ms))
            return
        count = len(self.world.setting.terms.metrics)
        candidate = tuple(rng.uniform(8.0, 12.0) for _ in range(count))
        base = tuple(rng.uniform(8.0, 12.0) for _ in range(count))
        self.feed(p.Scored(work.round, 10, candidate, base, now_ms))
        self._act()

    # ---- replies --------------------------------------------------------------------

    def receive(self, reply: Reply) -> None:
        """A reply belongs to its request; to any other it is nothing."""
        waiting = self._waiting
        if waiting is None or waiting.id != reply.id or self.alarm:
            return
        self._waiting = None
        if isinstance(waiting.body, Ask):
            if not reply.code:
                self._asked(reply)
        elif waiting.work is not None:
            self._answered(waiting.work, reply)

    def _asked(self, reply: Reply) -> None:
        assert reply.offer is not None
        self.world.watch.shown(self, reply)
        try:
            self.witness(reply.offer)
        except WitnessError as error:
            self.alarm = error.message
            self.world.trace(f"site {self.seat}: ALARM, {error.message}")
            self.world.watch.alarmed(self)
            return
        except WrongRoundError:
            return
        if reply.settled is not None:
            self.feed(p.Settled(*reply.settled, self.clock.now_ms()))
        if reply.duty is not None:
            try:
                if self._take_on(reply.duty):
                    self._act()
            except (Refusal, RestoredBackupError):
                return

    def _take_on(self, duty: d.SiteDuty) -> p.SiteFacts:
        """A round that the site's own budget does not pay for is declined."""
        now_ms, is_new = self.clock.now_ms(), duty.round > self.state.round
        if self.account is not None and isinstance(duty, d.Train) and is_new:
            self.account.check()
            if not self.account.can_pay(duty.plan):
                return self.feed(p.Decline(duty, Failure.BUDGET, now_ms))
        return self.feed(p.Asked(duty, now_ms))

    def witness(self, offer: Offer) -> None:
        root = self.state.seen_root or EMPTY_ROOT
        seen = Checkpoint(origin_of(STREAM), self.state.seen_size, root)
        verifiers = self.world.keyring.verifiers()
        self.feed(examine(offer, seen, verifiers, self.clock.now_ms()))

    def _answered(self, work: p.SiteWork, reply: Reply) -> None:
        now_ms = self.clock.now_ms()
        if reply.code:
            self.feed(p.TurnedAway(work, now_ms))
            return
        self.world.watch.acknowledged(self, work, reply)
        if reply.proof is not None:
            self.proofs.append(reply.proof)
        self.feed(p.Heard(work, now_ms))


def one_hot(size: int, seat: Seat, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The step of one site: the sum shows who was counted, and how often."""
    step = np.zeros(size)
    step[seat - 1] = factor
    return step

"""A site that lies: other seats, other rounds, broken bytes, second thoughts, old requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from consortium.core import duties as d
from consortium.core.ids import Digest, Seat
from consortium.core.site_facts import ScoreSpooled
from consortium.core.terms import SECOND_MS
from consortium.model import Update, save_update
from consortium.testing.world_faults import NodeClock
from consortium.testing.world_wire import Ask, Body, Reply, Request, Scores, Send

if TYPE_CHECKING:
    from consortium.testing.world import World

_PAUSE_MS = 25 * SECOND_MS
_LOUD = 1e6
_NOWHERE = Digest(bytes(32))


class HostileSite:
    """It was admitted like everybody else, and holds no other site's key."""

    is_honest = False
    alarm = ""

    def __init__(self, seat: Seat, world: World) -> None:
        self.seat, self.world = seat, world
        self.key = b"key of seat %d" % seat
        self.clock = NodeClock(lambda: world.now_ms)
        self._train: d.Train | None = None  # the newest invitation that it has seen
        self._kind = ""  # of the last update that was good by itself
        self._answered = 0  # the newest round that it has sent such an update to
        self._attacks: tuple[tuple[str, Callable[[], Body | Request | None]], ...] = (
            ("", self._good),
            ("", self._good),
            ("", self._good),
            ("for another seat", self._other_seat),
            ("wrong round", self._wrong_round),
            ("wrong base", self._wrong_base),
            ("not a number", self._not_a_number),
            ("garbage", self._garbage),
            ("too loud", self._loud),
            ("forged evaluation", self._forged_evaluation),
            ("evaluation without a seat", self._absurd_evaluation),
            ("replay", self._replay),
            ("replay", self._replay),
        )

    def crash(self) -> None:
        """It keeps what it knows."""

    def wake(self) -> int:
        """Ask, or attack; how long to sleep."""
        rng = self.world.rng
        if rng.random() < 0.4 or self.world.faults.is_quiet:
            self._send(Ask(0))
        else:
            kind, attack = rng.choice(self._attacks)
            lie = attack()
            if lie is not None:
                kind = kind or self._kind
                if kind:
                    self.world.faults.happened(f"hostile: {kind}")
                self._send(lie)
        return rng.randrange(_PAUSE_MS // 2, 2 * _PAUSE_MS) * (
            20 if self.world.faults.is_quiet else 1
        )

    def receive(self, reply: Reply) -> None:
        if isinstance(reply.duty, d.Train):
            self._train = reply.duty

    def _send(self, what: Body | Request) -> None:
        if not isinstance(what, Request):
            sent_ms = self.clock.now_ms()
            what = Request(self.world.next_id(), self.seat, self.key, sent_ms, what)
        self.world.send(self, what)

    # ---- what it sends --------------------------------------------------------------

    def _data(self, number: int, base: Digest, factor: float = 1.0, *, good: bool = True) -> bytes:
        step = self.world.one_hot(self.seat) * factor
        data = save_update(Update(step, self.world.weight(self.seat), base))
        return self._keep(data, number, base, good)

    def _keep(self, data: bytes, number: int, base: Digest, is_good: bool) -> bytes:
        self.world.watch.made_bytes(data, self.seat, number, base, is_good)
        return data

    def _good(self) -> Body | None:
        """Also after the deadline, and with another digest after the first."""
        asked = self._train
        if asked is None:
            return None
        is_late = self.clock.now_ms() > asked.deadline_ms
        is_second = asked.round == self._answered
        self._kind = "late" if is_late else "another digest" if is_second else ""
        self._answered = asked.round
        return Send(asked.round, self._data(asked.round, asked.base))

    def _other_seat(self) -> Request | None:
        asked = self._train
        if asked is None:
            return None
        seat = Seat(self.world.rng.randrange(1, self.seat))
        body = Send(asked.round, self._data(asked.round, asked.base))
        return Request(self.world.next_id(), seat, self.key, self.clock.now_ms(), body)

    def _wrong_round(self) -> Body | None:
        asked = self._train
        if asked is None:
            return None
        number = asked.round + self.world.rng.choice((-1, 1, 7))
        return Send(max(0, number), self._data(asked.round, asked.base))

    def _wrong_base(self) -> Body | None:
        asked = self._train
        if asked is None:
            return None
        return Send(asked.round, self._data(asked.round, _NOWHERE, good=False))

    def _not_a_number(self) -> Body | None:
        asked = self._train
        if asked is None:
            return None
        step = self.world.one_hot(self.seat) * np.nan
        data = save_update(Update(step, 1.0, asked.base))
        return Send(asked.round, self._keep(data, asked.round, asked.base, False))

    def _garbage(self) -> Body | None:
        asked = self._train
        if asked is None:
            return None
        data = self.world.rng.randbytes(40)
        return Send(asked.round, self._keep(data, asked.round, asked.base, False))

    def _loud(self) -> Body | None:
        asked = self._train
        return Send(asked.round, self._data(asked.round, asked.base, _LOUD)) if asked else None

    def _forged_evaluation(self) -> Body | None:
        """Of the right model, whether it is a member or not; or of another model."""
        number, model = self.world.watch.past.last_candidate
        if model is None:
            return None
        shown = self.world.rng.choice((model, model, _NOWHERE))
        return Scores(self._score(number, shown, 1e9))

    def _absurd_evaluation(self) -> Body | None:
        number, model = self.world.watch.past.last_candidate
        worst = self.world.rng.choice((float("nan"), float("inf"), 1e301))
        return Scores(self._score(number, model or _NOWHERE, worst))

    def _score(self, number: int, model: Digest, value: float) -> ScoreSpooled:
        values = (value,) * len(self.world.setting.terms.metrics)
        return ScoreSpooled(number, model, 10, values, values, self.clock.now_ms())

    def _replay(self) -> Request | None:
        """What anybody once sent, exactly as it was."""
        recorded = self.world.recorded
        return self.world.rng.choice(recorded) if recorded else None

"""The only loop: persist, then act, then reply.

A `Driver` owns the folded state of one stream. Whatever comes in is decided against that
state, the facts are appended at the position that the decision was made at, and only then
recorded and answered. If somebody else appended first, what is new is read and the
decision is made again: several coordinators need no lock between them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from random import SystemRandom
from typing import Protocol

from consortium.core import duties as d
from consortium.core import inputs as i
from consortium.core import snapshot
from consortium.core.codec import decode, encode
from consortium.core.ending import Facts
from consortium.core.federation import decide, evolve, owed
from consortium.core.state import Federation
from consortium.drive.clock import Clock
from consortium.errors import CodecError, ConflictError, ConsortiumError, InternalError, Refusal
from consortium.store.ports import Cache, Log

_MAX_ATTEMPTS = 100
_PAUSE_S = 0.004  # at most, before an input is decided a third time
_SYSTEM = SystemRandom()
_SNAPSHOT_EVERY = 5000
_POSITION_BYTES = 8


class Hands(Protocol):
    """Those who perform the coordinator's duties. A duty may be performed twice."""

    def perform(self, duty: d.Duty) -> i.Input:
        """Do what is owed and report it. Raise to leave it owed."""
        ...


@lru_cache(maxsize=1)
def code_digest() -> bytes:
    """The SHA-256 of the core's own source: other code, other snapshots."""
    digest = sha256()
    for file in sorted(files("consortium.core").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            digest.update(file.read_bytes())
    return digest.digest()


class Driver:
    """One federation, folded from its stream.

    Several threads may use it: whoever reads `state` does so under `lock`, which every
    decision holds and no duty. So inputs are taken while a worker sums.
    """

    def __init__(
        self,
        log: Log,
        stream: str,
        clock: Clock,
        cache: Cache | None = None,
        jitter: Callable[[], float] = _SYSTEM.random,
    ) -> None:
        self.lock = threading.RLock()
        self._jitter = jitter  # from 0 to 1: those who lost one race should not meet again
        self._log = log
        self._stream = stream
        self._clock = clock
        self._cache = cache
        self._awake_ms = clock.now_ms()
        self._ticked: tuple[int, int] = (-1, -1)  # (position, time) of the last tick
        self._owed: tuple[int, tuple[d.Duty, ...]] | None = None  # at a position
        self.state, self._position = self._remembered()
        self._saved_at = self._position
        self.catch_up()

    @property
    def position(self) -> int:
        """Facts of the stream that the state has seen."""
        return self._position

    def catch_up(self) -> bool:
        """Fold what was appended since; whether there was anything. Recovery is no more."""
        with self.lock:
            before = self._position
            for record in self._log.read(self._stream, self._position):
                evolve(self.state, decode(record))
                self._position += 1
            self._remember()
            return self._position > before

    def _remembered(self) -> tuple[Federation, int]:
        """State and position of the snapshot, or the beginning where there is none to trust."""
        stored = self._cache.get(f"snapshot/{self._stream}") if self._cache else None
        if not stored or len(stored) < _POSITION_BYTES:
            return Federation(), 0
        position = int.from_bytes(stored[:_POSITION_BYTES], "big")
        last = list(self._log.read(self._stream, max(0, position - 1), position))
        try:
            state = snapshot.load(stored[_POSITION_BYTES:], b"".join(last), code_digest())
            return state, position
        except CodecError:
            return Federation(), 0

    def _remember(self) -> None:
        """Save a snapshot when folding from the last one would take a while."""
        if self._cache is None or self._position - self._saved_at < _SNAPSHOT_EVERY:
            return
        last = b"".join(self._log.read(self._stream, self._position - 1, self._position))
        saved = snapshot.save(self.state, last, code_digest())
        stored = self._position.to_bytes(_POSITION_BYTES, "big") + saved
        self._cache.put(f"snapshot/{self._stream}", stored)
        self._saved_at = self._position

    def feed(self, item: i.Input) -> Facts:
        """Decide `item`, make its facts durable, record them. A `Refusal` passes through.

        An append finds out by itself whether the state was old. A refusal and an answer
        without facts append nothing, so they stand only if nothing new is in the log.
        """
        conflicts = 0
        for _ in range(_MAX_ATTEMPTS):
            if conflicts > 1:
                time.sleep(_PAUSE_S * self._jitter())
            try:
                facts = self._decide_and_append(item)
            except ConflictError:
                conflicts += 1
                self.catch_up()
                continue
            if facts is not None:
                return facts
        raise InternalError(f"{_MAX_ATTEMPTS} others were faster to append")

    def _decide_and_append(self, item: i.Input) -> Facts | None:
        """The facts, recorded; None when there was something new in the log to decide by."""
        with self.lock:
            try:
                facts = decide(self.state, item)
            except Refusal:
                if self.catch_up():
                    return None
                raise
            if not facts:
                return None if self.catch_up() else ()
            records = [encode(fact) for fact in facts]
            self._position = self._log.append(self._stream, self._position, records)
            for fact in facts:
                evolve(self.state, fact)
            self._remember()
            return facts

    def work(self, hands: Hands) -> Facts:
        """Perform the first duty that leads to facts; none when all that is left is to wait.

        Time goes first, and a duty that fails does not keep the others from being tried: a
        round must end whatever happens to one site's update. The failure is raised last.
        """
        while True:
            position = self._position
            facts = self._tick() or self._perform(hands)
            if facts or self._position == position:
                return facts
            # Somebody else was faster, so what was owed is not owed any more: look again.

    def _tick(self) -> Facts:
        """Tell the core the time if it asked for it and does not know it yet."""
        with self.lock:
            now_ms = self._clock.now_ms()
            tick = (self._position, now_ms)
            is_due = any(
                isinstance(duty, d.WakeAt) and duty.at_ms <= now_ms for duty in self._duties()
            )
            if not is_due or self._ticked == tick:
                return ()
            facts = self.feed(i.Tick(now_ms, self._awake_ms))
            self._ticked = tick  # only now: a tick that the store refused is owed still
            return facts

    def _perform(self, hands: Hands) -> Facts:
        """Try what is owed now, one duty after the other, until one brings facts. The lock is
        free meanwhile: a duty says all that it needs, and its report may be old news."""
        failure: ConsortiumError | None = None
        with self.lock:
            position, duties = self._position, self._duties()
        for duty in duties:
            if self._position != position:
                return ()  # the state has moved on, and with it what is owed
            if isinstance(duty, d.WakeAt):
                continue
            try:
                facts = self.feed(hands.perform(duty))
            except ConsortiumError as error:
                failure = failure or error
                continue
            if facts:
                return facts
        if failure is not None:
            raise failure
        return ()

    def _duties(self) -> tuple[d.Duty, ...]:
        """What is owed, found out once after each fact: it follows from the state alone. Whoever
        calls this has the lock."""
        if self._owed is None or self._owed[0] != self._position:
            self._owed = self._position, owed(self.state)
        return self._owed[1]

    def wakes_at_ms(self) -> int | None:
        """The next time that something is due by itself; None when nothing is."""
        now_ms = self._clock.now_ms()
        with self.lock:
            wakes = [duty.at_ms for duty in self._duties() if isinstance(duty, d.WakeAt)]
        return min((at_ms for at_ms in wakes if at_ms > now_ms), default=None)

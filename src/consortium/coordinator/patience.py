"""How long a peer is waited for: one deadline at a time, on the monotonic clock.

Bytes buy time. Whoever is silent is waited for `PATIENCE_S`; each KiB that moves adds a second,
never beyond that. So a peer must move `RATE_BYTES` a second in the long run, may pause as long
as anybody, and what it moved long ago does not help it. A transfer of n bytes is over after
`PATIENCE_S + n / RATE_BYTES` seconds, one way or the other.

A line of 64 kbit/s has eight times that rate. A record of TLS counts when it is whole: 16 KiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 15.0
RATE_BYTES = 1024  # a second

_NEVER = float("inf")


class Patience:
    """A deadline that can be moved for the price of an assignment; `act` is called when it has
    passed. Then nothing is waited for until `wait` is called again."""

    __slots__ = ("_act", "_due", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
        self._loop, self._act = loop, act
        self._due = _NEVER
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, seconds: float | None = None) -> None:
        """From now on, for so long; instead of what was waited for before."""
        self._due = self._loop.time() + (PATIENCE_S if seconds is None else seconds)
        if self._timer is None or self._timer.when() > self._due:
            self._arm()

    def credit(self, count: int) -> None:
        """So many bytes have moved."""
        if self._due < _NEVER:
            self._due = min(self._due + count / RATE_BYTES, self._loop.time() + PATIENCE_S)
            if self._timer is not None and self._timer.when() > self._due:
                self._arm()

    def stop(self) -> None:
        """Nothing is waited for. The timer runs on: mostly, there will be something again."""
        self._due = _NEVER

    def end(self) -> None:
        """For good: lets go of whoever is told."""
        self._due, self._act = _NEVER, _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_waiting(self) -> bool:
        return self._due < _NEVER

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due == _NEVER:
            return
        if self._loop.time() < self._due:
            self._arm()
            return
        self._due = _NEVER
        self._act()


def _nothing() -> None:
    """Nobody is told any more."""

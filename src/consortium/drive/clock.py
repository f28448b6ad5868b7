"""Time as the drivers see it: milliseconds, from somewhere that tests can hold still."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The present time in milliseconds."""

    def now_ms(self) -> int: ...


class ManualClock:
    """A clock that stands still until it is told to move: for simulation and tests."""

    def __init__(self, start_ms: int = 0) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance_to(self, at_ms: int) -> None:
        """Move on to `at_ms`; never back."""
        self._now_ms = max(self._now_ms, at_ms)


class SystemClock:
    """The machine's clock, which may be set back: then this one stands still until the other
    has caught up, so that nothing in a process's log is older than what it follows from."""

    def __init__(self) -> None:
        self._latest_ms = 0

    def now_ms(self) -> int:
        self._latest_ms = max(self._latest_ms, time.time_ns() // 1_000_000)
        return self._latest_ms

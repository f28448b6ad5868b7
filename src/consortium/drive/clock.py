"""Time as the drivers see it: milliseconds, from somewhere that tests can hold still."""

from __future__ import annotations

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

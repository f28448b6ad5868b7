"""Time at a site: the coordinator's, because a site's own clock may be a day off; and how
long to wait before something is tried again."""

from __future__ import annotations

import random
import threading
import time

from consortium.drive.clock import SystemClock


class SharedClock:
    """The coordinator's time as its last answer told it; before the first, this machine's."""

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        self._own = SystemClock()

    def now_ms(self) -> int:
        offset_ms = self._offset_ms
        if offset_ms is None:
            return self._own.now_ms()
        return offset_ms + time.monotonic_ns() // 1_000_000

    def observe(self, now_ms: int) -> None:
        """An answer has just come, and says that it is `now_ms`. Between answers the time is
        counted by a clock that nobody sets."""
        self._offset_ms = now_ms - time.monotonic_ns() // 1_000_000


class Patience:
    """Longer and longer pauses between attempts, at random, so that a thousand sites do not
    all come back in the same moment."""

    def __init__(self, least_s: float = 0.2, most_s: float = 30.0) -> None:
        self._least_s, self._most_s = least_s, most_s
        self._next_s = least_s

    def wait(self, stop: threading.Event) -> bool:
        """Pause; whether `stop` was set meanwhile."""
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, self._most_s)
        return stop.wait(pause_s)

    def reset(self) -> None:
        """Something went well."""
        self._next_s = self._least_s

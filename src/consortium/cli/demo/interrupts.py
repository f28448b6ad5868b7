"""Ctrl-C and the like, at any moment, once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns the signals that end a command into one KeyboardInterrupt. Later ones change
    nothing: what is being cleaned up then is cleaned up to its end.
    """

    def __init__(self) -> None:
        self._is_asked = self._is_raised = self._is_over = False
        self._holds = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._asked) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was given to us

    @contextmanager
    def held(self) -> Iterator[None]:
        """No interrupt in here: a process must be on the list before anything can end."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        if self._is_asked and not self._is_raised:
            self.check()

    def check(self) -> None:
        """Raise if an end was asked for. Whoever waits calls this: an interrupt that fell into
        a destructor, where Python drops it, is found here."""
        if self._is_asked and not self._is_over and not self._holds:
            self._is_raised = True
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on there is nothing to interrupt."""
        self._is_over = True

    def _asked(self, _: int, __: FrameType | None) -> None:
        self._is_asked = True
        if not self._is_raised:
            self.check()

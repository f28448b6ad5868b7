"""What the viewer sees: lines that stay, and on a terminal one line that moves."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from consortium.cli.report import Voice, at_once, data, say

_SPINNER = "|/-\\"
_CLEAR = "\r\x1b[2K"
_EVERY_S = 0.1
_WIDTH = 79
_FOLD = " \\"


class Show:
    """Talks to stderr, gives figures to stdout. With --json it is silent."""

    def __init__(self, began: float) -> None:
        self._is_live = sys.stderr.isatty() and not Voice.json
        self._began = began
        self._doing = ""
        self._drawn = 0.0
        self._frame = 0

    def __enter__(self) -> Show:
        at_once()  # figures and talk stay in order
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str = "") -> None:
        """Talk that stays."""
        self._clear()
        say(text)

    def data(self, text: str = "") -> None:
        """A line of figures."""
        self._clear()
        data(text)

    def command(self, arguments: Sequence[str]) -> None:
        """What is being run, as somebody would type it."""
        self.say(shell_line(arguments))

    def doing(self, text: str) -> None:
        """What is going on until the next line; seen on a terminal only."""
        if text != self._doing:
            self._doing, self._drawn = text, 0.0  # what is new is drawn at once
        self.tick()

    def tick(self) -> None:
        """Whoever waits calls this now and then, so that the line moves."""
        now = time.monotonic()
        if not self._is_live or not self._doing or now - self._drawn < _EVERY_S:
            return
        self._drawn, self._frame = now, self._frame + 1
        spin = _SPINNER[self._frame % len(_SPINNER)]
        text = f"{spin} {self.elapsed_s:3.0f} s  {self._doing}"
        width = shutil.get_terminal_size().columns - 1
        _draw(_CLEAR + text[:width])

    def _clear(self) -> None:
        if self._is_live and self._drawn:
            _draw(_CLEAR)
            self._drawn = 0.0


def _draw(text: str) -> None:
    """The terminal may be gone, and that must not stop whoever cleans up."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def shell_line(arguments: Sequence[str]) -> str:
    """A command, folded between options so that it fits and can still be pasted.

    >>> print(shell_line(["invite", "city"]))
    $ consortium invite city
    """
    lines = ["$ consortium"]
    units = _units(arguments)
    for place, unit in enumerate(units, 1):
        room = _WIDTH - (len(_FOLD) if place < len(units) else 0)
        if len(lines[-1]) + 1 + len(unit) > room:
            lines[-1] += _FOLD
            lines.append("   ")
        lines[-1] += f" {unit}"
    return "\n".join(lines)


def _units(arguments: Sequence[str]) -> list[str]:
    """Words, each option together with its value."""
    units: list[str] = []
    for word in arguments:
        if units and units[-1].startswith("--") and " " not in units[-1]:
            if not word.startswith("--"):
                units[-1] += f" {word}"
                continue
        units.append(word)
    return units


def folded(text: str) -> str:
    """A paragraph, in lines that fit."""
    return textwrap.fill(text, _WIDTH)

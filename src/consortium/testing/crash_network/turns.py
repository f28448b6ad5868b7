"""Lets loops that run for ever in threads of their own run once, in this one.

Between two turns such a loop waits, or says that something went well. Whatever it would wait
with is replaced by something that ends the turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

MOVED, RESTS, IN_TROUBLE = "moved", "rests", "in trouble"


class TurnOver(BaseException):
    """Not an error: no `except Exception` may stop it."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Wake(threading.Event):
    """Nobody waits for it."""

    def wait(self, timeout: float | None = None) -> NoReturn:
        raise TurnOver(RESTS)


class Impatience:
    """In the place of a `Patience`."""

    def wait(self, stop: threading.Event) -> NoReturn:
        raise TurnOver(IN_TROUBLE)

    def reset(self) -> NoReturn:
        raise TurnOver(MOVED)


def turn_of(run: Callable[[], None]) -> str:
    """One turn of a loop; how it ended. A loop that has come to its end rests."""
    try:
        run()
    except TurnOver as over:
        return over.how
    return RESTS

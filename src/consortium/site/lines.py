"""Lines of a site that listens: connections that the coordinator opened, for us to ask on.

A site that listens never connects by itself. It takes a line that waits, or waits for one; all
that is said on it is what a site says that connects outward.
"""

from __future__ import annotations

import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable

from consortium.site.address import Address
from consortium.site.connections import CONNECT_S, Connection, notice_death

MOST_WAITING = 8
_LOOK_S = 0.1  # between looks whether the one who waits is to give up


class Lines:
    """Lines that wait to be used. Threads share them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[ssl.SSLSocket] = deque()
        self._is_closed = False

    def give(self, line: ssl.SSLSocket) -> None:
        """A line has come. Of too many the oldest is closed: nobody needs so many."""
        with self._changed:
            self._waiting.append(line)
            if self._is_closed or len(self._waiting) > MOST_WAITING:
                self._waiting.popleft().close()
            self._changed.notify()

    def take(self, gives_up: Callable[[], bool]) -> ssl.SSLSocket:
        """A line that is alive, for its taker alone; raises `ConnectionError` when none comes in
        time."""
        ends = time.monotonic() + CONNECT_S
        with self._changed:
            while not gives_up() and not self._is_closed and time.monotonic() < ends:
                while self._waiting:
                    line = self._waiting.pop()
                    if _is_alive(line):
                        return line
                    line.close()
                self._changed.wait(_LOOK_S)
        raise ConnectionError("it has not called")

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            while self._waiting:
                self._waiting.pop().close()
            self._changed.notify_all()


class LineConnection(Connection):
    """A connection that takes a line instead of connecting."""

    def __init__(self, address: Address, context: ssl.SSLContext, lines: Lines) -> None:
        super().__init__(address, None, context)
        self._lines = lines

    def connect(self) -> None:
        self.sock = self._tls = self._lines.take(lambda: self.is_cut)
        notice_death(self._tls)
        self._check_cut()


def _is_alive(line: ssl.SSLSocket) -> bool:
    """Nothing was asked on it: what there is to read is that the other side has hung up."""
    look = select.poll()
    look.register(line, select.POLLIN)
    return not look.poll(0)

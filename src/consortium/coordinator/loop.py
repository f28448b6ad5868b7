"""A thread that does one thing after another for as long as there is something to do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from consortium.errors import ConsortiumError, InternalError

_TROUBLE_S = 2.0  # after a turn failed, for instance on a full disk
_END_S = 1.5  # to end what is being done
_log = logging.getLogger(__name__)

OnTrouble = Callable[[ConsortiumError], None]


class Loop:
    """Calls `turn` again at once when it says that there may be more; else when somebody wakes
    it, or after `rest_s()`. What a turn raises is told, and tried again."""

    def __init__(self, turn: Callable[[], bool], rest_s: Callable[[], float]) -> None:
        self._turn, self._rest_s = turn, rest_s
        self._on_trouble: OnTrouble = lambda _: None
        self._wake = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def start(self, name: str, on_trouble: OnTrouble) -> None:
        self._on_trouble = on_trouble
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> bool:
        """Whether it has ended; a turn that takes long is not waited for."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_END_S)
        return not self.is_running

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.clear()
            try:
                is_moving = self._turn()
            except ConsortiumError as error:
                self._on_trouble(error)
                self._wake.wait(_TROUBLE_S)
            except Exception as error:  # the outermost loop: it must go on, and keep the evidence
                _log.exception("a duty failed")
                self._on_trouble(InternalError(f"unexpected {type(error).__name__}"))
                self._wake.wait(_TROUBLE_S)
            else:
                if not is_moving:
                    self._wake.wait(self._rest_s())

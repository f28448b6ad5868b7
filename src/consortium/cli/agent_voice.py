"""How an agent looks while it works: a line an event, and a bar where there is a terminal."""

from __future__ import annotations

import json
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from consortium.cli.report import Voice

if TYPE_CHECKING:
    from consortium.site.events import Event


class AgentVoice:
    """Talks to stderr. With --json an event is a line of JSON there; stdout has the envelope."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._is_shown = sys.stderr.isatty() and not Voice.json
        self._lock = threading.Lock()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[amount]}"),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # rich would send our data to stderr
            redirect_stderr=False,
            disable=not self._is_shown,
        )
        # One that fills, one that only moves: rich cannot make the first of them the second.
        self._filling = self._bar.add_task("", visible=False, amount="")
        self._moving = self._bar.add_task("", visible=False, amount="", total=None)

    def __enter__(self) -> AgentVoice:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def event(self, event: Event) -> None:
        """Tell that something happened."""
        with self._lock:
            self._hide()
            if Voice.json:
                print(json.dumps({"at": time.time(), **event.told()}), file=sys.stderr, flush=True)
                return
            line = f"{time.strftime('%H:%M:%S')}  {_text(event)}"
            if self._is_shown:
                self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def work(self, what: str, done: int, total: int) -> None:
        """Show how far something is; `total` 0: nobody knows."""
        if not self._is_shown:
            return
        from consortium.cli.words import size

        with self._lock:
            self._hide()
            if total == 0:
                self._bar.update(self._moving, description=what, visible=True)
            elif done < total:
                amount = f"{size(done)} of {size(total)}"
                self._bar.update(
                    self._filling,
                    description=what,
                    completed=done,
                    total=total,
                    amount=amount,
                    visible=True,
                )

    def _hide(self) -> None:
        for task in (self._filling, self._moving):
            self._bar.update(task, visible=False)


def _text(event: Event) -> str:
    if not event.code:
        return event.text
    word = "REFUSED " if event.kind == "refused" else ""
    return f"{word}[{event.code}] {event.text}"

"""A federation as its operator sees it: the round table as it grows, and moments to act at."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consortium.cli.demo.processes import Processes
from consortium.cli.demo.show import Show
from consortium.cli.operator import Operator
from consortium.cli.rounds import RoundTable
from consortium.cli.status import names
from consortium.cli.told import OpenRound, Status, read_view
from consortium.core.terms import Metric
from consortium.drive.history import RoundRecord
from consortium.errors import InternalError, NotEnrolledError, UnreachableError

if TYPE_CHECKING:
    from consortium.cli.demo.network import Network

_BUSY_S, _IDLE_S = 0.03, 0.2


class Watch:
    """Asks the coordinator of one federation, also after it was started again."""

    def __init__(self, network: Network, name: str) -> None:
        self._processes: Processes = network.processes
        self._show: Show = network.show
        self._folder: Path = network.data
        self._path = Operator.path_of(name)
        self._operator: Operator | None = None
        self._shown = 0
        self._due = 0.0
        self.id = ""

    def close(self) -> None:
        if self._operator is not None:
            self._operator.close()
        self._operator = None

    def until(self, holds: Callable[[Status], bool], what: str) -> Status:
        """Watch until it holds; what was told then."""
        found: list[Status] = []

        def look() -> bool:
            status = self._look() if time.monotonic() >= self._due else None
            if status is not None and holds(status):
                found.append(status)
            return bool(found)

        self._processes.wait_for(look, what)
        return found[0]

    def until_round(self, holds: Callable[[OpenRound], bool], what: str) -> OpenRound:
        """Watch until it holds for the open round; that round."""
        found = self.until(
            lambda told: (
                told.finished is not None or (told.round is not None and holds(told.round))
            ),
            what,
        ).round
        if found is None:
            raise InternalError(f"the last round was over before this was seen: {what}")
        return found

    def _look(self) -> Status | None:
        """None while nobody answers. Often while rounds go by, seldom while nothing happens:
        each look costs the coordinator something."""
        try:
            if self._operator is None:
                self._operator = Operator(self._folder)
            raw = self._operator.get(self._path)
            status = read_view(Status, raw)
            ended = status.rounds.done - (status.round is not None)
            if ended > self._shown:
                self._tell(self._operator.get(f"{self._path}/rounds"), ended)
        except (UnreachableError, NotEnrolledError):
            self.close()
            self._due = time.monotonic() + _IDLE_S
            return None
        self._due = time.monotonic() + (_BUSY_S if status.rounds.done else _IDLE_S)
        self.id = raw["id"]
        self._show.doing(_in_short(status))
        return status

    def _tell(self, records: list[Any], ended: int) -> None:
        for record in records[self._shown : ended]:
            read = RoundRecord(**record)
            table = RoundTable(tuple(Metric(name, True) for name in read.told[0]))
            if self._shown == 0:
                self._show.data(table.header())
            self._show.data(table.row(read))
            self._shown += 1


def _in_short(told: Status) -> str:
    """Where the federation is, in a line that fits beside a clock."""
    now = told.round
    if now is None:
        return told.waits or "between rounds"
    if not now.invited:
        return f"round {now.number} opens"
    done = f"round {now.number}: {len(now.received)} of {len(now.invited)} updates"
    return f"{done}; waits for {names(now.waiting_for)}" if now.waiting_for else done


def round_in_log(folder: Path, federation: str) -> str:
    """Where the log on disk says that the federation is, while nobody serves it."""
    from consortium.core.codec import decode
    from consortium.core.evolve import replay
    from consortium.drive.directory import DataDirectory

    directory = DataDirectory(folder)
    try:
        state = replay([decode(record) for record in directory.log.read(federation)])
    finally:
        directory.close()
    now = state.round
    if now is None:
        return f"round {state.last_number} had just ended"
    updates = f"{len(now.submitted)} of {len(now.invited)} updates"
    return f"round {now.number} is open; its log has {updates}"

"""The agent of a site: one thread listens, one works, and this one watches the site's own log,
through which its people speak (`consortium site hold` and the like).

It may be killed at any moment. What it was doing is in the log, and it goes on from there,
once an answer of the coordinator has been verified.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from consortium.core import site_facts as s
from consortium.core.tables import Stage
from consortium.errors import ConsortiumError, RestoredBackupError
from consortium.privacy.pricing import Pricer
from consortium.site.account import OwnLedger
from consortium.site.called import Called
from consortium.site.clock import SharedClock
from consortium.site.enrol import connect
from consortium.site.events import Event, Kind, OnEvent, OnWork
from consortium.site.home import SiteHome
from consortium.site.lines import Lines
from consortium.site.listener import Listener
from consortium.site.machine import Machine
from consortium.site.port import Port
from consortium.site.secret_sums import SecretSums
from consortium.site.studies import Studies, held_model
from consortium.site.tools import Situation, Tools
from consortium.site.transfer import Transfer
from consortium.site.way import keep_way, written
from consortium.site.worker import Worker

_LOOK_S = 0.25
_END_S = 1.5  # for threads to end; they do not keep the process
INCOMING, LEFT = "incoming", "left"
_ANSWERING = (
    Stage.SENDING,
    Stage.SCORING,
    Stage.REPORTING,
    Stage.KEYING,
    Stage.SHARING,
    Stage.AGREEING,
    Stage.UNMASKING,
)


def _in_silence(_: str, __: int, ___: int) -> None:
    pass


class Agent:
    """One site at work. `run` returns when it is told to stop, or, if asked to, when the
    federation is over."""

    def __init__(
        self,
        home: SiteHome,
        *,
        on_event: OnEvent,
        on_work: OnWork = _in_silence,
        until_finished: bool = False,
        listen: tuple[str, int] | None = None,
    ) -> None:
        clock = SharedClock()
        lines = None if listen is None else Lines()
        client = connect(home, clock, lines)
        transfer = Transfer(client, home.blobs, home.path / INCOMING)
        machine, self._price = Machine(home.log, clock), Pricer()
        self.tools = Tools(
            home=home,
            machine=machine,
            ledger=OwnLedger(home, machine, self._price),
            clock=clock,
            client=client,
            transfer=transfer,
            studies=Studies(home, client, transfer),
            secrets=SecretSums(home, client),
            tell=on_event,
            progress=on_work,
        )
        self.situation = Situation()
        self._listener = Listener(self.tools, self.situation)
        self._worker = Worker(self.tools, self.situation)
        self._port: Port | None = None
        self._host = ""
        if listen is not None and lines is not None:
            called = Called(self.tools, self.situation)
            self._port = Port(home, *listen, lines, called.train)
            self._host = listen[0]
        self._until_finished = until_finished
        self._was_told = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work. Raises what it cannot go on after."""
        tools = self.tools
        tools.home.lock()
        where = None if self._port is None else (self._host, self._port.port)
        keep_way(tools.home, where)
        self._settle_again()
        threads = [self._thread(self._listener.run), self._thread(self._worker.run)]
        if self._port is not None and where is not None:
            tools.tell(
                Event(Kind.LISTENS, f"waiting for the coordinator's calls at {written(where)}")
            )
            threads.append(self._thread(self._port.run))
        try:
            while not tools.stop.is_set():
                if tools.machine.wait(_LOOK_S):
                    tools.wake.set()
                    self._reconsider()
                self._worker.give_up_what_is_not_wanted()
                self._look_for_the_end()
        finally:
            self._end(threads)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ask it to end; from a signal handler, or from another thread."""
        self.tools.stop.set()
        self.tools.wake.set()

    def _settle_again(self) -> None:
        """What the log says is settled may not have been done before the crash."""
        fact = self.tools.machine.newest(s.RoundSettled)
        if fact is not None:
            self.tools.home.settle(fact.round, fact.is_counted)

    def _reconsider(self) -> None:
        """Somebody may have approved what was waiting for it."""
        situation = self.situation
        with situation.lock:
            waiting = situation.waiting
            approved = self.tools.machine.state.approved
            study = situation.study
            if waiting is None or study is None:
                return
            if (study.task_hash, study.plan_digest) not in approved:
                return
            try:
                self._listener.consider(waiting)
            except RestoredBackupError:
                raise
            except ConsortiumError as error:
                self.tools.tell(Event.of(Kind.TROUBLE, error))

    def _look_for_the_end(self) -> None:
        tools = self.tools
        if (tools.home.path / LEFT).exists():
            tools.tell(Event(Kind.FINISHED, "this site has left the federation"))
            self.stop()
        if not self._is_over() or self._was_told:
            return
        self._was_told = True
        tools.tell(Event(Kind.FINISHED, "the federation is over"))
        if self._until_finished:
            self.stop()

    def _is_over(self) -> bool:
        """Nothing is asked any more, nothing is owed, and the last model is here."""
        situation, machine = self.situation, self.tools.machine
        if not situation.is_finished:
            self._was_told = False
            return False
        with machine.lock:
            state = machine.state
            if state.unsettled or state.stage in _ANSWERING:
                return False
        newest, held = situation.newest, held_model(self.tools.home)
        return newest is None or (held is not None and held.version == newest.version)

    # ---- threads --------------------------------------------------------------------

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                target()
            except BaseException as error:  # kept, and raised where everybody sees it
                self._error = error
                self.stop()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _end(self, threads: list[threading.Thread]) -> None:
        self.stop()
        self.tools.client.cut()
        if self._port is not None:
            self._port.close()
        self._worker.close()
        for thread in threads:
            thread.join(_END_S)
        self.tools.client.close()
        self._price.close()
        self.tools.ledger.close()
        self.tools.home.close()


def leave_marker(home: SiteHome) -> Path:
    """Where it is written that this site has left: its agent ends."""
    return home.path / LEFT

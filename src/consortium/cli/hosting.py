"""What `consortium serve` adds to a coordinator: where it is reached, and what it says of the
rounds and sites as they come."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from consortium.cli.report import INTERRUPTED, data, say
from consortium.cli.rounds import RoundTable
from consortium.coordinator.office import Office
from consortium.coordinator.serve import names_of
from consortium.coordinator.telling import Teller
from consortium.core.facts import Finish
from consortium.drive.history import RoundRecord
from consortium.errors import (
    ConsortiumError,
    FederationOverError,
    InsufficientParticipantsError,
    PlanFileError,
)
from consortium.plan import read_plan

_FAREWELL_S = 3.0  # for sites to fetch the last model
_LOOK_S = 1.0
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_EVERYWHERE = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a coordinator listens, and the names that sites reach it by."""

    host: str
    port: int
    names: tuple[str, ...] = ()

    def here(self, port: int) -> str:
        """Where this machine's own operator reaches it, whatever sites call it."""
        return _url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), port)

    def url(self, plans: Sequence[Path], port: int) -> str:
        """What join tokens carry: the plan's `server`, else the first name, else the host."""
        told = _server_of(plans)
        if told is not None:
            return told
        host = self.host
        if self.names:
            host = self.names[0]
        elif host in _EVERYWHERE:
            host = socket.gethostname()
        return _url(host, port)

    def is_guessed(self, plans: Sequence[Path]) -> bool:
        """Whether nobody has said by which name sites reach it."""
        return self.host in _EVERYWHERE and not self.names and _server_of(plans) is None

    def certified(self, plans: Sequence[Path]) -> tuple[str, ...]:
        """The names in the server's certificate."""
        machine = socket.gethostname()
        own = (machine,) if _HOST_NAME.fullmatch(machine) else ()
        wanted = (*self.names, *names_of(self.host, _server_of(plans) or ""), *own)
        return tuple(dict.fromkeys(wanted))


def _url(host: str, port: int) -> str:
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _server_of(plans: Sequence[Path]) -> str | None:
    """The address in the first plan that has one."""
    told = [read_plan(plan).federation.server for plan in plans]
    found = next((server for server in told if server is not None), None)
    if found is not None and (urlsplit(found).scheme != "https" or not urlsplit(found).hostname):
        raise PlanFileError(
            f"server = {found!r} is not an https address",
            hint='server = "https://fl.example.org:8443"',
        )
    return found.rstrip("/") if found is not None else None


class Hosting:
    """Tells of rounds that end and sites that join; ends the server when all is done."""

    def __init__(self, office: Office, talk: Callable[[str], None]) -> None:
        is_named = len(office.tellers()) > 1
        self._told = [_Told(teller, talk, is_named) for teller in office.tellers()]
        self._news = threading.Event()
        self._ends = threading.Event()

    def headers(self) -> list[str]:
        """The heads of the round tables."""
        return [told.header() for told in self._told]

    @contextmanager
    def watching(self, on_end: Callable[[], None] | None) -> Iterator[None]:
        """Tell what happens meanwhile; call `on_end` when every federation is finished and
        sites have had the time to fetch the last model."""
        for told in self._told:
            told.teller.desk.watch(self._news.set)
        thread = threading.Thread(target=self._watch, args=(on_end,), name="news", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._news.set()
            thread.join()

    def _watch(self, on_end: Callable[[], None] | None) -> None:
        while not self._ends.is_set():
            self._news.wait(_LOOK_S)
            self._news.clear()
            for told in self._told:
                told.tell()
            if on_end is not None and all(told.teller.desk.is_finished for told in self._told):
                self._ends.wait(_FAREWELL_S)
                on_end()
                return

    def conclude(self) -> None:
        """How it ended: nothing, or the error that the command ends with."""
        for told in self._told:
            error = told.error()
            if error is not None:
                raise error
        if not all(told.teller.desk.is_finished for told in self._told):
            say("interrupted")
            sys.exit(INTERRUPTED)


class _Told:
    """What has been told of one federation."""

    def __init__(self, teller: Teller, talk: Callable[[str], None], is_named: bool) -> None:
        self.teller, self._talk = teller, talk
        self._mark = f"{teller.desk.name}  " if is_named else ""
        self._rounds = self._ended()
        self._seats = {site["seat"] for site in teller.sites() if site["seat"] is not None}

    def header(self) -> str:
        return self._mark + self._table().header()

    def tell(self) -> None:
        """What is new since the last time."""
        ended = self._ended()
        if ended > self._rounds:
            for record in self.teller.rounds()[self._rounds : ended]:
                data(self._mark + self._table().row(RoundRecord(**record)))
            self._rounds = ended
        if self._admitted() > len(self._seats):
            self._tell_sites()

    def _tell_sites(self) -> None:
        """A seat is in the log a moment before it has a name."""
        for site in self.teller.sites():
            if site["seat"] is not None and site["seat"] not in self._seats:
                self._seats.add(site["seat"])
                words = " ".join(site["words"])
                self._talk(f"{self._mark}{site['name']} joined; its words: {words}")

    def _admitted(self) -> int:
        """How many seats were ever given."""
        with self.teller.desk.lock:
            return self.teller.desk.state.roster.next_seat - 1

    def _ended(self) -> int:
        """How many rounds are over."""
        with self.teller.desk.lock:
            state = self.teller.desk.state
            return state.last_number - (state.round is not None)

    def _table(self) -> RoundTable:
        with self.teller.desk.lock:
            terms = self.teller.desk.state.terms
        if terms is None:
            return RoundTable(())
        return RoundTable(terms.metrics, is_late=terms.has_scored_sums)

    def error(self) -> ConsortiumError | None:
        """Why a finished federation did not end well; None when it did."""
        desk = self.teller.desk
        if not desk.is_finished:
            return None
        rounds = self.teller.rounds()
        if all(record["outcome"] == "failed" for record in rounds):
            return InsufficientParticipantsError(
                f"{desk.name}: no round completed", hint="consortium round list says why"
            )
        if desk.state.finished is Finish.STOPPED:
            return FederationOverError(
                f"{desk.name}: stopped by an operator after {len(rounds)} rounds"
            )
        return None

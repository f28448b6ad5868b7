"""What an operator is told of a federation: views of the log and the state, as plain JSON.

Names come from the registry; the log knows seats alone.
"""

from __future__ import annotations

import threading
from dataclasses import asdict
from enum import IntEnum
from typing import Any

from consortium.coordinator.addresses import check_url
from consortium.coordinator.desk import Desk
from consortium.coordinator.registry import Registry
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.core.facts import Departure
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.owing import why_not_open
from consortium.core.state import Federation, Round
from consortium.drive.clock import Clock
from consortium.drive.history import History
from consortium.errors import UnauthorizedClientError, UnknownVersionError, WrongRoundError
from consortium.store.ports import Log

View = dict[str, Any]


class Teller:
    """Reads one federation for people, and passes an operator's orders on."""

    def __init__(self, desk: Desk, log: Log, registry: Registry, clock: Clock) -> None:
        self.desk = desk
        self._log, self._registry, self._clock = log, registry, clock
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._history = History(lambda seat: self._names.get(seat, f"seat {seat}"))
        self._seen = 0
        self._published_ms: dict[int, int] = {}  # version → when

    # ---- views ----------------------------------------------------------------------

    def status(self) -> View:
        """The federation at a glance."""
        history, names = self._read(), self._name_seats()
        with self.desk.lock:
            state = self.desk.state
            refusal = why_not_open(state)
            told: View = {
                "federation": self.desk.name,
                "id": self.desk.id,
                "standing": "on hold" if state.is_held else state.standing.value,
                "finished": None if state.finished is None else state.finished.name.lower(),
                "plan": None if state.plan is None else state.plan.hex(),
                "task": None if state.task is None else state.task.hex(),
                "rounds": {"done": state.last_number, "of": _rounds_of(state)},
                "round": None if state.round is None else self._open(state.round, names),
                "waits": None if refusal is None or state.round else refusal.message,
                "next_round_ms": state.next_due_ms,
                "version": state.current,
                "model": _model_of(state),
                "sites": len(state.roster),
                "log": {"facts": self.desk.size, "key": state.log_keys[0].hex()},
                "now_ms": self._clock.now_ms(),
            }
            has_plan = state.plan is not None
        last = next((record for record in reversed(history.rounds) if record.outcome), None)
        told["last"] = None if last is None else asdict(last)
        told["protects"] = self.desk.study_of_plan().plan.guarantees() if has_plan else []
        return told

    def _open(self, open_round: Round, names: dict[int, str]) -> View:
        step = open_round.step
        return {
            "number": open_round.number,
            "phase": step.phase.value,
            "step": step.meaning,
            "deadline_ms": open_round.evaluate_by_ms or open_round.deadline_ms,
            "quorum": open_round.quorum,
            "target": open_round.target,
            "invited": [names[seat] for seat in open_round.invited],
            "received": [names[seat] for seat in open_round.submitted],
            "waiting_for": [names[seat] for seat in open_round.unheard or open_round.waiting],
            "fallen": {names[seat]: why.name.lower() for seat, why in open_round.fallen.items()},
        }

    def rounds(self) -> list[View]:
        """Every round in a line."""
        return [asdict(record) for record in self._read().rounds]

    def round(self, number: int) -> View:
        """One round with everything that the log says of it."""
        record = next((one for one in self._read().rounds if one.number == number), None)
        if record is None:
            raise WrongRoundError(f"there is no round {number}", hint="consortium round list")
        names = self._name_seats()
        events = [
            _event(fact, position, names)
            for position, fact in self.desk.index.facts_of(number)
            if hasattr(fact, "round")  # not what came before the next one
        ]
        return asdict(record) | {"events": events}

    def models(self) -> list[View]:
        """Every version that was ever published."""
        history = self._read()
        metrics = {record.number: record.metrics for record in history.rounds}
        with self.desk.lock:
            state = self.desk.state
            return [
                {
                    "version": number,
                    "digest": version.model.hex(),
                    "round": version.round,
                    "is_current": number == state.current,
                    "published_ms": self._published_ms.get(number),
                    "metrics": metrics.get(version.round, {}),
                    "bytes": self.desk.blobs.size(version.model),
                }
                for number, version in sorted(state.versions.items())
            ]

    def model(self, version: int) -> View:
        found = next((one for one in self.models() if one["version"] == version), None)
        if found is None:
            raise UnknownVersionError(f"there is no model version {version}")
        layout = self.desk.study_of_plan().layout
        tensors = [
            {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
            for spec in layout.specs
        ]
        return found | {"tensors": tensors}

    def model_digest(self, version: int) -> Digest:
        with self.desk.lock:
            if version not in self.desk.state.versions:
                raise UnknownVersionError(f"there is no model version {version}")
            return self.desk.state.versions[version].model

    def sites(self) -> list[View]:
        """Who is there, who was, and when each was last heard of."""
        notes = self.desk.heard.notes()
        called = {row.id: url for row, url in self._registry.listening()}
        told = []
        for row in self._registry.sites(self.desk.id):
            note = notes.get(row.id)
            told.append(
                {
                    "name": row.name,
                    "client_id": self.desk.client_id(row),
                    "seat": row.seat,
                    "words": list(row.words),
                    "enrolled_ms": row.enrolled_ms,
                    "revoked_ms": row.revoked_ms,
                    "listens": called.get(row.id),
                    "seen_ms": None if note is None else note.seen_ms,
                    "objection": None if note is None else note.objection,
                    "report": self._report_of(row.seat),
                }
            )
        return told

    # ---- orders ---------------------------------------------------------------------

    def rollback(self, version: int) -> View:
        self.desk.feed(i.RollBack(version, self._clock.now_ms()))
        return self.model(version)

    def hold(self) -> View:
        self.desk.feed(i.Hold(self._clock.now_ms()))
        return self.status()

    def resume(self) -> View:
        self.desk.feed(i.Resume(self._clock.now_ms()))
        return self.status()

    def stop(self) -> View:
        self.desk.feed(i.Stop(self._clock.now_ms()))
        return self.status()

    def cancel(self, number: int) -> View:
        self.desk.feed(i.CancelRound(number, self._clock.now_ms()))
        return self.status()

    def open_round(self) -> View:
        self.desk.feed(i.OpenRound(self._clock.now_ms()))
        return self.status()

    def listens(self, name: str, url: str | None) -> View:
        """Call the site of this name there from now on, or no longer."""
        if url is not None:
            check_url(url)
        rows = self._registry.sites(self.desk.id)
        if not any(row.name == name and row.revoked_ms is None for row in rows):
            raise _no_site(name)
        self._registry.set_listening(self.desk.id, name, url)
        return {"name": name, "listens": url}

    def revoke(self, name: str) -> View:
        """Out, from the next request on; an open round goes on without it. The fact comes
        first: the roster is what requests are checked against."""
        for row in self._registry.sites(self.desk.id):
            if row.name == name and row.revoked_ms is None:
                with self.desk.lock:
                    seat = self.desk.state.roster.seat_of.get(SiteId(row.id))
                if seat is not None:
                    now_ms = self._clock.now_ms()
                    self.desk.feed(i.Dismiss(seat, Departure.REVOKED, now_ms))
                self._registry.revoke(row.id, self._clock.now_ms())
                return {"name": name, "revoked": True}
        raise _no_site(name)

    # ---- reading --------------------------------------------------------------------

    def _read(self) -> History:
        """The history up to now: what is new in the log is folded first."""
        self._name_seats()
        with self._lock:
            for record in self._log.read(self.desk.id, self._seen):
                fact = decode(record)
                self._history.add(fact)
                if isinstance(fact, f.ModelPublished | f.ModelInstalled):
                    self._published_ms[fact.version] = fact.at_ms
                self._seen += 1
            return self._history

    def _name_seats(self) -> dict[int, str]:
        names = {row.seat: row.name for row in self._registry.sites(self.desk.id)}
        self._names = _Names({seat: name for seat, name in names.items() if seat is not None})
        return self._names

    def _report_of(self, seat: int | None) -> View:
        with self.desk.lock:
            return dict(self.desk.state.roster.attributes(Seat(seat or 0)))


def _no_site(name: str) -> UnauthorizedClientError:
    return UnauthorizedClientError(f"there is no site `{name}`", hint="consortium status --sites")


class _Names(dict[int, str]):
    """Seats by name; one that the registry does not know yet is called by its number."""

    def __missing__(self, seat: int) -> str:
        return f"seat {seat}"


def _rounds_of(state: Federation) -> int | None:
    return None if state.terms is None else state.terms.rounds


def _model_of(state: Federation) -> str | None:
    present = state.versions.get(state.current)
    return None if present is None else present.model.hex()


def _event(fact: f.Fact, position: int, names: dict[int, str]) -> View:
    """One fact in words: its name, when, whom it is about, and the rest of it."""
    told: View = {"position": position, "fact": type(fact).__name__, "at_ms": fact.at_ms}
    for name in fact.__dataclass_fields__:
        value = getattr(fact, name)
        if name in ("at_ms", "round"):
            continue
        if name == "seat":
            told["site"] = names[value]
        elif name in ("seats", "members"):
            told[name] = [names[seat] for seat in value]
        elif isinstance(value, bytes):
            told[name] = value.hex()
        elif isinstance(value, IntEnum):
            told[name] = value.name.lower()
        else:
            told[name] = value
    return told

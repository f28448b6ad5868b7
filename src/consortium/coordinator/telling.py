"""What an operator is told of a federation: views of the log and the state, as plain JSON.

Names come from the registry; the log knows seats alone. Whoever may not inspect the sites gets
views without them (`Teller.seen_by`): counts, and what holds for all sites of a round together.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from copy import copy
from dataclasses import asdict
from enum import IntEnum
from typing import Any

from consortium.coordinator.access import Action, Who, allowed
from consortium.coordinator.addresses import check_url
from consortium.coordinator.desk import Desk
from consortium.coordinator.paying import budget_view, refuse_unpaid
from consortium.coordinator.registry import Registry
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.core.facts import Departure
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.owing import answered_in, awaited_in, why_not_open
from consortium.core.state import Federation, Round
from consortium.drive.clock import Clock
from consortium.drive.history import History, RoundRecord
from consortium.errors import (
    FederationOverError,
    UnauthorizedClientError,
    UnknownVersionError,
    UsageError,
    WrongRoundError,
)
from consortium.store.ports import Log

View = dict[str, Any]
UNNAMED = "a site"  # no site can be called this: names have no spaces
_NO_TIME_MS = 1
_ASKED = (f.BudgetAsked, f.BudgetReserved, f.BudgetRefused)


class Teller:
    """Reads one federation for people, and passes an operator's orders on."""

    def __init__(self, desk: Desk, log: Log, registry: Registry, clock: Clock) -> None:
        self.desk = desk
        self._registry, self._clock = registry, clock
        self._past = _Past(log, desk.id)
        self._unreached: dict[str, View] = {}  # sites that listen, and cannot be called
        self._is_named = True

    def seen_by(self, who: Who) -> Teller:
        """The same federation as this operator may see it. Whether it may look here at all was
        asked at the gate."""
        if allowed(who, Action.INSPECT, None):
            return self
        unnamed = copy(self)  # it shares what was read of the log
        unnamed._is_named = False
        return unnamed

    # ---- views ----------------------------------------------------------------------

    def status(self) -> View:
        """The federation at a glance."""
        history, names = self._read(), self._names()
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
        told["last"] = None if last is None else self._record(last)
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
            "received": [names[seat] for seat in answered_in(open_round)],
            "waiting_for": [names[seat] for seat in awaited_in(open_round)],
            "fallen": self._fallen(open_round, names),
        }

    def _fallen(self, open_round: Round, names: dict[int, str]) -> dict[str, str]:
        why = {seat: failure.name.lower() for seat, failure in open_round.fallen.items()}
        if self._is_named or not why:
            return {names[seat]: reason for seat, reason in why.items()}
        who = UNNAMED if len(why) == 1 else f"{len(why)} sites"
        return {who: ", ".join(sorted(set(why.values())))}

    def rounds(self) -> list[View]:
        """Every round in a line."""
        return [self._record(record) for record in self._read().rounds]

    def _record(self, record: RoundRecord) -> View:
        told = asdict(record)
        del told["bytes_sent"]  # of one round only: see `round`
        if not self._is_named:
            told |= {"lost": [(UNNAMED, why) for _, why in record.lost], "sites": {}, "worst": {}}
        return told

    def round(self, number: int) -> View:
        """One round with everything that the log says of it."""
        record = next((one for one in self._read().rounds if one.number == number), None)
        if record is None:
            raise WrongRoundError(f"there is no round {number}", hint="consortium round list")
        names, tell = self._names(), _event if self._is_named else _outline
        facts = [
            (position, fact)
            for position, fact in self.desk.index.facts_of(number)
            # Not what came before the next one: its costs are asked for when this one has ended.
            if hasattr(fact, "round") and not (isinstance(fact, _ASKED) and fact.round != number)
        ]
        events = [tell(fact, position, names) for position, fact in facts]
        received = [fact.update for _, fact in facts if isinstance(fact, f.UpdateReceived)]
        blobs = self.desk.blobs
        sent = sum(blobs.size(update) for update in received if blobs.has(update))
        return self._record(record) | {"bytes_sent": sent, "events": events}

    def models(self) -> list[View]:
        """Every version that was ever published."""
        history = self._read()
        metrics = {record.number: record.metrics for record in history.rounds}
        late = {one.version: one.base_metrics for one in history.rounds if one.has_late_scores}
        with self.desk.lock:
            state = self.desk.state
            return [
                {
                    "version": number,
                    "digest": version.model.hex(),
                    "round": version.round,
                    "is_current": number == state.current,
                    "published_ms": self._past.published_ms.get(number),
                    "metrics": metrics.get(version.round) or late.get(number, {}),
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

    def budget(self) -> View:
        """The privacy budget that rounds are paid from."""
        return budget_view(self.desk)

    def sites(self) -> list[View]:
        """Who is there, who was, and when each was last heard of."""
        self._read()
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
                    "departure": self._past.departures.get(row.seat or 0),
                    "listens": called.get(row.id),
                    "unreached": self._unreached.get(row.id) if row.id in called else None,
                    "seen_ms": None if note is None else note.seen_ms,
                    "objection": None if note is None else note.objection,
                    "report": self._report_of(row.seat),
                }
            )
        return told

    # ---- orders ---------------------------------------------------------------------

    def rollback(self, version: int) -> View:
        """`is_last` says that no round follows, so that no newer version will."""
        self.desk.feed(i.RollBack(version, self._clock.now_ms()))
        return self.model(version) | {"is_last": self.desk.is_finished}

    def hold(self) -> View:
        self.desk.feed(i.Hold(self._clock.now_ms()))
        return self.status()

    def resume(self) -> View:
        """Refused where no round can follow: to say that rounds go on would not be true."""
        with self.desk.lock:
            refusal = why_not_open(self.desk.state)
        if isinstance(refusal, FederationOverError):
            raise refusal
        self.desk.feed(i.Resume(self._clock.now_ms()))
        return self.status()

    def stop(self) -> View:
        self.desk.feed(i.Stop(self._clock.now_ms()))
        return self.status()

    def cancel(self, number: int) -> View:
        self.desk.feed(i.CancelRound(number, self._clock.now_ms()))
        return self.status()

    def open_round(self) -> View:
        refuse_unpaid(self.desk)
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

    def note_call(self, site: str, trouble: str | None) -> None:
        """Why a site that listens cannot be called; None when it can, or is no longer."""
        if trouble is None:
            self._unreached.pop(site, None)
            return
        old = self._unreached.get(site)
        since_ms = self._clock.now_ms() if old is None else old["since_ms"]
        self._unreached[site] = {"since_ms": since_ms, "why": trouble}

    def revoke(self, name: str) -> View:
        """Out, from the next request on; an open round goes on without it. An invitation that
        nobody has used is void from now on."""
        had_invitation = self._void_invitation(name)
        if self._put_out(name):
            return {"name": name, "revoked": True}
        if had_invitation:
            return {"name": name, "revoked": True, "had_joined": False}
        raise _no_site(name)

    def _void_invitation(self, name: str) -> bool:
        """A newer invitation voids the older one; nobody is told the newer one's secret. It
        stays, so that the same order may be given twice."""
        invites = self._registry.invites(self.desk.id)
        if not any(row.name == name and row.used_ms is None for row in invites):
            return False
        with suppress(UsageError):  # it has joined meanwhile, and is put out then
            self._registry.invite(self.desk.id, name, self._clock.now_ms(), _NO_TIME_MS)
        return True

    def _put_out(self, name: str) -> bool:
        """The fact comes first: the roster is what requests are checked against."""
        for row in self._registry.sites(self.desk.id):
            if row.name == name and row.revoked_ms is None:
                with self.desk.lock:
                    seat = self.desk.state.roster.seat_of.get(SiteId(row.id))
                if seat is not None:
                    now_ms = self._clock.now_ms()
                    self.desk.feed(i.Dismiss(seat, Departure.REVOKED, now_ms))
                self._registry.revoke(row.id, self._clock.now_ms())
                return True
        return False

    # ---- reading --------------------------------------------------------------------

    def _read(self) -> History:
        """The history up to now."""
        self._past.names = self._registered()
        return self._past.read()

    def _names(self) -> dict[int, str]:
        """What seats are called in a view."""
        return self._registered() if self._is_named else _Unnamed()

    def _registered(self) -> _Names:
        names = {row.seat: row.name for row in self._registry.sites(self.desk.id)}
        return _Names({seat: name for seat, name in names.items() if seat is not None})

    def _report_of(self, seat: int | None) -> View:
        with self.desk.lock:
            return dict(self.desk.state.roster.attributes(Seat(seat or 0)))


def _no_site(name: str) -> UnauthorizedClientError:
    return UnauthorizedClientError(f"there is no site `{name}`", hint="consortium status --sites")


class _Past:
    """What the log of one federation says, folded as far as somebody has looked."""

    def __init__(self, log: Log, federation: str) -> None:
        self._log, self._federation = log, federation
        self._lock = threading.Lock()
        self._seen = 0
        self.names: dict[int, str] = _Names()
        self.published_ms: dict[int, int] = {}  # version → when
        self.departures: dict[int, str] = {}  # seat → how it came to be empty
        self._history = History(lambda seat: self.names[seat])

    def read(self) -> History:
        """Everything: what is new in the log is folded first."""
        with self._lock:
            for record in self._log.read(self._federation, self._seen):
                fact = decode(record)
                self._history.add(fact)
                if isinstance(fact, f.ModelPublished | f.ModelInstalled):
                    self.published_ms[fact.version] = fact.at_ms
                elif isinstance(fact, f.SiteDeparted):
                    self.departures[fact.seat] = fact.departure.name.lower()
                self._seen += 1
            return self._history


class _Names(dict[int, str]):
    """Seats by name; one that the registry does not know yet is called by its number."""

    def __missing__(self, seat: int) -> str:
        return f"seat {seat}"


class _Unnamed(dict[int, str]):
    """Every seat by the same name."""

    def __missing__(self, seat: int) -> str:
        return UNNAMED


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


def _outline(fact: f.Fact, position: int, names: dict[int, str]) -> View:
    """One fact for whoever may not inspect the sites: of a single one that it happened, and
    why, but no number of its own and no digest of what it sent."""
    told = _event(fact, position, names)
    if not hasattr(fact, "seat"):
        return told
    kept = {name for name in fact.__dataclass_fields__ if isinstance(getattr(fact, name), IntEnum)}
    kept |= {"position", "fact", "at_ms"}
    return {key: value for key, value in told.items() if key in kept} | {"site": UNNAMED}

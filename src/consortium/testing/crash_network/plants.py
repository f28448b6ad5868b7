"""Bugs that the campaign must find, put into the parts of a federation.

A campaign that passes with one of these planted proves nothing by passing without.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sqlite3 import Connection

from consortium.coordinator import enrolment
from consortium.coordinator.desk import Desk
from consortium.coordinator.registry import Registry
from consortium.coordinator.rows import Answer, SiteRow, find_site
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.codec import encode
from consortium.core.ids import Digest, Seat
from consortium.drive import states
from consortium.errors import StoreFailedError
from consortium.site import home
from consortium.site.machine import STREAM, Machine
from consortium.site.receipts import Receipts
from consortium.store.files import write_durably
from consortium.wire.messages import ReceiptReply, Submission


def _replace(place: object, name: str, value: object) -> None:
    setattr(place, name, value)


# ---- of a site ----------------------------------------------------------------------


def _append_late(kind: type[s.SiteFact]) -> Callable[[], None]:
    """Facts of one kind are written with the next ones: they leave before they are durable."""

    def put() -> None:
        waiting: list[s.SiteFact] = []

        def late(self: Machine, facts: p.SiteFacts) -> None:
            for fact in facts:
                p.evolve(self.state, fact)
            waiting.extend(facts)
            if not any(isinstance(fact, kind) for fact in facts):
                records = [encode(fact) for fact in waiting]
                self._size = self._log.append(STREAM, self._size, records)
                waiting.clear()

        _replace(Machine, "_append", late)

    return put


def _deaf_machine() -> None:
    """A failed commit is taken for a good one."""
    append = Machine._append

    def deaf(self: Machine, facts: p.SiteFacts) -> None:
        with suppress(StoreFailedError):
            return append(self, facts)
        for fact in facts:
            p.evolve(self.state, fact)
        return None

    _replace(Machine, "_append", deaf)


def _receipt_after_the_fact() -> None:
    """The log says that a receipt is kept before it is, and nobody makes up for a lost one."""
    keep = Receipts.keep

    def forget(self: Receipts, number: int) -> None:
        return None

    def early(
        self: Receipts, number: int, update: Digest, reply: ReceiptReply, seen_size: int
    ) -> None:
        self._machine.feed(p.Heard(p.SendUpdate(number, update), self._machine.clock.now_ms()))
        keep(self, number, update, reply, seen_size)

    _replace(Receipts, "keep", early)
    _replace(Receipts, "make_up_for_a_lost_one", forget)


def _state_at_once() -> None:
    """What a site keeps changes before its update is known, let alone counted."""

    def keep(self: states.FileStates, seat: Seat, number: int, state: bytes) -> None:
        for name in (str(number), "current"):
            write_durably(self._path(seat, name), state)

    _replace(states.FileStates, "keep", keep)


def _never_sweep() -> None:
    """Half-written keys stay for ever."""

    def leave(path: Path) -> None:
        return None

    _replace(home, "sweep", leave)


# ---- of a coordinator ---------------------------------------------------------------


def _fact_before_blob() -> None:
    """An update is counted, and then made a blob."""

    def submit(
        self: Desk, site: SiteRow, number: int, body: Submission, envelope: bytes
    ) -> ReceiptReply:
        digest = Digest(bytes.fromhex(body.update))
        kept = self.blobs.put(envelope)
        if self.feed(self._submission(number, self.seat(site), digest, kept)):
            self._adopt(site, digest, body.size_bytes)
        return self.receipt(site, number)

    _replace(Desk, "submit", submit)


def _answers_in_memory() -> None:
    """What was said is forgotten with the process."""
    kept: dict[tuple[str, str], Answer] = {}

    def answer(self: Registry, site: str, nonce: str) -> Answer | None:
        return kept.get((site, nonce))

    def keep(
        self: Registry, site: str, nonce: str, digest: str, status: int, body: bytes, now_ms: int
    ) -> Answer:
        return kept.setdefault((site, nonce), Answer(digest, status, body))

    _replace(Registry, "answer", answer)
    _replace(Registry, "keep_answer", keep)


def _token_used_later() -> None:
    """A token is marked as used when its site comes again."""
    marks: list[tuple[int, str, bytes]] = []
    keep = Registry.keep_answer

    def admit(
        run: Connection, federation: str, who: enrolment.Newcomer, token: bytes, now_ms: int
    ) -> SiteRow:
        names = "id, federation, name, key, enrolled_ms, words"
        row = (who.id, federation, who.name, who.key, now_ms)
        run.execute(f"INSERT INTO sites ({names}) VALUES (?, ?, ?, ?, ?, '')", row)
        marks.append((now_ms, who.id, token))
        made = find_site(run, who.id)
        assert made is not None
        return made

    def mark(self: Registry, *arguments: object) -> Answer:
        with self._database.writing() as run:
            run.executemany("UPDATE invites SET used_ms = ?, site = ? WHERE hash = ?", marks)
        return keep(self, *arguments)  # type: ignore[arg-type]  # whatever they are

    _replace(enrolment, "_admit", admit)
    _replace(Registry, "keep_answer", mark)


# By name. Those of a coordinator show when it is broken, those of a site when that is.
PLANTS: dict[str, Callable[[], None]] = {
    "answers-in-memory": _answers_in_memory,
    "deaf-machine": _deaf_machine,
    "fact-before-blob": _fact_before_blob,
    "late-report": _append_late(s.ReportSpooled),
    "late-update": _append_late(s.UpdateSpooled),
    "never-sweep": _never_sweep,
    "receipt-after-the-fact": _receipt_after_the_fact,
    "state-at-once": _state_at_once,
    "token-used-later": _token_used_later,
}


def plant(name: str) -> None:
    """Put one bug into this process, for good. No name, no bug."""
    if name:
        PLANTS[name]()

"""What must hold when a federation has ended, whatever happened to one of its parts.

Everything is read from the folders that the parts have left; nobody runs any more.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np

from consortium.coordinator.evidence import Evidence, Tally
from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.ids import Digest
from consortium.drive.clock import SystemClock
from consortium.drive.verify import verify_directory
from consortium.ledger.proof import read_proof
from consortium.site.home import SiteHome
from consortium.site.jobs import HERE
from consortium.site.machine import Machine
from consortium.site.outbox import OutboxEntry, Sort, entries
from consortium.store.files import FileBlobs
from consortium.store.sqlite import SqliteLog
from consortium.tensors import load_tensors
from consortium.testing.crash_network.parts import Place
from consortium.testing.crash_network.promises import answered, left_unspooled
from consortium.testing.crash_network.study import ROUNDS

_BLOBS = "blobs"

Kind = TypeVar("Kind")


def wrong_end(place: Place, *, is_whole: bool) -> list[str]:
    """What does not hold. `is_whole`: nothing was refused, so that everybody must have been
    counted in every round."""
    found = _Found(place)
    return [
        *found.audit(),
        *found.sums(is_whole),
        *found.acknowledged(),
        *(wrong for name in place.sites for wrong in found.site(name, is_whole)),
        *_left_over(place),
    ]


class _Found:
    """The coordinator's log, and what it says."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with closing(SqliteLog(place.data / "log.sqlite")) as log:
            stream = next(name for name in log.streams() if len(name) == 32)
            self.facts = [decode(record) for record in log.read(stream)]
        self._blobs = FileBlobs.existing(place.data / _BLOBS)
        self._seats = self._seats_by_name()

    def _seats_by_name(self) -> dict[str, int]:
        """Which seat each site has, by what it was told when it enrolled."""
        admitted = {str(one.site): int(one.seat) for one in self._all(f.SiteAdmitted)}
        told = {
            note["site"]: json.loads(note["reply"])["site"]
            for note in answered(self._place)
            if note["path"] == "/v1/enrol"
        }
        return {name: admitted.get(site, 0) for name, site in told.items()}

    def _all(self, kind: type[Kind]) -> list[Kind]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def _members(self) -> dict[int, list[int]]:
        """Who was counted, of every round that has published a model."""
        published = {one.round for one in self._all(f.ModelPublished)}
        closed = self._all(f.RoundClosed)
        return {
            one.round: [int(s) for s in one.members] for one in closed if one.round in published
        }

    # ---- the coordinator ------------------------------------------------------------

    def audit(self) -> Iterator[str]:
        proofs = [json.loads(n["reply"])["proof"] for n in answered(self._place) if _is_update(n)]
        kept = [
            path.read_text()
            for name in self._place.sites
            for path in sorted((self._place.home(name) / "receipts").glob("*.proof"))
        ]
        audit = verify_directory(
            self._place.data,
            receipts=[read_proof(text) for text in (*proofs, *kept)],
            checks=[lambda blobs: Evidence(blobs, Tally())],
        )
        for finding in audit.findings:
            yield f"{finding.where}: {finding.what}"

    def sums(self, is_whole: bool) -> Iterator[str]:
        """What each round added is one for each member, over their number."""
        finished = self._all(f.FederationFinished)
        if len(finished) != 1:
            yield f"the federation has ended {len(finished)} times"
        published = self._all(f.ModelPublished)
        if len({one.round for one in published}) != len(published):
            yield "a round has two models"
        sites = self._place.sites
        members, before = self._members(), np.zeros(len(sites), np.float32)
        if is_whole and [len(one) for one in members.values()] != [len(sites)] * ROUNDS:
            yield f"the members are {members}"
        for one in published:
            after, counted = self._numbers(one.model), members[one.round]
            wanted = [float(self._seats[name] in counted) for name in sites]
            added = [float(number) for number in (after - before) * len(counted)]
            if any(abs(got - want) > 0.01 for got, want in zip(added, wanted, strict=True)):
                yield f"round {one.round} added {added}, and has the members {counted}"
            before = after

    def _numbers(self, model: Digest) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        tensors = load_tensors(self._blobs.get(model))
        return np.asarray(tensors["counts"][: len(self._place.sites)], np.float32)

    def acknowledged(self) -> Iterator[str]:
        """What sites were told is in the log for ever."""
        scored = {(one.round, int(one.seat)) for one in self._all(f.Evaluated)}
        models = {one.version: one.model.hex() for one in self._all(f.ModelPublished)}
        for note in answered(self._place):
            name, path = note["site"], note["path"]
            if path == "/v1/enrol" and not self._seats[name]:
                yield f"{name} was enrolled, and is not on the roster"
            if path.endswith("/score") and (_round(path), self._seats[name]) not in scored:
                yield f"{path} of {name} was acknowledged, and is not in the log"
            if path == "/v1/ask":
                told = json.loads(note["reply"])
                if told["version"] and models.get(told["version"]) != told["model"]:
                    yield f"{name} was told of another model of version {told['version']}"

    # ---- the sites ------------------------------------------------------------------

    def site(self, name: str, is_whole: bool) -> Iterator[str]:
        home = SiteHome.open(self._place.home(name))
        with closing(home):
            made = entries(Machine(home.log, SystemClock()))
        updates = [one for one in made if one.kind is Sort.UPDATE]
        for number, count in Counter(one.round for one in updates).items():
            if count > 1:
                yield f"{name} made {count} updates for round {number}"
        yield from left_unspooled(self._place, name)
        yield from self._stories(name, home)
        yield from self._receipts(name, home, updates)
        yield from self._trainings(name, is_whole)
        counted = sum(self._seats[name] in members for members in self._members().values())
        state = home.states.current(HERE)
        kept = 0 if state is None else int(next(iter(load_tensors(state).values()))[0])
        if kept != counted:
            yield f"{name} was counted {counted} times, and keeps the state of {kept}"

    def _stories(self, name: str, home: SiteHome) -> Iterator[str]:
        """In a secret sum a site says each thing once, whatever happens to it, and keeps no seeds
        when all is over."""
        told: dict[str, set[str]] = {}
        for note in self._place.notes.read():
            is_own = note["what"] == "sent" and note["site"] == name
            if is_own and note["path"].endswith(("/keys", "/shares", "/consent", "/answer")):
                told.setdefault(note["path"], set()).add(note["digest"])
        for path, digests in told.items():
            if len(digests) > 1:
                yield f"{name} gave {len(digests)} different {path}"
        for left in sorted((home.path / "secrets").glob("*")):
            yield f"{name} keeps {left.name}"

    def _receipts(self, name: str, home: SiteHome, updates: list[OutboxEntry]) -> Iterator[str]:
        received = {(one.round, int(one.seat)) for one in self._all(f.UpdateReceived)}
        for one in updates:
            if one.told and home.receipt(one.round) is None:
                yield f"{name} has no receipt for round {one.round}, which it says it has"
            if (one.round, self._seats[name]) in received and home.receipt(one.round) is None:
                yield f"{name} has no receipt for round {one.round}, which the log has"

    def _trainings(self, name: str, is_whole: bool) -> Iterator[str]:
        """Once a round; once more after a crash, unless something of it had left."""
        seen: Counter[int] = Counter()
        left: set[int] = set()
        for note in self._place.notes.read():
            if note["site"] != name:
                continue
            if note["what"] == "sent" and note["path"].endswith("/update"):
                left.add(_round(note["path"]))
            if note["what"] == "trained":
                seen[note["round"]] += 1
                if note["round"] in left:
                    yield f"{name} trained again in round {note['round']}, whose update had left"
        if is_whole and any(count > 2 for count in seen.values()):
            yield f"{name} trained {dict(seen)}"


def _is_update(note: dict[str, str]) -> bool:
    return note["path"].endswith("/update")


def _round(path: str) -> int:
    return int(path.split("/")[3])


def _left_over(place: Place) -> Iterator[str]:
    """Files that nobody will ever use or remove."""
    for top in (place.data, *(place.home(name) for name in place.sites)):
        for folder, folders, files in os.walk(top):
            if folder == str(top / _BLOBS):
                folders[:] = ["incoming"]  # the others have blobs
            for name in files:
                inside = (Path(folder) / name).relative_to(top)
                is_passing = inside.suffix in (".new", ".part", ".at", ".whole")
                if is_passing or inside.parts[0] == "work":
                    yield f"{top.name}/{inside} was left behind"

"""What must hold of a data directory after any crash, once the run has been finished.

Looked at from outside: the log decodes, is legal fact by fact and folds; every blob has
its digest and every blob that a fact names is there; every checkpoint is signed and fits;
every acknowledgement holds; no temporary file is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.evolve import evolve
from consortium.core.ids import Digest
from consortium.core.legal import why_illegal
from consortium.core.state import Federation
from consortium.drive.coordinate import checkpoints_of
from consortium.errors import ConsortiumError
from consortium.store.files import FileBlobs
from consortium.store.sqlite import SqliteLog
from consortium.testing.acks import Memory, broken_promises, check_note
from consortium.testing.crash_scenario import STREAM
from consortium.testing.warm import Outcome

_BLOBS = {"plan", "layout", "model", "base", "update", "server_state", "partial"}
_MAY_STAY = {".sqlite", ".sqlite-wal", ".sqlite-shm", ".key", ".note"}


def wrong_end(outcome: Outcome, reference: dict[str, Any]) -> list[str]:
    """How a finished run differs from the one that was never interrupted."""
    if outcome.code != 0:
        return [f"the next run ends with {outcome.code}: {outcome.err.strip()[:300]}"]
    found = json.loads(outcome.out)
    return [
        f"{key} is {str(found[key])[:100]}, not {str(value)[:100]}"
        for key, value in reference.items()
        if key != "refusals" and found[key] != value
    ]


def wrong_inside(path: Path, acks: Path) -> list[str]:
    """What does not hold in a data directory that nobody has open."""
    try:
        with closing(SqliteLog(path / "log.sqlite")) as log:
            log.check_integrity()
            blobs = FileBlobs.existing(path / "blobs")
            return [
                *_wrong_in_log(log, blobs),
                *broken_promises(Memory(acks).acks, log, blobs, STREAM),
                *_left_over(path),
            ]
    except ConsortiumError as error:
        return [f"{error.code}: {error.message}"]


def _wrong_in_log(log: SqliteLog, blobs: FileBlobs) -> Iterator[str]:
    state = Federation()
    records = list(log.read(STREAM))
    for index, record in enumerate(records):
        fact = decode(record)
        reason = why_illegal(state, fact)
        if reason is not None:
            yield f"fact {index} is illegal: {reason}"
            return
        evolve(state, fact)
        yield from (
            f"fact {index} names blob {digest.hex()[:16]}…, which is not there"
            for digest in _named_blobs(fact)
            if not blobs.has(digest)
        )
    for digest in blobs.digests():
        blobs.get(digest)  # raises when the bytes are others
    for note in log.read(checkpoints_of(STREAM)):
        check_note(note.decode(), records, log, STREAM)


def _named_blobs(fact: f.Fact) -> Iterator[Digest]:
    for field in fields(fact):
        value = getattr(fact, field.name)
        if field.name in _BLOBS and isinstance(value, bytes):
            yield Digest(value)


def _left_over(path: Path) -> Iterator[str]:
    for file in sorted(path.rglob("*")):
        is_blob = file.parent.parent.name == "blobs" and file.parent.name != "incoming"
        if file.is_file() and not is_blob and file.suffix not in _MAY_STAY:
            yield f"{file.relative_to(path)} was left behind"

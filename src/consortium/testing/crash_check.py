"""What must hold of a data directory after any crash, once the run has been finished.

It passes the audit, every acknowledgement holds in it, no temporary file is left, and it
says what a run says that was never interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from consortium.drive.verify import verify_directory
from consortium.store.files import FileBlobs
from consortium.store.sqlite import SqliteLog
from consortium.testing.acks import Memory, broken_promises
from consortium.testing.crash_scenario import STREAM
from consortium.testing.warm import Outcome

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
    findings = [f"{finding.where}: {finding.what}" for finding in verify_directory(path).findings]
    if findings:
        return findings
    with closing(SqliteLog(path / "log.sqlite")) as log:
        blobs = FileBlobs.existing(path / "blobs")
        broken = broken_promises(Memory(acks).acks, log, blobs, STREAM)
    return [*broken, *_left_over(path)]


def _left_over(path: Path) -> Iterator[str]:
    for file in sorted(path.rglob("*")):
        is_blob = file.parent.parent.name == "blobs" and file.parent.name != "incoming"
        if file.is_file() and not is_blob and file.suffix not in _MAY_STAY:
            yield f"{file.relative_to(path)} was left behind"

"""What the sites of a crash campaign remember: every answer that a coordinator gave them.

An acknowledgement is written down outside the data directory, after the coordinator has
answered, as a site would keep it. Whatever happens to the coordinator, each must hold in
its log for ever: that is what `broken_promises` looks at.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.ids import Digest
from consortium.drive.coordinate import checkpoints_of
from consortium.drive.directory import SIGNER_NAME
from consortium.errors import ConsortiumError, ProofError
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Verifier, open_checkpoint
from consortium.ledger.tree import Tree
from consortium.store.memory import MemoryCache
from consortium.store.ports import Blobs, Log


@dataclass(frozen=True, slots=True)
class Ack:
    """One answer: record `index` of the log, the blob that it names, a checkpoint over it.

    For a kept checkpoint, `index` and `record` are of the stream of checkpoints.
    """

    kind: str  # receipt, score, model or checkpoint
    round: int
    seat: int
    index: int
    record: str
    blob: str
    note: str

    @property
    def name(self) -> tuple[str, int, int]:
        return self.kind, self.round, self.seat


class Memory:
    """The acknowledgements in a file: one JSON object a line, durable when written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.acks = [Ack(**json.loads(line)) for line in lines]
        self.names = {ack.name for ack in self.acks}

    def add(self, ack: Ack) -> None:
        # O_SYNC and writev: the campaigns inject faults into write and fsync, and it is the
        # coordinator's disk that fails, not the sites'.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_SYNC
        handle = os.open(self._path, flags, 0o600)
        try:
            os.writev(handle, [json.dumps(asdict(ack)).encode() + b"\n"])
        finally:
            os.close(handle)
        self.acks.append(ack)
        self.names.add(ack.name)


def broken_promises(acks: list[Ack], log: Log, blobs: Blobs, stream: str) -> list[str]:
    """What was acknowledged and does not hold in this log and these blobs, in sentences."""
    records = list(log.read(stream))
    kept = list(log.read(checkpoints_of(stream)))
    broken = []
    for ack in acks:
        held = kept if ack.kind == "checkpoint" else records
        if held[ack.index : ack.index + 1] != [bytes.fromhex(ack.record)]:
            broken.append(f"{ack.name}: its record {ack.index} is not in the log")
        try:
            if ack.blob:
                blobs.get(Digest(bytes.fromhex(ack.blob)))
            check_note(ack.note, records, log, stream)
        except ConsortiumError as error:
            broken.append(f"{ack.name}: {error.message}")
    return broken


def check_note(note: str, records: list[bytes], log: Log, stream: str) -> None:
    """Returns when a checkpoint is signed by a key that the log names, over this very log."""
    found = [decode(record) for record in records]
    keys = [fact.key for fact in found if isinstance(fact, f.LogKeyAdopted)]
    verifiers = [Verifier(SIGNER_NAME, key) for key in keys]
    checkpoint = open_checkpoint(note, origin_of(stream), verifiers)
    if checkpoint.size > len(records):
        raise ProofError(f"a checkpoint was signed over {checkpoint.size} facts that are gone")
    if Tree(log, stream, MemoryCache()).root(checkpoint.size) != checkpoint.root:
        raise ProofError("a checkpoint does not fit the log")

"""Proofs on paper: that a record is in a log, for anybody who has the log's public key.

A proof is a small text file. To verify it takes neither a running coordinator nor trust
in one: the record's hash leads to a root that the log's key has signed.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

from consortium.errors import ProofError
from consortium.ledger.merkle import leaf_hash, verify_consistency, verify_inclusion
from consortium.ledger.note import Checkpoint, Verifier, open_checkpoint

_TITLE = "consortium-proof/v1"
_MAX_BYTES = 1 << 20
_HASH_BYTES = 32


@dataclass(frozen=True, slots=True)
class Proof:
    """`record` is number `index` of the log that `note` is a checkpoint of."""

    index: int
    record: bytes
    path: tuple[bytes, ...]
    note: str

    def text(self) -> str:
        lines = [_TITLE, str(self.index), _encode(self.record), *map(_encode, self.path)]
        return "\n".join(lines) + "\n\n" + self.note


def read_proof(text: str) -> Proof:
    """A proof from a file; says nothing yet about whether it holds."""
    head, blank, note = text.partition("\n\n")
    lines = head.split("\n")
    if len(text) > _MAX_BYTES or not blank or len(lines) < 3 or lines[0] != _TITLE:
        raise ProofError("this is not a proof of consortium")
    if not re.fullmatch(r"0|[1-9][0-9]{0,17}", lines[1]):
        raise ProofError("the proof's index is not a number")
    path = tuple(_decode(line) for line in lines[3:])
    if any(len(part) != _HASH_BYTES for part in path):
        raise ProofError(f"the hashes of a proof have {_HASH_BYTES} bytes each")
    return Proof(int(lines[1]), _decode(lines[2]), path, note)


def verify_proof(proof: Proof, origin: str, log_keys: list[Verifier]) -> Checkpoint:
    """The checkpoint that the record is proven to be in; raises when the proof fails."""
    checkpoint = open_checkpoint(proof.note, origin, log_keys)
    leaf = leaf_hash(proof.record)
    verify_inclusion(leaf, proof.index, checkpoint.size, proof.path, checkpoint.root)
    return checkpoint


def verify_growth(old: Checkpoint, new: Checkpoint, path: Sequence[bytes]) -> None:
    """Returns when the log of `new` begins with the log of `old`; raises otherwise."""
    if old.origin != new.origin:
        raise ProofError("the two checkpoints are of different logs")
    if old.size == 0:
        if path:
            raise ProofError("an empty log needs no proof")
        return
    verify_consistency(old.size, old.root, new.size, new.root, path)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(line: str) -> bytes:
    try:
        data = base64.b64decode(line, validate=True)
    except (binascii.Error, ValueError):
        raise ProofError("the proof is malformed") from None
    if _encode(data) != line:
        raise ProofError("the proof's base64 is not in its canonical form")
    return data

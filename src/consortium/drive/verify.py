"""The audit of a data directory: needs no running coordinator, and no trust in one.

It reads the log, asks of every fact whether it is legal where it stands, redoes every
selection, check and sum, hashes every blob that a fact names, and checks every checkpoint
and every receipt against the tree over the log. What is wrong is said with its place.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from consortium.core import facts as f
from consortium.core.codec import decode, encode
from consortium.core.evolve import evolve
from consortium.core.ids import Digest
from consortium.core.legal import why_illegal
from consortium.core.roster import eligible
from consortium.core.selection import choose, invitation_size
from consortium.core.state import Federation
from consortium.drive.coordinate import checkpoints_of, newest_note
from consortium.drive.directory import SIGNER_NAME
from consortium.drive.redo import Redo
from consortium.errors import ConsortiumError, VerificationError
from consortium.ledger.merkle import leaf_hash
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Checkpoint, Verifier, open_checkpoint, parse_text
from consortium.ledger.proof import Proof, verify_proof
from consortium.ledger.tree import Tree
from consortium.store.files import FileBlobs
from consortium.store.memory import MemoryCache
from consortium.store.sqlite import SqliteLog


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not hold, and where."""

    where: str
    what: str


@dataclass(slots=True)
class Audit:
    """What was looked at, and what was found wrong."""

    federations: int = 0
    facts: int = 0
    blobs: int = 0
    checkpoints: int = 0
    receipts: int = 0
    keys: list[str] = field(default_factory=list)  # the key that each log began with
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def add(self, where: str, what: str) -> None:
        self.findings.append(Finding(where, what))


def verify_directory(
    path: Path, *, key: bytes | None = None, receipts: list[Proof] | None = None
) -> Audit:
    """Audit a data directory. `key` is the log's first public key as its holder knows it;
    without it the key in the log is taken, and told, for the reader to compare."""
    audit = Audit()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            log = _copy_of(path, Path(scratch))
            blobs = FileBlobs.existing(path / "blobs")
            streams = [name for name in log.streams() if "/" not in name]
            for stray in set(log.streams()) - {*streams, *map(checkpoints_of, streams)}:
                audit.add(repr(stray), "these records belong to no federation")
            for stream in streams:
                _Stream(audit, path, log, blobs, stream, key).verify(receipts or [])
            _verify_all_blobs(audit, blobs)
        except ConsortiumError as error:
            audit.add(str(path), error.message)
            return audit
        log.close()
    if audit.federations == 0:
        audit.add(str(path), "there is no federation here")
    return audit


def _copy_of(path: Path, scratch: Path) -> SqliteLog:
    """The log, from a copy: looking at it must not change it, not even its journal."""
    source = path / "log.sqlite"
    if not source.is_file():
        raise VerificationError(f"there is no log at {source}")
    for suffix in ("", "-wal"):
        part = source.with_name(source.name + suffix)
        if part.exists():
            shutil.copy(part, scratch / part.name)
    log = SqliteLog(scratch / source.name)
    log.check_integrity()
    return log


def _verify_all_blobs(audit: Audit, blobs: FileBlobs) -> None:
    """Every file under its digest, whether a fact names it or not."""
    for digest in blobs.digests():
        audit.blobs += 1
        try:
            blobs.get(digest)
        except ConsortiumError as error:
            audit.add(f"blob {digest.hex()}", error.message)


class _Stream:
    """One federation's log."""

    def __init__(
        self,
        audit: Audit,
        path: Path,
        log: SqliteLog,
        blobs: FileBlobs,
        stream: str,
        key: bytes | None,
    ) -> None:
        self._audit, self._path, self._log, self._blobs = audit, path, log, blobs
        self._stream, self._key = stream, key
        self._tree = Tree(log, stream, MemoryCache())
        self._keys: list[tuple[int, bytes]] = []  # (position of its adoption, key)
        self._size = 0

    def verify(self, receipts: list[Proof]) -> None:
        self._audit.federations += 1
        self._verify_facts()
        if not self._keys:
            self._audit.add(self._stream, "the log names no key that could have signed it")
            return
        first = self._keys[0][1]
        self._audit.keys.append(first.hex())
        if self._key is not None and self._key != first:
            self._audit.add(self._stream, "the log does not begin with the key that you hold")
        self._verify_checkpoints()
        for proof in receipts:
            self._verify_receipt(proof)

    # ---- facts ----------------------------------------------------------------------

    def _verify_facts(self) -> None:
        state, redo = Federation(), Redo(self._blobs)
        for position, record in enumerate(self._log.read(self._stream)):
            where = f"{self._stream}, fact {position}"
            self._size = position + 1
            try:
                fact = decode(record)
            except ConsortiumError as error:
                self._audit.add(where, error.message)
                return
            name = type(fact).__name__
            complaint = self._complaint(state, fact, record, redo)
            if complaint is not None:
                self._audit.add(where, f"{name}: {complaint}")
                return  # what follows is built on it, and would only repeat it
            if isinstance(fact, f.LogKeyAdopted):
                self._keys.append((position, fact.key))
            evolve(state, fact)
            self._audit.facts += 1

    def _complaint(self, state: Federation, fact: f.Fact, record: bytes, redo: Redo) -> str | None:
        if encode(fact) != record:
            return "its bytes are not its encoding"
        illegal = why_illegal(state, fact)
        if illegal is not None:
            return illegal
        if isinstance(fact, f.FederationFounded) and fact.federation != self._stream:
            return "it founds another federation than this one"
        missing = [digest for digest in _named_blobs(fact) if not self._blobs.has(digest)]
        if missing:
            return f"blob {missing[0].hex()} is missing"
        if isinstance(fact, f.SitesInvited) and not _is_chosen_by_seed(state, fact):
            return "the seed on record chooses other sites"
        return redo.complaint(state, fact)

    # ---- checkpoints and receipts ---------------------------------------------------

    def _verify_checkpoints(self) -> None:
        last = 0
        notes = list(self._log.read(checkpoints_of(self._stream)))
        for number, note in enumerate(notes):
            where = f"{self._stream}, checkpoint {number}"
            size = self._verify_note(where, note)
            if size is not None and size < last:
                self._audit.add(where, "it is of a shorter log than the one before it")
            last = max(last, size or 0)
        try:
            newest = newest_note(self._path, self._stream)
        except ConsortiumError as error:
            self._audit.add(f"{self._stream}, newest checkpoint", error.message)
            return
        self._verify_note(f"{self._stream}, newest checkpoint", newest)

    def _verify_note(self, where: str, note: bytes) -> int | None:
        """The size of a checkpoint that holds; findings for one that does not."""
        self._audit.checkpoints += 1
        try:
            text = note.decode()
            size = parse_text(text.partition("\n\n")[0] + "\n").size
            for key in self._keys_for(size):
                verifier = Verifier(SIGNER_NAME, key)
                checkpoint = open_checkpoint(text, origin_of(self._stream), [verifier])
            self._check_root(checkpoint)
        except UnicodeDecodeError:
            self._audit.add(where, "it is not text")
            return None
        except ConsortiumError as error:
            self._audit.add(where, error.message)
            return None
        return size

    def _check_root(self, checkpoint: Checkpoint) -> None:
        if checkpoint.size > self._size:
            raise VerificationError(
                f"it is signed over {checkpoint.size} facts, and the log has {self._size}"
            )
        if self._tree.root(checkpoint.size) != checkpoint.root:
            raise VerificationError("its root is not that of the log: the log was rewritten")

    def _keys_for(self, size: int) -> list[bytes]:
        """Who must have signed a checkpoint over `size` facts: the key of that time, and
        the one before it when this is the first checkpoint after a rotation."""
        adopted = [(at, key) for at, key in self._keys if at < size]
        if not adopted:
            raise VerificationError("no key had been adopted when it was signed")
        is_rotation = len(adopted) > 1 and adopted[-1][0] == size - 1
        return [key for _, key in (adopted[-2:] if is_rotation else adopted[-1:])]

    def _verify_receipt(self, proof: Proof) -> None:
        where = f"receipt for fact {proof.index}"
        keys = [Verifier(SIGNER_NAME, key) for _, key in self._keys]
        try:
            checkpoint = verify_proof(proof, origin_of(self._stream), keys)
            self._check_root(checkpoint)
            held = next(iter(self._log.read(self._stream, proof.index, proof.index + 1)))
            if leaf_hash(held) != leaf_hash(proof.record):
                raise VerificationError("the log has another fact in its place")
        except ConsortiumError as error:
            self._audit.add(where, error.message)
            return
        self._audit.receipts += 1


def _named_blobs(fact: f.Fact) -> Iterator[Digest]:
    """The blobs that a fact says are there."""
    if isinstance(fact, f.PlanAdopted):
        yield from (fact.plan, fact.layout)
        return
    for name in ("model", "update", "partial", "envelope", "server_state"):
        if name in (known.name for known in fields(fact)):
            digest = getattr(fact, name)
            if digest is not None:
                yield digest


def _is_chosen_by_seed(state: Federation, fact: f.SitesInvited) -> bool:
    terms, open_round = state.terms, state.round
    assert terms is not None and open_round is not None
    pool = eligible(state.roster, terms, fact.at_ms)
    target, count = invitation_size(terms, len(pool))
    seats = choose(terms, state.roster, pool, count, open_round.seed)
    return (seats, target, len(pool)) == (fact.seats, fact.target, fact.eligible)

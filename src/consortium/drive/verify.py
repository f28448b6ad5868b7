"""The audit of a data directory: needs no running coordinator, and no trust in one.

It reads the log, asks of every fact whether it is legal where it stands, redoes every
selection, check and sum, hashes every blob that a fact names, and checks every checkpoint
and every receipt against the tree over the log. What is wrong is said with its place.
Layers above this one bring further checks of facts: signatures of sites are the wire's.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Protocol

from consortium.core import facts as f
from consortium.core.codec import decode, encode
from consortium.core.evolve import evolve
from consortium.core.ids import Digest
from consortium.core.legal import why_illegal
from consortium.core.roster import eligible
from consortium.core.selection import Choice, choice, choose_backups
from consortium.core.state import Federation
from consortium.drive.coordinate import checkpoints_of, newest_note
from consortium.drive.directory import SIGNER_NAME
from consortium.drive.redo import Redo
from consortium.drive.verify_accounts import AccountCheck, is_account
from consortium.errors import ConsortiumError, VerificationError
from consortium.ledger.merkle import leaf_hash
from consortium.ledger.notary import origin_of
from consortium.ledger.note import Checkpoint, Verifier, open_checkpoint, parse_text
from consortium.ledger.proof import Proof, verify_proof
from consortium.ledger.tree import Tree
from consortium.store.files import FileBlobs
from consortium.store.memory import MemoryCache
from consortium.store.sqlite import SqliteLog

_COPY_ATTEMPTS = 5


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
    unsigned: int = 0  # facts that are newer than the newest checkpoint
    keys: list[str] = field(default_factory=list)  # the key that each log began with
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def add(self, where: str, what: str) -> None:
        self.findings.append(Finding(where, what))


class FactCheck(Protocol):
    """Looks at the facts of one log, in order."""

    def complaint(self, state: Federation, fact: f.Fact) -> str | None:
        """What is wrong with a fact that is legal after `state`; None when it is right."""


MakeCheck = Callable[[FileBlobs], FactCheck]  # one for each log


def verify_directory(
    path: Path,
    *,
    key: bytes | None = None,
    receipts: list[Proof] | None = None,
    checks: Sequence[MakeCheck] = (),
) -> Audit:
    """Audit a data directory. `key` is the log's first public key as its holder knows it;
    without it the key in the log is taken, and told, for the reader to compare. `checks` are
    asked about every fact, after our own."""
    audit = Audit()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            log = _copy_of(path, Path(scratch))
            blobs = FileBlobs.existing(path / "blobs")
            streams = [name for name in log.streams() if "/" not in name]
            accounts = [name for name in log.streams() if is_account(name)]
            known = {*streams, *accounts, *map(checkpoints_of, streams)}
            for stray in set(log.streams()) - known:
                audit.add(repr(stray), "these records belong to no federation")
            origins = {origin_of(stream) for stream in streams}
            for proof in receipts or []:
                if _origin(proof) not in origins:
                    audit.add(f"receipt for fact {proof.index}", "it is of no log that is here")
            paid = AccountCheck(log, accounts)
            for where, what in paid.findings:
                audit.add(where, what)
            for stream in streams:
                own = [proof for proof in receipts or [] if _origin(proof) == origin_of(stream)]
                _Stream(audit, path, log, blobs, stream, key).verify(
                    own, (Redo, lambda _: paid, *checks)
                )
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
    parts = [source.with_name(source.name + suffix) for suffix in ("", "-wal")]
    for _ in range(_COPY_ATTEMPTS):
        before = [_stamp(part) for part in parts]
        for part in parts:
            (scratch / part.name).unlink(missing_ok=True)
            if part.exists():
                shutil.copy(part, scratch / part.name)
        if [_stamp(part) for part in parts] == before:
            break  # nobody wrote meanwhile: the two belong together
    log = SqliteLog(scratch / source.name)
    log.check_integrity()
    return log


def _stamp(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.exists() else None


def _origin(proof: Proof) -> str:
    return proof.note.partition("\n")[0]


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

    def verify(self, receipts: list[Proof], checks: Sequence[MakeCheck]) -> None:
        self._audit.federations += 1
        if not self._verify_facts([make(self._blobs) for make in checks]):
            return  # what is signed over a broken log would only repeat it
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

    def _verify_facts(self, checks: Sequence[FactCheck]) -> bool:
        state = Federation()
        for position, record in enumerate(self._log.read(self._stream)):
            where = f"{self._stream}, fact {position}"
            self._size = position + 1
            try:
                fact = decode(record)
            except ConsortiumError as error:
                self._audit.add(where, error.message)
                return False
            name = type(fact).__name__
            complaint = self._complaint(state, fact, record, checks)
            if complaint is not None:
                self._audit.add(where, f"{name}: {complaint}")
                return False
            if isinstance(fact, f.LogKeyAdopted):
                self._keys.append((position, fact.key))
            evolve(state, fact)
            self._audit.facts += 1
        return True

    def _complaint(
        self, state: Federation, fact: f.Fact, record: bytes, checks: Sequence[FactCheck]
    ) -> str | None:
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
        if isinstance(fact, f.BackupsInvited) and not _are_backups_by_seed(state, fact):
            return "the seed on record chooses other backups"
        complaints = (check.complaint(state, fact) for check in checks)
        return next((complaint for complaint in complaints if complaint is not None), None)

    # ---- checkpoints and receipts ---------------------------------------------------

    def _verify_checkpoints(self) -> None:
        """Every kept checkpoint and the newest: in order, signed by the key of its time, and by
        the key before it where it is the first to cover a rotation."""
        last, covered = 0, 0  # size of the checkpoint before; keys that were covered by it
        for number, note in enumerate(self._log.read(checkpoints_of(self._stream))):
            where = f"{self._stream}, checkpoint {number}"
            size = self._verify_note(where, note, covered)
            if size is None:
                continue
            if size < last:
                self._audit.add(where, "it is of a shorter log than the one before it")
            last, covered = max(last, size), max(covered, len(self._adopted_by(size)))
        where = f"{self._stream}, newest checkpoint"
        try:
            size = self._verify_note(where, newest_note(self._path, self._stream), covered)
        except ConsortiumError as error:
            self._audit.add(where, error.message)
            return
        newest = max(last, size or 0)
        covered = max(covered, len(self._adopted_by(newest)))
        if covered < len(self._keys):
            self._audit.add(where, "no checkpoint covers the key that was adopted last")
        self._audit.unsigned += self._size - newest

    def _verify_note(self, where: str, note: bytes, covered: int) -> int | None:
        """The size of a checkpoint that holds; findings for one that does not."""
        self._audit.checkpoints += 1
        try:
            text = note.decode()
            size = parse_text(text.partition("\n\n")[0] + "\n").size
            for key in self._keys_for(size, covered):
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

    def _adopted_by(self, size: int) -> list[bytes]:
        return [key for at, key in self._keys if at < size]

    def _keys_for(self, size: int, covered: int) -> list[bytes]:
        """Who must have signed a checkpoint over `size` facts, when `covered` keys were covered
        by the checkpoints before it: the key of that time, and every key since the last one
        that was covered. So trust in the first key leads to trust in the last."""
        adopted = self._adopted_by(size)
        if not adopted:
            raise VerificationError("no key had been adopted when it was signed")
        is_first = len(adopted) > max(covered, 1)
        return adopted[max(covered, 1) - 1 :] if is_first else adopted[-1:]

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
    for name in ("model", "update", "partial", "envelope", "server_state", "shares", "answer"):
        if name in (known.name for known in fields(fact)):
            digest = getattr(fact, name)
            if digest is not None:
                yield digest


def _are_backups_by_seed(state: Federation, fact: f.BackupsInvited) -> bool:
    terms, open_round = state.terms, state.round
    assert terms is not None and open_round is not None
    pool = [
        seat for seat in eligible(state.roster, terms, fact.at_ms) if seat not in open_round.invited
    ]
    seats = choose_backups(pool, len(fact.seats), open_round.seed, open_round.backup_calls)
    return seats == fact.seats


def _is_chosen_by_seed(state: Federation, fact: f.SitesInvited) -> bool:
    terms, open_round = state.terms, state.round
    assert terms is not None and open_round is not None
    found = choice(terms, state.roster, open_round, open_round.seed, fact.at_ms)
    return found == Choice(fact.seats, fact.eligible, fact.target)

"""A federation on a data directory: durable facts, signed checkpoints, proofs.

The order is the whole point: the blob is durable before the fact that names it, the fact
before the checkpoint over it, the checkpoint before the reply that shows it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

from consortium.core import inputs as i
from consortium.core.codec import decode
from consortium.core.ending import Facts
from consortium.core.facts import LogKeyAdopted
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import Clock
from consortium.drive.directory import NEWEST
from consortium.drive.driver import Driver, Hands
from consortium.errors import ConflictError, CorruptStoreError, NoteError
from consortium.ledger.notary import Notary, origin_of
from consortium.ledger.note import Checkpoint, Signer, parse_text
from consortium.ledger.proof import Proof
from consortium.ledger.witness import Offer
from consortium.store.memory import MemoryCache
from consortium.store.ports import Cache, Log


def checkpoints_of(stream: str) -> str:
    """The stream where a federation's signed checkpoints are kept."""
    return f"{stream}/checkpoints"


def newest_note(path: Path, stream: str) -> bytes:
    """The newest checkpoint that this directory kept, from its own file."""
    try:
        return (path / NEWEST / f"{stream}.note").read_bytes()
    except OSError as error:
        raise NoteError(f"there is no newest checkpoint: {error.strerror}") from None


class Directory(Protocol):
    """What a coordinator keeps: a `DataDirectory`, or its like in memory for tests."""

    @property
    def log(self) -> Log: ...

    @property
    def cache(self) -> Cache: ...

    def signers(self) -> list[Signer]:
        """Every key that is here, also those that another coordinator made."""
        ...

    def new_signer(self) -> Signer:
        """A new key, durable before it signs anything."""
        ...

    def keep_newest(self, stream: str, note: bytes) -> None:
        """Keep the newest checkpoint somewhere else than in the log."""
        ...


class Coordinator:
    """One federation of a data directory, and the evidence about it."""

    def __init__(self, directory: Directory, stream: str, clock: Clock) -> None:
        self._directory, self._stream, self._clock = directory, stream, clock
        self.driver = Driver(directory.log, stream, clock, directory.cache)
        if not self.driver.state.id:
            self.driver.feed(i.Found(stream, clock.now_ms()))
        if not self.driver.state.log_keys:
            key = directory.new_signer().key.public
            self.driver.feed(i.AdoptLogKey(key, clock.now_ms()))
        self._notary = self._new_notary(directory.signers(), directory.cache)
        self._note: tuple[int, str] = (0, "")
        self._signing: SigningKey | None = None
        self._check_cache()

    def _new_notary(self, signers: list[Signer], cache: Cache) -> Notary:
        origin = origin_of(self._stream)
        return Notary(self._directory.log, self._stream, cache, origin, signers)

    def _check_cache(self) -> None:
        """Never sign what cached hashes say without a look: they must lead to what was signed
        last. If they do not, they are of another log; if the log itself does not, stop."""
        kept = self._last_kept()
        if kept is not None and kept.size > self.driver.position:
            raise CorruptStoreError("the log is shorter than its last checkpoint says")
        if kept is None or self._notary.root(kept.size) == kept.root:
            return
        self._notary = self._new_notary(self._directory.signers(), MemoryCache())
        if self._notary.root(kept.size) != kept.root:
            raise CorruptStoreError("the log is not the one that its last checkpoint is of")

    def _last_kept(self) -> Checkpoint | None:
        stream, log = checkpoints_of(self._stream), self._directory.log
        length = log.follow(stream, 0, timeout_s=0.0)
        for note in log.read(stream, max(0, length - 1)):
            return parse_text(note.decode().partition("\n\n")[0] + "\n")
        return None

    def signing_key(self) -> SigningKey:
        """The key that the log names now: it signs invitations as well as checkpoints."""
        key = self.driver.state.log_keys[-1]
        if self._signing is None or self._signing.public != key:
            found = [signer.key for signer in self._directory.signers()]
            self._signing = next((one for one in found if one.public == key), None)
        if self._signing is None:
            raise NoteError("the key that the log names is not here")
        return self._signing

    def feed(self, item: i.Input) -> Facts:
        return self.driver.feed(item)

    def work(self, hands: Hands) -> Facts:
        return self.driver.work(hands)

    def rotate_key(self) -> None:
        """Adopt a new key; the first checkpoint that covers it is signed with both."""
        self.keep_checkpoint()
        signer = self._directory.new_signer()
        self.driver.feed(i.AdoptLogKey(signer.key.public, self._clock.now_ms()))
        self.keep_checkpoint()

    def checkpoint(self) -> str:
        """A signed note over all that is durable now."""
        size, keys = self.driver.position, self.driver.state.log_keys
        if self._note[0] != size:
            if not self._notary.has_key(keys[-1]):  # somebody has rotated
                cache = self._directory.cache
                self._notary = self._new_notary(self._directory.signers(), cache)
            previous = keys[-2] if self._is_rotating() else None
            self._note = size, self._notary.checkpoint(size, keys[-1], previous)
        return self._note[1]

    def _is_rotating(self) -> bool:
        """Whether no kept checkpoint covers the newest key yet: it may have been adopted by
        another coordinator, or by one that crashed before it had signed."""
        if len(self.driver.state.log_keys) < 2:
            return False
        kept = self._last_kept()
        records = self._directory.log.read(self._stream, kept.size if kept else 0)
        return any(isinstance(decode(record), LogKeyAdopted) for record in records)

    def keep_checkpoint(self) -> None:
        """Write the present checkpoint down, for auditors of this directory."""
        self.driver.catch_up()
        kept = self._last_kept()
        if kept is not None and kept.size >= self.driver.position:
            return
        note = self.checkpoint().encode()
        stream, log = checkpoints_of(self._stream), self._directory.log
        length = log.follow(stream, 0, timeout_s=0.0)
        # Beside the database too: a log that lost its end would lose its checkpoints with it.
        self._directory.keep_newest(self._stream, note)
        with suppress(ConflictError):  # another coordinator has just kept one
            log.append(stream, length, [note])

    def proof(self, index: int) -> Proof:
        """That fact `index` is in the log, for its holder to keep and verify alone."""
        note = self.checkpoint()
        return self._notary.proof(index, self._note[0], note)

    def offer(self, since: int) -> Offer:
        """The present checkpoint for a witness that has seen `since` facts."""
        if since > self.driver.position:  # another coordinator showed it more
            self.driver.catch_up()
        note = self.checkpoint()
        return self._notary.offer(since, self._note[0], note)

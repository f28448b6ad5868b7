"""The notary: signs what is durable, and proves what was signed.

It is asked after a commit, with the length that the commit returned: a checkpoint is never
signed over a record that a power cut could still take away.
"""

from __future__ import annotations

from itertools import islice

from consortium.errors import NoteError
from consortium.ledger.note import Checkpoint, Signer, sign_checkpoint
from consortium.ledger.proof import Proof
from consortium.ledger.tree import Cache, Records, Tree
from consortium.ledger.witness import Offer


def origin_of(federation: str) -> str:
    """The first line of every checkpoint of this federation's log."""
    return f"consortium/{federation}"


class Notary:
    """Checkpoints and proofs of one stream."""

    def __init__(
        self, log: Records, stream: str, cache: Cache, origin: str, signers: list[Signer]
    ) -> None:
        self._log, self._stream = log, stream
        self._tree = Tree(log, stream, cache)
        self._origin = origin
        self._signers = {signer.key.public: signer for signer in signers}

    def root(self, size: int) -> bytes:
        """The root of the first `size` records."""
        return self._tree.root(size)

    def checkpoint(self, size: int, key: bytes, previous: bytes | None = None) -> str:
        """A signed note over the first `size` records, which are durable.

        `previous` is the key before a rotation that this checkpoint is the first to cover.
        """
        checkpoint = Checkpoint(self._origin, size, self._tree.root(size))
        note = sign_checkpoint(checkpoint, self._signer(key))
        if previous is None:
            return note
        text, _, lines = sign_checkpoint(checkpoint, self._signer(previous)).partition("\n\n")
        assert note.startswith(text)
        return note + lines

    def proof(self, index: int, size: int, note: str) -> Proof:
        """That record `index` is among the `size` that `note` is signed over."""
        record = next(islice(self._log.read(self._stream, index, index + 1), 1))
        return Proof(index, record, self._tree.inclusion_proof(index, size), note)

    def offer(self, since: int, size: int, note: str) -> Offer:
        """`note` for a witness that has seen `since` records."""
        path = self._tree.consistency_proof(since, size) if 0 < since < size else ()
        return Offer(since, path, note)

    def has_key(self, key: bytes) -> bool:
        """Whether this notary can sign with `key`."""
        return key in self._signers

    def _signer(self, key: bytes) -> Signer:
        if key not in self._signers:
            raise NoteError("the key that the log names is not here")
        return self._signers[key]

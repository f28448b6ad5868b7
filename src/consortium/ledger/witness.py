"""The witness: a site that keeps the newest checkpoint it has seen, and cosigns no other past.

The rules are those of C2SP `tlog-witness`. A coordinator that shows two sites two
histories, or puts an old backup back, cannot get both cosigned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consortium.core.ids import Digest
from consortium.core.participant import Shown
from consortium.errors import ProofError
from consortium.ledger.note import Checkpoint, Signer, Verifier, cosign, open_checkpoint
from consortium.ledger.proof import verify_growth


@dataclass(frozen=True, slots=True)
class Offer:
    """What a coordinator shows a witness: a checkpoint and the proof from what it has."""

    since: int
    path: tuple[bytes, ...]
    note: str


def examine(offer: Offer, seen: Checkpoint, log_keys: Sequence[Verifier], now_ms: int) -> Shown:
    """Verify an offer against what this site has seen, for its machine to decide on.

    Raises `NoteError` when it is not signed by the log or is of another log.
    """
    checkpoint = open_checkpoint(offer.note, seen.origin, list(log_keys))
    is_consistent = True
    if offer.since == seen.size <= checkpoint.size:
        try:
            verify_growth(seen, checkpoint, offer.path)
        except ProofError:
            is_consistent = False
    root = Digest(checkpoint.root)
    return Shown(offer.since, checkpoint.size, root, is_consistent, now_ms)


def endorse(offer: Offer, signer: Signer, time_s: int) -> str:
    """The note with this witness's cosignature. Only after the machine has accepted it, and
    its fact is durable: a witness that forgets would sign two histories."""
    return cosign(offer.note, signer, time_s)

"""Facts of a round whose sum is secret: who gave keys, who shared its seeds, who answered for
whom. House rules as in `facts`; the numbers 80 to 95 are theirs.

Keys are public. Sealed shares and answers lie in the blob store under their digests: what is in
an answer, the coordinator may know, because `RoundClosed` says of each site which half of its
secrets is ever asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core.ids import Digest, Seat, Seats


@dataclass(frozen=True, slots=True)
class MaskingAdopted:
    """Sums of the plan that was just adopted are secret: its sites mask what they send."""

    KIND = 80
    phase_ms: int  # how long keys, shares, signatures and answers are waited for, each
    at_ms: int


@dataclass(frozen=True, slots=True)
class KeysReceived:
    """A site's public keys for this round, signed by its identity."""

    KIND = 81
    round: int
    seat: Seat
    mask_key: bytes
    seal_key: bytes
    commitment: bytes
    signature: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class KeysClosed:
    """These sites mask with each other. With fewer than `quorum` of them left there is no sum."""

    KIND = 82
    round: int
    seats: Seats
    quorum: int
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SharesReceived:
    """A site's seeds in shares, each sealed for its holder."""

    KIND = 83
    round: int
    seat: Seat
    shares: Digest
    envelope: Digest | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class SharesClosed:
    """These sites' seeds can be given back: each masks with those of them that are its
    neighbours, and trains."""

    KIND = 84
    round: int
    seats: Seats
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ConsentReceived:
    """A member signed who is in the sum and who is not, as it was told."""

    KIND = 87
    round: int
    seat: Seat
    signature: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class ConsentsClosed:
    """These members signed the same split, and are two thirds of all who gave keys. No other split
    can have as many, unless a third of all sign both: so members answer by this one."""

    KIND = 88
    round: int
    seats: Seats
    deadline_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    """A member gave of every other one the share that the split allows."""

    KIND = 85
    round: int
    seat: Seat
    answer: Digest
    envelope: Digest | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class AnswersClosed:
    """With the answers of these members the masks can be taken off the sum."""

    KIND = 86
    round: int
    seats: Seats
    at_ms: int


MaskedRoundFact = (
    KeysReceived
    | KeysClosed
    | SharesReceived
    | SharesClosed
    | ConsentReceived
    | ConsentsClosed
    | AnswerReceived
    | AnswersClosed
)

"""Hashes of RFC 6962, section 2.1: a leaf and an inner node can never be confused."""

from __future__ import annotations

from hashlib import sha256

_LEAF = b"\x00"


def leaf_hash(record: bytes) -> bytes:
    """The hash of one log record as a leaf of the Merkle tree."""
    return sha256(_LEAF + record).digest()

"""The Merkle tree over a log, with the hashes of complete blocks kept in a cache.

Every 256 leaves, every 256 × 256, and so on have one hash, kept 256 to a *tile*. With
them a proof reads a few tiles and at most one block of records, whatever the log's size.
The cache may vanish: the hashes are then computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Protocol

from consortium.ledger.merkle import (
    consistency_proof,
    fold,
    inclusion_proof,
    leaf_hash,
    root,
)

_BITS = 8
_WIDTH = 1 << _BITS
_HASH_BYTES = 32


class Records(Protocol):
    """The part of a log that a tree reads."""

    def read(self, stream: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...


class Cache(Protocol):
    """Where hashes are kept that could be computed again."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...


class Tree:
    """The tree over one stream."""

    def __init__(self, log: Records, stream: str, cache: Cache) -> None:
        self._log, self._stream, self._cache = log, stream, cache

    def root(self, size: int) -> bytes:
        return root(size, self._hash)

    def inclusion_proof(self, index: int, size: int) -> tuple[bytes, ...]:
        return inclusion_proof(index, size, self._hash)

    def consistency_proof(self, old: int, new: int) -> tuple[bytes, ...]:
        return consistency_proof(old, new, self._hash)

    def _hash(self, level: int, index: int) -> bytes:
        """The hash of a complete subtree, from leaves or from the blocks just below it."""
        extra = level % _BITS
        first, count = index << extra, 1 << extra
        if level < _BITS:
            return fold(self._leaves(first, first + count))
        return fold(self._blocks(level - extra, first, count))

    def _leaves(self, start: int, stop: int) -> list[bytes]:
        return [leaf_hash(record) for record in self._log.read(self._stream, start, stop)]

    def _blocks(self, level: int, first: int, count: int) -> list[bytes]:
        """Hashes of `count` blocks of 2**level leaves; they never cross a tile's border."""
        key = f"tile/{self._stream}/{level}/{first // _WIDTH}"
        stored = _unsealed(self._cache.get(key) or b"")
        at = first % _WIDTH
        known = [
            stored[start : start + _HASH_BYTES] for start in range(0, len(stored), _HASH_BYTES)
        ]
        missing = range(len(known), at + count)
        start = first - at
        known += [self._block(level, start + number) for number in missing]
        if missing:
            body = b"".join(known)
            self._cache.put(key, _seal(body) + body)
        return known[at : at + count]

    def _block(self, level: int, index: int) -> bytes:
        first = index << _BITS
        if level == _BITS:
            return fold(self._leaves(first, first + _WIDTH))
        return fold(self._blocks(level - _BITS, first, _WIDTH))


def _seal(body: bytes) -> bytes:
    return sha256(b"consortium/tile/v1\0" + body).digest()


def _unsealed(stored: bytes) -> bytes:
    """A tile's hashes, or nothing: a cache that lies must not make a coordinator sign."""
    seal, body = stored[:_HASH_BYTES], stored[_HASH_BYTES:]
    return body if seal == _seal(body) else b""

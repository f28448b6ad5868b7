"""Storage in ten calls, and a cache. What passes `consortium.testing.conformance` is a backend.

`Log`: one stream a federation; positions count from zero. `Blobs`: bytes under their
SHA-256, in one piece or, where they are large, in parts. Both are synchronous, and both may
be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from consortium.core.ids import Digest


class Log(Protocol):
    """Append-only streams of records."""

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        """Make all `records` durable, or none, and return the stream's new length.

        Raises `ConflictError` and writes nothing unless the stream's length is `expected`.
        """
        ...

    def read(self, stream: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The records from `start` to `stop`, or to the end as it is now. An unknown stream
        is empty."""
        ...

    def follow(self, stream: str, start: int, timeout_s: float) -> int:
        """Wait until the stream is longer than `start`, or the time is over; its length."""
        ...


class Cache(Protocol):
    """What may be forgotten at any time, because it can be computed again."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, value: bytes) -> None: ...


class BlobWriter(Protocol):
    """A blob that is being written in parts, in any order and from several threads."""

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Put bytes into their place. A part that is never written is zero."""
        ...

    def finish(self) -> Digest:
        """Make the whole durable under its digest, as `put` does. Called once, and last."""
        ...


class Blobs(Protocol):
    """Content-addressed bytes."""

    def put(self, data: bytes) -> Digest:
        """Make `data` durable under its digest. The same bytes again cost nothing."""
        ...

    def writer(self) -> AbstractContextManager[BlobWriter]:
        """Write a blob in parts. What is not finished when the block is left is forgotten."""
        ...

    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        """The bytes, or a slice of them. Raises `MissingBlobError`; for the whole, also
        `CorruptBlobError`. A slice is not compared with anything: see `check`."""
        ...

    def size(self, digest: Digest) -> int:
        """How many bytes there are. Raises `MissingBlobError`."""
        ...

    def check(self, digest: Digest) -> None:
        """Compare the bytes with their digest, without holding them all. Raises
        `MissingBlobError` and `CorruptBlobError`."""
        ...

    def has(self, digest: Digest) -> bool: ...

    def drop(self, digest: Digest) -> None:
        """Forget the bytes. Dropping what is not there is no error."""
        ...

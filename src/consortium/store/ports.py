"""Storage in seven calls, and a cache. What passes `consortium.testing.conformance` is a backend.

`Log`: one stream a federation; positions count from zero. `Blobs`: bytes under their
SHA-256. Both are synchronous, and both may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Blobs(Protocol):
    """Content-addressed bytes."""

    def put(self, data: bytes) -> Digest:
        """Make `data` durable under its digest. The same bytes again cost nothing."""
        ...

    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        """The bytes, or a slice of them. Raises `MissingBlobError`."""
        ...

    def has(self, digest: Digest) -> bool: ...

    def drop(self, digest: Digest) -> None:
        """Forget the bytes. Dropping what is not there is no error."""
        ...

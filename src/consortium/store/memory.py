"""The store that forgets: for simulation and tests. Nothing survives the process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock

from consortium.core.ids import Digest
from consortium.errors import ConflictError, MissingBlobError
from consortium.model import digest_of


class MemoryLog:
    """Streams in lists."""

    def __init__(self) -> None:
        self._streams: dict[str, list[bytes]] = {}
        self._changed = Condition()

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        with self._changed:
            held = self._streams.setdefault(stream, [])
            if len(held) != expected:
                raise ConflictError(f"the stream has {len(held)} records, not {expected}")
            held.extend(records)
            self._changed.notify_all()
            return len(held)

    def read(self, stream: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        # A copy: what is appended while the caller iterates is not part of this reading.
        return iter(self._streams.get(stream, [])[start:stop])

    def follow(self, stream: str, start: int, timeout_s: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._length(stream) > start, timeout_s)
            return self._length(stream)

    def _length(self, stream: str) -> int:
        return len(self._streams.get(stream, []))


class MemoryBlobs:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self._blobs: dict[Digest, bytes] = {}
        self._lock = Lock()

    def put(self, data: bytes) -> Digest:
        digest = digest_of(data)
        with self._lock:
            self._blobs.setdefault(digest, bytes(data))
        return digest

    @contextmanager
    def writer(self) -> Iterator[_MemoryWriter]:
        yield _MemoryWriter(self)

    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        with self._lock:
            data = self._blobs.get(digest)
        if data is None:
            raise MissingBlobError(f"no blob {digest.hex()[:16]}…")
        if start == 0 and size is None:
            return data
        return data[start:] if size is None else data[start : start + size]

    def size(self, digest: Digest) -> int:
        return len(self.get(digest))

    def check(self, digest: Digest) -> None:
        self.get(digest)  # it is there; nobody can have changed its bytes

    def has(self, digest: Digest) -> bool:
        with self._lock:
            return digest in self._blobs

    def drop(self, digest: Digest) -> None:
        with self._lock:
            self._blobs.pop(digest, None)


class _MemoryWriter:
    """The parts of one blob, put together in memory."""

    def __init__(self, blobs: MemoryBlobs) -> None:
        self._blobs, self._data, self._lock = blobs, bytearray(), Lock()

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        with self._lock:
            missing = offset + len(data) - len(self._data)
            if missing > 0:
                self._data.extend(bytes(missing))
            self._data[offset : offset + len(data)] = data

    def finish(self) -> Digest:
        return self._blobs.put(bytes(self._data))


class MemoryCache:
    """A cache in a dictionary."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._values[key] = value

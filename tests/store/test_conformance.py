"""Every backend passes the one conformance suite, and the suite finds broken stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from consortium.core.ids import Digest
from consortium.ledger.merkle import leaf_hash
from consortium.store.memory import MemoryBlobs, MemoryCache, MemoryLog
from consortium.testing.conformance import BLOB_CHECKS, CACHE_CHECKS, LOG_CHECKS


@pytest.mark.parametrize("check", LOG_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [MemoryLog])
def test_log(make: Callable[[], MemoryLog], check: Callable[..., None]) -> None:
    check(make)  # raises AssertionError with a sentence


@pytest.mark.parametrize("check", BLOB_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [MemoryBlobs])
def test_blobs(make: Callable[[], MemoryBlobs], check: Callable[..., None]) -> None:
    check(make)  # raises AssertionError with a sentence


@pytest.mark.parametrize("check", CACHE_CHECKS, ids=lambda check: check.__name__)
def test_cache(check: Callable[..., None]) -> None:
    check(MemoryCache)  # raises AssertionError with a sentence


class IgnoresPosition(MemoryLog):
    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        return super().append(stream, sum(1 for _ in self.read(stream)), records)


class WritesBeforeItChecks(MemoryLog):
    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        self._streams.setdefault(stream, []).extend(records[1:])
        return super().append(stream, expected + len(records[1:]), records[:1])


class OneStream(MemoryLog):
    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        return super().append("all", expected, records)

    def read(self, stream: str, start: int = 0) -> Iterator[bytes]:
        return super().read("all", start)


class ReadsOn(MemoryLog):
    def read(self, stream: str, start: int = 0) -> Iterator[bytes]:
        at = start
        while at < len(self._streams.get(stream, [])):
            yield self._streams[stream][at]
            at += 1


class NeverWakes(MemoryLog):
    def follow(self, stream: str, start: int, timeout_s: float) -> int:
        return start


@pytest.mark.parametrize(
    "broken", [IgnoresPosition, WritesBeforeItChecks, OneStream, ReadsOn, NeverWakes]
)
def test_the_suite_finds_a_broken_log(broken: type[MemoryLog]) -> None:
    failures = 0
    for check in LOG_CHECKS:
        try:
            check(broken)
        except Exception:
            failures += 1
    assert failures > 0


class Forgets(MemoryBlobs):
    def put(self, data: bytes) -> Digest:
        digest = super().put(data)
        self.drop(digest)
        return digest


class KeepsDropped(MemoryBlobs):
    def drop(self, digest: Digest) -> None:
        pass


class EmptyForMissing(MemoryBlobs):
    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        return super().get(digest, start, size) if self.has(digest) else b""


class NoSlices(MemoryBlobs):
    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        return super().get(digest)


class SizeOfAPage(MemoryBlobs):
    def size(self, digest: Digest) -> int:
        return -(-super().size(digest) // 4096) * 4096


class Appends(MemoryBlobs):
    """Takes the parts of a blob as they come."""

    @contextmanager
    def writer(self) -> Iterator[Any]:
        with super().writer() as real:
            lengths: list[int] = []

            def write_at(offset: int, data: bytes) -> None:
                real.write_at(sum(lengths), data)
                lengths.append(len(data))

            yield SimpleNamespace(write_at=write_at, finish=real.finish)


class KeepsUnfinished(MemoryBlobs):
    @contextmanager
    def writer(self) -> Iterator[Any]:
        with super().writer() as real:
            try:
                yield real
            finally:
                real.finish()


@pytest.mark.parametrize(
    "broken",
    [
        Forgets,
        KeepsDropped,
        EmptyForMissing,
        NoSlices,
        SizeOfAPage,
        Appends,
        KeepsUnfinished,
    ],
)
def test_the_suite_finds_a_broken_blob_store(broken: type[MemoryBlobs]) -> None:
    failures = 0
    for check in BLOB_CHECKS:
        try:
            check(broken)
        except Exception:
            failures += 1
    assert failures > 0


def test_the_leaf_hash_is_that_of_rfc_6962() -> None:
    # The empty leaf, from the test vectors of Certificate Transparency.
    expected = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert leaf_hash(b"").hex() == expected

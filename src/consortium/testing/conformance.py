"""What every log and every blob store must do, as one suite for all backends.

Use it from pytest: `@pytest.mark.parametrize("check", LOG_CHECKS)` and call
`check(make)`, where `make()` gives a fresh, empty store. Each check raises
`AssertionError` with a sentence when the store is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from consortium.core.ids import Digest
from consortium.errors import ConflictError, MissingBlobError
from consortium.model import digest_of
from consortium.store.ports import Blobs, Cache, Log

MakeLog = Callable[[], Log]
MakeBlobs = Callable[[], Blobs]
MakeCache = Callable[[], Cache]


def appended_records_come_back_in_order(make: MakeLog) -> None:
    log = make()
    assert log.append("a", 0, [b"one", b""]) == 2, "append returns the new length"
    assert log.append("a", 2, [b"three"]) == 3, "append returns the new length"
    assert list(log.read("a")) == [b"one", b"", b"three"], "records come back as they went in"
    assert list(log.read("a", 1)) == [b"", b"three"], "reading starts where it is told"
    assert list(log.read("a", 3)) == [], "reading at the end gives nothing"
    assert list(log.read("a", 0, 2)) == [b"one", b""], "reading stops where it is told"
    assert list(log.read("a", 1, 9)) == [b"", b"three"], "reading stops at the end"


def streams_are_separate(make: MakeLog) -> None:
    log = make()
    log.append("a", 0, [b"x"])
    assert list(log.read("b")) == [], "an unknown stream is empty"
    assert log.append("b", 0, [b"y"]) == 1, "each stream has its own positions"
    assert list(log.read("a")) == [b"x"], "another stream's records stay out"


def wrong_position_is_a_conflict_and_writes_nothing(make: MakeLog) -> None:
    log = make()
    log.append("a", 0, [b"x"])
    for expected in (0, 2):
        try:
            log.append("a", expected, [b"lost", b"lost"])
        except ConflictError:
            pass
        else:
            raise AssertionError("append at a wrong position must raise ConflictError")
    assert list(log.read("a")) == [b"x"], "a conflict writes nothing"


def one_of_many_writers_wins_each_position(make: MakeLog) -> None:
    log = make()
    wins: list[int] = []

    def compete(name: int) -> None:
        for position in range(20):
            try:
                log.append("a", position, [bytes([name])])
            except ConflictError:
                continue
            wins.append(position)

    threads = [threading.Thread(target=compete, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    length = len(list(log.read("a")))
    assert sorted(wins) == list(range(length)), "each position has exactly one winner"


def reading_is_a_snapshot(make: MakeLog) -> None:
    log = make()
    log.append("a", 0, [b"x", b"y"])
    reading = log.read("a")
    assert next(reading) == b"x", "the first record comes first"
    log.append("a", 2, [b"z"])
    assert list(reading) == [b"y"], "a reading ends where the stream ended when it began"


def follow_wakes_when_something_comes(make: MakeLog) -> None:
    log = make()
    assert log.follow("a", 0, 0.01) == 0, "follow returns the length when time is over"
    log.append("a", 0, [b"x"])
    assert log.follow("a", 0, 5.0) == 1, "follow does not wait for what is there"
    writer = threading.Timer(0.02, lambda: log.append("a", 1, [b"y"]))
    writer.start()
    assert log.follow("a", 1, 5.0) == 2, "follow wakes for what comes"
    writer.join()


def blobs_come_back_under_their_digest(make: MakeBlobs) -> None:
    blobs = make()
    for data in (b"", b"some bytes", bytes(range(256)) * 999):
        digest = blobs.put(data)
        assert digest == digest_of(data), "a blob's name is the SHA-256 of its bytes"
        assert blobs.put(data) == digest, "the same bytes again have the same name"
        assert blobs.has(digest), "what was put is there"
        assert blobs.get(digest) == data, "what was put comes back"


def slices_of_blobs_can_be_read(make: MakeBlobs) -> None:
    blobs = make()
    digest = blobs.put(b"0123456789")
    assert blobs.get(digest, 3) == b"3456789", "from an offset to the end"
    assert blobs.get(digest, 3, 4) == b"3456", "a slice"
    assert blobs.get(digest, 0, 2) == b"01", "a slice from the start"
    assert blobs.get(digest, 8, 99) == b"89", "a slice past the end is cut"


def missing_blobs_are_refused(make: MakeBlobs) -> None:
    blobs = make()
    missing = Digest(bytes(32))
    assert not blobs.has(missing), "what was not put is not there"
    for ask in (blobs.get, blobs.size, blobs.check):
        try:
            ask(missing)
        except MissingBlobError:
            continue
        raise AssertionError("asking for a missing blob must raise MissingBlobError")


def blobs_have_a_size_and_can_be_checked(make: MakeBlobs) -> None:
    blobs = make()
    for data in (b"", b"0123456789"):
        digest = blobs.put(data)
        assert blobs.size(digest) == len(data), "the size is that of the bytes"
        blobs.check(digest)


def blobs_can_be_written_in_parts(make: MakeBlobs) -> None:
    blobs = make()
    with blobs.writer() as writer:
        writer.write_at(6, memoryview(b"6789"))
        writer.write_at(0, b"0123")
        writer.write_at(1, b"X")
        digest = writer.finish()
    assert blobs.get(digest) == b"0X23\x00\x006789", "every part is in its place"
    assert digest == digest_of(blobs.get(digest)), "the name is the SHA-256 of all parts"
    with blobs.writer() as writer:
        assert writer.finish() == digest_of(b""), "a blob may be empty"
    blobs.put(b"twice")
    with blobs.writer() as writer:
        writer.write_at(0, b"twice")
        assert blobs.get(writer.finish()) == b"twice", "the same bytes again are no error"


def parts_may_come_from_several_threads(make: MakeBlobs) -> None:
    blobs = make()
    with blobs.writer() as writer:
        parts = [(place * 1000, bytes([place]) * 1000) for place in range(8)]
        threads = [threading.Thread(target=writer.write_at, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        digest = writer.finish()
    assert blobs.get(digest) == b"".join(data for _, data in parts), "no part is lost"


def what_is_not_finished_is_forgotten(make: MakeBlobs) -> None:
    blobs = make()
    with blobs.writer() as writer:
        writer.write_at(0, b"half")
    try:
        with blobs.writer() as writer:
            writer.write_at(0, b"half")
            raise KeyError("something else went wrong")
    except KeyError:
        pass
    assert not blobs.has(digest_of(b"half")), "only what was finished is stored"


def dropped_blobs_are_gone(make: MakeBlobs) -> None:
    blobs = make()
    kept, dropped = blobs.put(b"kept"), blobs.put(b"dropped")
    blobs.drop(dropped)
    blobs.drop(dropped)
    assert blobs.has(kept) and not blobs.has(dropped), "only what was dropped is gone"
    assert blobs.get(blobs.put(b"dropped")) == b"dropped", "a dropped blob can come back"


def cached_values_come_back_or_are_gone(make: MakeCache) -> None:
    cache = make()
    assert cache.get("a") is None, "what was not put is not there"
    cache.put("a", b"one")
    cache.put("a", b"two")
    assert cache.get("a") in (b"two", None), "the last value, or nothing"


LOG_CHECKS: tuple[Callable[[MakeLog], None], ...] = (
    appended_records_come_back_in_order,
    streams_are_separate,
    wrong_position_is_a_conflict_and_writes_nothing,
    one_of_many_writers_wins_each_position,
    reading_is_a_snapshot,
    follow_wakes_when_something_comes,
)
BLOB_CHECKS: tuple[Callable[[MakeBlobs], None], ...] = (
    blobs_come_back_under_their_digest,
    slices_of_blobs_can_be_read,
    missing_blobs_are_refused,
    blobs_have_a_size_and_can_be_checked,
    blobs_can_be_written_in_parts,
    parts_may_come_from_several_threads,
    what_is_not_finished_is_forgotten,
    dropped_blobs_are_gone,
)
CACHE_CHECKS: tuple[Callable[[MakeCache], None], ...] = (cached_values_come_back_or_are_gone,)

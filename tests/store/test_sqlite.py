"""The durable stores: conformance, two processes, full disks, damage."""

from __future__ import annotations

import errno
import io
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from consortium.core.ids import Digest
from consortium.errors import (
    ConflictError,
    CorruptBlobError,
    CorruptStoreError,
    MissingBlobError,
    StoreFailedError,
)
from consortium.model import digest_of
from consortium.store import files, sqlite
from consortium.store.cache import SqliteCache
from consortium.store.files import FileBlobs, write_durably
from consortium.store.sqlite import SqliteLog
from consortium.testing.conformance import BLOB_CHECKS, CACHE_CHECKS, LOG_CHECKS


class Fresh:
    """Makes a new store at every call."""

    def __init__(self, kind: Any, folder: Path) -> None:
        self._kind, self._folder, self._count = kind, folder, 0

    def __call__(self) -> Any:
        self._count += 1
        return self._kind(self._folder / f"store-{self._count}")


@pytest.mark.parametrize("check", LOG_CHECKS, ids=lambda check: check.__name__)
def test_log(check: Any, tmp_path: Path) -> None:
    check(Fresh(SqliteLog, tmp_path))  # raises AssertionError with a sentence


@pytest.mark.parametrize("check", BLOB_CHECKS, ids=lambda check: check.__name__)
def test_blobs(check: Any, tmp_path: Path) -> None:
    check(Fresh(FileBlobs, tmp_path))  # raises AssertionError with a sentence


@pytest.mark.parametrize("check", CACHE_CHECKS, ids=lambda check: check.__name__)
def test_cache(check: Any, tmp_path: Path) -> None:
    check(Fresh(SqliteCache, tmp_path))  # raises AssertionError with a sentence


# ---- the log ------------------------------------------------------------------------


def test_what_was_appended_is_there_in_another_process(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    log.append("a", 0, [b"one"])
    script = (
        "import sys, pathlib; from consortium.store.sqlite import SqliteLog\n"
        "log = SqliteLog(pathlib.Path(sys.argv[1])); print(list(log.read('a')))\n"
        "log.append('a', 1, [b'two'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")], capture_output=True, text=True
    )
    assert done.stdout.strip() == "[b'one']", done.stderr
    assert list(log.read("a")) == [b"one", b"two"]
    with pytest.raises(ConflictError):
        log.append("a", 1, [b"lost"])
    assert log.streams() == ["a"]
    log.close()


def test_follow_sees_what_another_writer_appends(tmp_path: Path) -> None:
    log, other = SqliteLog(tmp_path / "log"), SqliteLog(tmp_path / "log")
    writer = threading.Timer(0.1, lambda: other.append("a", 0, [b"x"]))
    writer.start()
    assert log.follow("a", 0, 5.0) == 1
    writer.join()


def test_waiting_appends_share_a_commit(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    commits: list[str] = []
    log._connection.set_trace_callback(
        lambda statement: commits.append(statement) if statement == "COMMIT" else None
    )
    log._writer.acquire()  # a commit is under way …
    threads = [
        threading.Thread(target=log.append, args=(f"s{number}", 0, [b"x"])) for number in range(20)
    ]
    for thread in threads:
        thread.start()
    while len(log._queue) < 20:
        time.sleep(0.001)
    log._writer.release()  # … and all who came meanwhile go together
    for thread in threads:
        thread.join()
    assert len(log.streams()) == 20
    assert len(commits) == 1


def test_a_large_stream_is_read_in_parts(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    records = [b"%d" % number for number in range(2500)]
    log.append("a", 0, records)
    assert list(log.read("a")) == records


def test_a_missing_record_is_damage(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    log.append("a", 0, [b"one", b"two", b"three"])
    with sqlite3.connect(tmp_path / "log") as connection:
        connection.execute("DELETE FROM records WHERE position = 1")
    with pytest.raises(CorruptStoreError, match="record 1 of a is missing"):
        list(log.read("a", 1))
    with pytest.raises(CorruptStoreError):
        list(log.read("a"))


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"this is not a database, but it is long enough" * 100)
    with pytest.raises(CorruptStoreError):
        SqliteLog(tmp_path / "log")


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    log.append("a", 0, [bytes(3000)] * 50)
    log.close()
    data = bytearray((tmp_path / "log").read_bytes())
    data[4096 * 3 : 4096 * 3 + 64] = b"\xff" * 64
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(CorruptStoreError):
        SqliteLog(tmp_path / "log").check_integrity()


def test_a_sound_log_passes_its_integrity_check(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    log.append("a", 0, [b"one"])
    assert log.check_integrity() is None  # type: ignore[func-returns-value]


def test_text_out_of_a_damaged_schema_is_damage() -> None:
    with pytest.raises(CorruptStoreError, match="not text"), sqlite._failures(Path("log")):
        b"\xff".decode()


def test_another_format_is_refused(tmp_path: Path) -> None:
    SqliteLog(tmp_path / "log").close()
    with sqlite3.connect(tmp_path / "log") as connection:
        connection.execute("PRAGMA user_version=7")
    with pytest.raises(StoreFailedError, match="format 7"):
        SqliteLog(tmp_path / "log")


def test_a_disk_without_promises_is_refused() -> None:
    with pytest.raises(StoreFailedError, match="cannot keep promises"):
        SqliteLog(Path(":memory:"))


def test_a_full_disk_is_a_clean_refusal_and_the_log_goes_on(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    log.append("a", 0, [b"one"])
    pages = log._connection.execute("PRAGMA page_count").fetchone()[0]
    log._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreFailedError, match="full"):
        log.append("a", 1, [bytes(100_000)])
    log._connection.execute("PRAGMA max_page_count=1000000")
    assert list(log.read("a")) == [b"one"]
    assert log.append("a", 1, [b"two"]) == 2


def test_a_record_that_cannot_be_written_is_rolled_back(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    with pytest.raises(StoreFailedError):
        log.append("a", 0, [b"one", None])  # type: ignore[list-item]
    assert list(log.read("a")) == []
    assert log.append("a", 0, [b"one"]) == 1


def test_a_commit_that_fails_is_not_acknowledged(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    log._connection.close()
    with pytest.raises((StoreFailedError, sqlite3.ProgrammingError)):
        log.append("a", 0, [b"one"])


def test_a_file_that_stays_busy_is_not_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SqliteLog(tmp_path / "log")
    log.append("a", 0, [b"one"])
    reader = sqlite3.connect(tmp_path / "log", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM records").fetchall()
    log.append("a", 1, [b"two"])
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.05)
    with pytest.raises(StoreFailedError, match="busy"):
        SqliteLog(tmp_path / "log")
    reader.close()


def test_nobody_is_left_behind_by_somebody_elses_mistake(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log")
    with pytest.raises(UnicodeEncodeError):
        log.append("\ud800", 0, [b"one"])
    assert log.append("a", 0, [b"one"]) == 1


@pytest.mark.parametrize("row", [("a", 0, "text"), ("a", "zero", b"bytes")])
def test_values_of_another_type_are_damage(tmp_path: Path, row: tuple[Any, ...]) -> None:
    with sqlite3.connect(tmp_path / "log") as connection:
        connection.execute("PRAGMA user_version=1")
        connection.execute("CREATE TABLE records (stream, position, record)")
        connection.execute("INSERT INTO records VALUES (?, ?, ?)", row)
    with pytest.raises(CorruptStoreError):
        list(SqliteLog(tmp_path / "log").read("a"))


# ---- blobs --------------------------------------------------------------------------


def test_a_changed_blob_is_found(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    digest = blobs.put(b"some bytes")
    path = tmp_path / "blobs" / digest.hex()[:2] / digest.hex()[2:]
    path.write_bytes(b"some byteZ")
    with pytest.raises(CorruptBlobError):
        blobs.get(digest)
    assert list(blobs.digests()) == [digest]


def test_a_changed_blob_is_found_without_holding_it(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    digest = blobs.put(b"some bytes")
    blobs.path(digest).write_bytes(b"some byteZ")
    with pytest.raises(CorruptBlobError):
        blobs.check(digest)


def _adopted(blobs: FileBlobs, folder: Path) -> Digest:
    (folder / "file").write_bytes(b"some bytes")
    digest = digest_of(b"some bytes")
    blobs.adopt(folder / "file", digest)
    return digest


def _written(blobs: FileBlobs, _: Path) -> Digest:
    with blobs.writer() as writer:
        writer.write_at(0, b"some bytes")
        return writer.finish()


def _hashed(blobs: FileBlobs, _: Path) -> Digest:
    with blobs.writer() as writer:
        writer.write_at(0, b"some bytes")
        return writer.finish(digest_of(b"some bytes"))


def _checked(blobs: FileBlobs, _: Path) -> Digest:
    digest = blobs.put(b"some bytes")
    blobs.check(digest)
    return digest


@pytest.mark.parametrize("make", [_adopted, _written, _hashed, _checked])
@pytest.mark.parametrize("how", ["in its place", "another file"])
def test_a_blob_is_compared_once_and_again_when_it_was_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, how: str
) -> None:
    blobs, compared = FileBlobs(tmp_path / "blobs"), []
    digest = make(blobs, tmp_path)
    compare = files._compare
    monkeypatch.setattr(files, "_compare", lambda *of: (compared.append(of), compare(*of)))
    blobs.check(digest)
    assert not compared
    FileBlobs.existing(tmp_path / "blobs").check(digest)  # an auditor relies on nobody
    assert len(compared) == 1
    time.sleep(0.02)  # older systems tell times in steps of some milliseconds
    if how == "in its place":
        blobs.path(digest).write_bytes(b"some byteZ")
    else:
        (tmp_path / "other").write_bytes(b"some byteZ")
        (tmp_path / "other").rename(blobs.path(digest))
    with pytest.raises(CorruptBlobError):
        blobs.check(digest)


@pytest.mark.parametrize("make", [_adopted, _written])
def test_a_damaged_blob_is_replaced(tmp_path: Path, make: Any) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    digest = blobs.put(b"some bytes")
    blobs.path(digest).write_bytes(b"some byteZ")
    assert make(blobs, tmp_path) == digest
    blobs.check(digest)
    assert blobs.get(digest) == b"some bytes"


def test_a_file_that_takes_the_place_of_the_compared_one_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can put another file there between the comparison and the rename."""
    blobs, fsync = FileBlobs(tmp_path / "blobs"), os.fsync
    file, digest = tmp_path / "file", digest_of(b"some bytes")
    file.write_bytes(b"some bytes")

    def swap(handle: int) -> None:
        fsync(handle)
        if file.exists():
            file.unlink()
            file.write_bytes(b"some byteZ")

    monkeypatch.setattr(files.os, "fsync", swap)
    blobs.adopt(file, digest)
    with pytest.raises(CorruptBlobError):
        blobs.check(digest)


def test_memory_of_what_was_compared_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MOST_COMPARED", 3)
    blobs = FileBlobs(tmp_path / "blobs")
    for number in range(9):
        blobs.check(blobs.put(bytes([number])))
    assert len(blobs._compared) == 3


def test_a_blob_may_be_read_and_written_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, pwrite = FileBlobs(tmp_path / "blobs"), os.pwrite
    monkeypatch.setattr(files.os, "pwrite", lambda handle, data, at: pwrite(handle, data[:3], at))
    with blobs.writer() as writer:
        writer.write_at(0, b"0123456789")
        digest = writer.finish()
    assert blobs.get(digest) == b"0123456789"

    class Slow(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(3 if size is None or size > 3 else size)

    with Slow(blobs.path(digest)) as file:
        assert files._read(file, 8) == b"01234567"
        assert files._read(file, 8) == b"89"


def left_in(folder: Path) -> list[Path]:
    return list((folder / "incoming").iterdir())


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_blob_that_cannot_be_written_in_parts_leaves_nothing_behind(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path / "blobs")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write() -> None:
        with blobs.writer() as writer:
            writer.write_at(0, b"some bytes")
            writer.finish()

    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises(StoreFailedError, match="No space"):
        write()
    assert not blobs.has(digest_of(b"some bytes"))
    assert left_in(tmp_path / "blobs") == []


def test_a_blob_has_its_bytes_before_its_name_and_its_name_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, calls = FileBlobs(tmp_path / "blobs"), []
    upload = tmp_path / "upload"
    upload.write_bytes(b"an upload")
    fsync, rename = os.fsync, Path.rename

    def sync(handle: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def name(path: Path, target: Path) -> Path:
        calls.append("rename")
        return rename(path, target)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", name)
    with blobs.writer() as writer:
        writer.write_at(0, b"some bytes")
        writer.finish()
    assert calls == ["file", "rename", "folder"]
    blobs.adopt(upload, digest_of(b"an upload"))
    assert calls[3:] == ["file", "rename", "folder"]


def test_a_finished_file_becomes_a_blob(tmp_path: Path) -> None:
    blobs, upload = FileBlobs(tmp_path / "blobs"), tmp_path / "upload"
    digest = digest_of(b"some bytes")
    upload.write_bytes(b"some bytes")
    blobs.adopt(upload, digest)
    assert blobs.get(digest) == b"some bytes" == blobs.path(digest).read_bytes()
    assert not upload.exists()
    blobs.adopt(upload, digest)  # as after a crash before the reply
    upload.write_bytes(b"some bytes")
    blobs.adopt(upload, digest)
    assert not upload.exists()
    assert blobs.get(digest) == b"some bytes"


def test_a_file_that_was_compared_while_it_was_written_is_not_read_again(tmp_path: Path) -> None:
    blobs, upload = FileBlobs(tmp_path / "blobs"), tmp_path / "upload"
    upload.write_bytes(b"other bytes")
    digest = digest_of(b"some bytes")
    blobs.adopt(upload, digest, is_compared=True)
    with pytest.raises(CorruptBlobError):  # who reads all of it, notices
        blobs.get(digest)


def test_a_mapped_blob_is_read_where_it_lies(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    digest = blobs.put(b"some bytes")
    with blobs.mapped(digest) as data:
        assert data[:] == b"some bytes"
    blobs.drop(digest)
    with pytest.raises(MissingBlobError):
        blobs.mapped(digest)


def test_a_file_with_other_bytes_is_not_adopted_and_stays(tmp_path: Path) -> None:
    blobs, upload = FileBlobs(tmp_path / "blobs"), tmp_path / "upload"
    upload.write_bytes(b"some byteZ")
    with pytest.raises(CorruptBlobError):
        blobs.adopt(upload, digest_of(b"some bytes"))
    assert upload.exists()
    assert not blobs.has(digest_of(b"some bytes"))
    with pytest.raises(MissingBlobError):
        blobs.adopt(tmp_path / "nowhere", digest_of(b"some bytes"))


def test_readers_change_nothing(tmp_path: Path) -> None:
    digest = FileBlobs(tmp_path / "blobs").put(b"some bytes")
    (tmp_path / "blobs" / "incoming" / "half").write_bytes(b"half")
    blobs = FileBlobs.existing(tmp_path / "blobs")
    assert blobs.get(digest) == b"some bytes"
    assert (tmp_path / "blobs" / "incoming" / "half").exists()


def test_a_start_removes_what_a_crash_left(tmp_path: Path) -> None:
    FileBlobs(tmp_path / "blobs")
    (tmp_path / "blobs" / "incoming" / "half").write_bytes(b"half")
    present = tmp_path / "blobs" / "incoming" / f"half.{os.getpid()}.new"
    present.write_bytes(b"half")
    FileBlobs(tmp_path / "blobs")
    assert not (tmp_path / "blobs" / "incoming" / "half").exists()
    assert present.exists()  # somebody is writing it


def test_a_file_that_somebody_writes_is_left_alone(tmp_path: Path) -> None:
    names = {f"a.{os.getpid()}.new": False, "a.1.new": False, f"a.{2**22 + 1}.new": True, "a": True}
    for name, is_left in names.items():
        (tmp_path / name).touch()
        assert files.is_abandoned(tmp_path / name) is is_left, name
    os.utime(tmp_path / f"a.{os.getpid()}.new", (0, 0))
    assert files.is_abandoned(tmp_path / f"a.{os.getpid()}.new")
    assert files.is_abandoned(tmp_path / "gone.1.new")


def test_a_running_process_of_somebody_else_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(files.os, "kill", refuse)
    assert files._is_running(1)


def test_a_file_of_another_name_is_found(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    (tmp_path / "blobs" / "ab" / "notes.txt").write_text("x")
    with pytest.raises(CorruptBlobError):
        list(blobs.digests())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = FileBlobs(tmp_path / "blobs")

    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", fail)
        with pytest.raises(StoreFailedError, match=os.strerror(number)):
            blobs.put(b"some bytes")
    assert not blobs.has(digest_of(b"some bytes"))
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []
    assert blobs.get(blobs.put(b"some bytes")) == b"some bytes"


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingBlobError, match="no blob 0707"):
        FileBlobs(tmp_path / "blobs").get(Digest(bytes([7]) * 32))


def test_a_small_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_durably(tmp_path / "notes" / "a", b"one")
    write_durably(tmp_path / "notes" / "a", b"two")
    assert (tmp_path / "notes" / "a").read_bytes() == b"two"
    assert len(list((tmp_path / "notes").iterdir())) == 1


# ---- the cache ----------------------------------------------------------------------


def test_a_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    cache = SqliteCache(tmp_path / "cache")
    cache.put("a", b"one")
    cache.close()
    (tmp_path / "cache").write_bytes(b"not a database at all, whatever its name" * 200)
    again = SqliteCache(tmp_path / "cache")
    assert again.get("a") is None
    again.put("a", b"two")
    assert again.get("a") == b"two"


def test_a_cache_that_cannot_be_had_does_without(tmp_path: Path) -> None:
    cache = SqliteCache(tmp_path / "nowhere" / "cache")
    cache.put("a", b"one")
    assert cache.get("a") in (b"one", None)
    cache.close()
    assert cache.get("a") is None
    assert cache.put("a", b"one") is None  # type: ignore[func-returns-value]

"""The durable log: one SQLite file, write-ahead logging, every commit forced to the disk.

`synchronous=FULL` is asserted, because NORMAL loses acknowledged commits in a power cut.
Appends that arrive together share one commit: whoever gets the lock writes for all who
wait, so fifty appends cost little more than one. Several processes may open the same
file: the position is checked inside the transaction, and the loser gets a conflict.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from consortium.errors import ConflictError, CorruptStoreError, StoreError, StoreFailedError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    stream TEXT NOT NULL, position INTEGER NOT NULL, record BLOB NOT NULL,
    PRIMARY KEY (stream, position)
) WITHOUT ROWID, STRICT;
"""
_FORMAT = 1  # PRAGMA user_version
_BUSY_S = 30.0
_POLL_S = 0.2  # how soon `follow` sees what another process appended
_READ_ROWS = 1000
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")


class _Request:
    """One append that waits for its commit."""

    def __init__(self, stream: str, expected: int, records: Sequence[bytes]) -> None:
        self.stream, self.expected, self.records = stream, expected, records
        self.length: int | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.length is not None or self.error is not None


class SqliteLog:
    """Streams of records in one file."""

    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        self._path = path
        self._writer = threading.Lock()
        self._queue: list[_Request] = []
        self._queue_lock = threading.Lock()
        self._changed = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._connections: list[sqlite3.Connection] = []
        with _failures(path):
            self._connection = self._connect()
            self._prepare(synchronous)
            self._force()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._connections.append(connection)
        return connection

    def _prepare(self, synchronous: str) -> None:
        run = self._connection.execute
        mode = run("PRAGMA journal_mode=WAL").fetchone()[0]
        run(f"PRAGMA synchronous={synchronous}")
        level = run("PRAGMA synchronous").fetchone()[0]
        if mode != "wal" or (synchronous == "FULL" and level != 2):
            raise StoreFailedError(
                f"the file system of {self._path} cannot keep promises: "
                f"journal_mode={mode}, synchronous={level}",
                hint="put the data directory on a local disk",
            )
        version = run("PRAGMA user_version").fetchone()[0]
        if version not in (0, _FORMAT):
            raise StoreFailedError(
                f"{self._path} has format {version}; this version reads {_FORMAT}",
                hint="use the version of consortium that wrote it, or a newer one",
            )
        if version == 0:
            run("BEGIN IMMEDIATE")
            run(_SCHEMA)
            run(f"PRAGMA user_version={_FORMAT}")
            run("COMMIT")

    def _force(self) -> None:
        """Force what is there to the disk before anybody relies on it: a process that died
        inside a commit may have left records that can be read and are on no disk."""
        if self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0]:
            raise StoreFailedError(f"{self._path} is busy", hint="try again")

    # ---- appending ------------------------------------------------------------------

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        """Durable when it returns. An error other than `ConflictError` leaves it open
        whether the records were written; a later append at the same position tells."""
        request = _Request(stream, expected, records)
        with self._queue_lock:
            self._queue.append(request)
        with self._writer:
            if not request.is_done:
                self._commit_waiting()
        if request.error is not None:
            raise request.error
        assert request.length is not None
        return request.length

    def _commit_waiting(self) -> None:
        """Write for everybody who waits, in one transaction."""
        with self._queue_lock:
            group, self._queue = self._queue, []
        try:
            with _failures(self._path):
                self._connection.execute("BEGIN IMMEDIATE")
                lengths = [self._write(request) for request in group]
                self._connection.execute("COMMIT")
        except BaseException as error:  # whatever it is, nobody who waits may be left behind
            self._roll_back()
            for request in group:
                request.error = error
            if isinstance(error, StoreError):
                return
            raise
        for request, length in zip(group, lengths, strict=True):
            request.length = length
        with self._changed:
            self._changed.notify_all()

    def _write(self, request: _Request) -> int | None:
        length = self._length(self._connection, request.stream)
        if length != request.expected:
            request.error = ConflictError(
                f"the stream has {length} records, not {request.expected}"
            )
            return None
        rows = [
            (request.stream, position, record)
            for position, record in enumerate(request.records, start=length)
        ]
        self._connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
        return length + len(rows)

    def _roll_back(self) -> None:
        """After a failed commit SQLite may or may not have ended the transaction itself."""
        if self._connection.in_transaction:
            with _failures(self._path):
                self._connection.execute("ROLLBACK")

    # ---- reading --------------------------------------------------------------------

    def read(self, stream: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        with _failures(self._path), self._reader() as reader:
            end = self._length(reader, stream)
        return self._rows(stream, start, end if stop is None else min(stop, end))

    def _rows(self, stream: str, start: int, end: int) -> Iterator[bytes]:
        query = (
            "SELECT position, record FROM records "
            "WHERE stream = ? AND position >= ? AND position < ? ORDER BY position LIMIT ?"
        )
        at = start
        while at < end:
            with _failures(self._path), self._reader() as reader:
                rows = reader.execute(query, (stream, at, end, _READ_ROWS)).fetchall()
            if [position for position, _ in rows] != list(range(at, at + len(rows))) or not rows:
                raise CorruptStoreError(f"{self._path}: record {at} of {stream} is missing")
            for _, record in rows:
                if not isinstance(record, bytes):
                    raise CorruptStoreError(f"{self._path}: a record of {stream} is not bytes")
                yield record
            at += len(rows)

    def follow(self, stream: str, start: int, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        while True:
            with _failures(self._path), self._reader() as reader:
                length = self._length(reader, stream)
            left_s = deadline - time.monotonic()
            if length > start or left_s <= 0:
                return length
            with self._changed:  # what comes between the look and the wait, the poll sees
                self._changed.wait(min(left_s, _POLL_S))

    def streams(self) -> list[str]:
        """Every stream in the file."""
        with _failures(self._path), self._reader() as reader:
            rows = reader.execute("SELECT DISTINCT stream FROM records ORDER BY stream")
            return [stream for (stream,) in rows]

    def check_integrity(self) -> None:
        """Raise when SQLite finds its own file damaged, whether a record is or not."""
        with _failures(self._path), self._reader() as reader:
            found = reader.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise CorruptStoreError(f"{self._path.name} is damaged: {found}")

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for one reading; there are as many as ever read at the same time."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        finally:
            self._idle.append(connection)

    @staticmethod
    def _length(connection: sqlite3.Connection, stream: str) -> int:
        query = "SELECT max(position) FROM records WHERE stream = ?"
        last = connection.execute(query, (stream,)).fetchone()[0]
        if last is not None and not isinstance(last, int):
            raise CorruptStoreError(f"a position of {stream} is not a number")
        return 0 if last is None else last + 1


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: a file that is not a database, or a disk that failed."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(_DAMAGE):
            raise CorruptStoreError(f"{path} is damaged: {error}") from None
        raise StoreFailedError(f"{path}: {error}") from None
    except UnicodeDecodeError:  # a name or a message out of a damaged schema
        raise CorruptStoreError(f"{path} is damaged: it has text that is not text") from None

"""One SQLite file with several tables: durable, for several threads and processes.

A write is one transaction that takes SQLite's write lock at its start, so what it has read
still holds when it writes. Readers have a connection of their own: they never wait for a
disk. What is deleted is overwritten, because names must be erasable.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from consortium.errors import CorruptStoreError, StoreFailedError
from consortium.store.files import sync_folder

_BUSY_S, _PAUSE_S = 30.0, 0.005
_BUSY = "SQLITE_BUSY"
_FULL = 2  # what PRAGMA synchronous says
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")


class Database:
    """A file with tables; `schema` makes them, and `version` is their PRAGMA user_version. An
    older file is brought to it: `migrations` has what makes the next version of each."""

    def __init__(
        self,
        path: Path,
        schema: tuple[str, ...],
        version: int,
        migrations: Mapping[int, tuple[str, ...]],
    ) -> None:
        self._path = path
        self._writing, self._reading = threading.Lock(), threading.Lock()
        with self._failures():
            _make_file(path)
            self._writer = self._connect()
            try:
                _patiently(self._journal)
                self._prepare({0: schema, **migrations}, version)
                _patiently(self._force)
                self._reader = self._connect()
            except BaseException:
                self._writer.close()
                raise
            self._reader.execute("PRAGMA query_only=ON")
            sync_folder(path.parent)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA secure_delete=ON")
        return connection

    def _journal(self) -> None:
        run = self._writer.execute
        mode = run("PRAGMA journal_mode=WAL").fetchone()[0]
        run("PRAGMA synchronous=FULL")
        level = run("PRAGMA synchronous").fetchone()[0]
        if mode != "wal" or level != _FULL:
            raise StoreFailedError(
                f"the file system of {self._path} cannot keep promises: "
                f"journal_mode={mode}, synchronous={level}",
                hint="put the data directory on a local disk",
            )

    def _prepare(self, steps: Mapping[int, tuple[str, ...]], version: int) -> None:
        """In one transaction: a file is of the old version or of the new one."""
        run = self._writer.execute
        with self._transaction():
            found = run("PRAGMA user_version").fetchone()[0]
            if found != version and found not in steps:
                raise StoreFailedError(
                    f"{self._path} has format {found}; this version reads {version}",
                    hint="use the version of consortium that wrote it, or a newer one",
                )
            while found != version:
                for statement in steps[found]:
                    run(statement)
                found = found + 1 if found else version
            run(f"PRAGMA user_version={version}")

    def _force(self, mode: str = "FULL") -> None:
        """Force what is there to the disk before anybody relies on it: a process that died
        inside a commit may have left rows that can be read and are on no disk."""
        if self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0]:
            raise _busy()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For queries: what was committed before, by whomever, is seen."""
        with self._reading, self._failures():
            yield self._reader

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """For one transaction: durable when the block has ended, undone when it raises."""
        with self._writing, self._failures(), self._transaction():
            yield self._writer

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:  # a failed commit may have ended it by itself
                self._writer.execute("ROLLBACK")
            raise

    def fold_journal(self) -> None:
        """Leave no copy of what was overwritten in SQLite's journal."""
        with self._writing, self._failures():
            _patiently(lambda: self._force("TRUNCATE"))

    def close(self) -> None:
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """SQLite's errors as ours: a file that is not a database, or a disk that failed."""
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(_DAMAGE):
                raise CorruptStoreError(f"{self._path} is damaged: {error}") from None
            raise StoreFailedError(f"{self._path}: {error}") from None
        except OSError as error:
            raise StoreFailedError(f"{self._path}: {error.strerror}") from None
        except UnicodeDecodeError:  # a name or a message out of a damaged schema
            raise CorruptStoreError(f"{self._path} has text that is not text") from None


def _make_file(path: Path) -> None:
    """With a narrow mode; SQLite gives the journal the same one. Only if it is not there:
    closing a file takes away the locks that this process has on it, SQLite's too."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _busy() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is busy")
    error.sqlite_errorname = _BUSY
    return error


def _patiently(step: Callable[[], None]) -> None:
    """Where SQLite does not wait for other processes by itself: while they open the file, and
    when two fold the journal at once."""
    ends = time.monotonic() + _BUSY_S
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            is_busy = getattr(error, "sqlite_errorname", "").startswith(_BUSY)
            if not is_busy or time.monotonic() > ends:
                raise
        time.sleep(_PAUSE_S)

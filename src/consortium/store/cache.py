"""The cache on disk: fast, and worth nothing. Delete it whenever you like."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

_SCHEMA = "CREATE TABLE IF NOT EXISTS cache (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID"


class SqliteCache:
    """Values in one file, which is made anew when anything is wrong with it. Errors never
    reach the caller: a value that cannot be had is computed again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection = self._open() or self._open_anew()

    def get(self, key: str) -> bytes | None:
        with self._lock:
            try:
                query = "SELECT value FROM cache WHERE key = ?"
                row = self._connection.execute(query, (key,)).fetchone()
            except sqlite3.Error:
                return None
        return row[0] if row and isinstance(row[0], bytes) else None

    def put(self, key: str, value: bytes) -> None:
        with self._lock:
            try:
                self._connection.execute("INSERT OR REPLACE INTO cache VALUES (?, ?)", (key, value))
            except sqlite3.Error:
                return  # a full disk is told of by those who must not fail

    def close(self) -> None:
        self._connection.close()

    def _open(self) -> sqlite3.Connection | None:
        connection = None
        try:
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute(_SCHEMA)
        except sqlite3.Error:
            if connection is not None:
                connection.close()
            return None
        return connection

    def _open_anew(self) -> sqlite3.Connection:
        with suppress(OSError):  # a disk that does not even forget
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return self._open() or sqlite3.connect(":memory:", check_same_thread=False)

"""Bugs that the crash campaigns must find, put into the running process.

A campaign that passes with one of these planted proves nothing by passing without.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from consortium.drive import directory
from consortium.errors import StoreFailedError
from consortium.store import files
from consortium.store.sqlite import SqliteLog


def _nothing() -> None:
    """`early-ack` is the scenario's own: it answers before the fact is durable."""


def _synchronous_normal() -> None:
    """Commits are not forced to the disk one by one."""
    directory.SqliteLog = partial(SqliteLog, synchronous="NORMAL")  # type: ignore[misc,assignment]  # a bug


def _no_directory_fsync() -> None:
    """A renamed file is there until the power goes."""

    def skip(path: Path) -> None:
        return None

    files.sync_folder = skip
    directory.sync_folder = skip  # type: ignore[attr-defined]  # imported there by name


def _no_file_fsync() -> None:
    """A file has its name before it has its bytes."""
    real = os.fsync

    def skip(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            real(handle)

    os.fsync = skip  # type: ignore[assignment]  # a bug


class _TrustingLog(SqliteLog):
    """Takes what a dead process wrote for durable."""

    def _force(self) -> None:
        return None


class _DeafLog(SqliteLog):
    """Takes a failed commit for a good one."""

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        try:
            return super().append(stream, expected, records)
        except StoreFailedError:
            return expected + len(records)


def _deaf_log() -> None:
    directory.SqliteLog = _DeafLog  # type: ignore[misc]  # a bug


def _trusting_log() -> None:
    directory.SqliteLog = _TrustingLog  # type: ignore[misc]  # a bug


PLANTS: dict[str, Callable[[], None]] = {
    "deaf-log": _deaf_log,
    "early-ack": _nothing,
    "no-directory-fsync": _no_directory_fsync,
    "no-file-fsync": _no_file_fsync,
    "synchronous-normal": _synchronous_normal,
    "trusting-log": _trusting_log,
}


def plant(name: str) -> None:
    """Put one bug into this process, for good. No name, no bug."""
    if name:
        PLANTS[name]()

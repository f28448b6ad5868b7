"""Bugs that the crash campaigns must find, put into the running process.

A campaign that passes with one of these planted proves nothing by passing without.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from consortium.drive import directory
from consortium.errors import StoreFailedError
from consortium.store import files
from consortium.store.sqlite import SqliteLog


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


def _replace(module: ModuleType, name: str, value: object) -> None:
    setattr(module, name, value)


def _use_log(make: Callable[..., SqliteLog]) -> Callable[[], None]:
    return lambda: _replace(directory, "SqliteLog", make)


def _skip_folder_syncs() -> None:
    """A renamed file is there until the power goes."""

    def skip(path: Path) -> None:
        return None

    for module in (files, directory):
        _replace(module, "sync_folder", skip)


def _skip_file_syncs() -> None:
    """A file has its name before it has its bytes."""
    sync = os.fsync

    def skip(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            sync(handle)

    _replace(os, "fsync", skip)


def _leave() -> None:
    """The scenario itself answers before the fact is durable."""


PLANTS: dict[str, Callable[[], None]] = {
    "deaf-log": _use_log(_DeafLog),
    "early-ack": _leave,
    "no-directory-fsync": _skip_folder_syncs,
    "no-file-fsync": _skip_file_syncs,
    "synchronous-normal": _use_log(partial(SqliteLog, synchronous="NORMAL")),
    "trusting-log": _use_log(_TrustingLog),
}


def plant(name: str) -> None:
    """Put one bug into this process, for good. No name, no bug."""
    if name:
        PLANTS[name]()

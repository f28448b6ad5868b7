"""Durable blobs: one file each, named by its digest.

The order is what makes them durable: write a temporary file, force it to the disk,
rename it, force the directory. Only then may a fact name the blob. A reader never sees
half a file, and a crash leaves at most a temporary one, which the next start removes.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consortium.core.ids import Digest
from consortium.errors import CorruptBlobError, MissingBlobError, StoreFailedError
from consortium.model import digest_of

_TEMPORARY = "incoming"
_DAY_S = 86_400


class FileBlobs:
    """Blobs below one directory: `ab/cdef…`, by the digest's hexadecimal digits."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._counter = 0
        self._lock = threading.Lock()
        with _failures(root):
            self._make_folders()

    @classmethod
    def existing(cls, root: Path) -> FileBlobs:
        """Blobs that are there, for readers: nothing is made, nothing removed."""
        blobs = cls.__new__(cls)
        blobs._root = root
        return blobs

    def _make_folders(self) -> None:
        incoming = self._root / _TEMPORARY
        incoming.mkdir(parents=True, exist_ok=True)
        for leftover in incoming.iterdir():
            if is_abandoned(leftover):
                leftover.unlink(missing_ok=True)
        for number in range(256):
            (self._root / f"{number:02x}").mkdir(exist_ok=True)
        sync_folder(self._root)
        sync_folder(self._root.parent)

    def put(self, data: bytes) -> Digest:
        digest = digest_of(data)
        path = self._path(digest)
        with _failures(path):
            # A file that is there may have been renamed by a process that died before it
            # forced the directory: force it again before anybody relies on it.
            if not path.exists():
                self._write(path, data)
            sync_folder(path.parent)
        return digest

    def _write(self, path: Path, data: bytes) -> None:
        _write_and_rename(self._root / _TEMPORARY / self._new_name(), path, data)

    def _new_name(self) -> str:
        with self._lock:
            self._counter += 1
            return f"{threading.get_ident()}-{self._counter}.{os.getpid()}.new"

    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        path = self._path(digest)
        with _failures(path), path.open("rb") as file:
            file.seek(start)
            data = file.read() if size is None else file.read(size)
        if start == 0 and size is None and digest_of(data) != digest:
            raise CorruptBlobError(f"the bytes of blob {digest.hex()[:16]}… were changed")
        return data

    def has(self, digest: Digest) -> bool:
        return self._path(digest).exists()

    def drop(self, digest: Digest) -> None:
        with _failures(self._path(digest)):
            self._path(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[Digest]:
        """Every blob that is there, for auditors."""
        for path in sorted(self._root.glob("[0-9a-f][0-9a-f]/*")):
            name = path.parent.name + path.name
            if not re.fullmatch("[0-9a-f]{64}", name):
                raise CorruptBlobError(f"{path} is not the name of a blob")
            yield Digest(bytes.fromhex(name))

    def _path(self, digest: Digest) -> Path:
        name = digest.hex()
        return self._root / name[:2] / name[2:]


def is_abandoned(temporary: Path) -> bool:
    """Whether nobody is writing this file `NAME.PID.new` any more: its process has gone, or
    it is a day old (a new process may have got the same number)."""
    pid = temporary.name.split(".")[-2:-1]
    try:
        is_old = time.time() - temporary.stat().st_mtime > _DAY_S
    except FileNotFoundError:
        return True
    if is_old or not pid or not pid[0].isdecimal():
        return True
    return not _is_running(int(pid[0]))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def write_durably(path: Path, data: bytes) -> None:
    """Replace a small file: after a power cut it has the old bytes or the new ones."""
    with _failures(path):
        path.parent.mkdir(exist_ok=True)
        _write_and_rename(path.with_name(f"{path.name}.{os.getpid()}.new"), path, data)
        sync_folder(path.parent)
        sync_folder(path.parent.parent)


def _write_and_rename(temporary: Path, path: Path, data: bytes) -> None:
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Make renames in this directory survive a power cut."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise MissingBlobError(f"no blob {path.parent.name}{path.name[:14]}…") from None
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None

"""Durable blobs: one file each, named by its digest.

The order is what makes them durable: write a temporary file, force it to the disk,
rename it, force the directory. Only then may a fact name the blob. A reader never sees
half a file, and a crash leaves at most a temporary one, which the next start removes.

A file that this process has compared with its digest is not read again for it, for as long
as the system says that nobody has written to it since.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from io import FileIO
from mmap import PROT_READ, mmap
from pathlib import Path

from consortium.core.ids import Digest
from consortium.errors import CorruptBlobError, MissingBlobError, StoreFailedError
from consortium.model import digest_of

_TEMPORARY = "incoming"
_DAY_S = 86_400
_MOST_COMPARED = 4096  # files of which it is remembered


class FileBlobs:
    """Blobs below one directory: `ab/cdef…`, by the digest's hexadecimal digits."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._counter = 0
        self._lock = threading.Lock()
        self._compared: dict[Digest, tuple[int, ...]] = {}
        with _failures(root):
            self._make_folders()

    @classmethod
    def existing(cls, root: Path) -> FileBlobs:
        """Blobs that are there, for readers: nothing is made, nothing removed."""
        blobs = cls.__new__(cls)
        blobs._root, blobs._lock = root, threading.Lock()
        blobs._compared = {}
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
        path = self.path(digest)
        with _failures(path):
            # A file that is there may have been renamed by a process that died before it
            # forced the directory: force it again before anybody relies on it.
            if not path.exists():
                _write_and_rename(self._new_temporary(), path, data)
            sync_folder(path.parent)
        return digest

    @contextmanager
    def writer(self) -> Iterator[_FileWriter]:
        temporary = self._new_temporary()
        with _failures(temporary):
            file = temporary.open("x+b", buffering=0)
        try:
            with file:
                yield _FileWriter(self, file, temporary)
        finally:
            with _failures(temporary):
                temporary.unlink(missing_ok=True)  # it is gone when it has become a blob

    def adopt(self, file: Path, digest: Digest, *, is_compared: bool = False) -> None:
        """Make a finished file on the same file system the blob `digest`: it is moved, not
        copied. Adopting it twice is no error. With `is_compared`, whoever wrote it has just
        seen that its bytes have the digest.

        Raises `CorruptBlobError`, and leaves the file, when its bytes have another digest.
        """
        path = self.path(digest)
        with _failures(path):
            if file.exists() or not path.exists():
                with file.open("rb", buffering=0) as opened:
                    if not is_compared:
                        _compare(opened, digest)
                    os.fsync(opened.fileno())
                    file.rename(path)  # should one be there, it may be damaged
                    self._remember(digest, _state(opened))  # of the very file, not of its name
            sync_folder(path.parent)

    def _new_temporary(self) -> Path:
        with self._lock:
            self._counter += 1
            name = f"{threading.get_ident()}-{self._counter}.{os.getpid()}.new"
            return self._root / _TEMPORARY / name

    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        name = self._name(digest)  # a model is read in many slices, and a `Path` is slow to make
        with _failures(name), open(name, "rb", buffering=0) as file:
            file.seek(start)
            data = file.read() if size is None else _read(file, size)
        if start == 0 and size is None and digest_of(data) != digest:
            raise _changed(digest)
        return data

    def mapped(self, digest: Digest) -> mmap:
        """A blob without a copy of it, to be read. It is not compared with its digest: that was
        done when it came."""
        name = self._name(digest)
        with _failures(name), open(name, "rb", buffering=0) as file:
            return mmap(file.fileno(), 0, prot=PROT_READ)

    def size(self, digest: Digest) -> int:
        with _failures(self.path(digest)):
            return self.path(digest).stat().st_size

    def check(self, digest: Digest) -> None:
        name = self._name(digest)
        with _failures(name), open(name, "rb", buffering=0) as file:
            before = _state(file)
            if self._compared.get(digest) != before:
                _compare(file, digest)
                self._remember(digest, before)

    def _remember(self, digest: Digest, state: tuple[int, ...]) -> None:
        """That a file in this state has the digest."""
        with self._lock:
            if len(self._compared) >= _MOST_COMPARED:
                del self._compared[next(iter(self._compared))]
            self._compared[digest] = state

    def has(self, digest: Digest) -> bool:
        return self.path(digest).exists()

    def drop(self, digest: Digest) -> None:
        with _failures(self.path(digest)):
            self.path(digest).unlink(missing_ok=True)

    def digests(self) -> Iterator[Digest]:
        """Every blob that is there, for auditors."""
        for path in sorted(self._root.glob("[0-9a-f][0-9a-f]/*")):
            name = path.parent.name + path.name
            if not re.fullmatch("[0-9a-f]{64}", name):
                raise CorruptBlobError(f"{path} is not the name of a blob")
            yield Digest(bytes.fromhex(name))

    def path(self, digest: Digest) -> Path:
        """The file of a blob, whether it is there or not: only to be read."""
        return Path(self._name(digest))

    def _name(self, digest: Digest) -> str:
        name = digest.hex()
        return f"{self._root}/{name[:2]}/{name[2:]}"


class _FileWriter:
    """A blob that is still a temporary file."""

    def __init__(self, blobs: FileBlobs, file: FileIO, temporary: Path) -> None:
        self._blobs, self._file, self._temporary = blobs, file, temporary

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        left = memoryview(data)
        with _failures(self._temporary):
            while left:  # one call may write a part only
                written = os.pwrite(self._file.fileno(), left, offset)
                left, offset = left[written:], offset + written

    def finish(self, digest: Digest | None = None) -> Digest:
        """`digest` is for whoever has hashed the bytes while they were written."""
        with _failures(self._temporary):
            if digest is None:
                self._file.seek(0)
                digest = Digest(file_digest(self._file, "sha256").digest())
            os.fsync(self._file.fileno())
            path = self._blobs.path(digest)
            self._temporary.rename(path)
            self._blobs._remember(digest, _state(self._file))
            sync_folder(path.parent)
        return digest


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


def _read(file: FileIO, size: int) -> bytes:
    """So many bytes, or all until the end: one call may read fewer."""
    data = file.read(size)
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def _state(file: FileIO) -> tuple[int, ...]:
    """Changes when somebody writes to the file, or puts another one in its place."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _compare(file: FileIO, digest: Digest) -> None:
    if file_digest(file, "sha256").digest() != digest:
        raise _changed(digest)


def _changed(digest: Digest) -> CorruptBlobError:
    return CorruptBlobError(f"the bytes of blob {digest.hex()[:16]}… were changed")


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
def _failures(name: Path | str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        path = Path(name)
        raise MissingBlobError(f"no blob {path.parent.name}{path.name[:14]}…") from None
    except OSError as error:
        raise StoreFailedError(f"{name}: {error.strerror}") from None

"""What sites are sending: files that grow chunk by chunk until they are whole.

    uploads/{site}/{digest}.part    the bytes so far, perhaps with a torn chunk at the end
    uploads/{site}/{digest}.at      how many of them count
    uploads/{site}/{digest}.whole   complete: nobody writes here any more
    uploads/{site}/done             digests that this site has sent before, the newest of them

A chunk counts as a whole or not at all: `commit` verifies its digest, and only then moves the
offset; what came of it before a cut, a wrong digest or a kill is cut off again. Nothing is
forced to the disk here: `FileBlobs.adopt` does that for the finished file, and verifies it.
A site has one upload at a time, and an upload one writer: who comes later is believed, since
the earlier connection may be dead without our knowing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from consortium.core.ids import Digest, is_plain_id
from consortium.errors import (
    DiskFullError,
    MissingBlobError,
    StoreFailedError,
    UnsignedRequestError,
    UsageError,
    WrongOffsetError,
)

RESERVE_BYTES = 64 << 20  # for the log and the registry: they must be able to go on
_MOST_DONE = 512  # digests of a site that are remembered; who sends an older one sends it again
_LINE_BYTES = 65  # of a digest and its end
_OWNER_ONLY = 0o600


class Uploads:
    """The uploads below one folder. May be called from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._open: dict[str, Chunk] = {}  # by site
        with _failures(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            for told in folder.glob("*/*.at"):  # of bytes that are a blob by now
                if not told.with_suffix(".part").exists():
                    told.unlink(missing_ok=True)

    def path(self, site: str, digest: Digest) -> Path:
        """Where the bytes lie while they come."""
        return self._file(site, digest, "part")

    def offset(self, site: str, digest: Digest) -> int:
        """How many bytes count."""
        with _failures(self._folder):
            whole = self._file(site, digest, "whole")
            if whole.exists():  # it was taken, and the process died before it became a blob
                return whole.stat().st_size
            try:
                told = int(self._file(site, digest, "at").read_bytes())
                return min(told, self.path(site, digest).stat().st_size)
            except (FileNotFoundError, ValueError):  # nothing, or a power cut
                return 0

    def check_room(self, size_bytes: int = 0) -> None:
        """Returns when the disk has this much left, and what the rest of us needs besides."""
        with _failures(self._folder):
            found = os.statvfs(self._folder)
        free = found.f_bavail * found.f_frsize
        if free < RESERVE_BYTES + size_bytes:
            raise DiskFullError(f"the disk of {self._folder} has {free >> 20} MiB left")

    def chunk(self, site: str, digest: Digest, offset: int) -> Chunk:
        """Begin to write at `offset`, which must be where the upload ends. An earlier writer
        of this site, and its uploads of other digests, are ended."""
        with self._lock:
            true_offset = self.offset(site, digest)
            if offset != true_offset:
                raise wrong_offset(true_offset)
            if self._file(site, digest, "whole").exists():
                raise wrong_offset(true_offset, "the upload is complete")
            self._end_writer(site)
            path = self.path(site, digest)
            with _failures(path):
                if not path.exists():
                    self._clear(site)
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
            chunk = Chunk(self._lock, path, handle, offset)
            self._open[site] = chunk
            chunk.truncate()  # what a killed process left of a chunk
            return chunk

    def holds(self, site: str, digest: Digest, offset: int, chunk: Digest, size: int) -> bool:
        """Whether exactly this chunk already counts at `offset`."""
        if offset + size > self.offset(site, digest):
            return False
        path = self.path(site, digest)
        with _failures(path), path.open("rb", buffering=0) as file:
            return _digest_of(file.fileno(), offset, size) == chunk

    def take(self, site: str, digest: Digest, size_bytes: int) -> Path:
        """The finished file, out of every writer's reach: hash it, then move it away. The
        same again gives the same file; one that is not complete raises `MissingBlobError`."""
        part, whole = self.path(site, digest), self._file(site, digest, "whole")
        with self._lock, _failures(part):
            self._end_writer(site)
            is_taken = whole.exists()
            if not is_taken and part.exists() and self.offset(site, digest) == size_bytes:
                os.truncate(part, size_bytes)
                part.replace(whole)
                self._file(site, digest, "at").unlink(missing_ok=True)
            elif not is_taken or whole.stat().st_size != size_bytes:
                raise MissingBlobError("the upload is not complete", hint="send the rest first")
        return whole

    def forget(self, site: str, digest: Digest) -> None:
        """Begin this upload again: its bytes turned out to be others."""
        with self._lock, _failures(self._folder):
            self._end_writer(site)
            for suffix in ("part", "at", "whole"):
                self._file(site, digest, suffix).unlink(missing_ok=True)

    def is_done(self, site: str, digest: Digest) -> bool:
        """Whether this site has sent these bytes before. Perhaps they are no longer here."""
        with _failures(self._folder):
            try:
                return digest.hex() in self._done(site).read_text("ascii").split()
            except FileNotFoundError:
                return False

    def mark_done(self, site: str, digest: Digest) -> None:
        """Remember it, and drop what is left of the upload."""
        if not self.is_done(site, digest):
            with self._lock, _failures(self._folder):
                self._done(site).parent.mkdir(mode=0o700, exist_ok=True)
                with self._done(site).open("a", encoding="ascii") as file:
                    file.write(f"{digest.hex()}\n")
                    is_long = file.tell() > 2 * _MOST_DONE * _LINE_BYTES
                if is_long:
                    self._shorten_done(site)
        self.forget(site, digest)

    def _shorten_done(self, site: str) -> None:
        """Keep the newest half. Torn by a power cut, it says less than was true: some bytes
        are sent again."""
        kept = self._done(site).read_text("ascii").split()[-_MOST_DONE:]
        new = self._done(site).with_suffix(".new")
        new.write_text("".join(f"{one}\n" for one in kept), encoding="ascii")
        new.replace(self._done(site))

    def _end_writer(self, site: str) -> None:
        chunk = self._open.pop(site, None)
        if chunk is not None:
            chunk.end()

    def _clear(self, site: str) -> None:
        """Make room for a new upload: what a site began and left would stay for ever."""
        folder = self._folder / site
        folder.mkdir(mode=0o700, exist_ok=True)
        for file in folder.iterdir():
            if file.suffix in (".part", ".at"):
                file.unlink(missing_ok=True)

    def _file(self, site: str, digest: Digest, suffix: str) -> Path:
        return self._done(site).with_name(f"{digest.hex()}.{suffix}")

    def _done(self, site: str) -> Path:
        if not is_plain_id(site):  # it is part of a file's name
            raise UsageError("a site's id is 1 to 64 letters, digits, dashes and underscores")
        return self._folder / site / "done"


class Chunk:
    """A part of an upload while it comes in: `write` the pieces, then `commit` or `abandon`."""

    def __init__(self, lock: threading.Lock, path: Path, handle: int, start: int) -> None:
        self._lock, self._path = lock, path
        self._handle: int | None = handle
        self._start = self._end = start
        self._hash = sha256()

    def write(self, piece: bytes) -> None:
        """Add a piece. Raises when another request has taken the upload over."""
        with self._lock, _failures(self._path):
            handle = self._opened()
            self._hash.update(piece)
            left = memoryview(piece)
            while left:  # one call may write a part only
                written = os.pwrite(handle, left, self._end)
                left, self._end = left[written:], self._end + written

    def commit(self, digest: Digest) -> int:
        """Let the chunk count, if its bytes have this digest; where the upload ends now."""
        with self._lock, _failures(self._path):
            self._opened()
            if self._hash.digest() != digest:
                raise UnsignedRequestError("the body is not the one that was signed")
            told = os.open(
                self._path.with_suffix(".at"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY
            )
            try:
                os.pwrite(told, b"%020d" % self._end, 0)  # in one call: a kill tears nothing
            finally:
                os.close(told)
            self._start = self._end
            self.end()
        return self._end

    def abandon(self) -> None:
        """As if the chunk had never come, unless it was committed."""
        with self._lock:
            self.end()

    def end(self) -> None:
        """Cut off what does not count, and write no more. The caller holds the lock."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        with suppress(OSError):  # the next writer truncates as well
            os.ftruncate(handle, self._start)
        os.close(handle)

    def truncate(self) -> None:
        """Drop what lies behind the start. The caller holds the lock."""
        with _failures(self._path):
            os.ftruncate(self._opened(), self._start)

    def _opened(self) -> int:
        if self._handle is None:
            raise wrong_offset(self._start, "another request has taken this upload over")
        return self._handle


def wrong_offset(
    offset: int, message: str = "the chunk does not start where the upload ends"
) -> WrongOffsetError:
    """The refusal that says where to go on."""
    error = WrongOffsetError(message)
    error.details = {"offset": offset}
    return error


def _digest_of(handle: int, offset: int, size: int) -> Digest:
    found = sha256()
    while size:
        piece = os.pread(handle, min(size, 1 << 18), offset)
        if not piece:
            break
        found.update(piece)
        offset, size = offset + len(piece), size - len(piece)
    return Digest(found.digest())


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None

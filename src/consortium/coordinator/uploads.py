"""What sites are sending: files that grow chunk by chunk until they are whole.

    uploads/{site}/{digest}.part    the bytes so far, perhaps with a part of a chunk at the end
    uploads/{site}/{digest}.at      how many of them count, and the digest of those
    uploads/{site}/{digest}.whole   complete: nobody writes here any more
    uploads/{site}/done             digests that this site has sent before, the newest of them

A request carries some chunks, and is signed as a whole. A chunk counts when all of it is here,
so that a cut or a kill costs one at most; `commit` compares what was signed, and if that is
something else, nothing counts any more that no request has vouched for. What is left over is
cut off. Nothing is forced to the disk here: `FileBlobs.adopt` does that for the finished file.
A site has one upload at a time, and an upload one writer: who comes later is believed, since
the earlier connection may be dead without our knowing.

Every byte is hashed once, as it comes: what counts has a running hash in memory. After a
restart it is made again from the file, and must be the one that was told with the offset;
after a power cut it may not be, and the upload begins again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from consortium.core.ids import Digest, is_plain_id
from consortium.errors import (
    DiskFullError,
    MissingBlobError,
    StoreFailedError,
    UnsignedRequestError,
    UsageError,
    WrongOffsetError,
)
from consortium.wire.messages import CHUNK_BYTES

if TYPE_CHECKING:
    from hashlib import _Hash

RESERVE_BYTES = 64 << 20  # for the log and the registry: they must be able to go on
_MOST_DONE = 512  # digests of a site that are remembered; who sends an older one sends it again
_LINE_BYTES = 65  # of a digest and its end
_OWNER_ONLY = 0o600
_KEPT_S = 86_400  # a finished file that no process came to adopt
_READ_BYTES = 1 << 18
_TURNS = 64


@dataclass(slots=True)
class _Counted:
    """What counts of an upload: so many bytes, and their hash."""

    digest: Digest  # that the whole is to have
    end: int
    sum: _Hash
    signed: tuple[int, _Hash]  # the same, when a request was last found to be what was signed


class Uploads:
    """The uploads below one folder. May be called from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._open: dict[str, Incoming] = {}  # by site
        self._counted: dict[str, _Counted] = {}  # by site
        self._turns = [threading.Lock() for _ in range(_TURNS)]
        with _failures(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            for told in folder.glob("*/*.at"):  # of bytes that are a blob by now
                if not told.with_suffix(".part").exists():
                    told.unlink(missing_ok=True)
            for whole in folder.glob("*/*.whole"):
                if not _is_sound(whole):
                    whole.unlink(missing_ok=True)

    def path(self, site: str, digest: Digest) -> Path:
        """Where the bytes lie while they come."""
        return Path(self._name(site, digest, "part"))

    def offset(self, site: str, digest: Digest) -> int:
        """How many bytes count."""
        with _failures(self._folder):
            known = self._known(site, digest)
            if known is not None:
                return known.end
            try:  # it was taken, and the process died before it became a blob
                return os.stat(self._name(site, digest, "whole")).st_size
            except FileNotFoundError:
                return 0

    def _known(self, site: str, digest: Digest) -> _Counted | None:
        """What counts; None when nothing does, or when it was taken."""
        known = self._counted.get(site)
        if known is not None and known.digest == digest:
            return known
        told = self._name(site, digest, "at")
        try:
            with open(told, "rb") as file:
                words = file.read()
            known = _read_back(self._name(site, digest, "part"), digest, words)
        except FileNotFoundError:
            return None
        with self._lock, suppress(FileNotFoundError), open(told, "rb") as file:
            if file.read() != words:  # the upload was begun again meanwhile
                return None
            if known is not None:
                return self._counted.setdefault(site, known)
            os.unlink(told)  # so that nobody makes us look again
        return None

    def check_room(self, size_bytes: int = 0) -> None:
        """Returns when the disk has this much left, and what the rest of us needs besides."""
        with _failures(self._folder):
            found = os.statvfs(self._folder)
        free = found.f_bavail * found.f_frsize
        if free < RESERVE_BYTES + size_bytes:
            raise DiskFullError(f"the disk of {self._folder} has {free >> 20} MiB left")

    def receive(self, site: str, digest: Digest, offset: int) -> Incoming:
        """Begin to write at `offset`, which must be where the upload ends. An earlier writer
        of this site, and its uploads of other digests, are ended."""
        true_offset = self.offset(site, digest)
        with self._lock:
            if offset != true_offset:
                raise wrong_offset(true_offset)
            path = self._name(site, digest, "part")
            with _failures(self._folder):
                if os.path.exists(self._name(site, digest, "whole")):
                    raise wrong_offset(true_offset, "the upload is complete")
                self._end_writer(site)
                counted = self._counted.get(site)
                if counted is None or counted.digest != digest:
                    if offset:  # it was another one's turn meanwhile
                        raise wrong_offset(0)
                    self._clear(site)
                    counted = self._counted[site] = _nothing_of(digest)
                elif counted.end != offset:  # the earlier writer has gone on meanwhile
                    raise wrong_offset(counted.end)
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
                incoming = Incoming(self._lock, path, handle, counted)
                try:
                    size = os.fstat(handle).st_size
                    if size < offset:  # somebody else has touched our files
                        del self._counted[site]
                        raise wrong_offset(0)
                    if size > offset:  # what a killed process left of a chunk
                        os.ftruncate(handle, offset)
                except BaseException:
                    incoming.end()
                    raise
            self._open[site] = incoming
            return incoming

    def holds(self, site: str, digest: Digest, offset: int, signed: Digest, size: int) -> bool:
        """Whether exactly these bytes already count at `offset`. By the digest of all until their
        end, only the last ones are known again; by their own, all."""
        end = offset + size
        with _failures(self._folder):
            known = self._known(site, digest)
            if known is not None and end == known.end and known.sum.digest() == signed:
                return True
            if end > self.offset(site, digest):
                return False
            suffix = "whole" if known is None else "part"
            try:
                with open(self._name(site, digest, suffix), "rb", buffering=0) as file:
                    return _hash_of(file.fileno(), offset, end).digest() == signed
            except FileNotFoundError:  # it has become a blob meanwhile
                return False

    def turn(self, site: str) -> threading.Lock:
        """To be held from `take` until the file is a blob and `mark_done`: a site that submits
        twice at once would else have another file adopted than the one that was compared."""
        return self._turns[hash(site) % _TURNS]

    def take(self, site: str, digest: Digest, size_bytes: int) -> tuple[Path, bool]:
        """The finished file, out of every writer's reach, to be adopted; and whether its bytes
        are known to have the digest. The same again gives the same file; one that is not
        complete raises `MissingBlobError`."""
        whole, is_compared = Path(self._name(site, digest, "whole")), False
        self.offset(site, digest)  # after a restart, its hash is made again without the lock
        with self._lock, _failures(whole):
            self._end_writer(site)
            counted = self._counted.get(site)
            if counted is not None and (counted.digest, counted.end) == (digest, size_bytes):
                part = self._name(site, digest, "part")
                is_compared = counted.sum.digest() == digest
                del self._counted[site]
                if os.stat(part).st_size < size_bytes:  # somebody else has touched our files
                    os.unlink(part)
                    raise _incomplete()
                os.truncate(part, size_bytes)
                os.replace(part, whole)
                with suppress(OSError):  # the next start removes it as well
                    os.unlink(self._name(site, digest, "at"))
            elif not whole.exists():
                raise _incomplete()
            elif whole.stat().st_size != size_bytes:  # a power cut, or it is asked for wrongly
                whole.unlink()
                raise _incomplete()
        return whole, is_compared

    def forget(self, site: str, digest: Digest) -> None:
        """Begin this upload again: its bytes turned out to be others."""
        with self._lock, _failures(self._folder):
            self._end_writer(site)
            counted = self._counted.get(site)
            if counted is not None and counted.digest == digest:
                del self._counted[site]
            for suffix in ("part", "at", "whole"):
                Path(self._name(site, digest, suffix)).unlink(missing_ok=True)

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
        incoming = self._open.pop(site, None)
        if incoming is not None:
            incoming.end()

    def _clear(self, site: str) -> None:
        """Make room for a new upload: what a site began and left would stay for ever."""
        folder = self._folder / site
        folder.mkdir(mode=0o700, exist_ok=True)
        for file in folder.iterdir():
            if file.suffix in (".part", ".at"):
                file.unlink(missing_ok=True)

    def _name(self, site: str, digest: Digest, suffix: str) -> str:
        """A text: there are several of them in each request, and a `Path` is slow to make."""
        return f"{self._home(site)}/{digest.hex()}.{suffix}"

    def _done(self, site: str) -> Path:
        return Path(self._home(site), "done")

    def _home(self, site: str) -> str:
        if not is_plain_id(site):  # it is part of a file's name
            raise UsageError("a site's id is 1 to 64 letters, digits, dashes and underscores")
        return f"{self._folder}/{site}"


class Incoming:
    """What a request carries, as it comes in: `write` the pieces, then `commit` or `abandon`."""

    def __init__(self, lock: threading.Lock, path: str, handle: int, counted: _Counted) -> None:
        self._lock, self._path, self._counted = lock, path, counted
        self._handle: int | None = handle
        self._start = self._end = counted.end
        self._sum = counted.sum.copy()

    def write(self, piece: bytes) -> None:
        """Add a piece. Raises when another request has taken the upload over."""
        with self._lock, _failures(self._path):
            handle, left = self._opened(), memoryview(piece)
            while left:
                here = left[: CHUNK_BYTES - self._end % CHUNK_BYTES]  # none beyond its chunk
                left = left[len(here) :]
                self._sum.update(here)
                while here:  # one call may write a part only
                    written = os.pwrite(handle, here, self._end)
                    here, self._end = here[written:], self._end + written
                if self._end % CHUNK_BYTES == 0:
                    self._count(self._end, self._sum.copy())

    def commit(self, signed: Digest) -> int:
        """Let everything count, if this is the digest of all bytes until its end, or of those
        that came with this request; where the upload ends now."""
        with self._lock, _failures(self._path):
            handle, counted = self._opened(), self._counted
            is_signed = self._sum.digest() == signed
            if not is_signed and _hash_of(handle, self._start, self._end).digest() != signed:
                self._count(*counted.signed)
                raise UnsignedRequestError("the body is not the one that was signed")
            if counted.end != self._end:
                self._count(self._end, self._sum)
            # Its own digest alone says nothing of what lies before it.
            if is_signed or counted.signed[0] == self._start:
                counted.signed = counted.end, counted.sum
            self.end()
        return counted.end

    def _count(self, end: int, sum: _Hash) -> None:
        """From now on, so many bytes count; the disk is told."""
        told = self._path.removesuffix("part") + "at"
        file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:  # in one call: a kill tears nothing
            os.pwrite(file, b"%020d %s" % (end, sum.hexdigest().encode()), 0)
        finally:
            os.close(file)
        self._counted.end, self._counted.sum = end, sum

    def abandon(self) -> None:
        """The chunks that are whole stay; the rest is as if it had never come."""
        with self._lock:
            self.end()

    def end(self) -> None:
        """Cut off what does not count, and write no more. The caller holds the lock."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        if self._end > self._counted.end:
            with suppress(OSError):  # the next writer truncates as well
                os.ftruncate(handle, self._counted.end)
        os.close(handle)

    def _opened(self) -> int:
        if self._handle is None:
            raise wrong_offset(self._counted.end, "another request has taken this upload over")
        return self._handle


def wrong_offset(
    offset: int, message: str = "the chunk does not start where the upload ends"
) -> WrongOffsetError:
    """The refusal that says where to go on."""
    error = WrongOffsetError(message)
    error.details = {"offset": offset}
    return error


def _incomplete() -> MissingBlobError:
    return MissingBlobError("the upload is not complete", hint="send the rest first")


def _nothing_of(digest: Digest) -> _Counted:
    return _Counted(digest, 0, sha256(), (0, sha256()))


def _read_back(part: str, digest: Digest, told: bytes) -> _Counted | None:
    """What counts of a file by what was told of it; None if its bytes are no longer those."""
    count, _, sum = told.partition(b" ")
    if not count.isdigit():
        return None
    with open(part, "rb", buffering=0) as file:
        found = _hash_of(file.fileno(), 0, int(count))
        is_same = found.hexdigest().encode() == sum
    return replace(_nothing_of(digest), end=int(count), sum=found) if is_same else None


def _is_sound(whole: Path) -> bool:
    """Whether a finished file is what its name says, which a power cut may have changed; and
    whether anybody may still come for it."""
    is_recent = time.time() - whole.stat().st_mtime < _KEPT_S
    with whole.open("rb", buffering=0) as file:
        return is_recent and _hash_of(file.fileno(), 0, 1 << 62).hexdigest() == whole.stem


def _hash_of(handle: int, start: int, end: int) -> _Hash:
    """Of the bytes from start to end, or until the file ends."""
    found = sha256()
    while start < end and (piece := os.pread(handle, min(end - start, _READ_BYTES), start)):
        found.update(piece)
        start += len(piece)
    return found


@contextmanager
def _failures(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None

"""Files between a site and its coordinator, by digest: both ways go on where they were cut.

A download lies in a file of its own until its digest is verified; an upload sends what the
coordinator does not have, some chunks at a time. Neither is ever in memory as a whole, and both
may be called again after an `UnreachableError`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO

from consortium.core.ids import Digest
from consortium.errors import (
    CorruptBlobError,
    MissingBlobError,
    StoreFailedError,
    TooLargeError,
    WireError,
    WrongOffsetError,
)
from consortium.site.connections import FilePart
from consortium.site.response import Response
from consortium.site.transport import READ_S, Client
from consortium.store.files import FileBlobs
from consortium.wire.messages import CHUNK_BYTES, MAX_CHUNKS_BYTES, UploadState

OnProgress = Callable[[int, int], None]  # (bytes done, bytes in all)
Marks = Mapping[int, bytes]  # of a file: the digest of its first bytes, by how many they are
_MARKS_FROM = 2  # the version of the protocol in which a coordinator knows a chunk by them
_WRITE_BYTES = 1 << 18
_SLOWEST = 4096  # bytes a second, of a line whose buffers or proxy took everything at once
_MOST_CORRECTIONS = 3  # of an offset, without a byte taken in between


def _in_silence(_: int, __: int) -> None:
    pass


class Transfer:
    """Downloads into `blobs`, by way of `folder`, and uploads of files."""

    def __init__(self, client: Client, blobs: FileBlobs, folder: Path) -> None:
        self._client, self._blobs, self._folder = client, blobs, folder
        self._one_at_a_time = threading.Lock()
        self._arrived: Digest | None = None  # the last upload, if it came to its end
        self._most = MAX_CHUNKS_BYTES  # in one request: less after one that got lost
        self._marks: tuple[Digest | None, Marks] = (None, {})

    # ---- down -----------------------------------------------------------------------

    def fetch(
        self, digest: Digest, *, most_bytes: int, on_progress: OnProgress = _in_silence
    ) -> None:
        """Make sure that the blob is here. Refuses more than `most_bytes`, and bytes of another
        digest; those are forgotten."""
        with self._one_at_a_time:
            if self._blobs.has(digest):
                return
            part = self._folder / f"{digest.hex()}.part"
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                whole = self._download(digest, part, most_bytes, on_progress)
                if not self._adopt(part, digest, whole):  # what lay here may have been damaged
                    whole = self._download(digest, part, most_bytes, on_progress)
                    if not self._adopt(part, digest, whole):
                        what = f"blob {digest.hex()[:16]}…"
                        raise CorruptBlobError(f"the coordinator sends other bytes than {what}")
            except OSError as error:
                raise StoreFailedError(f"{part}: {error.strerror}") from None

    def _adopt(self, part: Path, digest: Digest, whole: bytes | None) -> bool:
        try:
            self._blobs.adopt(part, digest, is_compared=whole == digest)
        except CorruptBlobError:
            part.unlink()
            return False
        return True

    def _download(
        self, digest: Digest, part: Path, most_bytes: int, on_progress: OnProgress
    ) -> bytes | None:
        """All that is missing at the end of `part`; the digest of everything, if all came now."""
        with part.open("ab", buffering=_WRITE_BYTES) as file:
            start = file.seek(0, os.SEEK_END)
            request = self._client.prepare("GET", f"/v1/blobs/{digest.hex()}")
            tag = f'"{digest.hex()}"'
            more = {"Range": f"bytes={start}-", "If-Range": tag} if start else {}
            with self._client.open(request, more=more, takes=(416,)) as response:
                if response.status_code == 416:
                    return None  # nothing is missing, or nothing fits: the digest tells
                if response.status_code != 206:  # from the beginning, whatever was asked for
                    file.truncate(0)
                    start = 0
                found = sha256() if start == 0 else None
                total = _total(response, start)
                _check_size(total, most_bytes)
                told = start
                for data in response.iter_raw():
                    file.write(data)
                    if found is not None:
                        found.update(data)
                    start += len(data)
                    _check_size(start, most_bytes)
                    if start - told >= _WRITE_BYTES or start == total:
                        told = start
                        on_progress(start, total)
        return None if found is None else found.digest()

    # ---- up -------------------------------------------------------------------------

    def mark(self, digest: Digest, marks: Marks) -> None:
        """Whoever made this file has hashed it: its chunks need not be hashed again."""
        self._marks = digest, marks

    def send(
        self,
        path: Path,
        digest: Digest,
        *,
        round: int,
        on_progress: OnProgress = _in_silence,
        on_arrival: Callable[[], None] = lambda: None,
    ) -> int:
        """Make sure that the coordinator has all bytes of the file; how many there are.
        `on_progress` is told what leaves, `on_arrival` whenever the coordinator has got more."""
        with _opened(path) as file:
            marked, marks = self._marks
            known = marks if marked == digest else {}
            upload = _Upload(file, file.seek(0, os.SEEK_END), digest, round, known)
            offset, corrections = self._begin(upload), 0
            while offset < upload.size:
                after = self._send_chunks(upload, offset, on_progress)
                if after > offset:
                    on_arrival()
                corrections = corrections + 1 if after <= offset else 0
                if corrections > _MOST_CORRECTIONS or after > upload.size:
                    raise WireError("the coordinator cannot say how much of an upload it has")
                offset = after
        on_progress(upload.size, upload.size)
        self._arrived = digest
        return upload.size

    def _begin(self, upload: _Upload) -> int:
        """Where to begin. Nobody need be asked when the upload before this one arrived and was
        another: a coordinator keeps only one that is not complete. Else some of it may be there,
        from before a restart, a cut or a lost receipt, and would all be sent again: a chunk
        that is there is no error."""
        before, self._arrived = self._arrived, None
        if before not in (None, upload.digest):
            return 0
        call, path = self._client.call, upload.path
        return upload.end(call("GET", path, reply=UploadState, round=upload.round))

    def _send_chunks(self, upload: _Upload, offset: int, on_progress: OnProgress) -> int:
        """Where the upload ends now, also when it was not where we thought."""
        client, most = self._client, min(self._most, MAX_CHUNKS_BYTES)
        end = min(offset + most, upload.size)
        digest = upload.marks.get(end) if client.their_version >= _MARKS_FROM else None
        if digest is None:  # one chunk is hashed, and so read, twice
            end = min(offset + CHUNK_BYTES, upload.size)
            digest = sha256(_read(upload.file, offset, end - offset)).digest()
        part = FilePart(upload.file, offset, end, lambda at: on_progress(at, upload.size))
        path = f"{upload.path}?offset={offset}"
        request = client.prepare("PATCH", path, part, round=upload.round, digest=digest)
        self._most = CHUNK_BYTES  # until it has gone well
        try:
            state = client.send(request, UploadState, read_s=READ_S + len(part) / _SLOWEST)
            self._most = 2 * most
            return upload.end(state)
        except WrongOffsetError as error:
            actual = error.details.get("offset")
            if type(actual) is not int or actual < 0:
                raise
            return actual


@dataclass(frozen=True, slots=True)
class _Upload:
    file: IO[bytes]
    size: int
    digest: Digest
    round: int
    marks: Marks = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/v1/uploads/{self.digest.hex()}"

    def end(self, state: UploadState) -> int:
        """How many bytes are there: all of them, if this site has sent them before."""
        return self.size if state.is_complete else state.offset


def _read(file: IO[bytes], start: int, size: int) -> bytes:
    try:
        file.seek(start)
        return file.read(size)
    except OSError as error:
        raise StoreFailedError(f"{file.name}: {error.strerror}") from None


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise MissingBlobError(f"{path} is not there any more") from None
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None


def _total(response: Response, start: int) -> int:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else 0


def _check_size(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise TooLargeError("the coordinator sends more than this blob can have")

"""Files between a site and its coordinator, by digest: both ways go on where they were cut.

A download lies in a file of its own until its digest is verified; an upload asks how much is
there and sends the rest, a chunk at a time. Neither is ever in memory as a whole, and both
may be called again after an `UnreachableError`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import httpx2

from consortium.core.ids import Digest
from consortium.errors import (
    CorruptBlobError,
    MissingBlobError,
    StoreFailedError,
    TooLargeError,
    WireError,
    WrongOffsetError,
)
from consortium.site.transport import Client
from consortium.store.files import FileBlobs
from consortium.wire.messages import CHUNK_BYTES, UploadState

OnProgress = Callable[[int, int], None]  # (bytes done, bytes in all)
_WRITE_BYTES = 1 << 18
_MOST_CORRECTIONS = 3  # of an offset, without a byte taken in between


def _in_silence(_: int, __: int) -> None:
    pass


class Transfer:
    """Downloads into `blobs`, by way of `folder`, and uploads of files."""

    def __init__(self, client: Client, blobs: FileBlobs, folder: Path) -> None:
        self._client, self._blobs, self._folder = client, blobs, folder
        self._one_at_a_time = threading.Lock()

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
                self._download(digest, part, most_bytes, on_progress)
                if not self._adopt(part, digest):  # what lay here may have been damaged
                    self._download(digest, part, most_bytes, on_progress)
                    if not self._adopt(part, digest):
                        what = f"blob {digest.hex()[:16]}…"
                        raise CorruptBlobError(f"the coordinator sends other bytes than {what}")
            except OSError as error:
                raise StoreFailedError(f"{part}: {error.strerror}") from None

    def _adopt(self, part: Path, digest: Digest) -> bool:
        try:
            self._blobs.adopt(part, digest)
        except CorruptBlobError:
            part.unlink()
            return False
        return True

    def _download(
        self, digest: Digest, part: Path, most_bytes: int, on_progress: OnProgress
    ) -> None:
        """All that is missing at the end of `part`."""
        with part.open("ab", buffering=_WRITE_BYTES) as file:
            start = file.seek(0, os.SEEK_END)
            request = self._client.prepare("GET", f"/v1/blobs/{digest.hex()}")
            tag = f'"{digest.hex()}"'
            more = {"Range": f"bytes={start}-", "If-Range": tag} if start else {}
            with self._client.open(request, more=more, takes=(416,)) as response:
                if response.status_code == 416:
                    return  # nothing is missing, or nothing fits: the digest tells
                if response.status_code != 206:  # from the beginning, whatever was asked for
                    file.truncate(0)
                    start = 0
                total = _total(response, start)
                _check_size(total, most_bytes)
                for data in response.iter_raw():
                    file.write(data)
                    start += len(data)
                    _check_size(start, most_bytes)
                    on_progress(start, total)

    # ---- up -------------------------------------------------------------------------

    def send(
        self, path: Path, digest: Digest, *, round: int, on_progress: OnProgress = _in_silence
    ) -> int:
        """Make sure that the coordinator has all bytes of the file; how many there are."""
        with _opened(path) as file:
            return self._send(file, digest, round, on_progress)

    def _send(self, file: IO[bytes], digest: Digest, round: int, on_progress: OnProgress) -> int:
        size = file.seek(0, os.SEEK_END)
        place = f"/v1/uploads/{digest.hex()}"
        state = self._client.call("GET", place, reply=UploadState, round=round)
        if state.is_complete:
            on_progress(size, size)
            return size
        offset, corrections = state.offset, 0
        while offset < size:
            on_progress(offset, size)
            after = self._send_chunk(file, place, offset, round)
            corrections = corrections + 1 if after <= offset else 0
            if corrections > _MOST_CORRECTIONS or after > size:
                raise WireError("the coordinator cannot say how much of an upload it has")
            offset = after
        on_progress(size, size)
        return size

    def _send_chunk(self, file: IO[bytes], place: str, offset: int, round: int) -> int:
        """Where the upload ends now, also when it was not where we thought."""
        file.seek(offset)
        chunk = file.read(CHUNK_BYTES)
        try:
            path = f"{place}?offset={offset}"
            return self._client.call("PATCH", path, chunk, reply=UploadState, round=round).offset
        except WrongOffsetError as error:
            actual = error.details.get("offset")
            if type(actual) is not int or actual < 0:
                raise
            return actual


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise MissingBlobError(f"{path} is not there any more") from None
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None


def _total(response: httpx2.Response, start: int) -> int:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdecimal() else 0


def _check_size(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise TooLargeError("the coordinator sends more than this blob can have")

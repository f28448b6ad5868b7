"""Downloads: a file by its digest, whole or from a byte on, never in memory as a whole.

Blobs never change, so the digest is a strong ETag and a range of one is always valid.
Pieces are read in the event loop: from the page cache 64 KiB take ten microseconds, less than
the way to a thread and back.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from consortium.coordinator.bodies import until_gone
from consortium.coordinator.problems import refusal
from consortium.core.ids import Digest
from consortium.errors import MissingBlobError, StoreFailedError, WireError

_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?")
PIECE_BYTES = 64 << 10  # of each download, that wait in memory for a peer to read
_FAIR_PIECES = 3  # then others have a turn, also when the peer reads as fast as we write


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A blob that was opened for a download. It is read to its end even if it is dropped."""

    handle: int
    size: int
    digest: Digest


def open_file(path: Path, digest: Digest) -> OpenFile:
    """Raises `MissingBlobError`, which does not say why it is not there."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(handle).st_size
        if hasattr(os, "posix_fadvise"):  # not everywhere
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    except FileNotFoundError:
        raise missing(digest) from None
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None
    return OpenFile(handle, size, digest)


def missing(digest: Digest) -> MissingBlobError:
    """The same for a blob that is not there and one that is not for this caller."""
    return MissingBlobError(f"no blob {digest.hex()[:16]}…")


class Download(Response):
    """Sends an open file, or the range of it that was asked for, and closes it."""

    def __init__(self, file: OpenFile, *, media_type: str = "application/octet-stream") -> None:
        self._file, self._media_type = file, media_type
        super().__init__()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            os.close(self._file.handle)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, tag = self._file.size, f'"{self._file.digest.hex()}"'
        asked = asked_range(Headers(scope=scope), size, tag)
        if asked is None:
            error = WireError(f"the file ends at byte {size}")
            await refusal(error, 416, content_range=f"bytes */{size}")(scope, receive, send)
            return
        headers = {
            "content-type": self._media_type,
            "content-length": str(asked.stop - asked.start),
            "etag": tag,
            "accept-ranges": "bytes",
        }
        if asked.is_part:
            headers["content-range"] = f"bytes {asked.start}-{asked.stop - 1}/{size}"
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        status = 206 if asked.is_part else 200
        await send({"type": "http.response.start", "status": status, "headers": raw})
        if scope["method"] != "HEAD":
            gone = asyncio.ensure_future(until_gone(receive))
            try:
                await _send_bytes(self._file.handle, asked, send, gone)
            finally:
                gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_bytes(handle: int, asked: Asked, send: Send, gone: asyncio.Task[None]) -> None:
    """A peer that has stopped to read is hung up on by the transport (`tls.py`): it is gone."""
    start, count = asked.start, 0
    while start < asked.stop and not gone.done():
        piece = os.pread(handle, min(PIECE_BYTES, asked.stop - start), start)
        if not piece:
            raise StoreFailedError("a blob has become shorter while it was sent")
        start, count = start + len(piece), count + 1
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        if count % _FAIR_PIECES == 0:
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which bytes are asked for; `is_part` says that it was a range, be it all of them."""

    start: int
    stop: int
    is_part: bool


def asked_range(headers: Headers, size: int, tag: str) -> Asked | None:
    """Which bytes are asked for; None when the file has none of them.

    What is not one range of the forms `N-` and `N-M`, or is of another version (`If-Range`),
    is answered with everything, as RFC 9110, section 14.2 allows.
    """
    found = _RANGE.fullmatch(headers.get("range", "").strip())
    everything = Asked(0, size, is_part=False)
    if found is None or headers.get("if-range", tag) != tag:
        return everything
    start, last = int(found[1]), size - 1 if found[2] is None else int(found[2])
    if found[2] is not None and last < start:
        return everything
    return Asked(start, min(last + 1, size), is_part=True) if start < size else None

"""The one folder that a task may write to, and what the agent takes from it.

What lies there was made by somebody else's code: it is taken only if it is an ordinary file,
not larger than it may be, and copied, so that nobody else has it open. It goes with the
process that it was made for.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from consortium.core.ids import Digest
from consortium.errors import StoreFailedError, TaskResultError
from consortium.site.jobs import OUT
from consortium.site.transfer import Marks
from consortium.store.files import FileBlobs, is_abandoned, sync_folder
from consortium.wire.messages import CHUNK_BYTES

_FOLDER = "work"  # in the site's home


@dataclass(frozen=True, slots=True)
class Scratch:
    """`made` is for results, `tmp` for whatever the task likes, `root` for its view."""

    path: Path

    @classmethod
    def new(cls, home: Path) -> Scratch:
        """A new one in a site's home. Those of processes that have gone are removed."""
        folder = home / _FOLDER
        path = folder / f"{secrets.token_hex(4)}.{os.getpid()}.new"
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            for leftover in folder.iterdir():
                if is_abandoned(leftover):
                    shutil.rmtree(leftover, ignore_errors=True)
            for name in (f"made/{OUT}", "tmp", "root"):
                (path / name).mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise StoreFailedError(f"{path}: {error.strerror}") from None
        return cls(path)

    @property
    def made(self) -> Path:
        return self.path / "made"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    # ---- what was made --------------------------------------------------------------

    def move_to(self, blobs: FileBlobs, name: str, most_bytes: int) -> tuple[Digest, Marks]:
        """Make a blob of a file; which one, and the digests of its beginnings, the last of
        which is the whole."""
        with self._opened(name, most_bytes) as (source, _), blobs.writer() as writer:
            offset, found, marks = 0, sha256(), {0: sha256().digest()}
            while data := source.read(CHUNK_BYTES):
                writer.write_at(offset, data)
                found.update(data)
                offset += len(data)
                marks[offset] = found.digest()
                if offset > most_bytes:  # it grows while we read
                    raise TaskResultError(f"`{name}` has more than {most_bytes:,} bytes")
            digest = writer.finish(Digest(found.digest()))
        self._drop(name)
        return digest, marks

    def copy_to(self, out: Path) -> None:
        """Put the file of this name that was made for somebody where they want it."""
        name, temporary = f"{OUT}/{out.name}", out.with_name(f"{out.name}.{os.getpid()}.new")
        try:
            with self._opened(name, None) as (source, _), temporary.open("wb") as file:
                shutil.copyfileobj(source, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(out)
            sync_folder(out.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreFailedError(f"{out}: {error.strerror}") from None
        self._drop(name)

    @contextmanager
    def _opened(self, name: str, most_bytes: int | None) -> Iterator[tuple[BinaryIO, int]]:
        """Neither a link, which may lead anywhere, nor a pipe, which would never end."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            handle = os.open(self.made / name, flags)
        except OSError as error:
            raise TaskResultError(f"the task did not make `{name}`: {error.strerror}") from None
        with os.fdopen(handle, "rb", buffering=0) as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise TaskResultError(f"`{name}` is not a file")
            if most_bytes is not None and found.st_size > most_bytes:
                raise TaskResultError(
                    f"`{name}` has {found.st_size:,} bytes, and may have {most_bytes:,}"
                )
            yield file, found.st_size

    def _drop(self, name: str) -> None:
        with suppress(OSError):
            (self.made / name).unlink()

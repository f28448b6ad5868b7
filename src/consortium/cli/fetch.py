"""A model's file from the coordinator: verified before it has its name, and gone on with
where a cut line left it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING

from consortium.cli.report import Voice
from consortium.errors import CorruptBlobError, StoreFailedError, UnreachableError, WireError

if TYPE_CHECKING:
    from consortium.cli.operator import Operator
    from consortium.site.response import Response

OnBytes = Callable[[int], None]  # how many are there
_ATTEMPTS = 5  # without a byte in between
_PAUSE_S = 0.2
_WHOLE, _PART, _BEYOND = 200, 206, 416


def fetch(operator: Operator, path: str, target: Path, *, digest: str, size_bytes: int) -> None:
    """Write what lies at `path` to `target`, if it has this digest. What has come so far lies
    beside it, named by the digest, so that another command goes on with it."""
    part = target.with_name(f"{target.name}.{digest[:16]}.part")
    try:
        with _bar(target.name, size_bytes) as on_bytes:
            _complete(operator, path, part, (digest, size_bytes), on_bytes)
        if not _has_digest(part, digest):
            part.unlink()
            raise CorruptBlobError("the file that came is not the one that was asked for")
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise StoreFailedError(f"{target}: {error.strerror}") from None


def _complete(
    operator: Operator, path: str, part: Path, wanted: tuple[str, int], on_bytes: OnBytes
) -> None:
    digest, size_bytes = wanted
    stalls = 0
    while (have := _size(part)) < size_bytes:
        try:
            _go_on(operator, path, part, digest, on_bytes)
        except UnreachableError:
            stalls = 0 if _size(part) > have else stalls + 1
            if stalls == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S * 2**stalls)


def _go_on(operator: Operator, path: str, part: Path, digest: str, on_bytes: OnBytes) -> None:
    have = _size(part)
    headers = {"Range": f"bytes={have}-", "If-Range": f'"{digest}"'} if have else {}
    with operator.open(path, headers, takes=(_BEYOND,)) as response:
        _check_start(response, have)
        is_whole = response.status_code == _WHOLE
        with part.open("wb" if is_whole else "ab") as file:
            for piece in response.iter_raw():
                file.write(piece)
                on_bytes(file.tell())


def _check_start(response: Response, have: int) -> None:
    """The bytes that come must be those that were asked for, or all of them."""
    if response.status_code == _WHOLE:
        return
    told = response.headers.get("Content-Range", "")
    if response.status_code != _PART or not told.startswith(f"bytes {have}-"):
        raise WireError("the coordinator does not send the part that was asked for")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _has_digest(path: Path, digest: str) -> bool:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest() == digest


@contextmanager
def _bar(name: str, size_bytes: int) -> Iterator[OnBytes]:
    """A bar on stderr, where there is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    is_shown = sys.stderr.isatty() and not Voice.json
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not is_shown
    ) as bar:
        task = bar.add_task(name, total=size_bytes)
        yield lambda count: bar.update(task, completed=count)

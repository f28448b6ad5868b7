"""Public data sets from their publishers: fetched once, checked, kept in a cache.

The repository ships no data. A publisher's zip is not trusted: it is only looked through
for the files that we know by name and sha256, nothing in it decides where we write, and
what it unpacks to is bounded. A file that is there already is checked too, and never
replaced: somebody may have put it there.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from consortium.data.whole_file import write_whole
from consortium.errors import ChecksumError, DownloadError, SiteDataError

Progress = Callable[[int, int | None], None]  # (bytes so far, bytes in all if known)
_CHUNK_BYTES = 1 << 16
_MAX_MEMBERS = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """Where a data set comes from, and what its files must be."""

    name: str  # the folder in the cache
    url: str  # of a zip; it may hold another zip
    sha256: Mapping[str, str]  # file name -> digest, of every file that is wanted
    instead: str  # what works without the publisher
    max_bytes: int = 64 << 20  # of the zip, and of each file in it


def sums(text: str) -> dict[str, str]:
    """File name -> digest, from lines as `sha256sum` prints them."""
    pairs = [line.split(maxsplit=1) for line in text.strip().splitlines()]
    return {name: digest for digest, name in pairs}


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/consortium`, else `~/.cache/consortium`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    root = Path(home) if home and Path(home).is_absolute() else Path.home() / ".cache"
    return root / "consortium"


def fetch(
    source: Source,
    folder: str | Path | None = None,
    *,
    progress: Progress | None = None,
    timeout_s: float = 30.0,
) -> Path:
    """The folder that has all files of the source, each with its published sha256.

    Files that are in `folder` (or the cache) are used; the publisher is asked only when
    one is missing. Raises when a file has another checksum, and writes nothing then.
    """
    place = Path(folder) if folder is not None else cache_folder() / source.name
    absent = {name: digest for name, digest in source.sha256.items() if not _has(place, name)}
    for name in set(source.sha256) - set(absent):
        _check_file(place / name, source.sha256[name])
    if absent:
        archive = _download(source, place, progress, timeout_s)
        files = _members(archive, absent, source)
        for name, data in files.items():
            write_whole(place / name, data)
    return place


def _has(place: Path, name: str) -> bool:
    try:
        return (place / name).is_file()
    except OSError as error:
        raise SiteDataError(f"{place} cannot be read: {error.strerror}") from None


def _check_file(path: Path, digest: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SiteDataError(f"{path} cannot be read: {error.strerror}") from None
    if found != digest:
        raise ChecksumError(
            f"{path} is not the published file: its sha256 is {found[:16]}…, not {digest[:16]}…",
            hint=f"rm {path}    # then it is fetched again",
        )


def _download(source: Source, place: Path, progress: Progress | None, timeout_s: float) -> bytes:
    if not source.url.startswith(("http://", "https://")):
        raise SiteDataError(f"{source.url}: only http and https addresses are opened")
    request = urllib.request.Request(source.url, headers={"User-Agent": "consortium"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            data = bytearray()
            while chunk := response.read(_CHUNK_BYTES):
                data += chunk
                if len(data) > source.max_bytes:
                    raise DownloadError(f"{source.url} sends more than {source.max_bytes} bytes")
                if progress is not None:
                    progress(len(data), total)
    except urllib.error.HTTPError as error:
        error.close()
        raise _unreachable(source, place, f"answers {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _unreachable(source, place, f"cannot be reached ({reason})") from None
    if total is not None and len(data) < total:
        raise _unreachable(source, place, f"stopped after {len(data)} of {total} bytes")
    return bytes(data)


def _unreachable(source: Source, place: Path, what: str) -> SiteDataError:
    names = ", ".join(sorted(source.sha256))
    return DownloadError(
        f"{source.url} {what}", hint=f"put {names} into {place} by hand, or use {source.instead}"
    )


def _members(archive: bytes, wanted: Mapping[str, str], source: Source) -> dict[str, bytes]:
    """The wanted files out of a zip: by name wherever they lie, right by their digest."""
    found: dict[str, bytes] = {}
    seen: set[str] = set()
    try:
        for name, data in _candidates(archive, wanted, source.max_bytes, depth=1):
            seen.add(name)
            if hashlib.sha256(data).hexdigest() == wanted[name]:
                found[name] = data
    # zipfile raises RuntimeError for a password and NotImplementedError for methods it lacks.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError):
        raise DownloadError(f"{source.url} is not a zip that can be read") from None
    for name in wanted:
        if name not in found:
            what = "is not the published file: another sha256" if name in seen else "is not in it"
            raise ChecksumError(
                f"{source.url}: {name} {what}",
                hint=f"nothing was written; look at the publisher's page, or use {source.instead}",
            )
    return found


def _candidates(
    archive: bytes, wanted: Mapping[str, str], max_bytes: int, depth: int
) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        for member in opened.infolist()[:_MAX_MEMBERS]:
            name = PurePosixPath(member.filename).name
            is_zip = depth > 0 and name.lower().endswith(".zip")
            if name not in wanted and not is_zip:
                continue
            with opened.open(member) as file:
                data = file.read(max_bytes + 1)  # whatever size the zip's directory claims
            if len(data) > max_bytes:
                raise zipfile.BadZipFile("a member is larger than it can be")
            if name in wanted:
                yield name, data
            else:
                yield from _candidates(data, wanted, max_bytes, depth - 1)

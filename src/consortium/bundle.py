"""A task as files: what travels to a site, is read there by people, and approved by hash.

A bundle is plain files in the order of their names behind a manifest of their SHA-256;
nothing in it is ever run before somebody has approved its hash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.errors import BundleError
from consortium.model import Layout

MAX_FILES = 1000
MAX_FILE_BYTES = 1 << 20
MAX_BUNDLE_BYTES = 16 << 20
_MAGIC = b"consortium-bundle/v1\n"
_TASK_CONTEXT = b"consortium/task/v1\0"
_LINE = re.compile(rb"([0-9a-f]{64}) (\d{1,7}) ([^\n]{1,255})\n")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Bundle:
    """The task's files by name, sorted."""

    files: tuple[tuple[str, bytes], ...]

    @property
    def manifest(self) -> bytes:
        """One line a file: sha256, size, name."""
        return b"".join(
            f"{sha256(data).hexdigest()} {len(data)} {name}\n".encode() for name, data in self.files
        )

    def pack(self) -> bytes:
        """The bytes that travel; equal bundles have equal bytes."""
        return b"".join([_MAGIC, self.manifest, b"\n", *(data for _, data in self.files)])

    def task_hash(
        self,
        layout: Layout,
        entry: str,
        metrics: tuple[Metric, ...],
        pinned: Digest | None = None,
    ) -> Digest:
        """What a site approves: these files, run from `entry`, sharing `layout` and reporting
        `metrics`, on top of frozen tensors with the digest `pinned`, if there are any."""
        told = "".join(f"{metric.name} {int(metric.higher_is_better)}\n" for metric in metrics)
        parts = [self.manifest, layout.digest, entry.encode(), told.encode()]
        if pinned is not None:
            parts.append(pinned)
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        return Digest(sha256(_TASK_CONTEXT + framed).digest())


def make_bundle(folder: Path, names: list[str]) -> Bundle:
    """The bundle of these files below `folder`."""
    files = []
    for name in sorted(set(names)):
        _check_name(name)
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise BundleError(f"there is no plain file {path}")
        files.append((name, path.read_bytes()))
    return _checked(Bundle(tuple(files)))


def unpack(data: bytes) -> Bundle:
    """The bundle in bytes from outside; refuses whatever `pack` would not have written."""
    if len(data) > MAX_BUNDLE_BYTES + MAX_FILES * 400 or not data.startswith(_MAGIC):
        raise BundleError("not a task bundle")
    entries: list[tuple[str, int]] = []
    at = len(_MAGIC)
    while match := _LINE.match(data, at):
        entries.append((match[3].decode(errors="replace"), int(match[2])))
        at = match.end()
        if len(entries) > MAX_FILES:
            raise BundleError("a task bundle has too many files")
    at += 1  # the empty line
    files = []
    for name, size in entries:
        files.append((name, data[at : at + size]))
        at += size
    bundle = Bundle(tuple(files))
    if bundle.pack() != data:
        raise BundleError("the bundle's files are not what its manifest says")
    return _checked(bundle)


def _checked(bundle: Bundle) -> Bundle:
    names = [name for name, _ in bundle.files]
    if not names or names != sorted(set(names)) or len(names) > MAX_FILES:
        raise BundleError("a task bundle has between one and a thousand files, sorted")
    for name in names:
        _check_name(name)
    sizes = [len(data) for _, data in bundle.files]
    if max(sizes) > MAX_FILE_BYTES or sum(sizes) > MAX_BUNDLE_BYTES:
        raise BundleError(
            "a task's files are at most 1 MiB each and 16 MiB together",
            hint="data and weights do not travel with the task",
        )
    return bundle


def _check_name(name: str) -> None:
    """A relative path of plain parts: it cannot lead out of a folder."""
    parts = PurePosixPath(name).parts
    if not parts or len(name) > 255 or "/".join(parts) != name:
        raise BundleError(f"{name!r} is not a plain relative path")
    if not all(_NAME.fullmatch(part) for part in parts):
        raise BundleError(f"{name!r} has a part that is not letters, digits, dots and dashes")

"""A disk that keeps only what was forced to it.

The model is stricter than any file system that we know: bytes are durable when their
file was synced, a name when its directory was synced after it was made, and nothing
else is. What was not synced may survive all the same, in any part and any order; a
generator decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from random import Random

from consortium.testing.recording import Event

_SECTOR = 512
_SHARED_MEMORY = "-shm"  # SQLite's index in memory: made anew after every crash
_DELETED = " (deleted)"


@dataclass(slots=True, eq=False)
class File:
    """Bytes as the process sees them, as the disk has them, and the changes between."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: truncate

    def write(self, offset: int | None, data: bytes) -> None:
        at = len(self.live) if offset is None else offset
        _put(self.live, at, data)
        self.pending.append((at, data))

    def truncate(self, size: int) -> None:
        _cut(self.live, size)
        self.pending.append((size, None))

    def sync(self) -> None:
        self.durable, self.pending = bytes(self.live), []

    def survivor(self, rng: Random | None) -> bytes:
        """The bytes after a power cut. Writes that were not synced survive whole, in part,
        or not at all."""
        found = bytearray(self.durable)
        for at, data in self.pending if rng is not None else []:
            luck = rng.random() if rng is not None else 0.0
            if luck < 0.4:
                continue
            if data is None:
                _cut(found, at)
            elif luck < 0.6:
                sectors = rng.randrange(len(data) // _SECTOR + 1) if rng is not None else 0
                _put(found, at, data[: sectors * _SECTOR])
            else:
                _put(found, at, data)
        return bytes(found)


@dataclass(slots=True, eq=False)
class Folder:
    """Names as the process sees them, as the disk has them, and the changes between."""

    live: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[tuple[str, File | Folder | None]] = field(default_factory=list)

    def set(self, name: str, entry: File | Folder) -> None:
        self.live[name] = entry
        self.pending.append((name, entry))

    def remove(self, name: str) -> File | Folder:
        self.pending.append((name, None))
        return self.live.pop(name)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.live), []

    def survivor(self, rng: Random | None) -> dict[str, File | Folder]:
        found = dict(self.durable)
        for name, entry in self.pending if rng is not None else []:
            if rng is not None and rng.random() < 0.5:
                if entry is None:
                    found.pop(name, None)
                else:
                    found[name] = entry
        return found


class Disk:
    """All that is below one folder, which itself is durable and was empty."""

    def __init__(self, root: str) -> None:
        self._root = PurePosixPath(root)
        self.top = Folder()

    def apply(self, event: Event) -> None:
        if event.path.endswith(_DELETED):
            return
        folder, name = self._parent(event.path)
        match event.kind:
            case "create":
                if name not in folder.live:
                    folder.set(name, File())
            case "mkdir":
                folder.set(name, Folder())
            case "remove":
                folder.remove(name)
            case "rename":
                target, new_name = self._parent(event.other)
                target.set(new_name, folder.remove(name))
            case "sync":
                (folder.live[name] if name else self.top).sync()
            case _:
                self._change(folder.live[name], event)

    @staticmethod
    def _change(file: File | Folder, event: Event) -> None:
        assert isinstance(file, File)
        if event.kind == "write":
            file.write(event.offset, event.data)
        else:
            assert event.kind == "truncate" and event.offset is not None
            file.truncate(event.offset)

    def _parent(self, path: str) -> tuple[Folder, str]:
        """(the folder that a path is in, its name there); the root itself has no name."""
        parts = PurePosixPath(path).relative_to(self._root).parts
        folder = self.top
        for part in parts[:-1]:
            entry = folder.live[part]
            assert isinstance(entry, Folder)
            folder = entry
        return folder, parts[-1] if parts else ""

    def write_out(self, target: Path, rng: Random | None) -> None:
        """Make `target` what a power cut now would leave: with no generator only what was
        synced, with one also some of what was not."""
        _write_out(self.top, target, rng)


def _write_out(folder: Folder, target: Path, rng: Random | None) -> None:
    target.mkdir(exist_ok=True)
    for name, entry in folder.survivor(rng).items():
        if isinstance(entry, Folder):
            _write_out(entry, target / name, rng)
        elif not name.endswith(_SHARED_MEMORY):
            (target / name).write_bytes(entry.survivor(rng))


def _put(data: bytearray, at: int, new: bytes) -> None:
    if not new:
        return
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    data[at : at + len(new)] = new


def _cut(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))

"""What can go wrong in a `World`: a network, a disk and clocks that fail by a seed.

Everything random comes from one generator, and every fault is counted under its kind. When
`Faults.is_quiet`, nothing goes wrong any more: rounds must then end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from consortium.core.ids import Digest
from consortium.errors import StoreFailedError
from consortium.store.memory import MemoryBlobs, MemoryLog
from consortium.store.ports import BlobWriter

# Faults of one kind among all chances for it, before the setting's intensity.
LOST, DOUBLED, DELAYED = 0.1, 0.1, 0.1
CRASH_INSIDE, CRASH_AFTER = 0.025, 0.025
UNKNOWN_WRITTEN, UNKNOWN_NOT_WRITTEN = 0.03, 0.03
CRASH_ON_ARRIVAL = 0.006
SITE_CRASH = 0.02  # at each of the points of a site's sequence
RACE = 0.2  # the other coordinator acts in the middle of something


class Crash(BaseException):
    """A process is gone. Not an `Exception`: no layer may handle it."""

    def __init__(self, victim: object) -> None:
        super().__init__("crash")
        self.victim = victim


@dataclass(slots=True)
class Faults:
    """Draws faults and counts them."""

    rng: Random
    intensity: float
    trace: Callable[[str], None]
    is_quiet: bool = False
    is_disk_full: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def strikes(self, kind: str, rate: float) -> bool:
        """Whether a fault of this kind happens now; counted if so."""
        if self.is_quiet or self.rng.random() >= rate * self.intensity:
            return False
        self.happened(kind)
        return True

    def happened(self, kind: str) -> None:
        """Count a fault, and put it on record."""
        self.counts[kind] += 1
        self.trace(f"FAULT {kind}")

    def chance(self, rate: float) -> bool:
        """Like `strikes` for what is no fault by itself, such as a race."""
        return not self.is_quiet and self.rng.random() < rate

    def check_disk(self) -> None:
        if self.is_disk_full and not self.is_quiet:
            self.happened("disk full")
            raise StoreFailedError("no space left")


class NodeClock:
    """One node's clock: the world's time, give or take."""

    def __init__(self, true_ms: Callable[[], int]) -> None:
        self._true_ms = true_ms
        self.offset_ms = 0

    def now_ms(self) -> int:
        return self._true_ms() + self.offset_ms


class Durable(MemoryLog):
    """The log that coordinators share. It survives them, and backups of it can be put back."""

    def records(self, stream: str) -> list[bytes]:
        return self._streams.setdefault(stream, [])


class Scene(Protocol):
    """What a faulty disk needs to know of the world around it."""

    faults: Faults

    def stress(self, records: Sequence[bytes]) -> tuple[str, float]:
        """What a commit of these is called, and how much likelier faults are around it."""
        ...

    def meanwhile(self, node: object) -> None:
        """Perhaps let the other coordinator do something now."""
        ...

    def appended(self, node: object, stream: str, records: Sequence[bytes]) -> None:
        """These records are durable from now on."""
        ...


class FaultyLog:
    """The shared log as one coordinator reaches it."""

    def __init__(self, durable: Durable, scene: Scene, node: object) -> None:
        self._durable, self._scene, self._node = durable, scene, node

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        faults = self._scene.faults
        what, stress = self.stress(records)
        self._scene.meanwhile(self._node)
        faults.check_disk()
        if faults.strikes(f"coordinator crash inside a {what}", CRASH_INSIDE * stress):
            raise Crash(self._node)
        if faults.strikes(f"unknown {what}, not written", UNKNOWN_NOT_WRITTEN * stress):
            raise StoreFailedError("the disk did not answer")
        length = self.write(stream, expected, records)
        if faults.strikes(f"coordinator crash after a {what}", CRASH_AFTER * stress):
            raise Crash(self._node)
        if faults.strikes(f"unknown {what}, written", UNKNOWN_WRITTEN * stress):
            raise StoreFailedError("the disk did not answer")
        return length

    def stress(self, records: Sequence[bytes]) -> tuple[str, float]:
        return self._scene.stress(records)

    def write(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        """The commit itself, as durable as it gets."""
        length = self._durable.append(stream, expected, records)
        self._scene.appended(self._node, stream, records)
        return length

    def read(self, stream: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return self._durable.read(stream, start, stop)

    def follow(self, stream: str, start: int, timeout_s: float) -> int:
        return self._durable.follow(stream, start, 0.0)


class FaultyBlobs:
    """The shared blobs on the same disk as the log."""

    def __init__(self, durable: MemoryBlobs, faults: Faults) -> None:
        self._durable, self._faults = durable, faults

    def put(self, data: bytes) -> Digest:
        self._faults.check_disk()
        return self._durable.put(data)

    def writer(self) -> AbstractContextManager[BlobWriter]:
        self._faults.check_disk()
        return self._durable.writer()

    def get(self, digest: Digest, start: int = 0, size: int | None = None) -> bytes:
        return self._durable.get(digest, start, size)

    def size(self, digest: Digest) -> int:
        return self._durable.size(digest)

    def check(self, digest: Digest) -> None:
        self._durable.check(digest)

    def has(self, digest: Digest) -> bool:
        return self._durable.has(digest)

    def drop(self, digest: Digest) -> None:
        self._durable.drop(digest)

"""What sites keep between rounds: adapters, statistics, variates. It never leaves a site.

A site's state belongs to the model that it was trained with. What a round made is pending
until the round is over: if its candidate became the model, and the site's update was in
it, the pending state becomes the site's own; else it is forgotten, as the candidate is. So
training again after a crash starts from the same state and gives the same update, and a
site's variate never runs ahead of the server's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from consortium.core.ids import Seat
from consortium.errors import StoreFailedError
from consortium.store.files import sync_folder, write_durably

_CURRENT, _SUFFIX = "current", ".safetensors"


class SiteStates(Protocol):
    """Each site's state, and what the open round made of it."""

    def current(self, seat: Seat) -> bytes | None:
        """What goes with the present model; None when the site keeps nothing yet."""
        ...

    def pending(self, seat: Seat, number: int) -> bytes | None:
        """What training in round `number` made, while that round is not settled."""
        ...

    def keep(self, seat: Seat, number: int, state: bytes) -> None:
        """Keep what training in round `number` made, before its update is known to anybody."""
        ...

    def settle(
        self, number: int, members: Collection[Seat], seats: Collection[Seat] | None = None
    ) -> None:
        """Round `number` is over. `members` are those whose updates are in the model that it
        published; nobody, when it published none. May be called twice. With `seats`, it is over
        for these alone: without a barrier, others go on."""
        ...


class MemoryStates:
    """States in dictionaries: gone with the process."""

    def __init__(self) -> None:
        self._current: dict[Seat, bytes] = {}
        self._pending: dict[Seat, tuple[int, bytes]] = {}

    def current(self, seat: Seat) -> bytes | None:
        return self._current.get(seat)

    def pending(self, seat: Seat, number: int) -> bytes | None:
        made_in, state = self._pending.get(seat, (0, b""))
        return state if made_in == number else None

    def keep(self, seat: Seat, number: int, state: bytes) -> None:
        self._pending[seat] = number, state

    def settle(
        self, number: int, members: Collection[Seat], seats: Collection[Seat] | None = None
    ) -> None:
        for seat, (made_in, state) in list(self._pending.items()):
            if seats is not None and seat not in seats:
                continue
            if made_in == number and seat in members:
                self._current[seat] = state
            if made_in <= number:
                del self._pending[seat]


class FileStates:
    """States in files, a folder a site: `current.safetensors`, and one named for the open
    round while it is pending. Durable before the update that belongs to them is known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def current(self, seat: Seat) -> bytes | None:
        return _read(self._path(seat, _CURRENT))

    def pending(self, seat: Seat, number: int) -> bytes | None:
        return _read(self._path(seat, str(number)))

    def keep(self, seat: Seat, number: int, state: bytes) -> None:
        with _failures(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        write_durably(self._path(seat, str(number)), state)

    def settle(
        self, number: int, members: Collection[Seat], seats: Collection[Seat] | None = None
    ) -> None:
        for path, made_in in self._made():
            seat = Seat(int(path.parent.name))
            if seats is not None and seat not in seats:
                continue
            with _failures(path):
                if made_in == number and seat in members:
                    path.rename(path.with_name(_CURRENT + _SUFFIX))
                    sync_folder(path.parent)
                elif made_in <= number:
                    path.unlink(missing_ok=True)

    def _path(self, seat: Seat, name: str) -> Path:
        return self._folder / str(seat) / f"{name}{_SUFFIX}"

    def _made(self) -> Iterator[tuple[Path, int]]:
        """Every pending state, and the round that made it."""
        for path in sorted(self._folder.glob(f"*/*{_SUFFIX}")):
            if path.stem.isdecimal() and path.parent.name.isdecimal():
                yield path, int(path.stem)


def _read(path: Path) -> bytes | None:
    with _failures(path):
        return path.read_bytes() if path.exists() else None


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """A disk that fails, as one of our errors: it is tried again, and ends nobody."""
    try:
        yield
    except OSError as error:
        raise StoreFailedError(f"{path}: {error.strerror}") from None

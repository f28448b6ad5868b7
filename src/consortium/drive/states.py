"""What sites keep between rounds: adapters, statistics, variates. It never leaves a site.

A state is kept under the round that made it. A site that trains in round n starts from the
newest state of an earlier round, so that training again after a crash, in the same round,
starts from the same state and gives the same update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from consortium.core.ids import Seat
from consortium.store.files import write_durably

_SUFFIX = ".safetensors"


class SiteStates(Protocol):
    """Each site's states by round."""

    def before(self, seat: Seat, number: int) -> bytes | None:
        """The newest state of a round before `number`; None when there is none."""
        ...

    def keep(self, seat: Seat, number: int, state: bytes) -> None:
        """Keep the state that round `number` made, and forget what nobody can need."""
        ...


class MemoryStates:
    """States in a dictionary: gone with the process."""

    def __init__(self) -> None:
        self._states: dict[Seat, dict[int, bytes]] = {}

    def before(self, seat: Seat, number: int) -> bytes | None:
        known = self._states.get(seat, {})
        rounds = [held for held in known if held < number]
        return known[max(rounds)] if rounds else None

    def keep(self, seat: Seat, number: int, state: bytes) -> None:
        known = self._states.setdefault(seat, {})
        known[number] = state
        for old in sorted(known)[:-2]:
            del known[old]


class FileStates:
    """States in files, durable before the update that belongs to them is known: a folder a
    site, a file a round, the last two rounds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def before(self, seat: Seat, number: int) -> bytes | None:
        rounds = [held for held in self._rounds(seat) if held < number]
        return self._path(seat, max(rounds)).read_bytes() if rounds else None

    def keep(self, seat: Seat, number: int, state: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_durably(self._path(seat, number), state)
        for old in self._rounds(seat)[:-2]:
            self._path(seat, old).unlink(missing_ok=True)

    def _path(self, seat: Seat, number: int) -> Path:
        return self._folder / str(seat) / f"{number}{_SUFFIX}"

    def _rounds(self, seat: Seat) -> list[int]:
        files = (self._folder / str(seat)).glob(f"*{_SUFFIX}")
        return sorted(int(file.stem) for file in files if file.stem.isdecimal())

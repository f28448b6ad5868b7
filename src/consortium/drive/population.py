"""Many clients, none of which is there before it is asked: `Population(100_000)`.

A client is its number. The task makes the records from it, the same ones every time, so
memory follows the clients of a round and not the population.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import overload

from consortium.core.ids import Digest
from consortium.drive.engine import SimulatedSite
from consortium.errors import UsageError
from consortium.model import digest_of

MOST_CLIENTS = 1_000_000
_PREFIX, _DIGITS = "client-", 6


class Population(Sequence[SimulatedSite]):
    """Clients `client-000001`, `client-000002` …, made when they are looked at. The data of
    each is its number.

    >>> clients = Population(100_000)
    >>> clients[41]
    SimulatedSite(name='client-000042', data=42, report=())
    >>> len(clients[10:20])
    10
    """

    def __init__(self, clients: int) -> None:
        if not 1 <= clients <= MOST_CLIENTS:
            raise UsageError(f"a population has 1 to {MOST_CLIENTS:,} clients")
        self._numbers = range(1, clients + 1)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> SimulatedSite: ...

    @overload
    def __getitem__(self, at: slice) -> Population: ...

    def __getitem__(self, at: int | slice) -> SimulatedSite | Population:
        if isinstance(at, slice):
            part = object.__new__(Population)
            part._numbers = self._numbers[at]
            return part
        return _client(self._numbers[at])

    def __iter__(self) -> Iterator[SimulatedSite]:
        return map(_client, self._numbers)

    def __contains__(self, site: object) -> bool:
        if not isinstance(site, SimulatedSite):
            return False
        at = self.place_of(site.name)
        return at is not None and self[at] == site

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Population) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    def __repr__(self) -> str:
        return f"<Population of {len(self):,} clients>"

    @property
    def numbers(self) -> range:
        """The clients' numbers."""
        return self._numbers

    def place_of(self, name: str) -> int | None:
        """Where the client of this name stands, from 0; None if there is none."""
        digits = name.removeprefix(_PREFIX)
        number = int(digits) if digits.isascii() and digits.isdecimal() else 0
        if number not in self._numbers or _client(number).name != name:
            return None
        return self._numbers.index(number)


def _client(number: int) -> SimulatedSite:
    return SimulatedSite(f"{_PREFIX}{number:0{_DIGITS}}", number)


def place_of(sites: Sequence[SimulatedSite], name: str) -> int | None:
    """Where the site of this name stands, from 0; None if there is none."""
    if isinstance(sites, Population):
        return sites.place_of(name)
    return next((at for at, site in enumerate(sites) if site.name == name), None)


def strangers(sites: Sequence[SimulatedSite], names: Iterable[str]) -> list[str]:
    """Those of the names that no site has, in their order."""
    if isinstance(sites, Population):
        return [name for name in names if sites.place_of(name) is None]
    known = {site.name for site in sites}
    return [name for name in names if name not in known]


def digest_of_names(sites: Sequence[SimulatedSite]) -> Digest:
    """What tells these sites from others, as far as names do: for files that are passed on."""
    if isinstance(sites, Population):
        return digest_of(f"clients {sites.numbers}".encode())
    return digest_of("\n".join(site.name for site in sites).encode())


def digest_of_sites(sites: Sequence[SimulatedSite]) -> Digest:
    """What tells these sites from others: their names, and what is in their files."""
    if isinstance(sites, Population):
        return digest_of(f"clients {sites.numbers}".encode())
    return digest_of("\n".join(f"{site.name} {_contents(site.data)}" for site in sites).encode())


def _contents(data: object) -> str:
    """The digest of a site's file; nothing for data of another kind."""
    if not isinstance(data, str | Path):
        return ""
    try:
        with Path(data).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:  # a folder, or a name that only the task understands
        return ""


def has_reports(sites: Sequence[SimulatedSite]) -> bool:
    """Whether some site says something of itself. Clients of a population do not."""
    return not isinstance(sites, Population) and any(site.report for site in sites)


def have_own_names(sites: Sequence[SimulatedSite]) -> bool:
    """Whether no two sites have the same name. Clients of a population have their numbers."""
    return isinstance(sites, Population) or len({site.name for site in sites}) == len(sites)

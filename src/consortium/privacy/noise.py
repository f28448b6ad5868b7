"""Where noise comes from.

`SecretNoise` is the only source that protects anybody. It has no seed, no key that outlives a
call and no other state, so there is nothing to save, to restore, to copy into a forked process
or to find in a core dump later. A static test keeps every other source out of the code that
protects somebody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from consortium.errors import InternalError
from consortium.privacy.discrete_gaussian import discrete_gaussian
from consortium.privacy.keystream import U64, Keystream
from consortium.privacy.normal import coins, normals


class Noise(Protocol):
    """A source of noise, and of the coins that pick records."""

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        """Standard normal numbers."""
        ...

    def coins(self, count: int, rate: float) -> npt.NDArray[np.bool_]:
        """Truth values, each true with probability `rate`."""
        ...

    def discrete(self, count: int, sigma: float) -> npt.NDArray[np.int64]:
        """Whole numbers of the discrete Gaussian distribution with this sigma."""
        ...


class SecretNoise:
    """Noise that nobody can foresee or draw again.

    Every call takes a new key from the operating system: calls of several threads, and of
    processes that were forked from one, have nothing in common. What the numbers are, and what
    their tails and low bits are, stands in `normal` and `discrete_gaussian`.
    """

    __slots__ = ()

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        return normals(count, Keystream.fresh().words)

    def coins(self, count: int, rate: float) -> npt.NDArray[np.bool_]:
        return coins(count, rate, Keystream.fresh().words)

    def discrete(self, count: int, sigma: float) -> npt.NDArray[np.int64]:
        return discrete_gaussian(sigma).draw(count, Keystream.fresh().words)

    def __repr__(self) -> str:
        return "SecretNoise()"

    def __reduce__(self) -> NoReturn:
        raise InternalError("a source of secret noise stays in its process")


class SimulatedNoise:
    """Noise from a seed. It protects nobody: whoever has the seed takes the noise off again, and
    a statistical generator's state can be computed from what it gave. For simulation only."""

    __slots__ = ("_rng",)

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        return self._rng.standard_normal(count)

    def coins(self, count: int, rate: float) -> npt.NDArray[np.bool_]:
        return coins(count, rate, self._words)

    def discrete(self, count: int, sigma: float) -> npt.NDArray[np.int64]:
        return discrete_gaussian(sigma).draw(count, self._words)

    def _words(self, count: int) -> U64:
        return self._rng.integers(1 << 64, size=count, dtype=np.uint64)


class SideBySide:
    """One source a row, for a block of simulated sites: each row's noise is what its site would
    draw alone. Of n sources, each gives an nth of what is asked for."""

    __slots__ = ("_sources",)

    def __init__(self, sources: Sequence[Noise]) -> None:
        self._sources = tuple(sources)

    def normal(self, count: int) -> npt.NDArray[np.float64]:
        each = self._each(count)
        return np.concatenate([source.normal(each) for source in self._sources])

    def coins(self, count: int, rate: float) -> npt.NDArray[np.bool_]:
        each = self._each(count)
        return np.concatenate([source.coins(each, rate) for source in self._sources])

    def discrete(self, count: int, sigma: float) -> npt.NDArray[np.int64]:
        each = self._each(count)
        return np.concatenate([source.discrete(each, sigma) for source in self._sources])

    def _each(self, count: int) -> int:
        each, left = divmod(count, max(1, len(self._sources)))
        if left or not self._sources:
            raise InternalError("every row has a source of its own, and asks for as much")
        return each

"""Order statistics of every column by a sorting network, a whole chunk at a time.

A network is a fixed list of comparators: which numbers are compared never depends on the
numbers, so one `np.minimum` and one `np.maximum` serve thousands of columns at once.
Batcher's odd-even merge (Batcher 1968; Knuth, TAOCP 3, 5.3.4) sorts any number of lines.
A median or a trimmed mean needs less than the order: comparators that cannot change the
result are left out, and a comparator of which one end is used does half the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Lines = list[int]
Numbers = npt.NDArray[Any]  # float32 or float64
Comparator = tuple[int, int]  # the smaller number goes to the first line
Step = tuple[bool, int, int, int]  # is it the minimum? of registers x and y, into register z


@dataclass(frozen=True, slots=True)
class Program:
    """A pruned network over registers: the first `rows` are the input and only read.

    `kept` are the registers that hold, at the end, the wanted numbers in no special order.
    """

    rows: int
    buffers: int
    steps: tuple[Step, ...]
    kept: tuple[int, ...]

    def run(self, rows: Sequence[Numbers], buffers: Numbers) -> list[Numbers]:
        """The kept rows, each of them one of `rows` or one of `buffers`, (buffers, width)."""
        registers = [*rows, *buffers]
        smaller, larger = np.minimum, np.maximum
        for is_minimum, x, y, z in self.steps:
            if is_minimum:
                smaller(registers[x], registers[y], out=registers[z])
            else:
                larger(registers[x], registers[y], out=registers[z])
        return [registers[at] for at in self.kept]


@lru_cache(maxsize=64)
def median_program(n: int) -> Program:
    """Keeps the middle row, or the middle two."""
    network: list[Comparator] = []
    order = _sorted(list(range(n)), network)
    return _compiled(n, network, order[(n - 1) // 2 : n // 2 + 1])


@lru_cache(maxsize=64)
def trimming_program(n: int, f: int) -> Program:
    """Keeps all but the f smallest and the f largest; n > 2f.

    Of two sorted halves a and b, the f smallest numbers are min(aᵢ, b_{f-1-i}), and the f
    largest likewise from the other end (the first step of a bitonic merge; Batcher 1968).
    While these two ends do not meet, the last and longest merge is not needed.
    """
    network: list[Comparator] = []
    half = (n + 1) // 2
    a, b = _sorted(list(range(half)), network), _sorted(list(range(half, n)), network)
    if 2 * f > len(b):
        return _compiled(n, network, _merged(a, b, network)[f : n - f])
    network.extend(zip(a[:f], reversed(b[:f]), strict=True))
    network.extend(zip(a[half - f :], reversed(b[len(b) - f :]), strict=True))
    return _compiled(n, network, [*a[f:], *b[: len(b) - f]])


def _sorted(lines: Lines, network: list[Comparator]) -> Lines:
    """Comparators that sort these lines; where the sorted numbers are, smallest first."""
    if len(lines) < 2:
        return lines
    half = (len(lines) + 1) // 2
    return _merged(_sorted(lines[:half], network), _sorted(lines[half:], network), network)


def _merged(a: Lines, b: Lines, network: list[Comparator]) -> Lines:
    """Merge two sorted lists: their even places, their odd places, then neighbours."""
    if not a or not b:
        return a + b
    if len(a) == len(b) == 1:
        network.append((a[0], b[0]))
        return a + b
    even, odd = _merged(a[::2], b[::2], network), _merged(a[1::2], b[1::2], network)
    pairs = list(zip(odd, even[1:], strict=False))  # one list may be longer, by one
    network.extend(pairs)
    rest = [*odd[len(pairs) :], *even[len(pairs) + 1 :]]
    return [even[0], *(line for pair in pairs for line in pair), *rest]


def _pruned(
    network: Iterable[Comparator], kept: Lines
) -> list[tuple[Comparator, tuple[bool, bool]]]:
    """What is left, looking backwards: (comparator, which of its two ends are used).

    A comparator goes when nobody reads it, and also when both its ends are kept as they
    are: those are wanted in any order.
    """
    used, is_final = set(kept), set(kept)
    left = []
    for comparator in reversed(list(network)):
        ends = set(comparator)
        if ends & used and not ends <= is_final:
            left.append((comparator, (comparator[0] in used, comparator[1] in used)))
            used |= ends
            is_final -= ends
    return left[::-1]


class _Registers:
    """Which register each line is in. A buffer that is free again is taken first: it is warm."""

    def __init__(self, n: int) -> None:
        self.place = list(range(n))
        self.rows, self.count = n, 0
        self._free: Lines = []

    def take(self) -> int:
        if not self._free:
            self._free.append(self.rows + self.count)
            self.count += 1
        return self._free.pop()

    def result(self, *candidates: int) -> int:
        """A register to write to: one of these that is a buffer, else a fresh one."""
        return next((at for at in candidates if at >= self.rows), None) or self.take()

    def release(self, *registers: int) -> None:
        self._free.extend(at for at in registers if at >= self.rows)


def _compiled(n: int, network: list[Comparator], kept: Lines) -> Program:
    """Give every number a register, so that rows are read in place and never copied."""
    registers, steps = _Registers(n), []
    place = registers.place
    for (low, high), (is_low_used, is_high_used) in _pruned(network, kept):
        x, y = place[low], place[high]
        if is_low_used and is_high_used:
            place[low] = registers.take()
            steps.append((True, x, y, place[low]))
            place[high] = registers.result(y, x)
            steps.append((False, x, y, place[high]))
            registers.release(*({x, y} - {place[high]}))
        else:
            line = low if is_low_used else high
            place[line] = registers.result(x, y)
            steps.append((is_low_used, x, y, place[line]))
            registers.release(*({x, y} - {place[line]}))
    return Program(n, registers.count, tuple(steps), tuple(place[line] for line in kept))

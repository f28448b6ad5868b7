"""Clients that are made on demand: memory follows the round, not the population.

    python -m benchmarks.population --json

Each run is a process of its own; its memory is the most that it and its workers held at a time,
as the system tells it (proportional set size: what processes share is counted once). In a line,
ours is the larger run and base the smaller one: 1,000 clients a round against 100, both of
100,000; a population of 100,000 against one of 1,000, both 100 a round. The promises are
1.2 times (a ratio above 0.83) and 50 MB. `benchmarks.population_run` has the tasks.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Line, main

MANY, FEW = 100_000, 1_000
LARGE, SMALL = 1_000, 100
ROUNDS = 2
_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took."""

    peak_mb: float
    round_s: float


def cost(kind: str, clients: int, target: int, rounds: int = ROUNDS) -> Cost:
    """Run it in a process, and look at the memory of all its processes meanwhile."""
    numbers = [str(number) for number in (clients, target, rounds)]
    command = [sys.executable, "-m", "benchmarks.population_run", kind, *numbers]
    root = Path(__file__).parents[1]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        while process.poll() is None:
            peak = max(peak, sum(_held_kb(pid) for pid in _family(process.pid)))
            time.sleep(_EVERY_S)
        assert process.stdout is not None
        told = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return Cost(peak / 1024, float(told))


def _family(pid: int) -> Iterator[int]:
    """A process and all that it started."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:  # it has ended
            continue
        for child in found:
            yield from _family(int(child))


def _held_kb(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    except OSError:  # it has ended
        pass
    return 0


def measure() -> Iterator[Line]:
    for kind in ("numpy", "torch"):
        usual = cost(kind, MANY, SMALL)
        large, small = cost(kind, MANY, LARGE), cost(kind, FEW, SMALL)
        yield Line(
            f"{kind}: memory, {LARGE:,} a round",
            large.peak_mb,
            usual.peak_mb,
            "MB",
            f"base: {SMALL} a round; both of {MANY:,} clients, peak of all processes",
        )
        yield Line(
            f"{kind}: memory, {MANY:,} clients",
            usual.peak_mb,
            small.peak_mb,
            "MB",
            f"base: {FEW:,} clients; both {SMALL} a round; {usual.peak_mb - small.peak_mb:+.1f} MB",
        )
        yield Line(
            f"{kind}: a round of {SMALL}",
            usual.round_s,
            small.round_s,
            "s",
            f"of {MANY:,} clients; base: of {FEW:,}",
        )


if __name__ == "__main__":
    main(measure, __doc__)

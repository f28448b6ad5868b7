"""What a round costs between real processes, beside its bytes moved by plain HTTPS.

    python -m benchmarks.network --json

Four sites and a coordinator, a process each, on loopback with TLS and client certificates:
a model of 10 MB float32, no training, everything durable. A round is from its opening to the
opening of the next: 40 MB down, 40 MB up, checked, logged, summed, published. The base moves
the same bytes with the standard library, hashed and forced to the disk at both ends
(`benchmarks.plain_https`), in the same run.

Then the coordinator's memory: idle, and at its peak in a round of 8 and of 64 sites with
models of 20 MB (`python -m benchmarks.network_memory`).
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.network_memory import memory_lines
from benchmarks.plain_https import PIECE, time_rounds
from benchmarks.report import Line, main
from consortium.testing.processes import Network, Shape

SITES = 4
SIZE = 2_500_000  # float32: 10 MB
ROUNDS = 14
WARM_UP = 3


def ours(folder: Path) -> list[float]:
    """Seconds of each round but the first few, which start the sites' own processes."""
    shape = Shape(sites=SITES, rounds=ROUNDS, size=SIZE, quorum=SITES, duration="5m")
    with Network(folder, shape) as network:
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        network.wait_for_rounds(ROUNDS)
        opened = [record["opened_ms"] for record in network.rounds()]
    both = itertools.pairwise(opened)
    return [(after - before) / 1000 for before, after in both][WARM_UP:]


def lines() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as scratch:
        before = time_rounds(Path(scratch) / "before", 4 * SIZE, SITES, 8)
        taken = ours(Path(scratch) / "ours")
        after = time_rounds(Path(scratch) / "after", 4 * SIZE, SITES, 8)
        tuned = time_rounds(Path(scratch) / "tuned", 4 * SIZE, SITES, 8, PIECE)
    median = statistics.median(taken)
    detail = (
        f"{SITES} sites, 10 MB, TLS, durable; median of {len(taken)} rounds, "
        f"fastest {min(taken):.3f}, slowest {max(taken):.3f}; base: plain HTTPS, hashed and "
        f"fsynced, before {before:.3f} and after {after:.3f} "
        f"({tuned:.3f} with blocks of 1 MiB in place of http.client's own)"
    )
    yield Line("networked round", median, (before + after) / 2, "s", detail)
    yield from memory_lines()


if __name__ == "__main__":
    main(lines, __doc__)

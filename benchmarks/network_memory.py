"""The coordinator's memory: idle, and at its peak in a round of few and of many sites.

    python -m benchmarks.network_memory --json

The sites are played by one process (`consortium.testing.crowd`): all fetch the model at once,
and all upload at once.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Line, main
from consortium.testing.crowd import play
from consortium.testing.processes import Network, Shape

SIZE = 5_000_000  # float32: 20 MB
MODEL_MB = 4 * SIZE / 1e6
FEW, MANY = 8, 64
IDLE_LIMIT_MB = 120.0


def memory_mb(pid: int, what: str) -> float:
    """VmRSS or VmHWM of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def peak_mb(folder: Path, sites: int) -> tuple[float, float]:
    """(idle, peak) of the coordinator in a round of `sites`."""
    shape = Shape(sites=sites, rounds=1, size=SIZE, quorum=sites, duration="10m")
    with Network(folder, shape) as network:
        network.start_coordinator()
        network.status()
        pid = network.processes["coordinator"].pid
        idle = memory_mb(pid, "VmRSS")
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak counts from here
        play(network)
        network.wait_for_rounds(1)
        return idle, memory_mb(pid, "VmHWM")


def memory_lines() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as scratch:
        idle, few = peak_mb(Path(scratch) / "few", FEW)
        _, many = peak_mb(Path(scratch) / "many", MANY)
    told = f"idle {idle:.1f}, peak with {FEW} sites {few:.1f}, with {MANY} sites {many:.1f} MB"
    yield Line("coordinator idle", idle, IDLE_LIMIT_MB, "MB", "base: what is allowed")
    allowed = idle + 2 * MODEL_MB
    detail = f"{told}; base: idle and two models of {MODEL_MB:.0f} MB"
    yield Line(f"peak of {MANY} sites", many, allowed, "MB", detail)


if __name__ == "__main__":
    main(memory_lines, __doc__)

"""A process that keeps its memory: measured in page faults, which do not depend on load."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from consortium.drive.tuning import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    arrays = [np.ones(size) for size in (100_000, 700_000, 2_000_000)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, mode], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_a_process_that_keeps_its_memory_asks_the_system_for_none() -> None:
    assert faults("keep") < faults("plain") / 10

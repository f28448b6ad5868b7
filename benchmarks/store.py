"""What durability costs: commits in groups, starting again, proofs over a long log.

    python -m benchmarks.store --json

The database is made in the current folder, so that it is on a real disk and not in memory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.core import Federated, digest
from benchmarks.report import Line, main
from consortium.drive.clock import ManualClock
from consortium.drive.driver import Driver
from consortium.ledger.merkle import leaf_hash, verify_inclusion
from consortium.ledger.tree import Tree
from consortium.store.cache import SqliteCache
from consortium.store.memory import MemoryCache
from consortium.store.sqlite import SqliteLog

FACTS = 200_000
LEAVES = 1_000_000
GROUP = 50
COMMITS = 200


def seconds(call: object) -> float:
    begun = time.perf_counter()
    call()  # type: ignore[operator]  # any callable
    return time.perf_counter() - begun


def appends(folder: Path) -> Line:
    """Seconds per fact: in groups of fifty, and one by one."""
    log, record = SqliteLog(folder / "appends.sqlite"), b"x" * 60
    grouped = single = float("inf")
    length = 0
    for _ in range(5):  # in turn, so that a busy disk slows both alike
        begun = time.perf_counter()
        for _ in range(COMMITS // 5):
            length = log.append("a", length, [record] * GROUP)
        grouped = min(grouped, (time.perf_counter() - begun) / (COMMITS // 5 * GROUP))
        begun = time.perf_counter()
        for _ in range(COMMITS // 5):
            length = log.append("a", length, [record])
        single = min(single, (time.perf_counter() - begun) / (COMMITS // 5))
    log.close()
    detail = f"a fact, forced to the disk, {GROUP} a commit; base: one a commit"
    return Line("append", grouped * 1e6, single * 1e6, "us", detail)


def long_log(folder: Path) -> SqliteLog:
    """The log of a federation of 100 sites after hundreds of rounds."""
    federated = Federated(100)
    updates = [digest(seat) for seat in range(100)]
    while federated.length < FACTS:
        federated.play_round(updates)
    log = SqliteLog(folder / "long.sqlite")
    log.append("benchmark", 0, list(federated.log.read("benchmark")))
    return log


def reopening(folder: Path) -> Line:
    """Seconds from the file to the folded state, with and without the snapshot."""
    log, cache = long_log(folder), SqliteCache(folder / "cache.sqlite")
    clock = ManualClock()
    plain = seconds(lambda: Driver(log, "benchmark", clock, cache))  # and leaves a snapshot
    quick = min(seconds(lambda: Driver(log, "benchmark", clock, cache)) for _ in range(3))
    log.close()
    cache.close()
    detail = f"{FACTS} facts opened again with the snapshot; base: without"
    return Line("open again", quick, plain, "s", detail)


def proofs(folder: Path) -> Line:
    """Milliseconds for a proof in a log of a million records."""
    log = SqliteLog(folder / "leaves.sqlite")
    for start in range(0, LEAVES, 100_000):
        log.append("a", start, [b"record %d" % at for at in range(start, start + 100_000)])
    tree = Tree(log, "a", MemoryCache())
    cold = seconds(lambda: tree.root(LEAVES))
    root = tree.root(LEAVES)
    slowest = 0.0
    for index in (0, 123_456, 500_000, 777_777, LEAVES - 1):
        begun = time.perf_counter()
        proof = tree.inclusion_proof(index, LEAVES)
        slowest = max(slowest, time.perf_counter() - begun)
        verify_inclusion(leaf_hash(b"record %d" % index), index, LEAVES, proof, root)
    log.close()
    detail = f"the slowest of five proofs at {LEAVES} leaves; base: the root without a cache"
    return Line("proof", slowest * 1e3, cold * 1e3, "ms", detail)


def measure() -> Iterator[Line]:
    with tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-") as folder:
        yield appends(Path(folder))
        yield reopening(Path(folder))
        yield proofs(Path(folder))


if __name__ == "__main__":
    main(measure, __doc__)

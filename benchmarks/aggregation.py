"""What combining updates costs: the mean beside a copy, robust rules beside plain NumPy.

    python -m benchmarks.aggregation --json

Best of three, in turn with the base, so that a busy machine slows both alike. Ours uses the
cores that are there; `detail` also gives processor seconds, which other work hardly moves.
Where flwr is installed, its own functions are a further base.
"""

from __future__ import annotations

import importlib
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.report import Line, main
from consortium.aggregate.columns import Source, for_columns
from consortium.aggregate.rules import combined, make_rule
from consortium.aggregate.server import ServerOptimiser

SITES = 50
HOSTILE = 0.2
F = 10  # of fifty
MEAN_SIZE = 10_000_000
ROBUST_SIZE = 1_000_000
REPEATS = 3

Stack = npt.NDArray[np.float32]  # (n, d)


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of all processors together."""
    begun, worked = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begun, time.process_time() - worked


def side_by_side(
    name: str, ours: Callable[[], object], base: Callable[[], object], detail: str
) -> Line:
    """The best of both, taken in turn."""
    pairs = [(*seconds(ours), *seconds(base)) for _ in range(REPEATS)]
    mine, mine_cpu, other, other_cpu = (min(column) for column in zip(*pairs, strict=True))
    processor = f"; processor seconds {mine_cpu:.3f}, base {other_cpu:.3f}"
    return Line(name, mine, other, "s", detail + processor)


def rows_of(size: int) -> Stack:
    """Fifty distinct rows in memory of their own, made cheaper than by fifty draws."""
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal(size, dtype=np.float32) for _ in range(5)]
    stack = np.empty((SITES, size), np.float32)
    for at, row in enumerate(stack):
        np.copyto(row, np.roll(drawn[at % 5], 1009 * at))
    return stack


def sources_of(stack: Stack) -> list[Source]:
    return [Source(rank, row, 100.0 + 7.0 * rank) for rank, row in enumerate(stack)]


# ---- the mean -----------------------------------------------------------------------


class Averaging:
    """A whole round of FedAvg: the mean, the server's step, the new model in float32."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.sources = stack, sources_of(stack)
        self.base = np.zeros(stack.shape[1], np.float32)
        self.target = np.empty(stack.shape[1], np.float32)  # larger than the cache

    def ours(self) -> Stack:
        combine, optimiser = make_rule("mean").columns(self.sources), ServerOptimiser("sgd", 1.0)
        new = np.empty_like(self.base)

        def work(lo: int, hi: int) -> None:
            new[lo:hi] = optimiser.step(self.base[lo:hi], combine(lo, hi), {})[0]

        for_columns(len(new), work)
        return new

    def copied(self) -> None:
        for row in self.stack:
            np.copyto(self.target, row)

    def plain(self) -> Stack:
        """As one writes it first: float32 in place, one row after the other."""
        total = np.zeros_like(self.base)
        for source in self.sources:
            total += source.values[:] * np.float32(source.weight)
        total /= np.float32(sum(source.weight for source in self.sources))
        return total

    def extra_models(self) -> float:
        """The most memory that a round takes beyond its rows and the old model, in models."""
        tracemalloc.start()
        self.ours()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / self.base.nbytes

    def error(self) -> tuple[float, float]:
        """Largest absolute and relative error of a sample of columns against long doubles."""
        columns = slice(None, None, 1009)
        weights = np.array([source.weight for source in self.sources], np.longdouble)
        exact = (self.stack[:, columns] * weights[:, None]).sum(axis=0) / weights.sum()
        off = np.abs(combined(make_rule("mean"), self.sources)[columns] - exact)
        return float(off.max()), float((off / np.abs(exact)).max())


def averaging() -> Iterator[Line]:
    task = Averaging(rows_of(MEAN_SIZE))
    absolute, relative = task.error()
    detail = (
        f"{SITES} x {MEAN_SIZE // 10**6}M float32 to the next model, summed in float64; base: "
        f"np.copyto of the same bytes; largest error {absolute:.1e} absolute, {relative:.1e} "
        f"relative; peak extra memory {task.extra_models():.2f} models"
    )
    yield side_by_side("fedavg / copy", task.ours, task.copied, detail)
    how = "the same; base: NumPy in float32, row after row"
    yield side_by_side("fedavg / plain", task.ours, task.plain, how)


# ---- robust rules, as one writes them first -----------------------------------------


def squares_of(stack: Stack) -> npt.NDArray[np.float64]:
    """Squared distances, a pair at a time: seven times faster than a broadcast by rows."""
    squares = np.zeros((len(stack), len(stack)))
    for i, row in enumerate(stack):
        for j in range(i):
            difference = row - stack[j]
            squares[i, j] = squares[j, i] = difference @ difference
    return squares


def krum_order(stack: Stack) -> npt.NDArray[np.intp]:
    n = len(stack)
    nearest = np.sort(squares_of(stack), axis=1)[:, 1 : n - F - 1]
    return np.argsort(nearest.sum(axis=1))


def weiszfeld(stack: Stack) -> Stack:
    """Ten steps only, where ours goes on until it arrives."""
    point = stack.mean(axis=0)
    for _ in range(10):
        near = np.array([1.0 / np.linalg.norm(row - point) for row in stack], np.float32)
        point = (near @ stack) / near.sum()
    return point


def clipping(stack: Stack) -> Stack:
    centre = np.zeros_like(stack[0])
    for _ in range(10):
        lengths = np.array([np.linalg.norm(row - centre) for row in stack])
        factors = np.minimum(1.0, np.median(lengths) / lengths).astype(np.float32)
        centre = centre + (factors @ stack - factors.sum() * centre) / len(stack)
    return centre


PLAIN: dict[str, tuple[Callable[[Stack], Any], str]] = {
    "median": (lambda x: np.median(x, axis=0), "np.median"),
    "trimmed_mean": (
        lambda x: np.partition(x, (F, len(x) - F - 1), axis=0)[F:-F].mean(axis=0),
        "np.partition, then the mean (as SciPy does it)",
    ),
    "trimmed_mean / sort": (
        lambda x: np.sort(x, axis=0)[F:-F].mean(axis=0),
        "np.sort, then the mean: several times faster than np.partition where there is AVX-512",
    ),
    "krum": (lambda x: x[krum_order(x)[0]], "distances pair by pair"),
    "multi_krum": (
        lambda x: x[krum_order(x)[: SITES - F]].mean(axis=0),
        "distances pair by pair",
    ),
    "geometric_median": (weiszfeld, "ten steps of Weiszfeld on the rows"),
    "centred_clipping": (clipping, "ten steps on the rows"),
}


def robust(stack: Stack) -> Iterator[Line]:
    sources = sources_of(stack)
    for name, (plain, how) in PLAIN.items():
        rule = make_rule(name.partition(" ")[0], HOSTILE)
        off = float(np.abs(combined(rule, sources) - plain(stack)).max())  # and warm
        detail = (
            f"{SITES} x {ROBUST_SIZE // 10**6}M float32, {F} hostile; base: {how}; "
            f"largest difference {off:.1e}"
        )
        yield side_by_side(name, partial(combined, rule, sources), partial(plain, stack), detail)


# ---- flwr, where it is --------------------------------------------------------------


def flower(stack: Stack) -> Iterator[Line]:
    """The same rules by flwr's own functions."""
    try:
        theirs = importlib.import_module("flwr.server.strategy.aggregate")
    except ImportError:
        return
    results = [([row], 100) for row in stack]
    calls: dict[str, Callable[[], object]] = {
        "mean": lambda: theirs.aggregate(results),
        "median": lambda: theirs.aggregate_median(results),
        "trimmed_mean": lambda: theirs.aggregate_trimmed_avg(results, HOSTILE),
        "krum": lambda: theirs.aggregate_krum(results, F, 0),
        "multi_krum": lambda: theirs.aggregate_krum(results, F, SITES - F),
    }
    sources = sources_of(stack)
    for name, call in calls.items():
        rule = make_rule(name, HOSTILE)
        detail = f"{SITES} x {ROBUST_SIZE // 10**6}M float32; base: flwr"
        yield side_by_side(f"{name} / flwr", partial(combined, rule, sources), call, detail)


def measure() -> Iterator[Line]:
    yield from averaging()
    stack = rows_of(ROBUST_SIZE)
    yield from robust(stack)
    yield from flower(stack)


if __name__ == "__main__":
    main(measure, __doc__)

"""Many worlds: seeds over several processes, planted bugs, and the command line of `world`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

from rich.progress import Progress

from consortium.testing.patches import planted
from consortium.testing.world import World
from consortium.testing.world_bugs import BUGS
from consortium.testing.world_past import Violation

MAX_HUNT = 200  # seeds after which a planted bug counts as missed
_UNEXPECTED = "no error may escape"


@dataclass(frozen=True, slots=True)
class Result:
    """What one seed came to; `rule` is empty when none was broken."""

    seed: int
    steps: int
    faults: dict[str, int]
    completed: int
    failed: int
    digest: str
    rule: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Catch:
    """What became of one planted bug; `seeds` were needed to find it, 0 if it was missed."""

    bug: str
    seeds: int
    rule: str
    message: str


@dataclass(slots=True)
class Totals:
    """All results together."""

    seeds: int = 0
    steps: int = 0
    completed: int = 0
    failed: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: int = 0
    first: Result | None = None  # of the violations, the one with the lowest seed

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.steps += result.steps
        self.completed += result.completed
        self.failed += result.failed
        for kind, count in result.faults.items():
            self.faults[kind] = self.faults.get(kind, 0) + count
        if result.rule:
            self.violations += 1
            if self.first is None or result.seed < self.first.seed:
                self.first = result


def run_seed(
    seed: int,
    is_buffered: bool | None = None,
    has_budgets: bool = False,
    is_masked: bool = False,
) -> Result:
    """One world from its beginning to its end, or to the first broken rule."""
    kinds = {"is_buffered": is_buffered, "has_budgets": has_budgets, "is_masked": is_masked}
    return run_world(World(seed, **kinds))  # type: ignore[arg-type]  # by name


def run_world(world: World) -> Result:
    """Like `run_seed`, for a world that somebody else has made."""
    try:
        outcome = world.run()
    except Violation as violation:
        return _broken(world, violation.rule, violation.message)
    except Exception as error:  # the evidence is the seed; the campaign goes on
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.name}, {where.filename}:{where.lineno})"
        return _broken(world, _UNEXPECTED, text)
    return Result(
        outcome.seed,
        outcome.steps,
        dict(outcome.faults),
        outcome.completed,
        outcome.failed,
        outcome.digest,
    )


def _broken(world: World, rule: str, message: str) -> Result:
    faults = dict(world.faults.counts)
    return Result(world.seed, world.steps, faults, 0, 0, world.digest(), rule, message)


def hunt(number: int, first: int = 0) -> Catch:
    """Successive seeds with one planted bug, until a rule notices it."""
    bug = BUGS[number]
    with planted(bug):
        for seed in range(first, first + MAX_HUNT):
            result = run_seed(seed, bug.is_buffered, bug.has_budgets, bug.is_masked)
            if result.rule:
                return Catch(bug.name, seed - first + 1, result.rule, result.message)
    return Catch(bug.name, 0, "", "")


# ---- the command line ---------------------------------------------------------------


def run_command(arguments: Sequence[str] | None) -> int:
    """Parse and run; the exit code."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options)
    if options.planted:
        return _hunt_all(options)
    return _campaign(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m consortium.testing.world")
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    workers = min(2, os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=workers, help="processes")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: every event")
    help_text = "every federation without a barrier; without it, some"
    parser.add_argument("--asynchronous", action="store_true", help=help_text)
    parser.add_argument("--budgets", action="store_true", help="every round costs something")
    parser.add_argument("--masked", action="store_true", help="every sum is secret")
    parser.add_argument("--planted", action="store_true", help="find the planted bugs instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _one(options: argparse.Namespace) -> int:
    seed = options.seed
    is_buffered = options.asynchronous or None
    world = World(
        seed, is_buffered=is_buffered, has_budgets=options.budgets, is_masked=options.masked
    )
    result = run_world(world)
    if options.trace:
        print(f"{world.setting}\n" + "\n".join(world.lines))
    print(f"seed {seed}: {result.steps} steps, {sum(result.faults.values())} faults, ", end="")
    print(f"{result.completed} rounds completed, {result.failed} failed")
    print(f"trace digest {result.digest}")
    if result.rule:
        print(f"BROKEN {result.rule}: {result.message}")
    return 1 if result.rule else 0


def _campaign(options: argparse.Namespace) -> int:
    totals, began = Totals(), time.perf_counter()
    seeds = range(options.first, options.first + options.seeds)
    with _workers(options.workers) as spread:
        is_buffered = options.asynchronous or None
        kinds = {"has_budgets": options.budgets, "is_masked": options.masked}
        run = partial(run_seed, is_buffered=is_buffered, **kinds)
        for result in _shown(spread(run, seeds), options.seeds, "worlds"):
            totals.add(result)
    seconds = time.perf_counter() - began
    if options.json:
        print(json.dumps({**asdict(totals), "seconds": round(seconds, 1)}, indent=2))
    else:
        print("\n".join(_summary(totals, seconds, _mode(options))))
    return 1 if totals.violations else 0


def _mode(options: argparse.Namespace) -> str:
    """What is needed to replay a seed, beside the seed."""
    chosen = (
        (" --asynchronous", options.asynchronous),
        (" --budgets", options.budgets),
        (" --masked", options.masked),
    )
    return "".join(word for word, is_on in chosen if is_on)


def _summary(totals: Totals, seconds: float, mode: str) -> Iterator[str]:
    for kind, count in sorted(totals.faults.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"{count:9,}  {kind}"
    yield f"{sum(totals.faults.values()):9,}  faults in all"
    yield f"{totals.seeds:,} seeds, {totals.steps:,} steps, {seconds:.1f} s"
    yield f"rounds: {totals.completed:,} completed, {totals.failed:,} failed"
    yield f"violations: {totals.violations}"
    if totals.first is not None:
        yield f"first: seed {totals.first.seed} broke {totals.first.rule}: {totals.first.message}"
        replay = f"--seed {totals.first.seed}{mode} --trace"
        yield f"replay: python -m consortium.testing.world {replay}"


def _hunt_all(options: argparse.Namespace) -> int:
    with _workers(options.workers) as spread:
        catches = list(_shown(spread(hunt, range(len(BUGS))), len(BUGS), "planted bugs"))
    catches.sort(key=lambda catch: [bug.name for bug in BUGS].index(catch.bug))
    missed = sum(not catch.seeds for catch in catches)
    if options.json:
        print(json.dumps([asdict(catch) for catch in catches], indent=2))
        return 1 if missed else 0
    for catch in catches:
        fate = f"found after {catch.seeds:3} seeds by {catch.rule}" if catch.seeds else "MISSED"
        print(f"{catch.bug:55} {fate}")
    print(f"{len(catches) - missed} of {len(catches)} found")
    return 1 if missed else 0


@contextmanager
def _workers(count: int) -> Iterator[Any]:
    """Something like `map` over `count` processes; in this one when it is one."""
    if count < 2:
        yield map
        return
    with get_context("spawn").Pool(count) as pool:
        yield lambda run, items: pool.imap_unordered(run, items)


def _shown(results: Iterable[Any], total: int, what: str) -> Iterator[Any]:
    """The results as they come, with a bar for somebody who watches."""
    if not sys.stderr.isatty():
        yield from results
        return
    from rich.console import Console

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        for result in results:
            progress.advance(task)
            yield result

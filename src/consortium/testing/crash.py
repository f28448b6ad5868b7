"""Crashes and failing disks at every durable system call of a coordinator.

    python -m consortium.testing.crash                     # everything: minutes
    python -m consortium.testing.crash --kill-every 7 --error-every 17

Each point is one `write`, `fsync`, `rename`, … of the crash scenario. There the process
is killed, or the call fails (once; from there on; for a while, in a process that tries
again). Then the scenario is started again and must end as if nothing had happened. Exit
1 on any violation.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from consortium.errors import StoreFailedError
from consortium.testing.crash_check import wrong_end, wrong_inside
from consortium.testing.crash_plants import PLANTS
from consortium.testing.warm import (
    Job,
    NoStraceError,
    Outcome,
    Workers,
    run_warm,
    scratch,
    serve,
    strace,
)

MODULE = "consortium.testing.crash"
CALLS = (
    "write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,"
    "ftruncate,fallocate"
)
_ANSWER = "writev"  # what the sites' memory and standard output are written with
_CALL = re.compile(r"^\d+ +(\w+)\(", re.MULTILINE)
_WINDOW = 12  # calls that fail in a row before space returns
_RETRIES = 60
_SIGKILL = 9
_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Campaign:
    """One way to break a run, tried at many points."""

    name: str
    fault: str  # strace's: signal=… or error=…
    length: int  # durable calls in a row that it hits; 0: all from there on
    retries: int
    every: int
    first: int = 0  # the first point

    def injections(self, calls: list[str], point: int) -> list[str]:
        """strace's expressions for the calls from `point` on. It counts each kind of system
        call by itself, and so must we."""
        end = point + self.length if self.length else len(calls)
        found = []
        for name in CALLS.split(",") if not self.length else sorted(set(calls[point:end])):
            first = calls[:point].count(name) + 1
            last = f"..{calls[:end].count(name)}" if self.length else "+"
            found.append(f"inject={name}:{self.fault}:when={first}{last}")
        return found


def campaigns(kill_every: int, error_every: int, first: int = 0) -> Iterator[Campaign]:
    """All of them. An interval of 0 leaves a kind out."""
    if kill_every:
        yield Campaign("killed", "signal=SIGKILL", 1, 0, kill_every, first)
    if error_every:
        for name in ("ENOSPC", "EIO"):
            fault = f"error={name}"
            yield Campaign(f"{name} once", fault, 1, 0, error_every, first)
            yield Campaign(f"{name} from there on", fault, 0, 0, error_every, first)
            yield Campaign(f"{name} for a while", fault, _WINDOW, _RETRIES, error_every, first)


# ---- one point ----------------------------------------------------------------------


def break_at(job: Job) -> Job:
    """Break a run at one point, start it again, and look. For `warm.serve`."""
    with scratch() as name:
        folder = Path(name)
        directory, acks = folder / "data", folder / "acks"
        arguments = [str(directory), "--acks", str(acks)]
        arguments += ["--plant", job["plant"]] if job["plant"] else []
        tracing = ["-e", f"trace={CALLS}"]
        for injection in job["injections"]:
            tracing += ["-e", injection]
        broken = run_warm([*arguments, "--retries", str(job["retries"])], folder, tracing)
        found = [*_wrong_break(broken, job["is_killed"])]
        finished = run_warm(arguments, folder)
        found += wrong_end(finished, job["reference"]) + wrong_inside(directory, acks)
        return {"point": job["point"], "call": job["call"], "code": broken.code, "wrong": found}


def _wrong_break(broken: Outcome, is_killed: bool) -> Iterator[str]:
    """A killed run dies; a refused one says so with a code, unless it could do without."""
    if is_killed:
        if broken.code != -_SIGKILL:
            yield f"the killed run ended with {broken.code}: {broken.err.strip()[:300]}"
        return
    is_coded = broken.err.startswith(f"error {StoreFailedError.code}: ")
    if broken.code != 0 and not (broken.code == 1 and is_coded):
        yield f"the refused run ended with {broken.code}: {broken.err.strip()[:300]}"


# ---- all points ---------------------------------------------------------------------


def refer(job: Job) -> Job:
    """A run that is left alone: the names of its durable calls, its summary, and which of
    the calls come last before an answer goes out."""
    with scratch() as name:
        folder = Path(name)
        arguments = [str(folder / "data"), "--acks", str(folder / "acks")]
        arguments += ["--plant", job["plant"]] if job["plant"] else []
        outcome = run_warm(arguments, folder, ["-e", f"trace={CALLS},{_ANSWER}"])
        if outcome.code != 0:
            raise RuntimeError(f"the scenario itself fails: {outcome.err}")
        traced = _CALL.findall((folder / "trace").read_text())
        calls = [name for name in traced if name != _ANSWER]
        before = [at for at, name in enumerate(traced) if name == _ANSWER]
        last = [at - number - 1 for number, at in enumerate(before)]
        return {"calls": calls, "last": last, "summary": json.loads(outcome.out)}


def handle(job: Job) -> Job:
    return refer(job) if job["do"] == "refer" else break_at(job)


def jobs_of(campaign: Campaign, calls: list[str], reference: Job, plant: str) -> Iterator[Job]:
    for point in range(campaign.first, len(calls), campaign.every):
        yield {
            "do": "break",
            "point": point,
            "call": calls[point],
            "injections": campaign.injections(calls, point),
            "is_killed": campaign.fault.startswith("signal"),
            "retries": campaign.retries,
            "reference": reference,
            "plant": plant,
        }


def run_campaign(campaign: Campaign, referred: Job, plant: str, workers: Workers) -> list[str]:
    """The violations of one campaign, after a line that tells its figures."""
    started = time.monotonic()
    results = workers.run(jobs_of(campaign, referred["calls"], referred["summary"], plant))
    violations = [
        f"{campaign.name} at {result['point']} ({result['call']}): {wrong}"
        for result in results
        for wrong in result["wrong"]
    ]
    broken = sum(result["code"] != 0 for result in results)
    seconds = time.monotonic() - started
    print(
        f"{campaign.name:22} {len(referred['calls']):6} {len(results):5} {broken:7} "
        f"{seconds:8.1f} {len(results) / seconds:8.1f} {len(violations):10}",
        flush=True,
    )
    return violations


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("--kill-every", type=int, default=1, help="points; 0: no kills")
    parser.add_argument("--error-every", type=int, default=1, help="points; 0: no errors")
    parser.add_argument("--first", type=int, default=0, help="the first point")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="a bug to find")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help="be a worker")
    options = parser.parse_args(arguments)
    if options.serve:
        serve(handle)
        return 0
    try:
        print(f"with {strace()}", flush=True)
    except NoStraceError as error:
        print(error, file=sys.stderr)
        return 1
    print("campaign               points  runs  broken  seconds points/s violations")
    violations = []
    with Workers(MODULE, options.workers) as workers:
        [referred] = workers.run([{"do": "refer", "plant": options.plant}])
        for campaign in campaigns(options.kill_every, options.error_every, options.first):
            violations += run_campaign(campaign, referred, options.plant, workers)
    for line in violations[:_MAX_SHOWN]:
        print(line)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

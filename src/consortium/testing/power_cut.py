"""Power cuts: what a coordinator acknowledged is there when the power comes back.

    python -m consortium.testing.power_cut                 # 200 cuts, then the planted bugs
    python -m consortium.testing.power_cut --cuts 25 --seed 7

The writes, syncs and renames of a real run are recorded, and so are those of runs that
were killed and started again, because a restart reads what the dead process had written
but not forced. For each cut the disk is rebuilt from what was synced up to there, with
none or some of the rest; the sites compare their memory with it, and the scenario goes
on to its end. Exit 1 on any violation, or when a planted bug is not found.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from consortium.testing.crash import refer
from consortium.testing.crash_check import wrong_end, wrong_inside
from consortium.testing.crash_plants import PLANTS
from consortium.testing.disk import Disk
from consortium.testing.recording import OPTIONS, Event, read_trace
from consortium.testing.warm import Job, NoStraceError, Workers, run_warm, scratch, serve, strace

MODULE = "consortium.testing.power_cut"
DURABILITY_PLANTS = ("no-directory-fsync", "no-file-fsync", "synchronous-normal", "trusting-log")
_MAX_SHOWN = 10
_MODEL = "data"


# ---- recording ----------------------------------------------------------------------


def record(job: Job) -> Job:
    """Run the scenario under strace, once for each item of `kills` and once to the end."""
    folder = Path(job["folder"])
    folder.mkdir()
    arguments = [str(folder / _MODEL), "--acks", str(folder / "acks")]
    arguments += ["--plant", job["plant"]] if job["plant"] else []
    for number, kill in enumerate([*job["kills"], None]):
        tracing = [*OPTIONS, *(["-e", f"inject={kill}"] if kill else [])]
        outcome = run_warm(arguments, folder, tracing)
        if (outcome.code == 0) is (kill is not None):
            raise RuntimeError(f"the recorded run ended with {outcome.code}: {outcome.err}")
        (folder / "trace").rename(folder / f"trace.{number}")
    events, first = _events(str(folder))
    memory = str(folder / "acks")
    acked = [
        at for at, event in enumerate(events) if event.path == memory and event.kind == "write"
    ]
    return {"events": len(events), "first": first, "acked": acked}


@lru_cache(maxsize=8)
def _events(folder: str) -> tuple[list[Event], int]:
    """(every event of all runs of a recording, where the last run begins)."""
    traces = sorted(Path(folder).glob("trace.*"))
    runs = [read_trace(trace, Path(folder)) for trace in traces]
    return [event for run in runs for event in run], sum(len(run) for run in runs[:-1])


# ---- one cut ------------------------------------------------------------------------


def cut(job: Job) -> Job:
    """Rebuild the disk after the first `at` events, and let the scenario go on there."""
    source = job["folder"]
    disk, memory = Disk(source), b""
    for event in _events(source)[0][: job["at"]]:
        if event.path == f"{source}/acks":
            memory += event.data
        elif event.path == source or event.path.startswith(f"{source}/{_MODEL}"):
            disk.apply(event)
    with scratch() as name:
        folder = Path(name)
        disk.write_out(folder, Random(job["seed"]) if job["seed"] else None)
        acks = folder / "acks"
        acks.write_bytes(memory)
        outcome = run_warm([str(folder / _MODEL), "--acks", str(acks)], folder)
        wrong = wrong_end(outcome, job["reference"]) or wrong_inside(folder / _MODEL, acks)
        return {"at": job["at"], "seed": job["seed"], "name": job["name"], "wrong": wrong}


def handle(job: Job) -> Job:
    match job["do"]:
        case "refer":
            return refer(job)
        case "record":
            return record(job)
    return cut(job)


# ---- the campaign -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Campaign:
    """How many cuts, in recordings of how many killed runs besides the quiet one."""

    cuts: int
    kills: int
    seed: int
    plant: str = ""


def recordings(campaign: Campaign, referred: Job, folder: Path) -> Iterator[Job]:
    """A quiet run, and runs that were killed: every other one just before a sync that an
    answer waits for, because there most is written and not forced."""
    rng, calls = Random(campaign.seed), referred["calls"]
    for number in range(campaign.kills + 1):
        point = rng.choice(referred["last"]) if number % 2 else rng.randrange(len(calls))
        name, count = calls[point], calls[: point + 1].count(calls[point])
        yield {
            "do": "record",
            "folder": str(folder / f"{campaign.plant or 'sound'}-{number}"),
            "name": f"killed at {name} {count}" if number else "quiet",
            "kills": [f"{name}:signal=SIGKILL:when={count}"] if number else [],
            "plant": campaign.plant,
        }


def cuts_of(campaign: Campaign, made: list[Job], reference: Job) -> Iterator[Job]:
    """Half right after an acknowledgement, half anywhere in the last run of a recording;
    half with nothing but what was synced."""
    rng = Random(campaign.seed + 1)
    for number in range(campaign.cuts):
        recording, turn = made[number % len(made)], number // len(made)
        acked = [at for at in recording["acked"] if at >= recording["first"]]
        if turn == 0:
            at, seed = acked[0], 0  # what a restart answers before it writes anything
        elif turn % 2:
            at, seed = rng.randrange(recording["first"], recording["events"]), turn % 4 // 2
        else:
            at, seed = rng.choice(acked), turn % 4 // 2
        yield {
            "do": "cut",
            "folder": recording["folder"],
            "name": recording["name"],
            "at": at + 1,
            "seed": seed * rng.randrange(1, 1 << 30),
            "reference": reference,
        }


def run_campaign(campaign: Campaign, workers: Workers) -> list[str]:
    """The violations of one campaign, after a line that tells its figures."""
    started = time.monotonic()
    with scratch() as name:  # of this process: on a disk, not in memory as the workers'
        [referred] = workers.run([{"do": "refer", "plant": campaign.plant}])
        wanted = list(recordings(campaign, referred, Path(name)))
        made = [{**job, **result} for job, result in zip(wanted, workers.run(wanted), strict=True)]
        results = workers.run(cuts_of(campaign, made, referred["summary"]))
    violations = [
        f"{result['name']}, cut after event {result['at']}, seed {result['seed']}: {wrong}"
        for result in results
        for wrong in result["wrong"]
    ]
    bad = sum(bool(result["wrong"]) for result in results)
    print(
        f"{campaign.plant or 'as it is':20} {len(made):10} {made[0]['events']:7} {len(results):5} "
        f"{time.monotonic() - started:8.1f} {bad:9}",
        flush=True,
    )
    return violations


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--kills", type=int, default=12, help="recordings of killed runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planted-cuts", type=int, default=20, help="for each planted bug")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="only this bug")
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
    print("coordinator          recordings  events  cuts  seconds cuts lost")
    with Workers(MODULE, options.workers) as workers:
        sound = Campaign(options.cuts, options.kills, options.seed, options.plant)
        violations = run_campaign(sound, workers)
        for line in violations[:_MAX_SHOWN]:
            print(line)
        plants = DURABILITY_PLANTS if options.planted_cuts and not options.plant else ()
        missed = [
            plant
            for plant in plants
            if not run_campaign(Campaign(options.planted_cuts, 1, options.seed, plant), workers)
        ]
    for plant in missed:
        print(f"the planted bug {plant} was not found")
    return 1 if violations or missed else 0


if __name__ == "__main__":
    sys.exit(main())

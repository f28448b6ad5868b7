"""Kills and failing disks at every durable call of a coordinator and of an agent.

    python -m consortium.testing.crash_network                  # everything: half an hour
    python -m consortium.testing.crash_network --who agent --kill-every 3 --error-every 0

Each point is one `write`, `fsync`, `rename`, … of one process of a federation of two rounds.
There the process is killed, or the call fails: once, for a while, or from there on. The
process is started again, the federation ends, and everything is looked at from outside. Exit
1 on any violation.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from consortium.testing.crash import CALLS, Campaign, campaigns
from consortium.testing.crash_network.check import wrong_end
from consortium.testing.crash_network.parts import COORDINATOR, Place
from consortium.testing.crash_network.plants import PLANTS
from consortium.testing.crash_network.run import Fault, Run
from consortium.testing.crash_network.study import AGENT, write_study
from consortium.testing.crash_network.warmth import spare_words, warm_up
from consortium.testing.warm import Job, NoStraceError, Workers, scratch, serve, strace

MODULE = "consortium.testing.crash_network"
WHO = {"coordinator": COORDINATOR, "agent": AGENT}
_MAX_SHOWN = 10
_SHELVES = 16
_SHIFTS = {campaign.name: number for number, campaign in enumerate(campaigns(0, 1))}


# ---- one point ----------------------------------------------------------------------


@cache
def _study(is_masked: bool) -> tuple[Any, Path]:
    """Made once a worker: (what keeps its folder, its plan)."""
    folder = scratch()
    plan = write_study(Path(folder.name) / "study", is_masked=is_masked)
    spare_words()
    with scratch() as name:
        warm_up(Path(name), plan)
    gc.collect()
    gc.freeze()  # else every fork copies what its collector looks at
    return folder, plan


def run_one(job: Job) -> Job:
    """A federation, broken as the job says, and what is wrong with it. For `warm.serve`."""
    with scratch() as name:
        place = Place(Path(name), _study(job["masked"])[1], job["plant"])
        tracing = ["-e", f"trace={CALLS}"]
        for injection in job["injections"]:
            tracing += ["-e", injection]
        fault = Fault(WHO[job["who"]], tracing, job["is_kill"], job["is_for_ever"])
        run = Run(place, fault)
        run.to_the_end()
        wrong = run.wrong
        if not wrong:
            is_whole = job["is_kill"] or not job["injections"]
            again = Run(
                place, tokens=run.tokens
            )  # the next start takes away what a killed process left
            again.start_and_end(fault.who)
            wrong = again.wrong + wrong_end(place, is_whole=is_whole)
        calls = _calls(place.folder / "trace") if not job["injections"] else []
        told = {"ending": run.ending, "codes": sorted(run.codes), "calls": calls}
        return {"point": job["point"], "call": job["call"], "wrong": wrong, **told}


def _calls(trace: Path) -> list[str]:
    lines = (line.split(maxsplit=1)[1] for line in trace.read_text().splitlines())
    return [line.partition("(")[0] for line in lines if not line.startswith(("+++", "---"))]


def job_of(who: str, plant: str, masked: bool, **more: object) -> Job:
    quiet = {"injections": [], "is_kill": False, "is_for_ever": False, "point": -1, "call": ""}
    return {"who": who, "plant": plant, "masked": masked, **quiet, **more}


def points_of(calls: list[str], campaign: Campaign) -> list[int]:
    """Every so many; each way to break a run begins elsewhere, so that together they take
    more points. Of the 256 folders that a store of blobs makes one after another, only some,
    unless every point is wanted: they are all the same."""
    points = list(range(campaign.first, len(calls)))
    if campaign.every == 1:
        return points
    shift = _SHIFTS.get(campaign.name, 0) * campaign.every // len(_SHIFTS)
    points = [at for at in points if not _is_shelf(calls, at) or at % _SHELVES == 0]
    return points[shift :: campaign.every]


def _is_shelf(calls: list[str], at: int) -> bool:
    return set(calls[max(at - 2, 0) : at + 3]) == {"mkdir"}


def jobs_of(campaign: Campaign, who: str, referred: Job) -> Iterator[Job]:
    calls = referred["calls"]
    for point in points_of(calls, campaign):
        yield job_of(
            who,
            referred["plant"],
            referred["masked"],
            injections=campaign.injections(calls, point),
            is_kill=campaign.fault.startswith("signal"),
            is_for_ever=campaign.length == 0,
            point=point,
            call=calls[point],
        )


# ---- all points ---------------------------------------------------------------------


def run_campaign(campaign: Campaign, who: str, referred: Job, workers: Workers) -> Job:
    """Its figures and its violations."""
    started = time.monotonic()
    results = workers.run(jobs_of(campaign, who, referred))
    violations = [
        f"{who}, {campaign.name} at {result['point']} ({result['call']}): {wrong}"
        for result in results
        for wrong in result["wrong"]
    ]
    return {
        "who": who,
        "campaign": campaign.name,
        "points": len(referred["calls"]),
        "runs": len(results),
        "endings": Counter(_kind(result["ending"]) for result in results),
        "seconds": round(time.monotonic() - started, 1),
        "violations": violations,
    }


def _kind(ending: str) -> str:
    return ending.partition(":")[0]


def _line(told: Job) -> str:
    endings = ", ".join(f"{count} {name}" for name, count in sorted(told["endings"].items()))
    return (
        f"{told['who']:12} {told['campaign']:22} {told['points']:6} {told['runs']:5} "
        f"{told['seconds']:8.1f} {told['runs'] / max(told['seconds'], 0.1):8.1f} "
        f"{len(told['violations']):10}  {endings}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("--who", choices=[*WHO, "both"], default="both", help="who is broken")
    parser.add_argument("--kill-every", type=int, default=1, help="points; 0: no kills")
    parser.add_argument("--error-every", type=int, default=1, help="points; 0: no errors")
    parser.add_argument("--first", type=int, default=0, help="the first point")
    parser.add_argument("--plant", choices=sorted(PLANTS), default="", help="a bug to find")
    parser.add_argument("--masked", action="store_true", help="a study whose sums are secret")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one object a campaign")
    parser.add_argument("--serve", action="store_true", help="be a worker")
    options = parser.parse_args(arguments)
    if options.serve:
        serve(run_one)
        return 0
    try:
        strace()
    except NoStraceError as error:
        print(error, file=sys.stderr)
        return 1
    if not options.json:
        print("who          campaign               points  runs  seconds points/s violations")
    violations: list[str] = []
    with Workers(MODULE, options.workers) as workers:
        for who in WHO if options.who == "both" else [options.who]:
            [referred] = workers.run([job_of(who, options.plant, options.masked)])
            if referred["wrong"] and not options.plant:
                raise RuntimeError(f"the federation itself fails: {referred['wrong']}")
            if referred["wrong"]:  # a bug that shows without any fault is found as well
                found = [f"{who} at no fault: {wrong}" for wrong in referred["wrong"]]
                print("\n".join(found[:_MAX_SHOWN]), flush=True)
                violations += found
                continue
            referred |= {"plant": options.plant, "masked": options.masked}
            for campaign in campaigns(options.kill_every, options.error_every, options.first):
                told = run_campaign(campaign, who, referred, workers)
                print(json.dumps(told) if options.json else _line(told), flush=True)
                for line in [] if options.json else told["violations"][:_MAX_SHOWN]:
                    print(line, flush=True)
                violations += told["violations"]
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

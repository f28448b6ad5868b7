"""What a secure sum costs, beside the least that its primitives allow on this machine.

    python -m benchmarks.secagg --json
    python -m benchmarks.secagg --peer flwr=/path/to/its/python

The base of a line is a limit: how often each primitive is needed, times what it takes by itself
(`benchmarks.secagg_primitives`), measured in turn with ours in the same run. Both are processor
seconds, which other work hardly moves; `detail` has both by the clock, which mean little on a
busy machine. 0.66 or more is what we want: at most half as long again.

Three sites do all of their work, from their keys to their answer. The coordinator does all of its
own, and its sums are checked (`benchmarks.secagg_cohort`). More than a hundred sites have k
neighbours each. The usual k stands that 10 % drop; where more of them do, k is what stands that.

A peer is Flower in an environment of its own (`benchmarks.secagg_flower`). It adds one line, of
which it is the base: what its server computes for the same cohort.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.report import Line, parser, show
from benchmarks.secagg_cohort import Closing, Cohort
from benchmarks.secagg_primitives import CORES, costs_of, least, timed
from consortium.crypto.hazmat import shamir
from consortium.crypto.secure_sum.graph import FULL_UP_TO, USUAL, Tolerance, failure_chance

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = ((50, 1_000_000), (100, 1_000_000), (300, 100_000))
DROPPED_PERCENT = (0, 20)
WITH_PEERS = (50, 20)  # sites, and percent that drop: what others were measured with
WHOLE = 3  # sites that do all of their work
REPEATS, SECONDS = 5, 1.0  # at least so often, and so long: what is short is disturbed more
MOST_BYTES = 4.2  # a parameter
SIGNATURE_BYTES = 64
_LAST_LINES = 20


def turns() -> Iterator[None]:
    """Once for each time that ours and the base are measured."""
    begun, count = time.perf_counter(), 0
    while count < REPEATS or time.perf_counter() - begun < SECONDS:
        yield
        count += 1


# ---- sites --------------------------------------------------------------------------


def site_line(closing: Closing) -> Line:
    cohort, split = closing.cohort, closing.masked.split()
    works = [
        partial(cohort.whole_site, site, cohort.sent_to(site), split)
        for site in closing.survivors[:WHOLE]
    ]
    ours, found = [], []
    works[0]()
    for _ in turns():
        ours.append(statistics.median_low([timed(work) for work in works]))
        found.append(costs_of(cohort.degree + 1, cohort.terms.threshold, cohort.size))
    costs, clock = least(found)
    detail = (
        f"{closing}: keys, shares, masks and answer of a site on one core, the best of {len(ours)} "
        f"medians of {WHOLE} sites; base: the limit, at {1e-9 / costs.masked:.2f} GB/s of masks, "
        f"{1 / costs.agreed:,.0f} agreements/s; by the clock {min(one.clock for one in ours):.4f} "
        f"of {cohort.site_limit(clock):.4f} s"
    )
    return Line(f"site {closing.label}", min(ours).worked, cohort.site_limit(costs), "s", detail)


def bytes_line(cohort: Cohort) -> Line:
    """What a site sends: keys with a signature, sealed shares, its masked row, its answer."""
    site = cohort.ids[0]
    advert = cohort.session.advert(site)
    small = sum(len(field) for field in advert.fields) + SIGNATURE_BYTES
    shares = sum(map(len, cohort.sealed[site].values()))
    answer = shamir.SHARE_BYTES * (cohort.degree + 1)
    sent = small + shares + answer + cohort.base.nbytes
    received = len(cohort.ids) * small + shares
    detail = (
        f"{cohort}: all that a site sends, a word; received for the protocol: "
        f"{received / cohort.size:.3f}; base: the limit that we set ourselves"
    )
    name = f"bytes {cohort.label}" + ("" if cohort.terms.degree is None else f" k={cohort.degree}")
    return Line(name, sent / cohort.size, MOST_BYTES, "B", detail)


# ---- the coordinator ----------------------------------------------------------------


def coordinator_line(closing: Closing) -> Line:
    cohort = closing.cohort
    added, ours, found = [], [], []
    for _ in turns():
        added.append(closing.adding())
        ours.append(timed(closing.unmasked))
        found.append(costs_of(cohort.degree + 1, cohort.terms.threshold, cohort.size))
    costs, clock = least(found)
    passed = min(one.clock for one in added) + min(one.clock for one in ours)
    chance = failure_chance(
        len(cohort.ids), cohort.degree, cohort.terms.threshold, len(closing.dropped)
    )
    detail = (
        f"{closing}: {len(closing.survivors)} rows added, "
        f"{len(closing.survivors) + len(closing.pairs)} masks taken away over {CORES} cores, best "
        f"of {len(ours)}, the sum is exact; base: the limit, at "
        f"{1e-9 / costs.masked_by_all_cores:.2f} GB/s of masks a core; by the clock {passed:.4f} "
        f"of {closing.limit(clock):.4f} s; a round with such a dropout fails with a chance of at "
        f"most {chance:.1g}"
    )
    worked = min(added).worked + min(ours).worked
    return Line(f"coordinator {closing.label}", worked, closing.limit(costs), "s", detail)


def flower_line(python: Path, closing: Closing, ours: Line) -> Line:
    """The same cohort by Flower's workflow, beside what was measured of ours."""
    cohort = closing.cohort
    asked = (len(cohort.ids), cohort.size, len(closing.dropped), cohort.terms.threshold)
    done = subprocess.run(
        [str(python), "-m", "benchmarks.secagg_flower", *map(str, asked)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()
    if done.returncode or not said:
        last = "\n".join(done.stderr.splitlines()[-_LAST_LINES:])
        raise SystemExit(f"flwr on {closing.label} has failed:\n{last}")
    theirs = json.loads(said[-1])
    detail = (
        f"{closing}; base: the server of flwr {theirs['version']}, SecAgg+ all-to-all with the "
        f"same threshold, once, without its strategy: rows added and masks taken away in "
        f"{theirs['clock']:.1f} s by the clock, {theirs['bytes']:.1f} bytes a parameter from a site"
    )
    return Line(f"{ours.name} against flwr", ours.ours, theirs["worked"], "s", detail)


# ---- all of them --------------------------------------------------------------------


def cohorts(count: int, size: int) -> Iterator[tuple[Cohort, list[Closing]]]:
    """A cohort, and how its rounds close. With all-to-all masks it is the same whoever drops."""
    if count <= FULL_UP_TO:
        cohort = Cohort(count, size, USUAL)
        yield cohort, [Closing(cohort, percent) for percent in DROPPED_PERCENT]
        return
    for percent in DROPPED_PERCENT:
        tolerance = Tolerance(dropped_percent=max(percent, USUAL.dropped_percent))
        cohort = Cohort(count, size, tolerance)
        yield cohort, [Closing(cohort, percent)]


def measure(flower: Path | None) -> Iterator[Line]:
    for count, size in SETTINGS:
        for cohort, closings in cohorts(count, size):
            yield bytes_line(cohort)
            for closing in closings:
                yield site_line(closing)
                line = coordinator_line(closing)
                yield line
                if flower and (count, closing.dropped_percent) == WITH_PEERS:
                    yield flower_line(flower, closing, line)


def _flower(text: str) -> Path:
    from benchmarks.peers import Peer  # imports torch, which nothing else here needs

    peer = Peer.parse(text)
    if peer.name != "flwr":
        raise argparse.ArgumentTypeError("secure sums are compared with flwr alone")
    return peer.python


def main() -> None:
    options = parser(__doc__)
    options.add_argument(
        "--peer",
        type=_flower,
        metavar="flwr=PYTHON",
        help="measure Flower, too, with the Python that has it; takes a minute more",
    )
    given = options.parse_args()
    if given.peer is None:
        print("not measured, see --peer: flwr", file=sys.stderr)
    show(measure(given.peer), as_json=given.json)


if __name__ == "__main__":
    main()

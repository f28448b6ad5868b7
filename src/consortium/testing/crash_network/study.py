"""The study that is killed: site number i adds one to number i of the model, and keeps for
itself how often it was counted."""

from __future__ import annotations

from pathlib import Path

from consortium.drive.lock import make_lock, write_lock
from consortium.drive.study import load_study

AGENT = "site-0"  # the one that is broken
ROUNDS = 2
SIZE = 1000  # float32 numbers: an update is sent in several chunks of `CHUNK_BYTES`
CHUNK_BYTES = 1600

_TASK = f"""
from pathlib import Path

import numpy as np

import consortium as co


def start(rng):
    return {{"counts": np.zeros({SIZE}, np.float32)}}


def evaluate(site, shared):
    return {{"loss": 1.0}}, 1


@co.numpy_task(start=start, evaluate=evaluate)
def study(site, shared):
    before = 0.0 if site.state is None else float(site.state["rounds"][0])
    shared["counts"][int(Path(site.data).read_text())] += 1
    return co.Trained(shared, 1, state={{"rounds": np.array([before + 1], np.float32)}})
"""
# One update is enough: a round goes on without a site whose disk has failed.
_PLAN = f"""
[task]
entry = "task.py:study"
[federation]
name = "counting"
rounds = {ROUNDS}
{{who}}
[round]
duration = "60s"
retry = "1s"
max_extensions = 0
[strategy]
weight = "uniform"
{{more}}
"""
_PLAIN = {
    "who": "quorum = 1\n[selection]\nfraction = 1.0\nwait_for = 2",
    "more": "[evaluation]\ngate = false",
}
# Sums of which nobody sees the parts: one of four sites may fail.
_MASKED = {
    "who": "quorum = 3\n[selection]\ntarget = 4\nwait_for = 4",
    "more": "clip = 4.0\n[evaluation]\nenabled = false\ngate = false\n"
    "[security]\nsecure_aggregation = true",
}


def sites_of(plan: Path) -> tuple[str, ...]:
    """The names of those who take part."""
    return tuple(sorted(path.stem for path in plan.parent.glob("site-*.txt")))


def write_study(folder: Path, *, is_masked: bool = False) -> Path:
    """The locked plan in this folder, and each site's records beside it."""
    folder.mkdir()
    (folder / "task.py").write_text(_TASK)
    plan = folder / "consortium.toml"
    plan.write_text(_PLAN.format(**(_MASKED if is_masked else _PLAIN)))
    for number in range(4 if is_masked else 2):
        (folder / f"site-{number}.txt").write_text(str(number))
    study = load_study(plan, sample=folder / f"{AGENT}.txt")
    write_lock(folder, *make_lock(study, seed=1))
    return plan

"""The study that is killed: site number i adds one to number i of the model, and keeps for
itself how often it was counted."""

from __future__ import annotations

from pathlib import Path

from consortium.drive.lock import make_lock, write_lock
from consortium.drive.study import load_study

SITES = ("site-0", "site-1")
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
quorum = 1
[selection]
fraction = 1.0
wait_for = {len(SITES)}
[round]
duration = "60s"
retry = "1s"
max_extensions = 0
[strategy]
weight = "uniform"
[evaluation]
gate = false
"""


def write_study(folder: Path) -> Path:
    """The locked plan in this folder, and each site's records beside it."""
    folder.mkdir()
    (folder / "task.py").write_text(_TASK)
    plan = folder / "consortium.toml"
    plan.write_text(_PLAN)
    for number, name in enumerate(SITES):
        (folder / f"{name}.txt").write_text(str(number))
    study = load_study(plan, sample=folder / f"{SITES[0]}.txt")
    write_lock(folder, *make_lock(study, seed=1))
    return plan

"""A small study at a site: a home that has joined, with everything that a coordinator sends."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from consortium.bundle import make_bundle
from consortium.cli.init import write_study
from consortium.core.ids import Digest, Seat
from consortium.drive.engine import LocalEngine, begin
from consortium.drive.lock import Lock, make_lock
from consortium.drive.study import Study, load_study
from consortium.model import Update, Vector, save_update
from consortium.site.home import Enrolment, SiteHome
from consortium.site.review import ReviewedStudy, verify_study
from consortium.update.stage import Rows
from consortium.wire.messages import StudySheet

SEED = 7
SEAT = Seat(2)  # of north, in a simulation
NAMES = ("east", "north", "south")
WHO = Enrolment(
    name="north",
    site="5" * 32,
    federation="f" * 32,
    federation_name="first-study",
    url="https://fl.example.org:8443",
    audience="a" * 32,
    log_key="c" * 64,
    words=("amber", "lynx", "seven"),
    data="",
    enrolled_ms=1_700_000_000_000,
)


@dataclass(frozen=True)
class Lab:
    """A locked study, and one site's home with all that it would have fetched."""

    study: Study
    lock: Lock
    reviewed: ReviewedStudy
    home: SiteHome
    first: Digest  # the first model
    seed: int | None

    @property
    def engine(self) -> LocalEngine:
        """The same study in a simulation: the oracle."""
        local, _ = begin(self.study.task, self.study.plan, self.study.sites, SEED)
        return LocalEngine(local, self.study.sites, SEED)

    def update(self, row: Vector, records: int, base: Digest) -> bytes:
        """The bytes that a simulated site sends."""
        plan, samples = self.study.plan, np.array([records], np.float64)
        rows = plan.pipeline().apply(Rows(row[None, :], samples, samples))
        update = Update(rows.values[0], float(rows.weights[0]), base)
        return save_update(update, plan.strategy.form(self.lock.layout))


# For the end of a plan, with `TARGET` changed: scores go inside masked updates.
TARGET = ("fraction = 1.0", "target = 3")
SCORED = """
gate = false
bound = 10.0
[strategy]
clip = 1.0
weight = "uniform"
[security]
secure_aggregation = true
"""


def enrolled(path: Path, **changes: object) -> SiteHome:
    """A home that has joined."""
    home = SiteHome.prepare(path)
    home.enrol(WHO.model_copy(update=changes), "certificate", "authority")
    return home


def written(
    folder: Path,
    kind: str = "numpy",
    *,
    plan: str = "",
    task: str | None = None,
    more: str | None = None,
) -> Path:
    """A study's folder; the plan's file. `more` is a second file of the task, more.py."""
    rng, rule = np.random.default_rng(0), np.array([1.2, -0.8, 0.5, 0.0, 0.9, -0.4])
    tables: dict[str, Any] = {}
    for number, name in enumerate(NAMES):
        features = rng.normal(size=(40 + 8 * number, len(rule)))
        tables[name] = np.column_stack([features, features @ rule > 0])
    entry = 'entry = "task.py:study"'
    changes = {} if more is None else {entry: f'{entry}\nfiles = ["more.py"]'}
    write_study(folder, tables, changes, kind=kind)
    if more is not None:
        (folder / "more.py").write_text(more)
    if task is not None:
        (folder / "task.py").write_text(task)
    with (folder / "consortium.toml").open("a") as file:
        file.write(plan)
    return folder / "consortium.toml"


def lab(
    path: Path,
    kind: str = "numpy",
    *,
    seed: int | None = SEED,
    plan: str = "",
    task: str | None = None,
    more: str | None = None,
    change: tuple[str, str] = ("", ""),
) -> Lab:
    """A study of three sites at the home of `north`, which has seat 2 in a simulation."""
    plan_file = written(path / "study", kind, plan=plan, task=task, more=more)
    plan_file.write_text(plan_file.read_text().replace(*change, 1))
    study = load_study(plan_file)
    lock, model = make_lock(study, SEED)
    data = path / "study" / "data" / "north.csv"
    home = enrolled(path / "home", data=str(data), seed=seed)
    reviewed = reviewed_study(home, study, lock, plan_file.parent)
    return Lab(study, lock, reviewed, home, home.blobs.put(model), seed)


def other_study(home: SiteHome, folder: Path, task: str) -> ReviewedStudy:
    """Another study, with other code, as a coordinator would show it to this home."""
    plan_file = written(folder, task=task)
    study = load_study(plan_file)
    lock, _ = make_lock(study, SEED)
    return reviewed_study(home, study, lock, folder)


def reviewed_study(home: SiteHome, study: Study, lock: Lock, folder: Path) -> ReviewedStudy:
    names = [study.plan.task.entry.partition(":")[0], *study.plan.task.files]
    parts = {
        "plan": lock.applied(study.plan).canonical(),
        "layout": lock.layout.canonical(),
        "bundle": make_bundle(folder, names).pack(),
        "lock": lock.text().encode(),
    }
    stored = {name: home.blobs.put(data).hex() for name, data in parts.items()}
    sheet = StudySheet(task=lock.task.hex(), **stored)
    return verify_study(sheet, *parts.values())

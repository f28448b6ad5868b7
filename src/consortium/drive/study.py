"""From a plan file to everything that a run needs: plan, task, sites, task hash."""

from __future__ import annotations

import glob
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consortium.bundle import make_bundle
from consortium.core.ids import Digest
from consortium.drive.engine import SimulatedSite, begin
from consortium.errors import PlanFileError, TaskEntryError
from consortium.plan import Plan, read_plan
from consortium.tasks import Site, Task, load_task


@dataclass(frozen=True, slots=True)
class Study:
    """What a plan file leads to. `task_hash` is what a site would be asked to approve."""

    plan: Plan
    task: Task
    sites: list[SimulatedSite]
    task_hash: Digest


def load_study(plan_file: Path, sample: Path | None = None) -> Study:
    """Read the plan, load its task and find its sites, all beside the plan file. A `sample` is
    one site's data, or made-up data of the same form, for a plan that names no sites."""
    plan, folder = read_plan(plan_file), plan_file.parent
    entry = plan.task.entry
    if not entry:
        raise TaskEntryError("the plan names no task")
    if not (folder / entry.partition(":")[0]).is_file():
        load_task(entry, folder)  # says what is wrong with it
    bundle = make_bundle(folder, [entry.partition(":")[0], *plan.task.files])
    task = load_task(entry, folder)
    sites = _sites(plan, folder) if sample is None else [SimulatedSite(sample.stem, sample)]
    local, _ = begin(task, plan, sites, seed=0)
    task_hash = bundle.task_hash(local.layout, entry, task.metrics, local.pinned)
    return Study(plan, task, sites, task_hash)


def _sites(plan: Plan, folder: Path) -> list[SimulatedSite]:
    """One site a file that matches the plan's pattern, in the order of their names."""
    pattern = plan.federation.sites
    if pattern is None:
        raise PlanFileError(
            "the plan does not say where the sites' data is",
            hint='add sites = "data/*.csv" to [federation]: one file, one site',
        )
    paths = sorted(Path(found) for found in glob.glob(str(folder / pattern)))
    names = [path.stem for path in paths]
    if not paths:
        raise PlanFileError(
            f"no file matches {folder / pattern}",
            hint='sites = "data/*.csv" is looked up beside the plan: one file, one site',
        )
    if len(set(names)) != len(names):
        raise PlanFileError("two data files have the same name, and so would their sites")
    return [SimulatedSite(name, path) for name, path in zip(names, paths, strict=True)]


@dataclass(frozen=True, slots=True)
class Paced:
    """A task that waits before it trains, so that one can watch it, or kill it."""

    task: Task
    pace_s: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def train(self, site: Site, shared: dict[str, Any]) -> Any:
        time.sleep(self.pace_s)
        return self.task.train(site, shared)

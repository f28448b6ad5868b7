"""From a plan file to everything that a run needs: plan, task, sites, task hash."""

from __future__ import annotations

import glob
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from consortium.bundle import make_bundle
from consortium.core.ids import Digest
from consortium.drive.engine import SimulatedSite, begin
from consortium.drive.population import Population
from consortium.errors import PlanFileError, TaskEntryError
from consortium.plan import Plan, read_plan
from consortium.tasks import Pace, Site, Task, load_task, pace_of


@dataclass(frozen=True, slots=True)
class Study:
    """What a plan file leads to. `task_hash` is what a site would be asked to approve."""

    plan: Plan
    task: Task
    sites: Sequence[SimulatedSite]
    task_hash: Digest


def load_study(plan_file: Path, sample: Path | None = None) -> Study:
    """Read the plan, load its task and find its sites, all beside the plan file. A `sample` is
    one site's data, or made-up data of the same form, for a plan that names no sites."""
    return study_of(read_plan(plan_file), plan_file.parent, sample)


def study_of(plan: Plan, folder: Path, sample: Path | None = None) -> Study:
    """The study of a plan whose task and data lie in `folder`."""
    entry = plan.task.entry
    if not entry:
        raise TaskEntryError("the plan names no task")
    if not (folder / entry.partition(":")[0]).is_file():
        load_task(entry, folder)  # says what is wrong with it
    make_bundle(folder, [entry.partition(":")[0], *plan.task.files])  # refused before it runs
    task = load_task(entry, folder)
    sites = _sites(plan, folder) if sample is None else [SimulatedSite(sample.stem, sample)]
    return Study(plan, task, sites, _hashed(plan, task, sites, folder))


def varied(study: Study, plan: Plan, folder: Path) -> Study:
    """The same study by another plan. Its task is loaded anew only if it is another one."""
    if (plan.task, plan.federation.sites, plan.simulation.clients) != (
        study.plan.task,
        study.plan.federation.sites,
        study.plan.simulation.clients,
    ):
        return study_of(plan, folder)
    return Study(plan, study.task, study.sites, _hashed(plan, study.task, study.sites, folder))


def _hashed(plan: Plan, task: Task, sites: Sequence[SimulatedSite], folder: Path) -> Digest:
    """What a site would be asked to approve. What leaves it depends on the plan, too."""
    bundle = make_bundle(folder, [plan.task.entry.partition(":")[0], *plan.task.files])
    local, _ = begin(task, plan, sites, seed=0)
    return bundle.task_hash(local.layout, plan.task.entry, task.metrics, local.pinned)


def _sites(plan: Plan, folder: Path) -> Sequence[SimulatedSite]:
    """The plan's clients, or one site a file that matches its pattern, in the order of their
    names."""
    if plan.simulation.clients is not None:
        return Population(plan.simulation.clients)
    pattern = plan.federation.sites
    if pattern is None:
        raise PlanFileError(
            "the plan does not say where the sites' data is",
            hint='add sites = "data/*.csv" to [federation]: one file, one site; or '
            "clients = 1000 to [simulation]",
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

    def pace(self, site: Site, wanted: str) -> Pace:
        return pace_of(self.task, lambda: site, wanted)

    def train_together(self, sites: Sequence[Site], *rest: Any) -> Any:
        time.sleep(self.pace_s * len(sites))
        return cast(Any, self.task).train_together(sites, *rest)

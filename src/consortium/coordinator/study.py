"""The study that a federation has adopted, and how a locked plan is adopted: everything that
sites will fetch and approve lies in blobs before the log names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from consortium.bundle import Bundle, make_bundle
from consortium.coordinator.registry import Registry
from consortium.core.ids import Digest
from consortium.core.state import Federation
from consortium.core.terms import Metric
from consortium.drive.lock import Lock, read_lock
from consortium.errors import InternalError, TaskEntryError, VerificationError
from consortium.model import Layout
from consortium.plan import Plan, read_plan
from consortium.store.ports import Blobs
from consortium.wire.messages import StudySheet


@dataclass(frozen=True, slots=True)
class LockedStudy:
    """A plan with its lock, its task's files and its first model, as they lie in a folder."""

    plan: Plan
    lock: Lock
    bundle: Bundle
    model: bytes


@dataclass(frozen=True, slots=True)
class Study:
    """What a federation has adopted."""

    plan: Plan
    digest: Digest  # of the plan
    layout: Layout
    task: Digest
    sheet: StudySheet
    metrics: tuple[Metric, ...]  # that leave a site


def read_locked(plan_file: Path) -> LockedStudy:
    """A plan and its lock, which must belong together. Runs nothing of the task."""
    plan, folder = read_plan(plan_file), plan_file.parent
    entry = plan.task.entry
    if not entry:
        raise TaskEntryError("the plan names no task")
    lock, model = read_lock(folder)
    plan = lock.applied(plan)
    bundle = make_bundle(folder, [entry.partition(":")[0], *plan.task.files])
    task = bundle.task_hash(lock.layout, entry, lock.metrics, lock.pinned)
    if (lock.plan, lock.task, lock.entry) != (plan.digest, task, entry):
        raise VerificationError(
            "the plan or the task has changed since the study was locked",
            hint=f"consortium lock {plan_file}",
        )
    return LockedStudy(plan, lock, bundle, model)


def store_study(study: LockedStudy, blobs: Blobs) -> StudySheet:
    """Put everything into blobs that sites need."""
    return StudySheet(
        plan=blobs.put(study.plan.canonical()).hex(),
        task=study.lock.task.hex(),
        layout=blobs.put(study.lock.layout.canonical()).hex(),
        bundle=blobs.put(study.bundle.pack()).hex(),
        lock=blobs.put(study.lock.text().encode()).hex(),
    )


def adopted_study(federation: str, state: Federation, registry: Registry, blobs: Blobs) -> Study:
    """The study that the federation's log names."""
    if state.plan is None or state.task is None or state.layout is None or state.terms is None:
        raise InternalError("a study was asked for before there is one")
    row = registry.study(federation, state.plan.hex(), state.task.hex())
    if row is None:
        raise InternalError("the log names a study that the registry does not know")
    sheet = StudySheet(
        plan=state.plan.hex(),
        task=state.task.hex(),
        layout=state.layout.hex(),
        bundle=row.bundle,
        lock=row.lock,
    )
    plan = Plan.from_canonical(blobs.get(state.plan))
    layout = Layout.from_canonical(blobs.get(state.layout))
    return Study(plan, state.plan, layout, state.task, sheet, state.terms.metrics)

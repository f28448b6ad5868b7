"""`consortium simulate PLAN`: the whole federation in this process."""

from __future__ import annotations

import glob
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli.report import command, data, envelope, say
from consortium.errors import (
    InsufficientParticipantsError,
    PlanFileError,
    TaskEntryError,
    WrongTypeError,
)

if TYPE_CHECKING:
    from consortium.core.ids import Digest
    from consortium.drive.engine import SimulatedSite
    from consortium.drive.history import RoundRecord
    from consortium.drive.simulate import Run
    from consortium.plan import Plan
    from consortium.task import Task


@command
def simulate(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same model. Default: drawn.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds, instead of the plan's.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="One fact a site instead of one a block.")
    ] = False,
    dropout: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Chance that a site falls out of a round.")
    ] = 0.0,
    runs: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
) -> None:
    """Run a plan here, with every site in this process."""
    from consortium.drive.run_folder import RunFolder
    from consortium.drive.simulate import check_study

    plan, task, sites, task_hash = load_study(plan_file)
    if rounds is not None:
        plan = _with_rounds(plan, rounds)
    check_study(task, plan, sites)
    seed = secrets.randbits(32) if seed is None else seed
    folder = RunFolder.new(runs, plan.federation.name, time.strftime("%Y%m%d-%H%M%S"))
    folder.begin(plan)
    say(f"{plan.federation.name}: {len(sites)} sites, seed {seed}, folder {folder.path}")
    for sentence in plan.guarantees():
        say(f"  {sentence}")
    options = {"record": record, "drops": _drops(dropout, seed), "task_hash": task_hash}
    run = watch(task, plan, sites, seed=seed, options=options, on_round=folder.add_round)
    told = folder.finish(run)
    data(f"\nmodel {run.model_digest.hex()}")
    say(f"finished: {run.history.finished.replace('_', ' ')}; see {folder.path}")
    if told["failed_rounds"] == told["rounds"]:
        raise InsufficientParticipantsError("no round completed")
    envelope("simulate", {**told, "folder": str(folder.path)})


def load_study(plan_file: Path) -> tuple[Plan, Task, list[SimulatedSite], Digest]:
    """Plan, task, sites and the task's hash: all that a plan file leads to."""
    from consortium.plan import read_plan

    plan = read_plan(plan_file)
    task, task_hash = _task(plan, plan_file.parent)
    return plan, task, _sites(plan, plan_file.parent), task_hash


def watch(
    task: Task,
    plan: Plan,
    sites: list[SimulatedSite],
    *,
    seed: int,
    options: dict[str, Any],
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Run:
    """Simulate with a progress bar and one line a round."""
    from consortium.cli.rounds import Progress, RoundTable
    from consortium.drive.simulate import Options
    from consortium.drive.simulate import simulate as simulate_here

    table = RoundTable(task.metrics)
    data(table.header())
    with Progress(plan.federation.rounds) as progress:

        def note(record: RoundRecord) -> None:
            if on_round is not None:
                on_round(record)
            progress.print(table.row(record))
            progress.on_round(record)

        chosen = Options(on_round=note, on_work=progress.on_work, **options)
        return simulate_here(task, plan, sites, seed=seed, options=chosen)


def _with_rounds(plan: Plan, rounds: int) -> Plan:
    if rounds < 1:
        raise WrongTypeError("--rounds is at least 1")
    federation = plan.federation.model_copy(update={"rounds": rounds})
    return plan.model_copy(update={"federation": federation})


def _task(plan: Plan, folder: Path) -> tuple[Task, Digest]:
    """The plan's task and the hash that a site would approve."""
    from consortium.bundle import make_bundle
    from consortium.drive.engine import first_model
    from consortium.task import load_task

    entry = plan.task.entry
    if not entry:
        raise TaskEntryError("the plan names no task")
    task = load_task(entry, folder)
    bundle = make_bundle(folder, [entry.partition(":")[0], *plan.task.files])
    layout, _ = first_model(task, seed=0)
    return task, bundle.task_hash(layout, entry, task.metrics)


def _sites(plan: Plan, folder: Path) -> list[SimulatedSite]:
    """One site a file that matches the plan's pattern, in the order of their names."""
    from consortium.drive.engine import SimulatedSite

    pattern = plan.federation.sites
    if pattern is None:
        raise PlanFileError(
            "the plan does not say where the sites' data is",
            hint='add sites = "data/*.csv" to [federation]: one file, one site',
        )
    paths = sorted(Path(found) for found in glob.glob(str(folder / pattern)))
    names = [path.stem for path in paths]
    if not paths:
        raise PlanFileError(f"no file matches {folder / pattern}", hint="one file, one site")
    if len(set(names)) != len(names):
        raise PlanFileError("two data files have the same name, and so would their sites")
    return [SimulatedSite(name, path) for name, path in zip(names, paths, strict=True)]


def _drops(dropout: float, seed: int) -> Callable[[int, str], bool] | None:
    """Each site falls out of each round with this chance, the same for the same seed."""
    if dropout == 0.0:
        return None
    from consortium.drive.rng import stream

    return lambda number, site: bool(stream(seed, f"dropout/{site}", number).random() < dropout)

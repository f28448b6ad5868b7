"""`consortium simulate PLAN`: the whole federation in this process."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli.cross_site import cross_site_table
from consortium.cli.report import Voice, command, data, envelope, say
from consortium.errors import (
    InsufficientParticipantsError,
    UsageError,
    WrongPhaseError,
)

if TYPE_CHECKING:
    from consortium.drive.directory import DataDirectory
    from consortium.drive.engine import SimulatedSite
    from consortium.drive.history import RoundRecord
    from consortium.drive.run_folder import RunFolder
    from consortium.drive.simulate import Run
    from consortium.plan import Plan
    from consortium.tasks import Task


_PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")]
_Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same model. Default: drawn.")
]
_Rounds = Annotated[int | None, typer.Option(help="Rounds, instead of the plan's.")]
_Record = Annotated[
    bool,
    typer.Option(
        "--record", help="Store, check and log each update on its own, as a coordinator does."
    ),
]
_Dropout = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Chance that a site falls out of a round.")
]
_Away = Annotated[
    list[str] | None, typer.Option(help="NAME:ROUNDS, such as site-3:3,4; repeatable.")
]
_Pace = Annotated[float, typer.Option(min=0.0, help="Seconds to wait before each site, to watch.")]
_Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Processes that train. Default: one a core for torch models."),
]
_Directory = Annotated[
    Path | None,
    typer.Option("--data", help="Keep log and blobs here; a killed run goes on from here."),
]
_Runs = Annotated[Path, typer.Option(help="Where run folders are made.")]
_Cross = Annotated[
    bool, typer.Option("--cross-site", help="Then train each site alone, and try all everywhere.")
]


@command
def simulate(
    plan_file: _PlanFile,
    seed: _Seed = None,
    rounds: _Rounds = None,
    record: _Record = False,
    dropout: _Dropout = 0.0,
    away: _Away = None,
    pace: _Pace = 0.0,
    workers: _Workers = None,
    directory: _Directory = None,
    runs: _Runs = Path("runs"),
    cross: _Cross = False,
) -> None:
    """Run a plan here, with every site in this process."""
    from consortium.drive.run_folder import RunFolder
    from consortium.drive.simulate import check_study
    from consortium.drive.study import Paced, load_study

    study = load_study(plan_file)
    plan = study.plan if rounds is None else _with_rounds(study.plan, rounds)
    sites = study.sites
    seed = _seed(seed, directory)
    check_study(study.task, plan, sites, seed)
    absent = _away(away or [], sites)
    kept = _directory(directory, seed)
    folder = RunFolder.new(runs, plan.federation.name, time.strftime("%Y%m%d-%H%M%S"))
    folder.begin(plan, seed)
    _introduce(plan, len(sites), seed, folder.path)
    drops = _drops(dropout, absent, seed)
    options: dict[str, Any] = {
        "record": record,
        "drops": drops,
        "directory": kept,
        "task_hash": study.task_hash,
    }
    options["workers"] = workers
    task = Paced(study.task, pace) if pace else study.task
    with closing(kept) if kept else nullcontext():
        run = watch(task, plan, sites, seed=seed, options=options, on_round=folder.add_round)
    told = {**folder.finish(run), "folder": str(folder.path)}
    if cross:
        told["cross_site"] = show_cross_site(run, folder.path)
    _conclude(run, folder, told)


def _introduce(plan: Plan, sites: int, seed: int, folder: Path) -> None:
    say(f"{plan.federation.name}: {sites} sites, seed {seed}, folder {folder}")
    for sentence in plan.guarantees():
        say(f"  {sentence}")


def show_cross_site(run: Run, folder: Path) -> dict[str, object]:
    """Each site's own model and the common one at every site, as a table and a file."""
    from consortium.drive.alone import cross_site

    say("training each site alone, to compare …")
    with redirect_stdout(sys.stderr) if Voice.json else nullcontext():
        found = cross_site(run, run.plan.evaluation.metric)
    data("")
    for line in cross_site_table(found):
        data(line)
    told: dict[str, object] = asdict(found)
    (folder / "cross_site.json").write_text(json.dumps(told, indent=2) + "\n")
    return told


def _conclude(run: Run, folder: RunFolder, told: dict[str, object]) -> None:
    if told["failed_rounds"] == told["rounds"]:
        raise _nothing_completed(run, folder)
    data(f"\nmodel {run.model_digest.hex()}")
    if run.state.current == 0:
        say("no candidate was accepted: this is the model that the study started from")
    say(f"finished: {run.history.finished.replace('_', ' ')}; see {folder.path}")
    envelope("simulate", told)


_MEANINGS = {
    "training": "its numbers were not finite: lower lr, or look for missing values in the records",
    "data quality": "its records failed their check: consortium site check FILE --label NAME",
}


def _nothing_completed(run: Run, folder: RunFolder) -> InsufficientParticipantsError:
    lost = [pair for record in run.history.rounds for pair in record.lost]
    reasons = dict.fromkeys(why for _, why in lost)
    names = dict.fromkeys(f"{site} ({why})" for site, why in lost)
    who = f": lost {', '.join(list(names)[:3])}" if names else ""
    meanings = [f"{why}: {_MEANINGS[why]}" for why in reasons if why in _MEANINGS]
    return InsufficientParticipantsError(
        f"no round completed{who}; see {folder.path}/rounds.jsonl",
        hint="; ".join(meanings) or "the table says which sites were lost, and why",
    )


def _seed(given: int | None, directory: Path | None) -> int:
    """The seed as given, or of the run that the directory holds, or drawn."""
    file = None if directory is None else directory / "seed.txt"
    if file is not None and file.exists():
        text = file.read_text().strip()
        if not text.isdecimal():
            raise WrongPhaseError(f"{file} holds no seed", hint="write the run's seed into it")
        if given not in (None, int(text)):
            raise WrongPhaseError(
                f"{directory} holds a run with seed {text}", hint=f"--seed {text}, or leave it out"
            )
        return int(text)
    return secrets.randbits(32) if given is None else given


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
        # What a task prints must not get between a machine and its one JSON object.
        with redirect_stdout(sys.stderr) if Voice.json else nullcontext():
            return simulate_here(task, plan, sites, seed=seed, options=chosen)


def _with_rounds(plan: Plan, rounds: int) -> Plan:
    if rounds < 1:
        raise UsageError("--rounds is at least 1")
    federation = plan.federation.model_copy(update={"rounds": rounds})
    return plan.model_copy(update={"federation": federation})


def _drops(
    dropout: float, away: set[tuple[int, str]], seed: int
) -> Callable[[int, str], bool] | None:
    """Who falls out of which round: by name, or by chance, the same for the same seed."""
    if dropout == 0.0 and not away:
        return None
    from consortium.drive.rng import stream

    def falls_out(number: int, site: str) -> bool:
        if (number, site) in away:
            return True
        return bool(stream(seed, f"dropout/{site}", number).random() < dropout)

    return falls_out


def _away(texts: list[str], sites: list[SimulatedSite]) -> set[tuple[int, str]]:
    """(round, site) pairs of `--away NAME:ROUNDS`."""
    known = {site.name for site in sites}
    pairs = set()
    for text in texts:
        name, _, rounds = text.rpartition(":")
        numbers = rounds.split(",")
        if name not in known or not all(number.isdecimal() for number in numbers):
            is_known = "not NAME:ROUNDS" if name in known else f"there is no site `{name}`"
            raise UsageError(
                f"--away {text}: {is_known}",
                hint=f"--away {sorted(known)[0]}:3,4    # sites: {', '.join(sorted(known)[:8])}",
            )
        pairs |= {(int(number), name) for number in numbers}
    return pairs


def _directory(path: Path | None, seed: int) -> DataDirectory | None:
    """The data directory, for this process alone: a simulation has a clock of its own."""
    if path is None:
        return None
    from consortium.drive.directory import DataDirectory
    from consortium.store.files import write_durably

    directory = DataDirectory(path)
    directory.lock()
    write_durably(path.resolve() / "seed.txt", f"{seed}\n".encode())
    return directory

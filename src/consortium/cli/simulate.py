"""`consortium simulate PLAN`: the whole federation in this process."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli.choices import Choices
from consortium.cli.cross_site import cross_site_table
from consortium.cli.noise_told import warn_of_studies, with_noise
from consortium.cli.report import Voice, at_once, command, data, envelope, say
from consortium.cli.sweep import Series, run_study
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
    from consortium.drive.study import Study
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
_Engine = Annotated[
    str | None,
    typer.Option(help="How torch models train: loop, batched or fused. Default: by a rule."),
]
_Directory = Annotated[
    Path | None,
    typer.Option("--data", help="Keep log and blobs here; a killed run goes on from here."),
]
_Runs = Annotated[Path, typer.Option(help="Where run folders are made.")]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUES",
        help="Set a key of the plan; several values, with commas between, make a study.",
    ),
]
_Seeds = Annotated[
    int | None, typer.Option(min=1, help="Make a study: so many seeds, from --seed or 1 on.")
]
_StudyFolder = Annotated[
    Path | None,
    typer.Option(help="The study's folder; a killed study goes on from here. Default: below runs."),
]
_KeepData = Annotated[
    bool, typer.Option("--keep-data", help="Of a study: keep the data of runs that are done.")
]
_Cross = Annotated[
    bool, typer.Option("--cross-site", help="Then train each site alone, and try all everywhere.")
]


@command
def simulate(
    plan_file: _PlanFile,
    seed: _Seed = None,
    rounds: _Rounds = None,
    settings: _Settings = None,
    seeds: _Seeds = None,
    study: _StudyFolder = None,
    keep_data: _KeepData = False,
    record: _Record = False,
    dropout: _Dropout = 0.0,
    away: _Away = None,
    pace: _Pace = 0.0,
    workers: _Workers = None,
    engine: _Engine = None,
    directory: _Directory = None,
    runs: _Runs = Path("runs"),
    cross: _Cross = False,
) -> None:
    """Run a plan here, with every site in this process."""
    from consortium.drive.study import load_study, varied
    from consortium.plan.settings import parse_setting, variants

    wanted = [parse_setting(text) for text in settings or []]
    choices = Choices(record, dropout, tuple(away or ()), pace, workers, engine)
    loaded = load_study(plan_file)
    if rounds is not None:
        loaded = replace(loaded, plan=_with_rounds(loaded.plan, rounds))
    found = variants(loaded.plan, wanted)
    varying = [varied(loaded, variant.plan, plan_file.parent) for variant in found]
    studies = [with_noise(study) for study in varying]
    if seeds is None and study is None and len(found) == 1:
        if keep_data:
            raise UsageError("--keep-data is for studies", hint="--data DIR keeps one run")
        _simulate_once(studies[0], choices, runs, Once(seed, directory, cross))
        return
    _refuse_of_one_run(directory, cross)
    run_study(
        loaded,
        studies,
        [dict(variant.settings) for variant in found],
        choices,
        Series(
            first_seed=1 if seed is None else seed,
            seeds=seeds or 1,
            folder=study,
            runs=runs,
            keep_data=keep_data,
        ),
    )


@dataclass(frozen=True, slots=True)
class Once:
    """What is asked of one run alone."""

    seed: int | None
    directory: Path | None
    cross: bool


def _simulate_once(study: Study, choices: Choices, runs: Path, once: Once) -> None:
    from consortium.drive.run_folder import RunFolder
    from consortium.drive.simulate import check_study

    plan, sites = study.plan, study.sites
    seed = _seed(once.seed, once.directory)
    check_study(study.task, plan, sites, seed, choices.engine)
    choices.check(sites)
    if once.cross and plan.simulation.clients is not None:
        raise UsageError(
            f"--cross-site would train each of {len(sites):,} clients alone",
            hint="it is for sites with files of their own",
        )
    kept = _directory(once.directory, seed)
    folder = RunFolder.new(runs, plan.federation.name, time.strftime("%Y%m%d-%H%M%S"))
    folder.begin(plan, seed)
    _introduce(study, seed, folder.path)
    at_once()
    options = {**choices.options(study, seed), "directory": kept}
    task = choices.task_of(study)
    with closing(kept) if kept else nullcontext():
        run = watch(task, plan, sites, seed=seed, options=options, on_round=folder.add_round)
    told = {**folder.finish(run, choices.told()), "folder": str(folder.path)}
    if once.cross:
        told["cross_site"] = show_cross_site(run, folder.path)
    _conclude(run, folder, told)


def _refuse_of_one_run(directory: Path | None, cross: bool) -> None:
    if directory is not None:
        raise UsageError(
            "--data is for one run; a study keeps the data of each run in its own folder",
            hint="--study DIR says where; --keep-data keeps it when runs are done",
        )
    if cross:
        raise UsageError("--cross-site is for one run", hint="leave it out of a study")


def _introduce(study: Study, seed: int, folder: Path) -> None:
    name, sites = study.plan.federation.name, len(study.sites)
    say(f"{name}: {sites} sites, seed {seed}, folder {folder}")
    for sentence in study.plan.guarantees():
        say(f"  {sentence}")
    warn_of_studies([study])


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
    scored = told.get("metrics_version")
    if scored is not None:
        say(
            f"the last scores are of version {scored}: under masks a version is scored by the sum "
            f"of the round after it, so version {run.state.current} has none"
        )
    sent = f"; {told['bytes_per_update']:,} bytes an update" if told["bytes_per_update"] else ""
    say(f"finished: {run.history.finished.replace('_', ' ')}; see {folder.path}{sent}")
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
    sites: Sequence[SimulatedSite],
    *,
    seed: int,
    options: dict[str, Any],
    on_round: Callable[[RoundRecord], None] | None = None,
) -> Run:
    """Simulate with a progress bar and one line a round."""
    from consortium.cli.rounds import Progress, RoundTable
    from consortium.drive.simulate import Options
    from consortium.drive.simulate import simulate as simulate_here

    table = RoundTable(task.metrics, is_late=plan.has_scored_sums)
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

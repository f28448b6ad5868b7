"""Many runs of one study: every setting with every seed, told in `study.json`.

    STUDY/study.json                 what is run, and which runs are done
    STUDY/1-lr-0.01-seed-1/          a run folder, as any other
    STUDY/data/1-lr-0.01-seed-1/     the data directory of a run that is not done

A run is done when `study.json` says so, which is written after its folder is durable and
before its data directory is dropped. So whenever the process is killed, the same command
goes on: runs that are done are not repeated, and the one under way goes on from its data.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

from consortium.drive.directory import locked
from consortium.drive.interval import Interval, interval
from consortium.drive.population import digest_of_sites
from consortium.drive.run_folder import bytes_per_update, final_metrics, scored_version
from consortium.drive.simulate import Run
from consortium.drive.study import Study
from consortium.errors import PlanFileError, WrongPhaseError
from consortium.model import digest_of
from consortium.plan import write_plan
from consortium.store.files import write_durably

STUDY_FILE = "study.json"
_UNREADABLE = (
    OSError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
_FORM = 1
_SLUG_LENGTH = 60


@dataclass(frozen=True, slots=True)
class DoneRun:
    """What is remembered of a run that is done."""

    model: str
    rounds: int
    failed_rounds: int
    finished: str
    metrics: dict[str, float]
    bytes_per_update: int | None = None
    metrics_version: int | None = None  # of which they are, where scores come one round late

    @classmethod
    def of(cls, run: Run) -> DoneRun:
        rounds = run.history.rounds
        failed = sum(record.outcome == "failed" for record in rounds)
        told = len(rounds), failed, run.history.finished, final_metrics(run)
        return cls(run.model_digest.hex(), *told, bytes_per_update(rounds), scored_version(run))


@dataclass(slots=True)
class PlannedRun:
    """One run of a study: which setting, which seed, where, and how it ended."""

    folder: str
    setting: int  # its place among the settings, from 0
    seed: int
    done: DoneRun | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What a study is about. A folder belongs to one subject for ever; only seeds are added."""

    plan: str
    settings: tuple[dict[str, str], ...]
    tasks: tuple[str, ...]  # a hash for each setting: what leaves a site depends on the plan
    sites: str
    choices: dict[str, Any] = field(default_factory=dict)  # beyond the plan: who falls out, how

    @classmethod
    def of(
        cls,
        base: Study,
        studies: Sequence[Study],
        settings: Sequence[dict[str, str]],
        choices: dict[str, Any],
    ) -> Subject:
        sites = "\n".join(digest_of_sites(study.sites).hex() for study in studies)
        return cls(
            digest_of(write_plan(base.plan).encode()).hex(),
            tuple(settings),
            tuple(study.task_hash.hex() for study in studies),
            digest_of(sites.encode()).hex(),
            choices,
        )

    @property
    def mark(self) -> str:
        """A few digits that tell this subject from others."""
        told = json.dumps(asdict(self), sort_keys=True)
        return digest_of(told.encode()).hex()[:8]

    def difference(self, other: Subject) -> str:
        """What the other one has that this one has not, in words; empty if they are the same."""
        words = ("another plan", "other settings", "another task", "other sites", "other options")
        for part, word in zip(fields(self), words, strict=True):
            if getattr(self, part.name) != getattr(other, part.name):
                return word
        return ""


def told_apart(settings: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Each setting by what it has and another has not; one by itself, by all that it has."""
    if len(settings) == 1:
        return list(settings)
    common = set.intersection(*(set(one.items()) for one in settings))
    return [dict(pair for pair in one.items() if pair not in common) for one in settings]


def label_of(settings: dict[str, str]) -> str:
    """A setting in words, as it was told."""
    return " ".join(f"{name}={value}" for name, value in settings.items())


class StudyFolder:
    """A study on disk, for one process at a time."""

    def __init__(self, path: Path, name: str, subject: Subject) -> None:
        self.path, self.name, self.subject = path, name, subject
        self.runs: list[PlannedRun] = []
        try:
            self._refuse_strange_folder()
            path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = locked(path)
        except OSError as error:
            raise PlanFileError(
                f"cannot make the study's folder {path}: {error.strerror}"
            ) from None
        try:
            for leftover in path.glob(f"{STUDY_FILE}.*"):
                leftover.unlink(missing_ok=True)
            if (path / STUDY_FILE).exists():
                self._take_up(read_study(path))
        except BaseException:
            self.close()
            raise

    def _refuse_strange_folder(self) -> None:
        path = self.path
        if not path.exists() or (path / STUDY_FILE).exists():
            return
        ours = ("lock", STUDY_FILE)  # a kill may have left a half-written file of that name
        if not all(one.name.startswith(ours) for one in path.iterdir()):
            raise WrongPhaseError(
                f"{path} is not empty, and not the folder of a study",
                hint=f"--study {path}-2 takes a new one",
            )

    def _take_up(self, told: PastStudy) -> None:
        other = self.subject.difference(told.subject)
        if other:
            raise WrongPhaseError(
                f"{self.path} holds a study of {other}",
                hint=f"--study {self.path}-2 takes a new folder; or go on with what this one has",
            )
        self.runs = told.runs
        for run in self.runs:
            if not (self.run_path(run) / "summary.json").exists():
                run.done = None  # somebody took the folder away, to have it again

    def plan_runs(self, seeds: Sequence[int]) -> None:
        """Make sure that every setting is to be run with these seeds, and write it down."""
        known = {(run.setting, run.seed) for run in self.runs}
        for setting in range(len(self.subject.settings)):
            for seed in seeds:
                if (setting, seed) not in known:
                    self.runs.append(PlannedRun(self._name(setting, seed), setting, seed))
        self.runs.sort(key=lambda run: (run.setting, run.seed))
        self._write()

    def _name(self, setting: int, seed: int) -> str:
        """A folder's name that says what is in it, as far as a file system lets it."""
        values = told_apart(self.subject.settings)[setting]
        if not values:
            return f"seed-{seed}"
        words = "-".join(f"{name.rpartition('.')[2]}-{value}" for name, value in values.items())
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", words)[:_SLUG_LENGTH].strip("-.")
        width = len(str(len(self.subject.settings)))
        return f"{setting + 1:0{width}}-{slug}-seed-{seed}"

    def run_path(self, run: PlannedRun) -> Path:
        return self.path / run.folder

    def data_path(self, run: PlannedRun) -> Path:
        return self.path / "data" / run.folder

    def finish(self, run: PlannedRun, done: DoneRun) -> None:
        """Remember that the run is done. Its folder is durable by now."""
        run.done = done
        self._write()

    def drop_data(self) -> None:
        """Remove the data directories of runs that are done."""
        for run in self.runs:
            if run.done is not None:
                shutil.rmtree(self.data_path(run), ignore_errors=True)
        with suppress(OSError):  # runs that are not done have theirs still
            (self.path / "data").rmdir()

    def close(self) -> None:
        self._lock.close()

    def _write(self) -> None:
        told = {
            "form": _FORM,
            "name": self.name,
            "subject": asdict(self.subject),
            "runs": [asdict(run) for run in self.runs],
        }
        write_durably(self.path.resolve() / STUDY_FILE, f"{json.dumps(told, indent=2)}\n".encode())


@dataclass(frozen=True, slots=True)
class PastStudy:
    """A study as its file tells it."""

    name: str
    subject: Subject
    runs: list[PlannedRun]


def read_study(folder: Path) -> PastStudy:
    """The study in a folder that `consortium simulate` made."""
    try:
        told = json.loads((folder / STUDY_FILE).read_text())
        if told["form"] != _FORM:
            raise ValueError("made by another version")
        subject = _subject(told["subject"])
        return PastStudy(str(told["name"]), subject, _runs(told["runs"], len(subject.settings)))
    except _UNREADABLE as error:
        raise PlanFileError(
            f"{folder} is not the folder of a study: {type(error).__name__}",
            hint="studies are made by `consortium simulate --seeds 5`",
        ) from None


def _subject(told: dict[str, Any]) -> Subject:
    settings = tuple(
        {str(name): str(value) for name, value in one.items()} for one in told["settings"]
    )
    tasks = tuple(str(one) for one in told["tasks"])
    return Subject(str(told["plan"]), settings, tasks, str(told["sites"]), dict(told["choices"]))


def _runs(told: list[dict[str, Any]], settings: int) -> list[PlannedRun]:
    runs = []
    for one in told:
        name = str(one["folder"])
        if Path(name).name != name or name in ("", ".", "..", "data"):  # never outside of the study
            raise ValueError("not the name of a folder")
        done = None if one["done"] is None else _done(one["done"])
        runs.append(PlannedRun(one["folder"], int(one["setting"]), int(one["seed"]), done))
    if any(not 0 <= run.setting < settings for run in runs):
        raise ValueError("a run of no setting")
    return runs


def _done(told: dict[str, Any]) -> DoneRun:
    metrics = {str(name): float(value) for name, value in told["metrics"].items()}
    rounds = int(told["rounds"]), int(told["failed_rounds"])
    size = told.get("bytes_per_update")
    size = None if size is None else int(size)
    late = told.get("metrics_version")
    late = None if late is None else int(late)
    return DoneRun(str(told["model"]), *rounds, str(told["finished"]), metrics, size, late)


@dataclass(frozen=True, slots=True)
class SettingResult:
    """How one setting did: its values by seed, their mean and interval."""

    settings: dict[str, str]
    values: dict[int, float]
    unmeasured: int  # runs that are done and measured nothing
    interval: Interval | None
    bytes_per_update: int | None  # of the first run that knows
    late_versions: tuple[int, ...] = ()  # that the values are of, where scores come one round late


def results(
    settings: Sequence[dict[str, str]], runs: Sequence[PlannedRun], metric: str, higher: bool
) -> list[SettingResult]:
    """Every setting by its mean of the metric, best first; last those that have none."""
    found = []
    for number, values in enumerate(told_apart(settings)):
        done = {
            run.seed: run.done for run in runs if run.setting == number and run.done is not None
        }
        measured = {
            seed: told.metrics[metric] for seed, told in done.items() if metric in told.metrics
        }
        known = interval(list(measured.values())) if measured else None
        sizes = (told.bytes_per_update for told in done.values() if told.bytes_per_update)
        lost = len(done) - len(measured)
        late = {done[seed].metrics_version for seed in measured}
        versions = tuple(sorted(version for version in late if version is not None))
        found.append(SettingResult(values, measured, lost, known, next(sizes, None), versions))

    def rank(one: SettingResult) -> tuple[bool, float]:
        mean = 0.0 if one.interval is None else one.interval.mean
        return one.interval is None, -mean if higher else mean

    return sorted(found, key=rank)


def difference(first: SettingResult, second: SettingResult) -> Interval | None:
    """How much more the first has than the second, seed by seed: settings share their seeds,
    and a seed that is hard for one is hard for the other."""
    seeds = sorted(first.values.keys() & second.values.keys())
    if len(seeds) < 2:
        return None
    return interval([first.values[seed] - second.values[seed] for seed in seeds])

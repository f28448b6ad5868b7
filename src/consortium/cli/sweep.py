"""Many runs one after the other: `consortium simulate PLAN --set training.lr=0.01,0.1 --seeds 5`.

One line a run, then a table of the settings, best first. Whatever ends the command, the same
command goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from consortium.cli import words
from consortium.cli.choices import Choices
from consortium.cli.noise_told import warn_of_studies
from consortium.cli.report import Voice, at_once, data, envelope, say
from consortium.errors import InsufficientParticipantsError

if TYPE_CHECKING:
    from consortium.core.terms import Metric
    from consortium.drive.study import Study
    from consortium.drive.sweep import DoneRun, PlannedRun, SettingResult, StudyFolder

_FEW = 5  # seeds; below, an interval says little


@dataclass(frozen=True, slots=True)
class Series:
    """Which seeds, and where."""

    first_seed: int
    seeds: int
    folder: Path | None
    runs: Path
    keep_data: bool


def run_study(
    base: Study,
    studies: Sequence[Study],
    settings: Sequence[dict[str, str]],
    choices: Choices,
    series: Series,
) -> None:
    """Run every setting with every seed, but for what is done, and tell how they did."""
    from consortium.drive.simulate import check_study
    from consortium.drive.sweep import StudyFolder, Subject, results

    for study in studies:  # all of them before the first begins
        check_study(study.task, study.plan, study.sites, series.first_seed, choices.engine)
        choices.check(study.sites)
    subject = Subject.of(base, studies, settings, choices.told())
    name = base.plan.federation.name
    folder = StudyFolder(
        series.folder or series.runs / f"{name}-study-{subject.mark}", name, subject
    )
    with closing(folder):
        folder.plan_runs(range(series.first_seed, series.first_seed + series.seeds))
        _introduce(folder, studies)
        at_once()
        with _going_on():
            _Runner(folder, studies, choices, series.keep_data).run_all()
        metric = _judged(studies)
        found = results(settings, folder.runs, metric.name, metric.higher_is_better)
        _conclude(folder, metric, found)


def _introduce(folder: StudyFolder, studies: Sequence[Study]) -> None:
    done = sum(run.done is not None for run in folder.runs)
    seeds = len({run.seed for run in folder.runs})
    say(
        f"{folder.name}: {_count(len(studies), 'setting')} × {_count(seeds, 'seed')} = "
        f"{_count(len(folder.runs), 'run')}{f', {done} done already' if done else ''}, "
        f"folder {folder.path}"
    )
    for sentence in dict.fromkeys(told for study in studies for told in study.plan.guarantees()):
        say(f"  {sentence}")
    warn_of_studies(studies)


@contextmanager
def _going_on() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("stopped: the same command goes on from here")
        raise


def _judged(studies: Sequence[Study]) -> Metric:
    """The metric that settings are compared by: the one that the first plan looks at."""
    wanted = studies[0].plan.evaluation.metric
    metrics = studies[0].task.metrics
    return next((metric for metric in metrics if metric.name == wanted), metrics[0])


class _Runner:
    """Runs what is not done, one run after the other."""

    def __init__(
        self, folder: StudyFolder, studies: Sequence[Study], choices: Choices, keep_data: bool
    ) -> None:
        from consortium.drive.sweep import label_of, told_apart

        self._folder, self._studies = folder, studies
        self._choices, self._keep_data = choices, keep_data
        self._metric = _judged(studies).name
        self._width = len(str(len(folder.runs)))
        self._labels = [label_of(one) for one in told_apart(folder.subject.settings)]

    def run_all(self) -> None:
        place = f"{'run':<{2 * self._width + 1}}"
        data(f"{place}  seed  rounds {self._metric:>10} {'s':>8}  settings")
        if not self._keep_data:
            self._folder.drop_data()  # a kill may have come before it
        for number, run in enumerate(self._folder.runs, start=1):
            began = time.monotonic()
            if run.done is None:
                done = self._run(run, f"run {number} of {len(self._folder.runs)}")
                took = f"{time.monotonic() - began:>8.1f}"
            else:
                done, took = run.done, f"{'done':>8}"
            data(self._line(number, run, done, took))

    def _run(self, run: PlannedRun, title: str) -> DoneRun:
        from consortium.cli.rounds import Progress
        from consortium.drive.directory import DataDirectory
        from consortium.drive.history import RoundRecord
        from consortium.drive.run_folder import RunFolder
        from consortium.drive.simulate import Options, simulate
        from consortium.drive.sweep import DoneRun

        study, label = self._studies[run.setting], self._label(run)
        say(f"{title}: {label + ', ' if label else ''}seed {run.seed}")
        folder = RunFolder(self._folder.run_path(run), goes_on=True)
        folder.begin(study.plan, run.seed)
        directory = DataDirectory(self._folder.data_path(run))
        progress = Progress(
            study.plan.federation.rounds, f"{title} {label} seed {run.seed}", self._metric
        )

        def note(record: RoundRecord) -> None:
            folder.add_round(record)
            progress.on_round(record)

        options = Options(
            **self._choices.options(study, run.seed),
            directory=directory,
            is_auditable=self._keep_data,
            on_round=note,
            on_work=progress.on_work,
        )
        quiet = redirect_stdout(sys.stderr) if Voice.json else nullcontext()
        with closing(directory), progress, quiet:
            directory.lock()
            task = self._choices.task_of(study)
            result = simulate(task, study.plan, study.sites, seed=run.seed, options=options)
        folder.finish(result, self._choices.told())
        folder.sync()
        done = DoneRun.of(result)
        self._folder.finish(run, done)
        if not self._keep_data:
            self._folder.drop_data()
        return done

    def _line(self, number: int, run: PlannedRun, done: DoneRun, took: str) -> str:
        value = done.metrics.get(self._metric)
        told = f"{'–':>10}" if value is None else f"{value:>10.4f}"
        place = f"{number:>{self._width}}/{len(self._folder.runs)}"
        line = f"{place}  {run.seed:>4}  {done.rounds:>6} {told} {took}  {self._label(run)}"
        is_late = value is not None and done.metrics_version is not None
        late = f"  ({words.of_versions([done.metrics_version or 0])})" if is_late else ""
        return f"{line}{late}".rstrip()

    def _label(self, run: PlannedRun) -> str:
        return self._labels[run.setting]


def _conclude(folder: StudyFolder, metric: Metric, found: Sequence[SettingResult]) -> None:
    data("")
    better = "higher" if metric.higher_is_better else "lower"
    has_sizes = len({one.bytes_per_update for one in found}) > 1
    size = f" {'bytes':>11}" if has_sizes else ""
    title = f"settings, best first ({better} is better)"
    data(f"{metric.name:>10}  {'± 95 %':>8}  seeds{size}  {title}")
    for one in found:
        data(_row(one, has_sizes))
    for remark in remarks([one.interval.count for one in found if one.interval]):
        say(remark)
    if _is_open(found):
        say("seed by seed, the first may be no better than the second: more seeds would tell")
    say(f"finished: {_count(len(folder.runs), 'run')}; see {folder.path}")
    done = [run.done for run in folder.runs if run.done is not None]
    if all(run.failed_rounds == run.rounds for run in done):
        raise InsufficientParticipantsError(
            "no round completed in any run", hint=f"rounds.jsonl below {folder.path} says why"
        )
    envelope("simulate", _told(folder, metric, found))


def _row(one: SettingResult, has_sizes: bool) -> str:
    from consortium.drive.sweep import label_of

    if one.interval is None:
        told = f"{'–':>10}  {'–':>8}  {0:>5}"
    else:
        half = one.interval.half_width
        told = f"{one.interval.mean:>10.4f}  {'–' if half is None else f'{half:.4f}':>8}"
        told += f"  {one.interval.count:>5}"
    if has_sizes:
        size = "–" if one.bytes_per_update is None else f"{one.bytes_per_update:,}"
        told += f" {size:>11}"
    lost = f"  ({_count(one.unmeasured, 'run')} measured nothing)" if one.unmeasured else ""
    late = f"  ({words.of_versions(one.late_versions)})" if one.late_versions else ""
    return f"{told}  {label_of(one.settings) or '(the plan)'}{late}{lost}"


def remarks(counts: Sequence[int]) -> list[str]:
    """What a reader of intervals over so many seeds must know."""
    if not counts:
        return []
    fewest = min(counts)
    if fewest == 1:
        return ["one seed is one draw, and has no interval: --seeds 5 gives one"]
    told = "± is half of a 95 % interval of the mean, by Student's t over seeds"
    if fewest < _FEW:
        return [f"{told}; with {fewest} seeds it is rough"]
    return [told]


def _is_open(found: Sequence[SettingResult]) -> bool:
    """Whether the best two cannot be told apart."""
    from consortium.drive.sweep import difference

    apart = difference(*found[:2]) if len(found) > 1 else None
    return apart is not None and apart.low <= 0.0 <= apart.high


def _told(folder: StudyFolder, metric: Metric, found: Sequence[SettingResult]) -> dict[str, object]:
    return {
        "study": folder.name,
        "folder": str(folder.path),
        "metric": metric.name,
        "higher_is_better": metric.higher_is_better,
        "settings": [
            {
                "settings": one.settings,
                "seeds": len(one.values),
                "mean": one.interval.mean if one.interval else None,
                "half_width": one.interval.half_width if one.interval else None,
                "values": {str(seed): value for seed, value in one.values.items()},
                "unmeasured": one.unmeasured,
                "bytes_per_update": one.bytes_per_update,
            }
            for one in found
        ],
        "runs": [
            {
                "folder": str(folder.run_path(run)),
                "settings": folder.subject.settings[run.setting],
                "seed": run.seed,
                "model": run.done.model if run.done else None,
                "metrics": run.done.metrics if run.done else {},
                "metrics_version": run.done.metrics_version if run.done else None,
            }
            for run in folder.runs
        ],
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

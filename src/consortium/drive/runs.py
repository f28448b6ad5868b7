"""Run folders read back, to be laid side by side: each by itself, or those together that
differ in nothing but the seed."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consortium.drive.interval import Interval, interval
from consortium.drive.sweep import STUDY_FILE, PastStudy, label_of, read_study, told_apart
from consortium.errors import PlanFileError
from consortium.plan import Plan, read_plan, write_plan


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run as its folder tells it."""

    name: str
    plan: Plan
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    label: str = ""  # its settings, in a study

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(round, value at the model that came out of it), where it was measured."""
        return [(at, told[metric]) for at, _, told in self.measured() if metric in told]

    def late_version(self, metric: str) -> int | None:
        """Where scores come one round late: the version that the last value is of."""
        late = [version for _, version, told in self.measured() if metric in told]
        return late[-1] if late and self.plan.has_scored_sums else None

    def measured(self) -> list[tuple[int, int | None, dict[str, float]]]:
        """(round, the version that came out of it, its metrics). While a run goes on, a late
        score is told by the next round alone."""
        late = {
            record["version"]: record["base_metrics"]
            for record in self.rounds
            if record.get("has_late_scores")
        }
        found = []
        for record in self.rounds:
            if record["outcome"] == "accepted":
                version = record.get("published")
                found.append(
                    (record["number"], version, record["metrics"] or late.get(version, {}))
                )
            else:
                found.append((record["number"], record.get("version"), record["base_metrics"]))
        return found

    @property
    def kind(self) -> str | None:
        """The same for runs that differ in nothing but the seed: plan, task, sites and what was
        chosen beyond the plan. None for a run that does not tell, because it is not finished."""
        told = [self.summary.get(part) for part in ("task", "sites", "choices")]
        if not told[0] or not told[1] or "seed" not in self.summary:
            return None
        return json.dumps([write_plan(self.plan), *told], sort_keys=True)

    @property
    def strategy(self) -> str:
        """The strategy in a few words: its name and the parts that were set."""
        strategy = self.plan.strategy
        parts: list[str] = [strategy.name]
        if strategy.anomalies == "exclude":
            parts.append("screen")
        if strategy.is_robust:
            parts.append(strategy.rule)
        if self.plan.personal.name != "none":
            parts.append(self.plan.personal.name)
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of different seeds, or one run by itself."""

    name: str
    runs: tuple[PastRun, ...]

    def last(self, metric: str) -> Interval | None:
        """Of the model that came out; None where nothing was measured."""
        curves = [run.curve(metric) for run in self.runs]
        values = [curve[-1][1] for curve in curves if curve]
        return interval(values) if values else None

    def late_versions(self, metric: str) -> list[int]:
        """Where scores come one round late: which versions the last values are of."""
        told = {run.late_version(metric) for run in self.runs}
        return sorted(version for version in told if version is not None)

    def curve(self, metric: str) -> list[tuple[int, Interval]]:
        """(round, mean and interval over the runs), from where all of them were measured. A
        model lasts until the next one, so a run that stopped early keeps its last value."""
        curves = [curve for run in self.runs if (curve := run.curve(metric))]
        if not curves:
            return []
        rounds = sorted({at for curve in curves for at, _ in curve})
        begins = max(curve[0][0] for curve in curves)
        shown = [at for at in rounds if at >= begins]
        columns = [_held(curve, shown) for curve in curves]
        return [
            (at, interval(values))
            for at, values in zip(shown, zip(*columns, strict=True), strict=True)
        ]


def _held(curve: list[tuple[int, float]], rounds: list[int]) -> list[float]:
    """The value in each of these rounds, or the last one before it."""
    starts = [at for at, _ in curve]
    return [curve[bisect_right(starts, at) - 1][1] for at in rounds]


def grouped(runs: Sequence[PastRun]) -> list[RunGroup]:
    """Runs of one kind and several seeds together, one run a seed; all others alone. They
    stand where their first run stands."""
    of_kind: dict[str, dict[int, PastRun]] = {}
    for run in runs:
        if run.kind is not None:
            of_kind.setdefault(run.kind, {}).setdefault(run.summary["seed"], run)
    groups: dict[str, RunGroup] = {}
    for number, run in enumerate(runs):
        together = of_kind.get(run.kind or "", {})
        if len(together) < 2:
            groups[str(number)] = RunGroup(run.name, (run,))
        elif run.kind is not None and run.kind not in groups:
            name = run.label or f"{run.name} and {len(together) - 1} more"
            groups[run.kind] = RunGroup(name, tuple(together.values()))
    return list(groups.values())


def read_runs(folder: Path) -> list[PastRun]:
    """The run in a folder, or those that are done of the study in it."""
    if not (folder / STUDY_FILE).exists():
        return [read_run(folder)]
    study = read_study(folder)
    found = [
        replace(read_run(folder / run.folder), label=_label(study, run.setting, folder))
        for run in study.runs
        if run.done is not None
    ]
    if not found:
        raise PlanFileError(
            f"no run of the study in {folder} is done",
            hint="the command that began it goes on with it",
        )
    return found


def _label(study: PastStudy, setting: int, folder: Path) -> str:
    return label_of(told_apart(study.subject.settings)[setting]) or folder.resolve().name


def is_unstarted(folder: Path) -> bool:
    """Whether it is the folder of a run of which no round ended."""
    return (folder / "plan.toml").exists() and not (folder / "rounds.jsonl").exists()


def read_run(folder: Path) -> PastRun:
    """The run in a folder that `consortium simulate` made."""
    try:
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        rounds = [_round(line) for line in lines]
        file = folder / "summary.json"
        summary = dict(json.loads(file.read_text())) if file.exists() else {}
        plan = read_plan(folder / "plan.toml")
    except (OSError, TypeError, ValueError, RecursionError) as error:
        if is_unstarted(folder):
            raise PlanFileError(
                f"no round of the run in {folder} ended", hint="leave it out, or remove it"
            ) from None
        raise PlanFileError(
            f"{folder} is not the folder of a run: {type(error).__name__}",
            hint="runs lie in runs/ below where `consortium simulate` was started",
        ) from None
    return PastRun(folder.resolve().name, plan, summary, rounds)


def _round(line: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(line)
    if not {"number", "outcome", "metrics", "base_metrics"} <= set(values):
        raise ValueError("not a round")
    return values


def metrics_of(runs: list[PastRun]) -> list[str]:
    """The metrics that every one of these runs measured, in the order of the first."""
    measured = [[name for _, _, told in run.measured() for name in told] for run in runs]
    common = set(measured[0]).intersection(*measured)
    return [name for name in dict.fromkeys(measured[0]) if name in common]

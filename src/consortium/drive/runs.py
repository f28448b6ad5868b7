"""Run folders read back, to be laid side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consortium.errors import PlanFileError
from consortium.plan import Plan, read_plan


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run as its folder tells it."""

    name: str
    plan: Plan
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """(round, value at the model that came out of it), where it was measured."""
        points = []
        for record in self.rounds:
            told = record["metrics"] if record["outcome"] == "accepted" else record["base_metrics"]
            if metric in told:
                points.append((record["number"], told[metric]))
        return points

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


def read_run(folder: Path) -> PastRun:
    """The run in a folder that `consortium simulate` made."""
    try:
        lines = (folder / "rounds.jsonl").read_text().splitlines()
        rounds = [_round(line) for line in lines]
        file = folder / "summary.json"
        summary = json.loads(file.read_text()) if file.exists() else {}
        plan = read_plan(folder / "plan.toml")
    except (OSError, TypeError, ValueError, RecursionError) as error:
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
    measured = [[name for record in run.rounds for name in record["metrics"]] for run in runs]
    common = set(measured[0]).intersection(*measured)
    return [name for name in dict.fromkeys(measured[0]) if name in common]

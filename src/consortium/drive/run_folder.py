"""What a simulation leaves behind: a folder that people and scripts can read.

    plan.toml  seed.txt  guarantees.txt  rounds.jsonl  sites.json  summary.json
    model.safetensors  log.facts

`rounds.jsonl` grows while the run goes on; `sites.json` has what each member measured of
the last candidate. `log.facts` holds the records of the log, each
behind its length in four bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from consortium.drive.history import RoundRecord
from consortium.drive.simulate import Run
from consortium.errors import PlanFileError
from consortium.model import save_model
from consortium.plan import Plan, write_plan

_LENGTH_BYTES = 4


class RunFolder:
    """One run's folder, made anew."""

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise PlanFileError(f"cannot make the run folder {path}: {error.strerror}") from None
        self.path = path

    @classmethod
    def new(cls, parent: Path, name: str, stamp: str) -> RunFolder:
        """A folder that did not exist: `name-stamp`, numbered when there is one already."""
        for number in range(1, 1000):
            path = parent / (f"{name}-{stamp}" if number == 1 else f"{name}-{stamp}-{number}")
            if not path.exists():
                return cls(path)
        raise PlanFileError(f"{parent} is full of runs of the same second")

    def begin(self, plan: Plan, seed: int) -> None:
        (self.path / "plan.toml").write_text(write_plan(plan))
        (self.path / "seed.txt").write_text(f"{seed}\n")
        (self.path / "guarantees.txt").write_text("\n".join(plan.guarantees()) + "\n")

    def add_round(self, record: RoundRecord) -> None:
        with (self.path / "rounds.jsonl").open("a") as rounds:
            rounds.write(_line(record))

    def finish(self, run: Run) -> dict[str, object]:
        """Write model, log and summary; returns the summary."""
        (self.path / "model.safetensors").write_bytes(save_model(run.layout, run.model))
        with (self.path / "log.facts").open("wb") as log:
            for record in run.records:
                log.write(len(record).to_bytes(_LENGTH_BYTES, "big") + record)
        rows = [_line(record) for record in run.history.rounds]
        (self.path / "rounds.jsonl").write_text("".join(rows))  # also of a run that went on
        sites = run.history.rounds[-1].sites if run.history.rounds else {}
        (self.path / "sites.json").write_text(json.dumps(sites, indent=2) + "\n")
        told = summary(run)
        (self.path / "summary.json").write_text(json.dumps(told, indent=2) + "\n")
        return told


def _line(record: RoundRecord) -> str:
    """One round as JSON: the worst site, but not all sites, which may be thousands."""
    values = asdict(record)
    del values["sites"]
    return json.dumps(values) + "\n"


def summary(run: Run) -> dict[str, object]:
    """The run in a few numbers."""
    rounds = run.history.rounds
    measured = [record for record in rounds if record.metrics]
    accepted = [record for record in measured if record.outcome == "accepted"]
    lasted = {"simulated_ms": rounds[-1].ended_ms} if rounds and run.plan.takes_time else {}
    return {
        "name": run.plan.federation.name,
        "seed": run.seed,
        "rounds": len(rounds),
        "failed_rounds": sum(record.outcome == "failed" for record in rounds),
        "finished": run.history.finished,
        "model": run.model_digest.hex(),
        "model_version": run.state.current,
        "plan": run.plan.digest.hex(),
        "metrics": _of_the_model(measured[-1]) if measured else {},
        "worst": accepted[-1].worst if accepted else {},
        **lasted,
    }


def _of_the_model(last: RoundRecord) -> dict[str, float]:
    """What the members measured of the model that came out: the candidate if it was
    accepted, else the base that was kept."""
    return last.metrics if last.outcome == "accepted" else last.base_metrics

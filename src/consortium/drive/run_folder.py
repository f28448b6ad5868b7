"""What a simulation leaves behind: a folder that people and scripts can read.

    plan.toml  seed.txt  guarantees.txt  rounds.jsonl  sites.json  summary.json
    model.safetensors  log.facts

`rounds.jsonl` grows while the run goes on; `sites.json` has what each member measured of
the last candidate. `log.facts` holds the records of the log, each behind its length in
four bytes. `summary.json` is written last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from consortium.drive.history import RoundRecord
from consortium.drive.population import digest_of_names
from consortium.drive.simulate import Run
from consortium.errors import PlanFileError, StoreFailedError
from consortium.model import save_model
from consortium.plan import Plan, write_plan
from consortium.plan.promises import SIMULATED, simulated_promises
from consortium.store.files import sync_folder

_LENGTH_BYTES = 4
_ROUNDS = "rounds.jsonl"


class RunFolder:
    """One run's folder: made anew, or that of a run which goes on."""

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        try:
            path.mkdir(parents=True, exist_ok=goes_on)
        except OSError as error:
            raise PlanFileError(f"cannot make the run folder {path}: {error.strerror}") from None
        self.path = path
        # The log of a simulation in blocks has sums only: who was worst, and how many bytes were
        # sent, is told here alone.
        self._told = _told_before(path / _ROUNDS) if goes_on else {}

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
        told = [*plan.guarantees(), *simulated_promises(plan)]
        (self.path / "guarantees.txt").write_text("\n".join(told) + "\n")

    def add_round(self, record: RoundRecord) -> None:
        self._write_sites(record)
        with (self.path / _ROUNDS).open("a") as rounds:
            rounds.write(_line(record))

    def finish(self, run: Run, choices: dict[str, object] | None = None) -> dict[str, object]:
        """Write model, log and summary; returns the summary. `choices` are what the run was
        asked for beyond its plan and changes the model."""
        rounds = run.history.rounds
        for record in rounds:
            worst, sent = self._told.get(record.number, ({}, 0))
            record.worst, record.bytes_sent = record.worst or worst, record.bytes_sent or sent
        (self.path / "model.safetensors").write_bytes(save_model(run.layout, run.model))
        with (self.path / "log.facts").open("wb") as log:
            for fact in run.records:
                log.write(len(fact).to_bytes(_LENGTH_BYTES, "big") + fact)
        rows = [_line(record) for record in rounds]
        (self.path / _ROUNDS).write_text("".join(rows))  # also of a run that went on
        if not rounds or rounds[-1].sites or rounds[-1].number not in self._told:
            self._write_sites(rounds[-1] if rounds else None)
        told = summary(run) | ({"choices": choices} if choices else {})
        (self.path / "summary.json").write_text(json.dumps(told, indent=2) + "\n")
        return told

    def sync(self) -> None:
        """Force all of it to the disk, before something else is dropped for it."""
        try:
            for path in self.path.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise StoreFailedError(f"{self.path}: {error.strerror}") from None

    def _write_sites(self, record: RoundRecord | None) -> None:
        sites = record.sites if record is not None else {}
        (self.path / "sites.json").write_text(json.dumps(sites, indent=2) + "\n")


def _told_before(path: Path) -> dict[int, tuple[dict[str, tuple[str, float]], int]]:
    """The worst sites, and the bytes, of the rounds that are told in a file already. A line that a
    kill cut off is taken out of it: what comes next begins a line of its own."""
    if not path.exists():
        return {}
    found, whole = {}, []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
            found[int(record["number"])] = dict(record["worst"]), int(record["bytes_sent"])
        except (TypeError, ValueError, KeyError):
            break
        whole.append(f"{line}\n")
    path.write_text("".join(whole))
    return found


def _line(record: RoundRecord) -> str:
    """One round as JSON: the worst site, but not all sites, which may be thousands."""
    values = asdict(record)
    del values["sites"]
    return json.dumps(values) + "\n"


def summary(run: Run) -> dict[str, object]:
    """The run in a few numbers."""
    rounds = run.history.rounds
    accepted = [record for record in rounds if record.metrics and record.outcome == "accepted"]
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
        "task": "" if run.state.task is None else run.state.task.hex(),
        "sites": {"count": len(run.sites), "names": digest_of_names(run.sites).hex()},
        "metrics": final_metrics(run),
        **_late(run),
        "worst": accepted[-1].worst if accepted else {},
        **_sent(rounds),
        **lasted,
        **({"privacy": SIMULATED} if run.plan.privacy.is_on else {}),
    }


def _sent(rounds: Sequence[RoundRecord]) -> dict[str, object]:
    """What sites sent. Of rounds before a run went on, the bytes may not be known."""
    total = sum(record.bytes_sent for record in rounds)
    return {"bytes_sent": total, "bytes_per_update": bytes_per_update(rounds)}


def bytes_per_update(rounds: Sequence[RoundRecord]) -> int | None:
    """The mean size of what sites sent; None if it is not known."""
    known = [record for record in rounds if record.bytes_sent]
    updates = sum(record.updates_sent for record in known)
    return round(sum(record.bytes_sent for record in known) / updates) if updates else None


def final_metrics(run: Run) -> dict[str, float]:
    """What the members measured of the model that came out: the last candidate if it was
    accepted, else the base that was kept. Where scores come inside sums, of the last model that a
    sum tells of: see `scored_version`."""
    late = [record for record in run.history.rounds if record.has_late_scores]
    if late:
        return late[-1].base_metrics
    measured = [record for record in run.history.rounds if record.metrics]
    if not measured:
        return {}
    last = measured[-1]
    return last.metrics if last.outcome == "accepted" else last.base_metrics


def scored_version(run: Run) -> int | None:
    """The version that `final_metrics` are of, where they come one round late; else None."""
    late = [record for record in run.history.rounds if record.has_late_scores]
    return late[-1].version if late else None


def _late(run: Run) -> dict[str, object]:
    version = scored_version(run)
    return {} if version is None else {"metrics_version": version}

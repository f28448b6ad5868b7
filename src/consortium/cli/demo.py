"""`consortium demo`: real records over five sites; one drops out and comes back, and the
coordinator is killed in the middle of a round and goes on from its log.

It writes the same study as `consortium init`, with the breast-cancer records that
scikit-learn carries, and runs it: what you see is what your own study would print.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli.init import write_study
from consortium.cli.report import command, data, envelope, say
from consortium.errors import AuditError, SiteDataError, TaskResultError

if TYPE_CHECKING:
    from consortium.core.state import Federation
    from consortium.drive.study import Study

# Unequal, as hospitals are.
_SHARES = {"site-1": 0.42, "site-2": 0.28, "site-3": 0.16, "site-4": 0.09, "site-5": 0.05}
_AWAY = "site-3:3,4"
_INTO_THE_ROUND_S = 0.25
_SEED = 1
_CHANGES = {
    "rounds = 10": "rounds = 8",
    'name = "first-study"': 'name = "demo"',
    "FEATURES = 6": "FEATURES = 30",
}


@command
def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Keep the study here. Default: a temporary folder.")
    ] = None,
) -> None:
    """Train one model at five sites on real records, and compare with each site alone."""
    with tempfile.TemporaryDirectory() as scratch:
        _demo(folder or Path(scratch) / "study")
    if folder is not None:
        say(f"run it again: cd {folder} && consortium simulate consortium.toml")


def _demo(folder: Path) -> None:
    from consortium.drive.study import load_study
    from consortium.drive.verify import verify_directory

    write_study(folder, _records(), _CHANGES)
    study = load_study(folder / "consortium.toml")
    say("569 breast-cancer records (scikit-learn) at five sites; site-3 is away in rounds 3 and 4.")
    say("The records stay at their sites; updates, weights and metric sums travel.\n")
    _coordinate(folder, kill_in_round=5)
    state = _folded(folder)
    step = state.round.step.name if state.round else "not open"
    say(f"\n-- the coordinator was killed (kill -9); round 5 is {step}. It starts again. --\n")
    _coordinate(folder)
    _same_as_uninterrupted(folder, study)
    told = _compare(folder, study)
    audit = verify_directory(folder / "coordinator")
    if not audit.is_clean:
        raise AuditError(f"{audit.findings[0].where}: {audit.findings[0].what}")
    data(f"\naudit: ok, {audit.facts} facts, {audit.blobs} blobs, every sum done again")
    envelope("demo", {"accuracy": told, "facts": audit.facts})


def _coordinate(folder: Path, kill_in_round: int | None = None) -> None:
    """Run the study in a process of its own; kill it without warning in that round."""
    arguments = ["simulate", "consortium.toml", "--seed", str(_SEED), "--data", "coordinator"]
    arguments += ["--away", _AWAY, "--record", "--pace", "0.08"]
    with subprocess.Popen(
        [sys.executable, "-m", "consortium", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            _relay(process, kill_in_round)
        finally:
            process.kill()


def _relay(process: subprocess.Popen[str], kill_in_round: int | None) -> None:
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        data(line.rstrip("\n"))
        if kill_in_round is not None and line.split()[:1] == [str(kill_in_round - 1)]:
            time.sleep(_INTO_THE_ROUND_S)
            process.kill()
            return
    if process.wait() != 0:
        raise TaskResultError(f"the coordinator failed: {process.stderr.read().strip()}")


def _same_as_uninterrupted(folder: Path, study: Study) -> None:
    """The same study in this process, with nobody killed, must give the same bytes."""
    from consortium.drive.simulate import Options, simulate

    options = Options(drops=lambda number, site: (site, number) in {("site-3", 3), ("site-3", 4)})
    calm = simulate(study.task, study.plan, study.sites, seed=_SEED, options=options)
    state = _folded(folder)
    if calm.model_digest != state.versions[state.current].model:
        raise AuditError("the killed run gave another model than an uninterrupted one")
    data("the same model, bit for bit, as an uninterrupted run gives")


def _folded(folder: Path) -> Federation:
    """The state that the log of the demo's only federation folds into."""
    from consortium.core.codec import decode
    from consortium.core.evolve import replay
    from consortium.drive.directory import DataDirectory

    directory = DataDirectory(folder / "coordinator")
    stream = next(name for name in directory.log.streams() if "/" not in name)
    state = replay([decode(record) for record in directory.log.read(stream)])
    directory.close()
    return state


def _compare(folder: Path, study: Study) -> dict[str, dict[str, float]]:
    """Accuracy of each site's own model and of the common one, at home and everywhere."""
    from consortium.core.ids import Seat
    from consortium.drive.alone import mean_metric, train_alone
    from consortium.drive.engine import LoopEngine, begin
    from consortium.model import load_model
    from consortium.store.files import FileBlobs

    task, sites = study.task, study.sites
    local, start = begin(task, study.plan, sites, _SEED)
    state = _folded(folder)
    blobs = FileBlobs.existing(folder / "coordinator" / "blobs")
    together = load_model(local.layout, blobs.get(state.versions[state.current].model)), None
    engine = LoopEngine(local, sites, _SEED)
    index = [metric.name for metric in task.metrics].index("accuracy")
    everywhere = [Seat(number) for number in range(1, len(sites) + 1)]
    told = {}
    data("\naccuracy     alone: at home  everywhere    together: at home  everywhere")
    for seat in everywhere:
        alone = train_alone(engine, seat, start, state.last_number)
        row = {
            "alone_at_home": mean_metric(engine, alone, [seat], index),
            "alone_everywhere": mean_metric(engine, alone, everywhere, index),
            "together_at_home": mean_metric(engine, together, [seat], index),
            "together_everywhere": mean_metric(engine, together, everywhere, index),
        }
        told[sites[seat - 1].name] = row
        columns = [
            f"{value:>{width}.3f}"
            for value, width in zip(row.values(), (20, 12, 21, 12), strict=True)
        ]
        data(f"{sites[seat - 1].name:<7}{''.join(columns)}")
    return told


def _records() -> dict[str, Any]:
    """Each site's table: 30 measurements, scaled by the site's own training records."""
    try:
        from sklearn.datasets import load_breast_cancer  # type: ignore[import-untyped]  # ships none
    except ImportError:
        raise SiteDataError(
            "the demo's records come with scikit-learn, which is not installed",
            hint="pip install 'consortium[examples]'",
        ) from None
    import numpy as np

    from consortium.drive.rng import stream

    bunch = load_breast_cancer()
    order = stream(_SEED, "demo").permutation(len(bunch.target))
    ends = np.cumsum([round(share * len(order)) for share in _SHARES.values()])[:-1]
    tables = {}
    for name, rows in zip(_SHARES, np.split(order, ends), strict=True):
        features = bunch.data[rows]
        training = features[np.arange(len(rows)) % 4 != 0]  # the task tests on every fourth
        scaled = (features - training.mean(axis=0)) / training.std(axis=0)
        tables[name] = np.column_stack([scaled, bunch.target[rows]])
    return tables

"""`consortium demo`: real records over five sites, one of which drops out and comes back.

It writes the same study as `consortium init`, with the breast-cancer records that
scikit-learn carries, and runs it: what you see is what your own study would print.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consortium.cli.init import write_study
from consortium.cli.report import command, data, envelope, say
from consortium.errors import SiteDataError

if TYPE_CHECKING:
    from consortium.drive.engine import SimulatedSite
    from consortium.drive.simulate import Run
    from consortium.task import Task

# Unequal, as hospitals are.
_SHARES = {"site-1": 0.42, "site-2": 0.28, "site-3": 0.16, "site-4": 0.09, "site-5": 0.05}
_AWAY = {(3, "site-3"), (4, "site-3")}  # (round, site)
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
    from consortium.cli.simulate import load_study, watch

    write_study(folder, _records(), _CHANGES)
    plan, task, sites, _ = load_study(folder / "consortium.toml")
    say("569 breast-cancer records (scikit-learn) at five sites; site-3 is away in rounds 3 and 4.")
    say("The records stay at their sites; updates, weights and metric sums travel.\n")
    run = watch(
        task,
        plan,
        sites,
        seed=_SEED,
        options={"drops": lambda number, site: (number, site) in _AWAY},
    )
    told = _compare(run, task, sites)
    envelope("demo", {"model": run.model_digest.hex(), "accuracy": told})
    data(f"\nmodel {run.model_digest.hex()}")


def _compare(run: Run, task: Task, sites: list[SimulatedSite]) -> dict[str, dict[str, float]]:
    """Accuracy of each site's own model and of the common one, at home and everywhere."""
    from consortium.core.ids import Seat
    from consortium.drive.alone import mean_metric, train_alone
    from consortium.drive.engine import LoopEngine, first_model

    layout, start = first_model(task, _SEED)
    engine = LoopEngine(task, layout, sites, run.plan.training, _SEED)
    index = [metric.name for metric in task.metrics].index("accuracy")
    everywhere = [Seat(number) for number in range(1, len(sites) + 1)]
    rounds = len(run.history.rounds)
    told = {}
    data("\naccuracy     alone: at home  everywhere    together: at home  everywhere")
    for seat in everywhere:
        alone = train_alone(engine, seat, start, rounds)
        row = {
            "alone_at_home": mean_metric(engine, alone, [seat], index),
            "alone_everywhere": mean_metric(engine, alone, everywhere, index),
            "together_at_home": mean_metric(engine, run.model, [seat], index),
            "together_everywhere": mean_metric(engine, run.model, everywhere, index),
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

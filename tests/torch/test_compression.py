"""What compression costs in accuracy, on real records: means of five seeds.

The models have more than 10,000 numbers. Heart is the four published hospitals where their
files are on this machine, else breast-cancer records at four made-up ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import consortium as co
from consortium.data import dirichlet, load_bundled, load_heart
from consortium.drive.run_folder import summary
from consortium.plan import parse_plan
from examples.four_hospitals import bundled, sites_of
from tests.data.made import REAL

pytestmark = pytest.mark.slow

SEEDS = range(5)
PLAN = """
[federation]
rounds = 40
[selection]
fraction = 1.0
[training]
epochs = 1
lr = {lr}
[evaluation]
metric = "accuracy"
gate = false
[compression]
{compression}
"""


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def digits(site: co.Site) -> tuple[nn.Module, Any, Any]:
    train, test = site.data
    return nn.Sequential(nn.Linear(64, 140), nn.ReLU(), nn.Linear(140, 10)), train, test


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def heart(site: co.Site) -> tuple[nn.Module, Any, Any]:
    train, test = site.data
    first, last = nn.Linear(train.n_features, 100), nn.Linear(90, 2)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(100, 90), nn.ReLU(), last), train, test


def digit_sites(seed: int) -> list[co.SimulatedSite]:
    """1,797 digits at eight sites, unevenly by class; a quarter of each site's is for testing."""
    records = load_bundled("digits")
    records = records.scaled(np.full(64, 8.0), np.full(64, 8.0))
    rng = np.random.default_rng(seed)
    made = []
    for number, part in enumerate(dirichlet(records.labels, 8, 1.0, rng, min_records=40)):
        part = rng.permutation(part)
        cut = len(part) * 3 // 4
        data = records.rows(part[:cut]), records.rows(part[cut:])
        made.append(co.SimulatedSite(f"site-{number}", data))
    return made


def heart_sites(seed: int) -> list[co.SimulatedSite]:
    folder = REAL / "heart_disease"
    return sites_of(load_heart(folder) if folder.is_dir() else bundled(), seed, "federated")


STUDIES: dict[str, tuple[Any, Callable[[int], list[co.SimulatedSite]], str]] = {
    "digits": (digits, digit_sites, "0.05"),
    "heart": (heart, heart_sites, "0.01"),
}


@cache
def measured(study: str, compression: str) -> tuple[float, float]:
    """(mean accuracy of the last round, mean bytes of an update) over the seeds."""
    task, make, lr = STUDIES[study]
    plan = parse_plan(PLAN.format(lr=lr, compression=compression))
    found = []
    for seed in SEEDS:
        run = co.simulate(task, plan, make(seed), seed=seed, options=co.Options(workers=0))
        assert run.layout.size >= 10_000
        bytes_sent = summary(run)["bytes_per_update"]
        assert isinstance(bytes_sent, int)
        found.append((run.history.rounds[-1].metrics["accuracy"], bytes_sent))
    accuracy, sent = np.mean(found, axis=0)
    return float(accuracy), float(sent)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("study", "compression", "most_bytes", "most_points"),
    [
        ("heart", "bits = 4", 0.14, 0.01),
        ("digits", "bits = 4", 0.14, 0.01),
        ("digits", "bits = 8", 0.27, 0.01),
        ("digits", "keep = 0.01", 0.025, 0.02),
        ("digits", "keep = 0.01\nbits = 4", 0.016, 0.02),
        ("digits", 'keep = 0.1\nby = "random"', 0.11, 0.02),
        ("digits", 'keep = 0.25\nby = "random"\nbits = 4\nerror_feedback = true', 0.05, 0.02),
    ],
)
def test_accuracy_stays_and_bytes_go(
    study: str, compression: str, most_bytes: float, most_points: float
) -> None:
    plain, plain_bytes = measured(study, "")
    accuracy, sent = measured(study, compression)
    told = f"{study}: {plain:.4f} -> {accuracy:.4f}, {sent / plain_bytes:.2%} of the bytes"
    print(told)
    assert sent <= most_bytes * plain_bytes, told
    assert accuracy >= plain - most_points, told

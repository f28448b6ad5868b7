"""Four real hospitals, one model: does federation help, and whom?

UCI Heart Disease with FLamby's rule: 740 patients of Cleveland, Hungary, Switzerland and VA
Long Beach, logistic regression on ten common columns. Features are scaled by federated
statistics: a study of one round that comes before, and of which only the mean and the
spread of each column come out. Accuracy is over the test patients of all hospitals.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split  # type: ignore[import-untyped]
from torch import nn

import consortium as co
from consortium.data import Table, dirichlet, load_bundled, load_heart
from examples.command import main, mean, options, plan_of, records, table

PLAN = """
[federation]
name = "four-hospitals"
rounds = 50
quorum = 3
[selection]
fraction = 1.0
[training]
epochs = 1
[evaluation]
metric = "accuracy"
gate = false
[strategy]
"""
STRATEGIES = {
    "fedavg": 'name = "fedavg"',
    "fedprox": 'name = "fedprox"',
    "scaffold": 'name = "scaffold"',
    "fedadam": 'name = "fedadam"',
    "fedyogi": 'name = "fedyogi"',
}
TEST_SHARE = 0.34


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def heart(site: co.Site) -> tuple[nn.Module, Any, Any]:
    train, test = site.data
    model = nn.Linear(train.n_features, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model, train, test


def _split(patients: Table, seed: int) -> tuple[Table, Table]:
    """scikit-learn's split, as FLamby's: 66 to 34, stratified where each class has two."""
    smallest = np.bincount(patients.labels, minlength=2).min()
    train, test = train_test_split(
        np.arange(len(patients)),
        test_size=TEST_SHARE,
        random_state=seed,
        stratify=patients.labels if smallest > 1 else None,
    )
    return patients.rows(train), patients.rows(test)


def sites_of(hospitals: dict[str, Table], seed: int, scaling: str) -> list[co.SimulatedSite]:
    """Each hospital's training and test patients, scaled by everybody's or its own figures."""
    split = {name: _split(patients, seed) for name, patients in hospitals.items()}
    sites = [co.SimulatedSite(name, pair) for name, pair in split.items()]
    if scaling == "federated":
        columns = next(iter(hospitals.values())).columns
        common = co.federated_statistics(sites, lambda site: site.data[0].features, columns)
        scales = dict.fromkeys(split, (common.mean, common.std))
    else:
        scales = {
            name: (train.features.mean(axis=0), train.features.std(axis=0))
            for name, (train, _) in split.items()
        }
    return [
        co.SimulatedSite(name, tuple(part.scaled(*scales[name]) for part in pair))
        for name, pair in split.items()
    ]


def accuracy(sites: list[co.SimulatedSite], strategy: str, seed: int, rounds: int | None) -> float:
    """Of the last round's model, over all test patients."""
    plan = plan_of(PLAN + STRATEGIES[strategy], rounds)
    run = co.simulate(heart, plan, sites, seed=seed, options=co.Options(workers=0))
    return float(run.history.rounds[-1].metrics["accuracy"])


def pooled(sites: list[co.SimulatedSite]) -> float:
    """What nobody may do: all patients in one place, the same model fitted to the end."""
    parts = [
        (
            torch.cat([torch.tensor(site.data[at].features) for site in sites]),
            torch.cat([torch.tensor(site.data[at].labels) for site in sites]),
        )
        for at in (0, 1)
    ]
    (features, labels), (test_features, test_labels) = parts
    model = nn.Linear(features.shape[1], 2)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=200)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(features), labels)
        value.backward()
        return value

    optimizer.step(loss)
    return float((model(test_features).argmax(1) == test_labels).float().mean())


def bundled() -> dict[str, Table]:
    """Breast-cancer records, which scikit-learn carries, at four made-up hospitals."""
    patients = load_bundled("breast_cancer")
    rng = np.random.default_rng(0)
    parts = dirichlet(patients.labels, 4, 1.0, rng, min_records=30)
    return {f"hospital-{number}": patients.rows(part) for number, part in enumerate(parts, 1)}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    hospitals = records(lambda: load_heart(arguments.folder), bundled, arguments.bundled)
    seeds = range(arguments.seeds)
    told: dict[str, Any] = {"seeds": arguments.seeds, "federated": {}, "site": {}}
    for scaling in ("federated", "site"):
        split = {seed: sites_of(hospitals, seed, scaling) for seed in seeds}
        told[scaling]["pooled"] = [pooled(split[seed]) for seed in seeds]
        for strategy in STRATEGIES:
            told[scaling][strategy] = [
                accuracy(split[seed], strategy, seed, arguments.rounds) for seed in seeds
            ]
    rows = [
        (name, *(mean(told[scaling][name]) for scaling in ("federated", "site")))
        for name in ("pooled", *STRATEGIES)
    ]
    if not arguments.json:
        print(f"accuracy over all test patients, mean of {arguments.seeds} splits\n")
        print(table(rows, ("", "scaled by federated statistics", "each hospital by its own")))
    return told


if __name__ == "__main__":
    main(run, options(__doc__ or "", seeds=5, bundled="scikit-learn's breast-cancer records"))

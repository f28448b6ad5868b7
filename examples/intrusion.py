"""Threat detection: ten organisations learn to tell attacks from normal traffic.

NSL-KDD, binary. The training file is dealt to ten sites by Dirichlet(0.5) on the label, so
that some see mostly attacks and some hardly any. Test+ holds attacks that the training file
does not have: 99 % in papers is a random split of the training file, and not this.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from torch import Tensor, nn, tanh

import consortium as co
from consortium.data import Table, dirichlet, load_bundled, load_intrusion
from examples.command import main, mean, options, plan_of, records

PLAN = """
[federation]
name = "intrusion"
rounds = 20
quorum = 5
[selection]
fraction = 1.0
[training]
epochs = 1
batch_size = 64
[evaluation]
enabled = false
gate = false
"""
SITES, ALPHA, FEWEST = 10, 0.5, 20


class Detector(nn.Module):
    """Two hidden layers behind a squash: a count that is a thousand times the usual one must
    not speak louder than all the rest."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)
        )

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.layers(tanh(features))
        return outputs


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def detection(site: co.Site) -> tuple[nn.Module, Any, Any]:
    traffic, test = site.data
    return Detector(traffic.n_features), traffic, test


def bundled() -> tuple[Table, Table]:
    """Breast-cancer records, which scikit-learn carries: the same task on other records."""
    return load_bundled("breast_cancer").split(0.25, 0)


def accuracy(train: Table, test: Table, seed: int, rounds: int | None) -> float:
    """Of the last round's model on the test file, which no site has."""
    parts = dirichlet(train.labels, SITES, ALPHA, np.random.default_rng(seed), FEWEST)
    own = [train.rows(part) for part in parts]
    raw = [co.SimulatedSite(f"site-{at}", part) for at, part in enumerate(own, 1)]
    common = co.federated_statistics(raw, lambda site: site.data.features, train.columns)
    scaled = [part.scaled(common.mean, common.std) for part in own]
    sites = [
        co.SimulatedSite(site.name, (part, part)) for site, part in zip(raw, scaled, strict=True)
    ]
    plan = plan_of(PLAN, rounds)
    run = co.simulate(detection, plan, sites, seed=seed)
    found = run.at(sites[0].name).predict(test.scaled(common.mean, common.std).features)
    return float((found.argmax(axis=1) == test.labels).mean())


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    train, test = records(lambda: load_intrusion(arguments.folder), bundled, arguments.bundled)
    found = [accuracy(train, test, seed, arguments.rounds) for seed in range(arguments.seeds)]
    if not arguments.json:
        print(f"accuracy on the test file after the last round, {len(found)} seeds")
        print("  ".join(f"{value:.4f}" for value in found), f"  mean {mean(found):.4f}")
    return {"accuracy": found, "mean": mean(found)}


if __name__ == "__main__":
    main(run, options(__doc__ or "", seeds=5, bundled="scikit-learn's breast-cancer records"))

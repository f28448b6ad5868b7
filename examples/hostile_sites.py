"""Four of twenty sites are hostile: what is left of the model under each rule?

Handwritten digits (scikit-learn), dealt evenly to twenty sites. Hostile sites send either
their update times minus four, or noise of spread 5 in every number instead. The mean falls;
robust rules hold. Plain Krum takes one site's update and pays for it: it is reported, and
never a default.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from torch import nn

import consortium as co
from consortium.data import Table, iid, load_bundled
from consortium.tasks import Trained
from examples.command import main, mean, options, plan_of, table

PLAN = """
[federation]
name = "hostile-sites"
rounds = 30
quorum = 15
[selection]
fraction = 1.0
[training]
lr = 0.05
[evaluation]
enabled = false
gate = false
[strategy]
weight = "uniform"
rule = "{rule}"
"""
RULES = (
    "mean",
    "median",
    "trimmed_mean",
    "multi_krum",
    "geometric_median",
    "centred_clipping",
    "krum",
)
SITES, HOSTILE, SPREAD, FACTOR = 20, 4, 5.0, -4.0


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
def digits(site: co.Site) -> tuple[nn.Module, Any, Any]:
    own = site.data
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return model, own, own


class Hostile:
    """The task as some sites run it: they send what they like."""

    def __init__(self, attack: str, names: set[str]) -> None:
        self._attack, self._names = attack, names

    def __getattr__(self, name: str) -> Any:
        return getattr(digits, name)

    def train(self, site: co.Site, shared: dict[str, Any]) -> Trained:
        base = {name: array.copy() for name, array in shared.items()}
        honest = digits.train(site, shared)
        if site.name not in self._names:
            return honest
        sent = {name: self._step(site, array - base[name]) for name, array in honest.shared.items()}
        return Trained({name: base[name] + step for name, step in sent.items()}, honest.records)

    def _step(self, site: co.Site, step: Any) -> Any:
        if self._attack == "flip":
            return np.float32(FACTOR) * step
        return site.rng.normal(0.0, SPREAD, step.shape).astype(np.float32)


def accuracy(train: Table, test: Table, rule: str, attack: str, seed: int, rounds: int) -> float:
    """Of the last round's model on digits that no site has."""
    rng = np.random.default_rng(seed)
    parts = iid(len(train), SITES, rng)
    sites = [co.SimulatedSite(f"site-{at}", train.rows(part)) for at, part in enumerate(parts)]
    hostile = {f"site-{at}" for at in rng.choice(SITES, HOSTILE, replace=False)}
    task = digits if attack == "none" else Hostile(attack, hostile)
    plan = plan_of(PLAN.format(rule=rule), rounds)
    run = co.simulate(task, plan, sites, seed=seed)
    found = run.at("site-0").predict(test.features)
    return float((found.argmax(axis=1) == test.labels).mean())


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    whole = load_bundled("digits")
    seeds, rounds = range(arguments.seeds), arguments.rounds or 30
    parts = [whole.scaled(np.zeros(64), np.full(64, 16.0)).split(0.25, seed) for seed in seeds]

    def found(rule: str, attack: str) -> float:
        return mean([accuracy(*parts[seed], rule, attack, seed, rounds) for seed in seeds])

    honest = found("mean", "none")
    told: dict[str, Any] = {"honest": honest, "rules": {}}
    for rule in arguments.rules.split(","):
        told["rules"][rule] = {attack: found(rule, attack) for attack in ("flip", "noise")}
    rows = [(rule, values["flip"], values["noise"]) for rule, values in told["rules"].items()]
    if not arguments.json:
        print(f"accuracy, mean of {arguments.seeds} seeds; nobody hostile: {honest:.3f}\n")
        print(table(rows, ("rule", "sign flip x 4", "noise of spread 5")))
    return told


if __name__ == "__main__":
    parser = options(__doc__ or "", seeds=3)
    parser.add_argument("--rules", default=",".join(RULES), help="names, with commas")
    main(run, parser)

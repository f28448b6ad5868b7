"""Two hospitals that measure different things train one model together.

North measures 10 things about its patients, south 15 others. Each has a private input
adapter of its own; encoder and head are shared. The records are made up: nobody's patients,
and no claim about medicine. With two sites each can subtract its own update and see the
other's: quorum 2 is for showing how it works, not for protecting anybody.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]  # it has no types
from torch import nn

import consortium as co
from consortium.data import made_up_hospitals
from consortium.drive.alone import cross_site
from consortium.torch import HospitalNet
from examples.command import main, mean, options, plan_of, table

PLAN = """
[federation]
name = "two-hospitals"
rounds = 15
quorum = 2
[selection]
fraction = 1.0
[training]
epochs = 2
lr = 0.02
[evaluation]
metric = "accuracy"
"""


@co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy", "auroc"])
def diagnosis(site: co.Site) -> tuple[nn.Module, Any, Any]:
    train, test = site.data
    return HospitalNet(train.n_features, train.n_classes), train, test


def sites(seed: int) -> list[co.SimulatedSite]:
    """1,000 and 800 patients, as in the first design; a quarter is kept for testing."""
    hospitals = made_up_hospitals(np.random.default_rng(seed), (1000, 800))
    made = []
    for name, patients in hospitals.items():
        train, test = patients.split(0.25, seed)
        scale = train.features.mean(axis=0), train.features.std(axis=0)
        made.append(co.SimulatedSite(name, (train.scaled(*scale), test.scaled(*scale))))
    return made


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    plan = plan_of(PLAN, arguments.rounds)
    told: dict[str, Any] = {"alone": [], "together": [], "exported": []}
    if not arguments.json:
        print(*plan.guarantees(), sep="\n")
        co.inspect(diagnosis, sites(0)[0].data, plan=plan)
    for seed in range(arguments.seeds):
        made = sites(seed)
        finished = co.simulate(diagnosis, plan, made, seed=seed)
        cross = cross_site(finished, "accuracy")
        told["alone"].append([cross.own[at][at] for at in range(len(made))])
        told["together"].append(list(cross.common))
        told["exported"].append(_export(finished, made[0]))
    rows = [
        (site.name, *(mean([found[at] for found in told[how]]) for how in ("alone", "together")))
        for at, site in enumerate(made)
    ]
    if not arguments.json:
        print(f"\naccuracy at home, mean of {arguments.seeds} seeds\n")
        print(table(rows, ("", "alone", "together")))
        print(
            f"\nnorth's complete model, exported: {min(told['exported']):.0%} of predictions agree"
        )
    return told


def _export(finished: co.Run, north: co.SimulatedSite) -> float:
    """Write the complete model as north would, adapter and all, and run it without torch: the
    share of test patients for whom both say the same."""
    model = finished.at(north.name)
    _, test = north.data
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "north.onnx"
        model.to_onnx(path, test.features[:4])
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (outputs,) = session.run(None, {"inputs": test.features})
    same = outputs.argmax(axis=1) == model.predict(test.features).argmax(axis=1)
    return float(same.mean())


if __name__ == "__main__":
    main(run, options(__doc__ or "", seeds=3))

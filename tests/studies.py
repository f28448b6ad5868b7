"""A small study for the tests of the drivers: least squares, solved by gradient steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from consortium.drive.engine import SimulatedSite
from consortium.tasks import NumpyTask, Site, numpy_task

TRUTH = np.array([1.0, -2.0, 0.5])


def start(rng: np.random.Generator) -> dict[str, Any]:
    return {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}


def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
    features, target = site.data
    error = features @ shared["w"] + shared["b"] - target
    return {"loss": float((error**2).mean()), "mae": float(np.abs(error).mean())}, len(target)


@numpy_task(start=start, evaluate=evaluate, metrics=["loss", "mae"])
def train(site: Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
    features, target = site.data
    for _ in range(site.training.epochs):
        order = site.rng.permutation(len(target))[: site.training.batch_size]
        error = features[order] @ shared["w"] + shared["b"] - target[order]
        shared["w"] -= np.float32(0.1) * (error @ features[order] / len(order)).astype(np.float32)
        shared["b"] -= np.float32(0.1 * error.mean())
    return shared, len(target)


TASK: NumpyTask = train


def sites(count: int) -> list[SimulatedSite]:
    made = []
    for number in range(count):
        rng = np.random.default_rng(number)
        features = rng.normal(size=(20 + number, 3))
        made.append(SimulatedSite(f"site-{number}", (features, features @ TRUTH)))
    return made

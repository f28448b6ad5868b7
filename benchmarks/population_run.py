"""One simulation of a population, for `benchmarks.population` to watch from outside.

    python -m benchmarks.population_run numpy 100000 100 3

prints the seconds that a round took. A client's records are made from its number.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from consortium import Population, simulate
from consortium.plan import Plan, parse_plan
from consortium.tasks import Site, Task, numpy_task

RECORDS, FEATURES, CLASSES = 50, 64, 10


def _records(number: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(number)
    features = rng.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    return features, (features[:, :CLASSES].argmax(axis=1)).astype(np.int64)


def _numpy_task() -> Task:
    def start(_: np.random.Generator) -> dict[str, Any]:
        return {"w": np.zeros((FEATURES, CLASSES), np.float32)}

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        features, labels = _records(site.data)
        wrong = (features @ shared["w"]).argmax(axis=1) != labels
        return {"loss": float(wrong.mean())}, RECORDS

    @numpy_task(start=start, evaluate=evaluate, metrics=["loss"])
    def train(site: Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
        features, labels = _records(site.data)
        shared["w"] += np.float32(0.01) * (features.T @ np.eye(CLASSES, dtype=np.float32)[labels])
        return shared, RECORDS

    return train


def _torch_task() -> Task:
    from torch import Tensor, from_numpy, nn
    from torch.utils.data import TensorDataset

    import consortium as co

    @co.task(loss=nn.CrossEntropyLoss(), metrics=["accuracy"])
    def clients(site: Site) -> tuple[nn.Module, TensorDataset, TensorDataset]:
        features, labels = _records(site.data)
        tensors: tuple[Tensor, Tensor] = (from_numpy(features), from_numpy(labels))
        model = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        return model, TensorDataset(*tensors), TensorDataset(*tensors)

    return clients


def _plan(target: int, rounds: int) -> Plan:
    return parse_plan(
        f"[federation]\nrounds = {rounds}\n[selection]\ntarget = {target}\n"
        "[training]\nepochs = 1\n[evaluation]\ngate = false\n"
    )


def main(kind: str, clients: int, target: int, rounds: int) -> None:
    task = _torch_task() if kind == "torch" else _numpy_task()
    began = time.perf_counter()
    simulate(task, _plan(target, rounds), Population(clients), seed=1)
    print((time.perf_counter() - began) / rounds)


if __name__ == "__main__":
    main(sys.argv[1], *(int(number) for number in sys.argv[2:5]))

"""Logistic regression in NumPy: what every site computes, on its own CSV file.

The last column is the label, 0 or 1; the others are features. One row in four is kept
for testing. Only `weights` and `bias` leave a site.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import consortium as co

FEATURES = 6


def start(rng: np.random.Generator) -> dict[str, Any]:
    return {"weights": np.zeros(FEATURES, np.float32), "bias": np.zeros(1, np.float32)}


def load(site: co.Site) -> tuple[Any, Any, Any]:
    table = np.loadtxt(site.data, delimiter=",", skiprows=1, dtype=np.float32, ndmin=2)
    is_test = np.arange(len(table)) % 4 == 0
    return table[:, :-1], table[:, -1], is_test


def evaluate(site: co.Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
    features, labels, is_test = load(site)
    chance = predict(shared, features[is_test])
    truth = labels[is_test]
    loss = -np.log(np.where(truth == 1, chance, 1 - chance) + 1e-7).mean()
    accuracy = ((chance > 0.5) == (truth == 1)).mean()
    return {"loss": float(loss), "accuracy": float(accuracy)}, len(truth)


@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site: co.Site, shared: dict[str, Any]) -> tuple[dict[str, Any], int]:
    features, labels, is_test = load(site)
    features, labels = features[~is_test], labels[~is_test]
    for _ in range(site.training.epochs):
        order = site.rng.permutation(len(labels))
        for batch in np.array_split(order, max(1, len(order) // site.training.batch_size)):
            error = predict(shared, features[batch]) - labels[batch]
            shared["weights"] -= site.training.lr * (error @ features[batch]) / len(batch)
            shared["bias"] -= site.training.lr * error.mean()
    return shared, len(labels)


def predict(shared: dict[str, Any], features: Any) -> Any:
    return 1 / (1 + np.exp(-(features @ shared["weights"] + shared["bias"])))

"""Is a tumour malignant? Logistic regression in NumPy, on the seven measurements that every
hospital has. Half of the records are kept for testing. Only `weights` and `bias` leave.
"""

from functools import cache

import consortium as co
import numpy as np

# A typical value and a typical spread of each measurement, agreed on beforehand: a number
# then means the same at every hospital, and none has to tell its own statistics.
TYPICAL = {
    "mean_texture": (19, 4.3),
    "mean_smoothness": (0.096, 0.014),
    "mean_compactness": (0.10, 0.053),
    "mean_concavity": (0.089, 0.08),
    "mean_concave_points": (0.049, 0.039),
    "mean_symmetry": (0.18, 0.027),
    "mean_fractal_dimension": (0.063, 0.007),
}
VALUE, SPREAD = np.array(list(TYPICAL.values()), np.float32).T


@cache
def records(path):
    halves = co.read_csv(path, label="malignant", columns=list(TYPICAL), test=0.5)
    return [((half.features - VALUE) / SPREAD, half.labels) for half in halves]


def start(rng):
    return {"weights": np.zeros(len(TYPICAL), np.float32), "bias": np.zeros(1, np.float32)}


def chance(shared, features):
    return 1 / (1 + np.exp(-(features @ shared["weights"] + shared["bias"])))


def evaluate(site, shared):
    _, (features, labels) = records(site.data)
    predicted = chance(shared, features)
    loss = -np.log(np.where(labels == 1, predicted, 1 - predicted) + 1e-7).mean()
    accuracy = ((predicted > 0.5) == (labels == 1)).mean()
    return {"loss": float(loss), "accuracy": float(accuracy)}, len(labels)


@co.numpy_task(start=start, evaluate=evaluate, metrics=["loss", "accuracy"])
def study(site, shared):
    (features, labels), _ = records(site.data)
    for _ in range(site.training.epochs):
        order = site.rng.permutation(len(labels))
        for batch in np.array_split(order, max(1, len(order) // site.training.batch_size)):
            error = chance(shared, features[batch]) - labels[batch]
            shared["weights"] -= site.training.lr * (error @ features[batch]) / len(batch)
            shared["bias"] -= site.training.lr * error.mean()
    return shared, len(labels)

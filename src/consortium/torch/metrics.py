"""How well a model does at a site, by name.

Each metric is one number from all outputs and all targets of the site's test records. The
federation averages it over sites by their numbers of records: exact for loss, accuracy, mse
and mae; for rmse, f1 and auroc it is the mean of what the sites have, not that of the union.
A site whose records are all of one class says nothing about ranking: its auroc is 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from consortium.core.terms import LOSS, Metric
from consortium.errors import TaskResultError
from consortium.tasks import known_metric
from consortium.torch.losses import Kind, Loss, fitted, kind_of, kind_of_data, loss_of

MetricFunction = Callable[[Tensor, Tensor], Any]  # (outputs, targets) -> one number
MetricChoice = str | Metric | tuple[str | Metric, MetricFunction]
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Measures:
    """The metrics of a task; the loss is always the first."""

    loss: Loss
    metrics: tuple[Metric, ...]
    own: tuple[tuple[str, MetricFunction], ...] = ()

    def of(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Every metric by its name, for all outputs (n, ...) and targets (n, ...)."""
        kind = kind_of(self.loss)
        value = float(loss_of(self.loss, outputs, targets))
        if getattr(self.loss, "reduction", "mean") == "sum":
            value /= len(targets)
        if kind is Kind.UNKNOWN:
            kind = kind_of_data(outputs, targets)
        own = dict(self.own)
        result = {LOSS: value}
        for metric in self.metrics[1:]:
            if metric.name in own:
                result[metric.name] = _number(metric.name, own[metric.name](outputs, targets))
            else:
                result[metric.name] = named_metric(metric.name, kind, outputs, targets)
        return result


def measures(loss: Loss, chosen: Sequence[MetricChoice]) -> Measures:
    """The metrics that a task was given: names, or (name or `Metric`, function)."""
    metrics, own = [Metric(LOSS, higher_is_better=False)], []
    for choice in chosen:
        name, function = choice if isinstance(choice, tuple) else (choice, None)
        metric = known_metric(name)
        if function is None and metric.name not in (LOSS, *_CLASSED, *_VALUED):
            raise TaskResultError(
                f"nothing says how to compute the metric `{metric.name}`",
                hint=f'write (Metric("{metric.name}", ...), function(outputs, targets))',
            )
        if metric.name == LOSS and function is None:
            continue
        if metric.name in [other.name for other in metrics]:
            raise TaskResultError(f"the metric `{metric.name}` is given twice")
        metrics.append(metric)
        if function is not None:
            own.append((metric.name, function))
    return Measures(loss, tuple(metrics), tuple(own))


def named_metric(name: str, kind: Kind, outputs: Tensor, targets: Tensor) -> float:
    """One of accuracy, f1, auroc, mse, rmse, mae."""
    if (name in _VALUED) != (kind is Kind.VALUES):
        raise TaskResultError(
            f"the metric `{name}` does not fit a model whose outputs are {kind.value}",
            hint=f"one of {', '.join(_VALUED if kind is Kind.VALUES else _CLASSED)} does",
        )
    if kind is Kind.VALUES:
        wanted = fitted(kind, outputs, targets)
        return _VALUED[name]((outputs - wanted).double().numpy())
    return _CLASSED[name](_class_scores(kind, outputs, targets), _labels(targets))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TaskResultError(
            f"the metric `{name}` returned a {type(value).__name__}, not one number",
            hint="return the mean over all records, as a float",
        ) from None


def _labels(targets: Tensor) -> Labels:
    labels: Labels = targets.reshape(len(targets), -1)[:, 0].to(torch.int64).numpy()
    return labels


def _class_scores(kind: Kind, outputs: Tensor, targets: Tensor) -> Floats:
    """Scores (n, k), the largest of which is the predicted class. Two classes get the
    difference of their logits: probabilities near one would all be equal."""
    scores = outputs.double()
    if kind is not Kind.CLASSES:
        if scores.numel() != len(targets):
            raise TaskResultError(
                f"outputs of shape {list(outputs.shape)} are not one for each record",
                hint="give this metric as a function of your own",
            )
        margin = scores.reshape(-1) - (0.5 if kind is Kind.PROBABILITY else 0.0)
    elif scores.shape[1] == 2:
        margin = scores[:, 1] - scores[:, 0]
    else:
        return np.asarray(torch.softmax(scores, 1).numpy())
    return np.asarray(torch.stack([-margin, margin], 1).numpy())


# ---- of classes: scores (n, k) and labels (n,) --------------------------------------


def accuracy(scores: Floats, labels: Labels) -> float:
    return float((scores.argmax(1) == labels).mean())


def f1(scores: Floats, labels: Labels) -> float:
    """Of class 1 if there are two classes; else the mean over the classes that occur."""
    guesses = scores.argmax(1)
    if scores.shape[1] == 2:
        return _f1_of(1, guesses, labels)
    classes = np.union1d(guesses, labels)
    return float(np.mean([_f1_of(number, guesses, labels) for number in classes]))


def _f1_of(number: int, guesses: Labels, labels: Labels) -> float:
    hits = int(((guesses == number) & (labels == number)).sum())
    total = int((guesses == number).sum() + (labels == number).sum())
    return 2 * hits / total if total else 0.0


def auroc(scores: Floats, labels: Labels) -> float:
    """How often a record of the class has a larger score than one of another class; the mean
    over the classes that occur, each against the rest. One class only: 0.5."""
    if scores.shape[1] == 2:
        return _auroc_of(scores[:, 1], labels == 1)
    classes = np.unique(labels)
    return float(np.mean([_auroc_of(scores[:, number], labels == number) for number in classes]))


def _auroc_of(scores: Floats, is_positive: npt.NDArray[np.bool_]) -> float:
    """By the ranks of the scores (Mann and Whitney 1947); equal scores share their rank."""
    positives = int(is_positive.sum())
    negatives = len(is_positive) - positives
    if not positives or not negatives:
        return 0.5
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (count.cumsum() - (count - 1) / 2)[place]
    above = ranks[is_positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


# ---- of values: errors (n, ...) -----------------------------------------------------


def mse(errors: Floats) -> float:
    return float((errors**2).mean())


def rmse(errors: Floats) -> float:
    return float(np.sqrt((errors**2).mean()))


def mae(errors: Floats) -> float:
    return float(np.abs(errors).mean())


_CLASSED: dict[str, Callable[[Floats, Labels], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "auroc": auroc,
}
_VALUED: dict[str, Callable[[Floats], float]] = {"mse": mse, "rmse": rmse, "mae": mae}

"""What a loss says about a model's outputs: scores of classes, a logit, or values.

Labels come from files as whole numbers in one column; losses want other types and shapes.
For torch's own losses the targets are brought into the form of the outputs: an (n, 1) output
against (n,) targets would be broadcast to (n, n), which trains on nonsense without an error.
Losses of the user's own get both as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from consortium.errors import LabelError, TaskResultError

Loss = Callable[[Tensor, Tensor], Tensor]


class Kind(Enum):
    """What a model's outputs are."""

    CLASSES = "scores of classes"  # (n, k)
    LOGIT = "a logit"  # (n,) or (n, 1)
    PROBABILITY = "a probability"  # (n,) or (n, 1)
    VALUES = "values"  # (n,) or (n, ...)
    UNKNOWN = "unknown"  # a loss of the user's own


_BY_TYPE: tuple[tuple[type[nn.Module], Kind], ...] = (
    (nn.CrossEntropyLoss, Kind.CLASSES),
    (nn.NLLLoss, Kind.CLASSES),  # of log-probabilities, which softmax leaves as they are
    (nn.BCEWithLogitsLoss, Kind.LOGIT),
    (nn.BCELoss, Kind.PROBABILITY),
    (nn.MSELoss, Kind.VALUES),
    (nn.L1Loss, Kind.VALUES),
    (nn.SmoothL1Loss, Kind.VALUES),
    (nn.HuberLoss, Kind.VALUES),
)
_BY_FUNCTION: tuple[tuple[Callable[..., Tensor], Kind], ...] = (
    (functional.cross_entropy, Kind.CLASSES),
    (functional.nll_loss, Kind.CLASSES),
    (functional.binary_cross_entropy_with_logits, Kind.LOGIT),
    (functional.binary_cross_entropy, Kind.PROBABILITY),
    (functional.mse_loss, Kind.VALUES),
    (functional.l1_loss, Kind.VALUES),
    (functional.smooth_l1_loss, Kind.VALUES),
    (functional.huber_loss, Kind.VALUES),
)


def kind_of(loss: object) -> Kind:
    """What outputs this loss is made for."""
    for known, kind in _BY_TYPE:
        if isinstance(loss, known):
            return kind
    for function, kind in _BY_FUNCTION:
        if loss is function:
            return kind
    return Kind.UNKNOWN


def kind_of_data(outputs: Tensor, targets: Tensor) -> Kind:
    """What outputs of a loss of the user's own most likely are, by their targets."""
    if targets.is_floating_point():
        return Kind.VALUES
    return Kind.CLASSES if outputs.ndim == 2 and outputs.shape[1] > 1 else Kind.LOGIT


def fitted(kind: Kind, outputs: Tensor, targets: Tensor) -> Tensor:
    """The targets in the form that a loss of this kind wants."""
    if kind is Kind.UNKNOWN:
        return targets
    if kind is Kind.CLASSES:
        return targets.reshape(-1) if targets.ndim == 2 and targets.shape[1] == 1 else targets
    if outputs.numel() != targets.numel():
        raise TaskResultError(
            f"the model gives {list(outputs.shape)} outputs for {list(targets.shape)} targets",
            hint="use nn.CrossEntropyLoss for several classes, or one output for each target",
        )
    return targets.to(outputs.dtype).reshape(outputs.shape)


def loss_of(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of some records, which must be one number. Where torch stumbles over labels
    that are no classes of this model, it says so."""
    kind = kind_of(loss)
    wanted = fitted(kind, outputs, targets)
    try:
        return scalar(loss(outputs, wanted))
    except (IndexError, RuntimeError):
        if kind is Kind.CLASSES:
            _check_classes(outputs, wanted)
        raise


def _check_classes(outputs: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point():
        raise LabelError(
            "the labels are numbers, and the loss is for classes",
            hint="predict numbers with nn.MSELoss(), or make classes of them: positive=...",
        )
    classes = outputs.shape[1] if outputs.ndim > 1 else 1
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise LabelError(
            f"a label is not below {classes}, the number of the model's outputs",
            hint="give the model one output for each class that any site has; classes are 0..k-1",
        )


def outputs_of(model: nn.Module, inputs: Any, dtype: torch.dtype) -> Tensor:
    """What the model gives; inputs of another float type than its own are brought to it."""
    if isinstance(inputs, Tensor) and inputs.is_floating_point():
        inputs = inputs.to(dtype)
    outputs = model(inputs)
    if not isinstance(outputs, Tensor):
        raise TaskResultError(
            f"the model returned a {type(outputs).__name__}, not a tensor",
            hint="return a tensor from forward, or give task(step=...)",
        )
    return outputs


def scalar(value: object) -> Tensor:
    """A loss, which must be one number."""
    if not isinstance(value, Tensor):
        raise TaskResultError(
            f"the loss is a {type(value).__name__}, not a tensor", hint="return what torch gives"
        )
    if value.numel() != 1:
        raise TaskResultError(
            f"the loss is not one number but has shape {list(value.shape)}",
            hint='make it a mean over the batch: reduction="mean"',
        )
    return value.reshape(())

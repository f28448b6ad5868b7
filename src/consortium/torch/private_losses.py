"""The loss of every record by itself, and its gradient by that record's outputs.

A loss for a batch may weigh its records by each other: a mean over class weights divides by the
weights of all. Private training needs what one record contributes, whoever stands beside it. For
torch's own losses that is the loss without reduction, a mean (or sum) over the record's own
numbers; any other loss is asked for each record as if it were a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from consortium.torch.batches import Records, TensorRecords
from consortium.torch.losses import Kind, Loss, fitted, kind_of, loss_of

OutputGradient = Callable[[Tensor, Tensor], Tensor]  # of outputs (n, ...) and targets (n, ...)


def record_gradients(
    loss: Loss, records: Records, outputs: tuple[int, ...] | None
) -> OutputGradient:
    """The gradient of each record's loss by its outputs. `outputs` is the shape of a record's
    outputs, if it is known beforehand."""
    if _is_usual_cross_entropy(loss) and outputs is not None and _are_classes(records, outputs):
        return _of_cross_entropy
    unreduced = _unreduced(loss)
    if unreduced is None:
        return partial(_one_by_one, loss)
    return partial(_all_at_once, loss, unreduced)


def _of_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """softmax(z) - 1[y]."""
    d = torch.softmax(outputs, 1)  # (n, k)
    return d.scatter_(1, targets.view(len(d), 1), -1.0, reduce="add")


def _is_usual_cross_entropy(loss: Loss) -> bool:
    if loss is functional.cross_entropy:
        return True
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.label_smoothing == 0.0
        and loss.ignore_index < 0  # no class of a model
        and not (loss._forward_hooks or loss._forward_pre_hooks)
    )


def _are_classes(records: Records, outputs: tuple[int, ...]) -> bool:
    """Whether every target is one class that the model scores; what is ignored, or wrong, is
    left to torch's own loss."""
    if not isinstance(records, TensorRecords) or len(outputs) != 1:
        return False
    targets = records.targets
    is_column = targets.ndim == 1 or (targets.ndim == 2 and targets.shape[1] == 1)
    if not is_column or targets.dtype is not torch.int64:
        return False
    return bool((targets >= 0).all()) and bool((targets < outputs[0]).all())


def _unreduced(loss: Loss) -> Loss | None:
    """Torch's own losses without their sum or mean over records; None of any other."""
    if isinstance(loss, nn.Module):
        if type(loss).__module__ != nn.CrossEntropyLoss.__module__ or kind_of(loss) is Kind.UNKNOWN:
            return None  # a class of the user's own may do something else
        bare: Any = copy(loss)
        bare.reduction = "none"
        return bare  # type: ignore[no-any-return]  # a module, called as the loss is
    return None if kind_of(loss) is Kind.UNKNOWN else partial(loss, reduction="none")  # type: ignore[call-arg]


def _all_at_once(loss: Loss, unreduced: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        try:
            found = unreduced(leaf, fitted(kind_of(loss), leaf, targets))
        except (IndexError, RuntimeError):
            loss_of(loss, leaf, targets)  # says what is wrong with the labels
            raise
        each = found.reshape(len(found), -1)  # (n, numbers of a record)
        is_sum = getattr(loss, "reduction", "mean") == "sum"
        total = each.sum() if is_sum else each.mean(1).sum()
        return torch.autograd.grad(total, leaf)[0]


def _one_by_one(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    def alone(output: Tensor, target: Tensor) -> Tensor:
        return loss_of(loss, output.unsqueeze(0), target.unsqueeze(0))

    outputs = outputs.detach()
    try:
        found: Tensor = vmap(grad(alone), randomness="different")(outputs, targets)
    except RuntimeError:  # what vmap cannot do, such as a branch on a value
        each = [
            grad(alone)(output, target) for output, target in zip(outputs, targets, strict=True)
        ]
        found = torch.stack(each)
    return found

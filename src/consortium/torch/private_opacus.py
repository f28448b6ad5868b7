"""The sum of clipped gradients of any model that Opacus can take apart into records.

Opacus tells the gradient of every record; clipping, noise and steps are ours, as for chains. It
works on a copy, so that its hooks and names stay off the user's model. What it tells is checked
once before each phase, on a few records: the gradients of records must add up to that of the
batch, and what the first record gives must not depend on who stands beside it. A model that mixes
records fails that, and so does one whose first dimension is not the records. Even where Opacus
tells a wrong gradient, what is clipped is what is added.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from consortium.errors import ConsortiumError, TaskResultError
from consortium.torch.arrays import float_type
from consortium.torch.losses import outputs_of
from consortium.torch.private_clipping import clip_factors
from consortium.torch.private_losses import OutputGradient
from consortium.torch.private_models import in_steps
from consortium.torch.private_rows import row_squares
from consortium.torch.private_sampling import at_places
from consortium.torch.private_space import Space
from consortium.torch.training import Workplace

AT_ONCE_BYTES = 256 << 20  # what the gradients of the records of one pass may take
_TRIED = 3  # records that the check looks at
_TOLERANCE = 1e-3  # of a norm, for sums in another order in float32; of all norms, its square
_HINT = "use layers of torch.nn, and call each of them as a module"


class OpacusSum:
    """A model whose trained parameters are those of a `Space`."""

    def __init__(self, place: Workplace, space: Space, loss: OutputGradient, clip: float) -> None:
        self._loss, self._clip, self._space = loss, clip, space
        self._model = in_steps(deepcopy(place.model))
        parameters = dict(self._model.named_parameters())
        self._trained = {name: parameters[name] for name in space.tensors}
        for name, parameter in self._trained.items():
            parameter.data = space.tensors[name]
        self._padding = _paddings(self._model)
        self._dtype = float_type(place.model)
        self._buffers = {name: one.clone() for name, one in self._model.named_buffers()}
        # Counts what is done to a parameter by its own name. Steps work on the space's.
        self._versions = {name: one._version for name, one in parameters.items()}
        self.at_once = max(1, AT_ONCE_BYTES // (space.gradient.nbytes or 1))
        self._sampler = self._checked(place)

    def add(self, inputs: Any, targets: Any) -> int:
        rows = self._rows(self._sampler, inputs, targets)
        norms = torch.stack([row_squares(row) for row in rows.values()]).sum(0).sqrt_()
        is_bad = ~torch.isfinite(norms)
        rejected = int(is_bad.sum())
        if rejected:  # zero times infinity is no number
            norms[is_bad] = 0.0
            for row in rows.values():
                row[is_bad] = 0.0
        factors = clip_factors(norms, self._clip, self._dtype)
        for name, row in rows.items():
            into = self._space.gradients[name]
            into.add_((factors @ row.flatten(1)).view(into.shape))
        return rejected

    def finish(self) -> None:
        """Refuse a model that has kept something of its records by other means."""
        for name, parameter in self._model.named_parameters():
            if parameter._version != self._versions[name]:
                raise TaskResultError(
                    f"the model changes `{name}` while it computes, and no noise hides how",
                    hint="leave max_norm=... out of embeddings, and parameters to the optimiser",
                )
        for name, buffer in self._model.named_buffers():
            if not torch.equal(buffer, self._buffers[name]):
                raise TaskResultError(
                    f"training changes the buffer `{name}`, and no noise hides what it holds",
                    hint="leave running statistics out of the model: track_running_stats=False",
                )

    def _rows(self, sampler: nn.Module, inputs: Any, targets: Any) -> dict[str, Tensor]:
        """The gradient (n, ...) of each record by each trained parameter that it depends on."""
        for parameter in self._trained.values():
            parameter.grad = parameter.grad_sample = None  # type: ignore[attr-defined]  # Opacus'
        with torch.enable_grad(), _without_hook_warning():
            outputs = outputs_of(sampler, inputs, self._dtype)
            outputs.backward(self._loss(outputs, targets))  # type: ignore[no-untyped-call]
        rows = {}
        for name, parameter in self._trained.items():
            row = parameter.grad_sample  # type: ignore[attr-defined]
            if row is None and parameter.grad is None and not parameter._forward_counter:  # type: ignore[attr-defined]
                continue  # nothing depends on it
            if not isinstance(row, Tensor) or row.shape != (len(outputs), *parameter.shape):
                raise TaskResultError(
                    f"Opacus cannot tell the gradients of single records by `{name}`", hint=_HINT
                )
            if name in self._padding:  # it stands still, which Opacus does not know
                row[:, self._padding[name]] = 0.0
            rows[name] = row
        return rows

    # ---- the check ------------------------------------------------------------------

    def _checked(self, place: Workplace) -> nn.Module:
        """The model with Opacus' hooks, after it has shown on a few records that it works."""
        few = at_places(place.records, np.arange(min(_TRIED, len(place.records))))
        with torch.no_grad(), _without_dropout(self._model), torch.random.fork_rng(devices=[]):
            outputs = outputs_of(self._model, few[0], self._dtype)  # errors are the user's own
            _check_targets(outputs, few[1])
            try:
                sampler = _sampler(self._model)
                self._try(sampler, few, len(outputs))
            except ConsortiumError:
                raise
            except Exception as error:  # Opacus raises whatever its layers do
                raise TaskResultError(
                    f"Opacus cannot tell the gradients of single records: {type(error).__name__}",
                    hint=_HINT,
                ) from error
        return sampler

    def _try(self, sampler: nn.Module, few: tuple[Any, Any], n: int) -> None:
        inputs, targets = few
        before = torch.random.get_rng_state()
        rows = self._rows(sampler, inputs, targets)
        draws = not torch.equal(before, torch.random.get_rng_state())
        sums = {name: _gradient(self._trained[name]) for name in rows}
        if not draws and not _are_close({name: row.sum(0) for name, row in rows.items()}, sums):
            raise TaskResultError(
                "the gradients that Opacus tells of records are not those of the batch", hint=_HINT
            )
        for others in _others(inputs, n):
            torch.random.set_rng_state(before)
            beside = self._rows(sampler, others, _all_first(targets, n))
            if not _are_close(_firsts(rows), _firsts(beside)):
                raise TaskResultError(
                    "the model mixes records: what one gives depends on the others of its batch",
                    hint="compute each record by itself, with the records in the first dimension",
                )


def _sampler(model: nn.Module) -> nn.Module:
    from opacus import GradSampleModule  # type: ignore[import-untyped]  # heavy, and has no types

    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and _is_trained(module):
            raise TaskResultError(
                f"Opacus cannot tell the gradients of single records in the attention `{name}`",
                hint="use opacus.layers.DPMultiheadAttention, which computes the same",
            )
    made: nn.Module = GradSampleModule(model, loss_reduction="sum", strict=False)
    return made


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _paddings(model: nn.Module) -> dict[str, int]:
    """The row of an embedding that stands for no word, by the name of its table."""
    return {
        f"{name}.weight".lstrip("."): module.padding_idx
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }


def _check_targets(outputs: Tensor, targets: Any) -> None:
    if not isinstance(targets, Tensor) or len(targets) != len(outputs):
        raise TaskResultError(
            "private training needs one output and one target for each record",
            hint="give targets as a tensor, with the records in the first dimension",
        )


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zero where nothing depends on it."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _firsts(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: row[0] for name, row in rows.items()}


def _are_close(ones: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """But for rounding, which is all there is to a gradient that ought to be zero. Records whose
    gradients are not finite say nothing."""
    found = [(one, others[name]) for name, one in ones.items()]
    norms = torch.stack([torch.linalg.vector_norm(other) for _, other in found])
    off = torch.stack([torch.linalg.vector_norm(one - other) for one, other in found])
    limits = _TOLERANCE * norms + _TOLERANCE**2 * norms.sum() + torch.finfo(norms.dtype).tiny
    return bool((off <= limits).all()) or not bool(torch.isfinite(off).all())


def _others(inputs: Any, n: int) -> Iterator[Any]:
    """Batches with the same first record beside other ones. Nobody knows what zero means in
    inputs that are several."""
    yield _all_first(inputs, n)
    if isinstance(inputs, Tensor):
        zeros = torch.zeros_like(inputs)
        zeros[0] = inputs[0]
        yield zeros


def _all_first(inputs: Any, n: int) -> Any:
    """A batch in which every record is the first one."""
    if isinstance(inputs, Tensor):
        return inputs[:1].expand(n, *inputs.shape[1:]).contiguous()
    if isinstance(inputs, dict):
        return {key: _all_first(value, n) for key, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return type(inputs)(_all_first(value, n) for value in inputs)
    return inputs


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """No layer draws, so that two passes can be compared."""
    layers = [module for module in model.modules() if isinstance(module, _DropoutNd)]
    rates = [layer.p for layer in layers]
    try:
        for layer in layers:
            layer.p = 0.0
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate


@contextmanager
def _without_hook_warning() -> Iterator[None]:
    """Torch warns that inputs need no gradient, which is as it should be."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield

"""Models in which records can be told apart.

BatchNorm computes with the mean of a batch: every record changes what all others get, and no clip
bounds that. `without_batch_norm` puts in its place a normalisation of each record by itself.
Recurrent layers are the same function in Opacus' form, which can be looked into step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consortium.errors import TaskResultError
from consortium.torch.marks import batch_norms
from consortium.torch.training import Workplace

Model = TypeVar("Model", bound=nn.Module)
_MOST_GROUPS, _LEAST_IN_GROUP = 32, 4


def without_batch_norm(model: Model) -> Model:
    """The same model, changed in place, with every BatchNorm layer replaced by one that looks at
    one record at a time: LayerNorm for BatchNorm1d, GroupNorm for pictures. Parameters keep names
    and values, layers their marks (`private`, `frozen`); running statistics go.

    >>> net = without_batch_norm(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)))
    >>> type(net[1]).__name__, net[1].normalized_shape
    ('LayerNorm', (6,))
    """
    # One group is LayerNorm for (n, c), and right for (n, c, length) too; LayerNorm is faster.
    has_lengths = any(isinstance(module, nn.Conv1d) for module in model.modules())

    def instead(module: nn.Module) -> nn.Module | None:
        return _by_record(module, has_lengths) if isinstance(module, _BatchNorm) else None

    replaced: Any = _replaced(model, instead, {})
    return replaced  # type: ignore[no-any-return]  # of the same type, unless it is a BatchNorm


def check_records_stay_apart(place: Workplace) -> None:
    """Refuse BatchNorm, but in frozen layers, where it computes with fixed numbers."""
    frozen = set(place.parts.frozen_layers)
    found = [name for name, _ in batch_norms(place.model) if name not in frozen]
    if found:
        raise TaskResultError(
            f"layer `{found[0]}` is BatchNorm, which mixes the records of a batch: "
            "what one record does to the update has no bound",
            hint="return without_batch_norm(model), from consortium.torch.private_models",
        )


def in_steps(model: Model) -> Model:
    """The same function, changed in place, with recurrent layers in Opacus' form, under the same
    names."""
    from opacus.layers import DPGRU, DPLSTM, DPRNN  # type: ignore[import-untyped]  # heavy

    forms: dict[type[nn.Module], Callable[..., nn.Module]] = {
        nn.LSTM: DPLSTM,
        nn.GRU: DPGRU,
        nn.RNN: DPRNN,
    }

    def instead(module: nn.Module) -> nn.Module | None:
        form = forms.get(type(module))
        return None if form is None else _recurrent(module, form)

    replaced: Any = _replaced(model, instead, {})
    return replaced  # type: ignore[no-any-return]  # of the same type, unless it is such a layer


def _replaced(
    module: nn.Module,
    instead: Callable[[nn.Module], nn.Module | None],
    done: dict[nn.Module, nn.Module],
) -> nn.Module:
    """A module, or what stands in its place; a module that is used twice is replaced once."""
    if module in done:
        return done[module]
    found = instead(module)
    if found is None:
        done[module] = module
        for name, child in list(module._modules.items()):  # a child under two names twice
            if child is not None:
                setattr(module, name, _replaced(child, instead, done))
        return module
    found.train(module.training)
    for name, value in vars(module).items():
        if name.startswith("_consortium_"):  # the task's marks
            setattr(found, name, value)
    _take_over(found, dict(module.named_parameters()))
    done[module] = found
    return found


def _take_over(module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Give a new module the values that the old one had, by name: the order may differ."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            old: Tensor = parameters[name]
            parameter.data = old.detach().clone()
            parameter.requires_grad_(old.requires_grad)


def _by_record(layer: _BatchNorm, has_lengths: bool) -> nn.Module:
    if not layer.num_features:
        raise TaskResultError(
            "a lazy BatchNorm layer has no size yet", hint="run one batch through the model first"
        )
    channels, eps = layer.num_features, layer.eps
    if not isinstance(layer, nn.BatchNorm1d):
        return nn.GroupNorm(_groups(channels), channels, eps, layer.affine)
    if has_lengths:
        return nn.GroupNorm(1, channels, eps, layer.affine)
    return nn.LayerNorm(channels, eps, layer.affine)


def _groups(channels: int) -> int:
    """As many as there are usually (Wu & He 2018), but none with so few channels that a small
    picture is normalised to almost nothing.

    >>> [_groups(channels) for channels in (3, 12, 64, 100, 256)]
    [1, 3, 16, 25, 32]
    """
    fitting = (count for count in range(1, _MOST_GROUPS + 1) if channels % count == 0)
    return max(count for count in fitting if count == 1 or channels // count >= _LEAST_IN_GROUP)


def _recurrent(layer: Any, form: Callable[..., nn.Module]) -> nn.Module:
    if layer.proj_size:
        raise TaskResultError(
            "private training does not know recurrent layers with proj_size",
            hint="put nn.Linear behind the layer instead",
        )
    options = {"nonlinearity": layer.nonlinearity} if isinstance(layer, nn.RNN) else {}
    return form(
        layer.input_size,
        layer.hidden_size,
        layer.num_layers,
        bias=layer.bias,
        batch_first=layer.batch_first,
        dropout=layer.dropout,
        bidirectional=layer.bidirectional,
        **options,
    )

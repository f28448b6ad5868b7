"""Local training of one model without autograd, for models that are a chain of layers.

The plain loop computes all gradients, then steps, and lets pictures lie as they come. Here
pictures lie channels last, and with SGD each layer's backward is followed by its step, so
that a gradient that is a product is never written down. It is the same function as the loop's
(same batches, same steps); sums are taken in another order, so the last digits differ, and
dropout draws masks of its own: see `consortium.torch.masks`.

Which models are trained so is a matter of rules, never of timing: see `can_fuse`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from consortium.errors import LayoutError
from consortium.tasks import LocalRules, Site
from consortium.torch.arrays import float_type, misfit, tensors_of
from consortium.torch.batches import TensorRecords
from consortium.torch.chain import chain_of, shapes_through
from consortium.torch.collected import Collected, Collection
from consortium.torch.layers import Kind, Layer
from consortium.torch.links import Link, Taker, channels_last, link_of
from consortium.torch.losses import Loss, loss_of
from consortium.torch.sgd import Descent
from consortium.torch.steps import EffectiveSteps, effective_steps
from consortium.torch.training import (
    Method,
    Phase,
    Workplace,
    epoch,
    make_optimizer,
    only_training,
)

Chain = tuple[Layer, ...]
OutputGradient = Callable[[Tensor, Tensor], Tensor]  # of outputs and targets
_CHAINS: WeakKeyDictionary[nn.Module, Chain | None] = WeakKeyDictionary()


def can_fuse(place: Workplace, site: Site, method: Method) -> bool:
    """Whether `run_fused` computes what the plain loop would.

    The model is a chain, its records lie in two tensors that fit it, steps and optimiser are
    the plan's, and no layer is frozen that behaves differently when it is.
    """
    if method.step is not None or method.optimizer is not None:
        return False
    if site.rules.correction is not None and site.training.optimizer != "sgd":
        return False  # nor can the loop, which says why
    chain = known_chain(place.model)
    if chain is None or not isinstance(place.records, TensorRecords):
        return False
    if place.parts.frozen_layers and any(layer.kind in _HAVE_MODES for layer in chain):
        return False
    inputs = place.records.inputs
    takes_words = chain[0].kind is Kind.EMBEDDING
    is_fit = (
        inputs.dtype in (torch.int64, torch.int32) if takes_words else inputs.is_floating_point()
    )
    on_cpu = inputs.device.type == place.records.targets.device.type == "cpu"
    return is_fit and on_cpu and shapes_through(chain, tuple(inputs.shape[1:])) is not None


_HAVE_MODES = (Kind.DROPOUT, Kind.BATCH_NORM)  # layers that do something else in evaluation


def known_chain(model: nn.Module) -> Chain | None:
    """The model's chain, found once for each model."""
    if model not in _CHAINS:
        _CHAINS[model] = chain_of(model)
    return _CHAINS[model]


def run_fused(
    place: Workplace, phase: Phase, site: Site, method: Method, deadline: float | None = None
) -> float:
    """What `run_phase` does: train some parameters for some epochs; the effective number of
    steps. Time is looked at after each step, so that even the slowest site takes one."""
    training = site.training
    with only_training(place, phase.names) as trained, torch.no_grad():
        run, counter = _begun(place, phase, site, method, trained)
        try:
            for _ in range(phase.epochs):
                for inputs, targets in epoch(place, training.batch_size, site.rng):
                    run.step(inputs, targets)
                    counter.count()
                    if deadline is not None and time.monotonic() >= deadline:
                        return counter.total
        finally:
            _bring_back(place.model, run.tensors)
    return counter.total


def _begun(
    place: Workplace, phase: Phase, site: Site, method: Method, trained: dict[str, nn.Parameter]
) -> tuple[_Run, EffectiveSteps]:
    """The model ready for its first batch, and a counter of its steps."""
    chain, training = known_chain(place.model) or (), site.training
    tensors, gradient = _laid_out(place.model), _output_gradient(method.loss, place, chain)
    shifts = {name: shift for name, shift in _shifts(place, phase.rules).items() if name in trained}
    if training.optimizer == "sgd" and training.grad_clip is None:
        pull = training.lr_in(site.round) * (phase.rules.mu + training.weight_decay)
        values = {name: tensors[name] for name in trained}
        steps = _descents(values, shifts, phase.rules.mu, site)
        return _Run(chain, tensors, steps, gradient), EffectiveSteps(training.momentum, pull)
    optimizer = make_optimizer(list(trained.values()), site, method)
    together = Collection(
        {name: Collected(parameter) for name, parameter in trained.items()},
        optimizer,
        training.grad_clip,
        phase.rules.mu,
        shifts,
        {name: tensors[name] for name, parameter in trained.items() if parameter.ndim == 4},
    )
    run = _Run(chain, tensors, together.takers, gradient, together.step)
    return run, effective_steps(optimizer, phase.rules.mu)


class _Run:
    """A model at work: its links, and how far back gradients have to go."""

    def __init__(
        self,
        chain: Chain,
        tensors: dict[str, Tensor],
        steps: Mapping[str, Taker],
        output_gradient: OutputGradient,
        after_all: Callable[[], None] | None = None,
    ) -> None:
        chain = reordered(chain)
        self.tensors = tensors
        self._links = [link_of(layer, tensors, steps) for layer in chain]
        self._output_gradient = output_gradient
        self._after_all = after_all
        self._dtype = next(iter(tensors.values())).dtype  # a parameter's: they are alike
        first = min(at for at, layer in enumerate(chain) if _is_trained(layer, steps))
        self._way_back: list[tuple[Link, bool]] = [
            (link, at > first) for at, link in enumerate(self._links) if at >= first
        ][::-1]

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Forward, backward and a step of every trained parameter, for one batch."""
        x = channels_last(inputs.to(self._dtype) if inputs.is_floating_point() else inputs)
        for link in self._links:
            x = link.forward(x)
        d = self._output_gradient(x, targets)
        for link, is_wanted in self._way_back:
            d = link.backward(d, is_wanted)
        if self._after_all is not None:
            self._after_all()


def _is_trained(layer: Layer, steps: Mapping[str, Taker]) -> bool:
    return layer.weight in steps or layer.bias in steps


def reordered(chain: Chain) -> Chain:
    """The same function, cheaper. Each swap gives the same bits, forward and backward: relu
    keeps the order of numbers, so that it may wait until pooling has thrown most of them away;
    dropout takes each number by itself, and numbers in a row are taken faster."""
    layers = list(chain)
    for at in range(len(layers) - 2, -1, -1):
        if (layers[at].kind, layers[at + 1].kind) in _SWAPS:
            layers[at], layers[at + 1] = layers[at + 1], layers[at]
    return tuple(layers)


_SWAPS = ((Kind.RELU, Kind.MAX_POOL2D), (Kind.DROPOUT, Kind.FLATTEN))


# ---- parameters --------------------------------------------------------------------------


def _laid_out(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors to work on: its own, but for kernels, which are copied into the
    order of the pictures."""
    return {name: _like_pictures(tensor.detach()) for name, tensor in tensors_of(model).items()}


def _like_pictures(tensor: Tensor) -> Tensor:
    if tensor.ndim != 4:
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, memory_format=torch.channels_last)
    return copy.copy_(tensor)


def _bring_back(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    for name, tensor in model.named_parameters():
        if tensor.ndim == 4:
            tensor.copy_(tensors[name])


def _descents(
    trained: dict[str, Tensor], shifts: dict[str, Tensor], mu: float, site: Site
) -> dict[str, Descent]:
    """How each trained parameter moves by itself."""
    training = site.training
    return {
        name: Descent(
            values,
            training.lr_in(site.round),
            training.weight_decay + (mu if name in shifts else 0.0),
            _like_pictures(shifts[name]) if name in shifts else None,
            training.momentum,
            torch.zeros_like(values) if training.momentum else None,
        )
        for name, values in trained.items()
    }


def _shifts(place: Workplace, rules: LocalRules) -> dict[str, Tensor]:
    """What the strategy adds to gradients of shared parameters besides mu x, which does not
    change in a round: c - c_i - mu base."""
    base, dtype = (rules.base if rules.mu else None), float_type(place.model)
    shifts: dict[str, Tensor] = {}
    for given, factor in ((base, -rules.mu), (rules.correction, 1.0)):
        if given is None:
            continue
        wrong = misfit(place.model, place.parts.shared, given)
        if wrong:
            raise LayoutError(f"the strategy's tensors do not fit: {wrong}")
        for name in place.parts.shared:
            part = torch.from_numpy(np.array(given[name])).to(dtype) * factor
            shifts[name] = shifts[name] + part if name in shifts else part
    return shifts


# ---- the loss ----------------------------------------------------------------------------


def _output_gradient(loss: Loss, place: Workplace, chain: Chain) -> OutputGradient:
    """The gradient of the loss by the model's outputs; of most losses by autograd."""

    def by_autograd(outputs: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            # A copy: a loss may change the model's outputs in place, but never a leaf.
            return torch.autograd.grad(loss_of(loss, leaf.clone(), targets), leaf)[0]

    assert isinstance(place.records, TensorRecords)
    is_usual = _is_usual_cross_entropy(loss) and _are_classes(place.records, chain)
    return _of_cross_entropy if is_usual else by_autograd


def _of_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """(softmax(z) - 1[y]) / n, of the mean over n records."""
    n = len(outputs)
    d = torch.softmax(outputs, 1)  # (n, k)
    return d.scatter_(1, targets.view(n, 1), -1.0, reduce="add").div_(n)


def _is_usual_cross_entropy(loss: Loss) -> bool:
    if loss is functional.cross_entropy:
        return True
    return (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.reduction == "mean"
        and loss.label_smoothing == 0.0
        and loss.ignore_index < 0  # no class of a model
        and not (loss._forward_hooks or loss._forward_pre_hooks)
    )


def _are_classes(records: TensorRecords, chain: Chain) -> bool:
    """Whether every target is one class that the model scores; what is ignored, or wrong,
    is left to torch's own loss."""
    shapes = shapes_through(chain, tuple(records.inputs.shape[1:]))
    targets = records.targets
    if shapes is None or len(shapes[-1]) != 1 or targets.dtype is not torch.int64:
        return False
    is_column = targets.ndim == 1 or (targets.ndim == 2 and targets.shape[1] == 1)
    return is_column and bool((targets >= 0).all()) and bool((targets < shapes[-1][0]).all())

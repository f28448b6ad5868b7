"""Steps of an optimiser for many sites at once: each parameter is one tensor (sites, ...).

Sites stand in the order of their number of steps, the longest first, so that those still at
work are the first k. Every formula is that of torch's own optimiser, with what the strategy
adds to gradients between clipping and the step: see `consortium.torch.training`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from consortium.plan.values import TrainingSection
from consortium.torch.products import add_product, product

_BETA_1, _BETA_2, _EPS = 0.9, 0.999, 1e-8  # torch's defaults for Adam and AdamW
_NARROW = 16  # columns
_CLIP_EPS = 1e-6  # torch's, in clip_grad_norm_


def first(stacked: Tensor, k: int) -> Tensor:
    """Of (sites, ...) those of the first k sites. Mostly it is all: a view takes time too."""
    return stacked if stacked.shape[0] == k else stacked[:k]


@dataclass(slots=True)
class Slot:
    """One parameter of all sites, and where its gradients go: into := beta into + alpha g.

    Before the first step all sites have the same value: it is there once, and only looks like
    (sites, ...). The first plain step makes a value for each; who needs them before calls `own`.
    """

    value: Tensor  # (sites, ...)
    is_common: bool = False  # all sites share one memory
    into: Tensor | None = None  # None: it is not trained now
    beta: float = 0.0
    alpha: float = 1.0
    base: Tensor | None = None  # what FedProx pulls towards, (...)
    correction: Tensor | None = None  # what SCAFFOLD adds, (sites, ...)

    def add_product(self, left: Tensor, right: Tensor) -> None:
        """Take the gradient (k, a, b) = left (k, a, n) times right (k, n, b)."""
        if self.into is None:
            return
        k, beta, alpha = left.shape[0], self.beta, self.alpha
        # Products that are few columns wide are slow; the same ones on their side are not.
        is_across = right.shape[2] <= _NARROW < left.shape[1]
        if is_across:
            left, right = right.transpose(1, 2), left.transpose(1, 2)
        if self.is_common and k == len(self.value):
            common = self.value.transpose(1, 2) if is_across else self.value
            made = common.clone(memory_format=torch.contiguous_format)
            add_product(made, left, right, beta, alpha)
            # From here on its memory lies on its side as well.
            self.into = self.value = made.transpose(1, 2) if is_across else made
            self.is_common = False
            return
        self.own()
        into = first(self.into, k)
        if not is_across:
            add_product(into, left, right, beta, alpha)
        elif into.stride(1) == 1:
            add_product(into.transpose(1, 2), left, right, beta, alpha)
        else:  # a layer that stays at its site
            self.add(product(left, right).transpose(1, 2))

    def own(self) -> None:
        """Give each site a value of its own."""
        if self.is_common:
            is_taken = self.into is self.value
            self.value, self.is_common = _own_memory(self.value), False
            self.into = self.value if is_taken else self.into

    def add(self, gradient: Tensor) -> None:
        """Take the gradient (k, ...)."""
        if self.into is None:
            return
        self.own()
        into = first(self.into, gradient.shape[0])
        if self.beta != 1.0:
            into.mul_(self.beta)
        into.add_(gradient, alpha=self.alpha)

    def add_rows(self, sites: Tensor, rows: Tensor, gradients: Tensor, k: int) -> None:
        """Take gradients (n, width) of single rows: `rows` of the tables of `sites`."""
        if self.into is None:
            return
        self.own()
        into = self.into[:k]
        if self.beta != 1.0:
            into.mul_(self.beta)
        flat = into.view(-1, into.shape[-1])
        flat.index_add_(0, sites * into.shape[1] + rows, gradients, alpha=self.alpha)

    def add_rules(self, gradient: Tensor, mu: float) -> None:
        """Add to a gradient (k, ...) that is complete what the strategy asks for."""
        value = self.value[: len(gradient)]
        if self.base is not None:
            gradient.add_(value - self.base, alpha=mu)
        if self.correction is not None:
            gradient.add_(self.correction[: len(gradient)])


def _own_memory(value: Tensor) -> Tensor:
    """A copy with memory for each site; narrow matrices lie on their side in it."""
    if value.ndim == 3 and value.shape[2] <= _NARROW < value.shape[1]:
        return value.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    return value.clone(memory_format=torch.contiguous_format)


class Descent(Protocol):
    """Ends a step, after every trained slot has got its gradient."""

    def step(self, k: int) -> None: ...


def begin_descent(
    slots: Sequence[Slot],
    training: TrainingSection,
    lr: float,
    mu: float,
    *,
    is_collected: bool = False,
) -> Descent:
    """A new optimiser over these slots, which are told where their gradients go. `is_collected`:
    something is done with whole gradients before the step."""
    is_collected = is_collected or training.grad_clip is not None
    is_plain = training.optimizer == "sgd" and not is_collected
    has_terms = any(slot.base is not None or slot.correction is not None for slot in slots)
    if is_plain and not (training.momentum or training.weight_decay or has_terms):
        for slot in slots:  # the product that gives the gradient takes the step as well
            slot.into, slot.beta, slot.alpha = slot.value, 1.0, -lr
        return _Taken()
    for slot in slots:
        slot.own()
    if training.optimizer != "sgd":
        return _Adam(slots, training, lr, mu)
    if is_collected:
        return _CollectedSgd(slots, training, lr, mu)
    return _Sgd(slots, training, lr, mu)


class _Taken:
    """The step was taken while gradients came."""

    def step(self, k: int) -> None:
        pass


class _Sgd:
    """SGD with heavy-ball momentum: gradients go straight into the velocity."""

    def __init__(
        self, slots: Sequence[Slot], training: TrainingSection, lr: float, mu: float
    ) -> None:
        self._slots, self._lr, self._mu, self._decay = slots, lr, mu, training.weight_decay
        for slot in slots:
            slot.into, slot.beta, slot.alpha = torch.zeros_like(slot.value), training.momentum, 1.0

    def step(self, k: int) -> None:
        for slot in self._slots:
            assert slot.into is not None
            velocity, value = slot.into[:k], slot.value[:k]
            slot.add_rules(velocity, self._mu)
            if self._decay:
                velocity.add_(value, alpha=self._decay)
            value.add_(velocity, alpha=-self._lr)


class _Collected:
    """Gradients are complete before anything is done with them."""

    def __init__(
        self, slots: Sequence[Slot], training: TrainingSection, lr: float, mu: float
    ) -> None:
        self._slots, self._lr, self._mu = slots, lr, mu
        self._decay, self._clip = training.weight_decay, training.grad_clip
        for slot in slots:
            slot.into, slot.beta, slot.alpha = torch.zeros_like(slot.value), 0.0, 1.0

    def _gradients(self, k: int) -> list[Tensor]:
        """Clipped at each site by itself, and with what the strategy adds."""
        found = [slot.into[:k] for slot in self._slots if slot.into is not None]
        if self._clip is not None:
            squares = [one.reshape(k, -1).square().sum(1) for one in found]
            norms = torch.stack(squares).sum(0).sqrt()
            factors = (self._clip / (norms + _CLIP_EPS)).clamp(max=1.0)
            for one in found:
                one.mul_(factors.reshape(k, *[1] * (one.ndim - 1)))
        for slot, one in zip(self._slots, found, strict=True):
            slot.add_rules(one, self._mu)
        return found


class _CollectedSgd(_Collected):
    def __init__(
        self, slots: Sequence[Slot], training: TrainingSection, lr: float, mu: float
    ) -> None:
        super().__init__(slots, training, lr, mu)
        self._momentum = training.momentum
        self._velocities = [torch.zeros_like(slot.value) for slot in slots]

    def step(self, k: int) -> None:
        gradients = self._gradients(k)
        for slot, gradient, whole in zip(self._slots, gradients, self._velocities, strict=True):
            velocity, value = whole[:k], slot.value[:k]
            if self._decay:
                gradient.add_(value, alpha=self._decay)
            velocity.mul_(self._momentum).add_(gradient)
            value.add_(velocity, alpha=-self._lr)


class _Adam(_Collected):
    """Adam, and AdamW, which decays the weights themselves."""

    def __init__(
        self, slots: Sequence[Slot], training: TrainingSection, lr: float, mu: float
    ) -> None:
        super().__init__(slots, training, lr, mu)
        self._decays_weights = training.optimizer == "adamw"
        self._means = [torch.zeros_like(slot.value) for slot in slots]
        self._squares = [torch.zeros_like(slot.value) for slot in slots]
        self._taken = 0

    def step(self, k: int) -> None:
        self._taken += 1
        rate = self._lr / (1 - _BETA_1**self._taken)
        scale = math.sqrt(1 - _BETA_2**self._taken)
        gradients, means, squares = self._gradients(k), self._means, self._squares
        for slot, gradient, whole, wide in zip(self._slots, gradients, means, squares, strict=True):
            value, mean, square = slot.value[:k], whole[:k], wide[:k]
            if self._decay and self._decays_weights:
                value.mul_(1 - self._lr * self._decay)
            elif self._decay:
                gradient.add_(value, alpha=self._decay)
            mean.lerp_(gradient, 1 - _BETA_1)
            square.mul_(_BETA_2).addcmul_(gradient, gradient, value=1 - _BETA_2)
            value.addcdiv_(mean, (square.sqrt() / scale).add_(_EPS), value=-rate)

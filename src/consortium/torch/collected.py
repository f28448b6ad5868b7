"""Steps that need all gradients first: of Adam, or with clipping by the norm of them all.

Gradients are collected where torch keeps them, and the steps are those of torch's own
optimisers, with what the strategy adds in between: see `consortium.torch.training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Collected:
    """One parameter, and the gradient that it gets in this step."""

    parameter: nn.Parameter

    def by_product(self, left: Tensor, right: Tensor) -> None:
        self.parameter.grad = torch.mm(left, right)

    def by(self, gradient: Tensor) -> None:
        self.parameter.grad = gradient.contiguous()


@dataclass(frozen=True, slots=True)
class Collection:
    """All trained parameters, and the step that they take together."""

    takers: Mapping[str, Collected]
    optimizer: torch.optim.Optimizer
    grad_clip: float | None
    mu: float  # of FedProx, for those parameters that have a shift
    shifts: Mapping[str, Tensor]  # what the strategy adds besides mu x
    kernels: Mapping[str, Tensor]  # copies of parameters, to be kept equal to them

    def step(self) -> None:
        """For the gradients that all have got."""
        parameters = {name: taker.parameter for name, taker in self.takers.items()}
        if self.grad_clip is not None:
            nn.utils.clip_grad_norm_(parameters.values(), self.grad_clip)
        for name, shift in self.shifts.items():
            gradient = parameters[name].grad
            assert gradient is not None  # every parameter of a chain gets one
            gradient.add_(parameters[name], alpha=self.mu).add_(shift)
        self.optimizer.step()
        for name, kernel in self.kernels.items():
            kernel.copy_(parameters[name])

"""A step from a sum of clipped gradients: noise, then a fixed divisor, then the optimiser."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from consortium.tasks import RecordPrivacy, Site
from consortium.torch.private_space import Space
from consortium.torch.training import (
    Method,
    Phase,
    Workplace,
    check_rules,
    make_optimizer,
)


@dataclass(frozen=True, slots=True)
class NoisyDescent:
    """Everything from `add_noise` on is made of what may be known: no record is looked at."""

    space: Space
    privacy: RecordPrivacy
    divisor: float
    optimizer: torch.optim.Optimizer
    mu: float  # of FedProx
    base: Tensor | None  # the round's model, of the shared numbers
    correction: Tensor | None  # of SCAFFOLD, of the shared numbers

    def step(self) -> None:
        """For the sum that lies in the space's gradient; it is zero afterwards."""
        self.add_noise()
        self.move()

    def add_noise(self) -> None:
        """A normal number for each number of the sum, whose sensitivity is the clip."""
        gradient, privacy = self.space.gradient, self.privacy
        drawn = torch.from_numpy(privacy.noise.normal(len(gradient)))
        gradient.add_(drawn.to(gradient.dtype), alpha=privacy.sigma * privacy.clip)

    def move(self) -> None:
        """What follows the noise. By itself it is not private."""
        self.space.gradient.div_(self.divisor)
        self._add_rules()
        self.optimizer.step()
        self.space.gradient.zero_()

    def _add_rules(self) -> None:
        """FedProx: + mu (x - base). SCAFFOLD: + c - c_i."""
        shared = self.space.gradient[: self.space.shared]
        if self.base is not None:
            values = self.space.values.detach()[: self.space.shared]
            shared.add_(values - self.base, alpha=self.mu)
        if self.correction is not None:
            shared.add_(self.correction)


def begin_descent(
    place: Workplace, phase: Phase, site: Site, method: Method, space: Space
) -> NoisyDescent:
    """The optimiser of one phase, and what the strategy adds."""
    privacy = site.privacy
    assert privacy is not None and privacy.expected_batch is not None
    whole = [space.values] if method.optimizer is None else space.parameters()
    optimizer, rules = make_optimizer(whole, site, method), phase.rules
    check_rules(place, rules, optimizer)
    names = place.parts.shared
    base = space.row(rules.base, names) if rules.mu else None
    correction = None if rules.correction is None else space.row(rules.correction, names)
    what = space, privacy, privacy.expected_batch, optimizer, rules.mu, base, correction
    return NoisyDescent(*what)

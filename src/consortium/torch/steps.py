"""How far local training got, counted in gradient steps.

FedNova and SCAFFOLD divide a site's way by its number of steps. With momentum a gradient
acts more than once, with a proximal term or weight decay less and less; what counts is the
sum of the weights that the gradients got (Wang et al. 2020, section 4.1, ||a||_1). It is
found by running the optimiser's own recurrence on a constant gradient of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class EffectiveSteps:
    """The way y of x := -lr y under a constant unit gradient, one `count` a step:
    v := rho v + (1 - lr (mu + weight decay) y) and y := y + v.

    >>> steps = EffectiveSteps(momentum=0.5)
    >>> for _ in range(3):
    ...     steps.count()
    >>> steps.total  # 1 + 1.5 + 1.75
    4.25
    """

    momentum: float = 0.0
    pull: float = 0.0  # lr (mu + weight decay)
    total: float = 0.0
    velocity: float = 0.0

    def count(self) -> None:
        self.velocity = self.momentum * self.velocity + 1 - self.pull * self.total
        self.total += self.velocity


def effective_steps(optimizer: torch.optim.Optimizer, mu: float) -> EffectiveSteps:
    """A counter for this optimiser; anything but SGD in its usual form counts plain steps."""
    group = optimizer.param_groups[0]
    if not is_sgd(optimizer):
        return EffectiveSteps()
    return EffectiveSteps(group["momentum"], group["lr"] * (mu + group["weight_decay"]))


def is_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is SGD with heavy-ball momentum or none."""
    group = optimizer.param_groups[0]
    is_usual = not group.get("nesterov") and not group.get("dampening")
    return isinstance(optimizer, torch.optim.SGD) and is_usual

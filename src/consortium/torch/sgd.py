"""Steps of SGD taken where a gradient arises, parameter by parameter.

A gradient that is a product of two matrices need not be written down: the product is added
to the parameter, or to its velocity, at once. What the plan and the strategy add to gradients
has the form `pull * x + shift`: weight decay pulls towards zero, FedProx towards the round's
model, SCAFFOLD shifts by c - c_i.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Descent:
    """One parameter `x` on its way: v := momentum v + g + pull x + shift, x := x - lr v."""

    values: Tensor  # x, changed in place
    lr: float
    pull: float = 0.0
    shift: Tensor | None = None
    momentum: float = 0.0
    velocity: Tensor | None = None  # v, at first zero; None without momentum

    def by_product(self, left: Tensor, right: Tensor) -> None:
        """A step for the gradient left @ right."""
        if self.velocity is not None:
            self.velocity.addmm_(left, right, beta=self.momentum)
            self._follow(self.velocity)
        elif self.shift is None:
            self.values.addmm_(left, right, beta=1 - self.lr * self.pull, alpha=-self.lr)
        else:
            self._drift()
            self.values.addmm_(left, right, alpha=-self.lr)

    def by(self, gradient: Tensor) -> None:
        """A step for this gradient."""
        if self.velocity is not None:
            self.velocity.mul_(self.momentum).add_(gradient)
            self._follow(self.velocity)
        else:
            self._drift()
            self.values.add_(gradient, alpha=-self.lr)

    def _drift(self) -> None:
        """What a step does without a gradient."""
        if self.pull:
            self.values.mul_(1 - self.lr * self.pull)
        if self.shift is not None:
            self.values.add_(self.shift, alpha=-self.lr)

    def _follow(self, velocity: Tensor) -> None:
        """Complete the velocity, which has the gradient already, and go along."""
        if self.pull:
            velocity.add_(self.values, alpha=self.pull)
        if self.shift is not None:
            velocity.add_(self.shift)
        self.values.add_(velocity, alpha=-self.lr)

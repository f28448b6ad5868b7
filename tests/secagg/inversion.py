"""A record out of the update that one step of training on it makes.

With a bias, the gradient of a first layer's weights is δ xᵀ and that of its bias is δ: any row of
the one divided by the number of the other is the record itself (Phong et al. 2018, section 3;
Geiping et al. 2020, proposition 3.1). Models here are softmax regression and a small network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SIDE = 28
INPUTS = SIDE * SIDE
CLASSES = 10


def record(seed: int) -> Floats:
    """A made-up picture (784,): some bright spots on a dark ground."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    picture = np.zeros((SIDE, SIDE))
    for _ in range(5):
        at, width = rng.uniform(4, SIDE - 4, 2), rng.uniform(1.5, 4.0)
        picture += np.exp(-((rows - at[0]) ** 2 + (columns - at[1]) ** 2) / width**2)
    return np.clip(picture, 0.0, 1.0).reshape(-1)


@dataclass(frozen=True)
class Model:
    """Softmax on the inputs, or on a layer of `hidden` rectified sums of them."""

    hidden: int  # none: softmax regression
    seed: int = 0

    @property
    def width(self) -> int:
        """Of the first layer."""
        return self.hidden or CLASSES

    def update(self, x: Floats, label: int, lr: float = 0.1) -> Floats:
        """What one step on one record changes, flat: first weights, first bias, the rest."""
        rng = np.random.default_rng(self.seed)
        first, bias = rng.standard_normal((self.width, INPUTS)) / INPUTS**0.5, np.zeros(self.width)
        sums = first @ x + bias
        if not self.hidden:
            delta = _softmax_delta(sums, label)
            return -lr * np.concatenate([np.outer(delta, x).reshape(-1), delta])
        last = rng.standard_normal((CLASSES, self.hidden)) / self.hidden**0.5
        active = np.maximum(sums, 0.0)
        above = _softmax_delta(last @ active, label)
        delta = (last.T @ above) * (sums > 0)
        parts = (np.outer(delta, x), delta, np.outer(above, active), above)
        return -lr * np.concatenate([part.reshape(-1) for part in parts])

    def inverted(self, update: Floats) -> Floats:
        """The record, by the row whose bias moved most."""
        weights = update[: self.width * INPUTS].reshape(self.width, INPUTS)
        bias = update[self.width * INPUTS :][: self.width]
        at = int(np.abs(bias).argmax())
        found: Floats = weights[at] / bias[at]
        return found


def _softmax_delta(logits: Floats, label: int) -> Floats:
    """The gradient of the cross entropy by the logits."""
    grown = np.exp(logits - logits.max())
    delta: Floats = grown / grown.sum()
    delta[label] -= 1.0
    return delta

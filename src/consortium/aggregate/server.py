"""Server optimisers: how far, and in which direction, the model follows the mean.

Reddi et al. 2021, Adaptive Federated Optimization, Algorithm 2, where the mean of the
updates stands for a negative gradient. There is no correction of bias: the paper has none.
Every formula works number by number, so a model can be stepped in chunks of columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from consortium.aggregate.columns import Columns
from consortium.errors import InternalError
from consortium.model import Vector

State = dict[str, Columns]

_STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("m",),
    "adam": ("m", "v"),
    "yogi": ("m", "v"),
    "adagrad": ("m", "v"),
}


@dataclass(frozen=True, slots=True)
class ServerOptimiser:
    """One of sgd, momentum, adam, yogi, adagrad. `adaptivity` is the paper's τ.

    >>> optimiser = ServerOptimiser("momentum", lr=1.0, beta1=0.5)
    >>> state = {"m": np.full(1, optimiser.initial("m"))}
    >>> model, state = optimiser.step(np.zeros(1), np.ones(1), state)
    >>> model, state = optimiser.step(model, np.ones(1), state)
    >>> float(model[0]), float(state["m"][0])
    (2.5, 1.5)
    """

    name: str
    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    adaptivity: float = 1e-3

    def __post_init__(self) -> None:
        if self.name not in _STATE_NAMES:
            raise InternalError("there is no server optimiser of that name")
        is_in_range = 0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0
        if not (is_in_range and self.adaptivity > 0.0):
            raise InternalError("betas are at least 0 and below 1, adaptivity is above 0")

    @property
    def state_names(self) -> tuple[str, ...]:
        """The vectors, as long as the model, that live from round to round."""
        return _STATE_NAMES[self.name]

    def initial(self, name: str) -> float:
        """What a state vector is filled with before the first round: m is 0, v is τ²."""
        if name not in self.state_names:
            raise InternalError("this server optimiser has no such state")
        return self.adaptivity**2 if name == "v" else 0.0

    def step(
        self, base: Vector, mean: Columns, state: Mapping[str, Columns]
    ) -> tuple[Columns, State]:
        """The new columns in float64, to be rounded once by the caller, and the new state.

        `base` and `state` stay as they were: a duty may be done twice.
        """
        start = base.astype(np.float64)
        if self.name == "sgd":
            return start + self.lr * mean, {}
        if self.name == "momentum":
            m = self.beta1 * state["m"] + mean
            return start + self.lr * m, {"m": m}
        m = self.beta1 * state["m"] + (1.0 - self.beta1) * mean
        v = self._second_moment(state["v"], np.square(mean))
        return start + self.lr * (m / (np.sqrt(v) + self.adaptivity)), {"m": m, "v": v}

    def _second_moment(self, v: Columns, square: Columns) -> Columns:
        match self.name:
            case "adagrad":
                return v + square
            case "yogi":
                return v - (1.0 - self.beta2) * square * np.sign(v - square)
            case _:
                return self.beta2 * v + (1.0 - self.beta2) * square

"""Rows, stages and chains.

`Rows` is a block of n updates side by side, (n, d). A real site is a block of one, so
the code that weighs and clips is the same in simulation and in production. A row's
result never depends on its neighbours: there is a test for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from consortium.errors import ImpossiblePlanError

Block = npt.NDArray[Any]  # (n, d), float32 or float64 in REAL, uint32 in RING
Weights = npt.NDArray[np.float64]  # (n,)


class Domain(Enum):
    """What the numbers of a row are."""

    REAL = "real numbers"
    RING = "integers modulo a power of two"


@dataclass(frozen=True, slots=True)
class Rows:
    """n updates: their values (n, d), the samples behind each and the weight of each (n,)."""

    values: Block
    samples: Weights
    weights: Weights


@dataclass(frozen=True, slots=True)
class Bound:
    """How much one site can move the weighted sum: norm × weight. None: without limit."""

    norm: float | None = None
    weight: float | None = None

    @property
    def sensitivity(self) -> float | None:
        if self.norm is None or self.weight is None:
            return None
        return self.norm * self.weight


class Stage(Protocol):
    """One step on the way out."""

    @property
    def takes(self) -> Domain: ...

    @property
    def gives(self) -> Domain: ...

    def apply(self, rows: Rows) -> Rows:
        """The rows after this stage; the input is left as it was."""
        ...

    def bound(self, bound: Bound) -> Bound:
        """What can be promised about every row after this stage."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages one after another; itself a stage. Make one with `chain`."""

    stages: tuple[Stage, ...]

    @property
    def takes(self) -> Domain:
        return self.stages[0].takes

    @property
    def gives(self) -> Domain:
        return self.stages[-1].gives

    def apply(self, rows: Rows) -> Rows:
        for stage in self.stages:
            rows = stage.apply(rows)
        return rows

    def bound(self, bound: Bound) -> Bound:
        for stage in self.stages:
            bound = stage.bound(bound)
        return bound


def chain(*stages: Stage) -> Chain:
    """Stages in this order; an order that cannot work is refused here, not at run time."""
    if not stages:
        raise ImpossiblePlanError("a chain has at least one stage")
    for before, after in pairwise(stages):
        if before.gives is not after.takes:
            raise ImpossiblePlanError(
                f"{type(before).__name__} gives {before.gives.value}, "
                f"{type(after).__name__} takes {after.takes.value}",
                hint="change the order of the stages",
            )
    return Chain(stages)

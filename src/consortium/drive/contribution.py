"""What training gives: the rows that leave, one site's or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.aggregate.block import Total
from consortium.core.facts import Failure
from consortium.model import Vector


@dataclass(frozen=True, slots=True)
class Contribution:
    """What training at one site gives: the row that leaves, the records behind it, what it
    weighs, and the state that stays (None: nothing is kept)."""

    row: Vector
    records: int
    weight: float
    state: bytes | None
    failure: Failure | None = None  # why this site falls out of the round
    packed: bytes | None = None  # the row as the file has it, where that is another thing


@dataclass(frozen=True, slots=True)
class Summed:
    """The weighted sum of the rows from `first` to the last, made where they were."""

    first: int
    total: Total


@dataclass(frozen=True, slots=True)
class Contributions:
    """The same of n sites: rows (n, d), and a value a site of everything else."""

    rows: npt.NDArray[Any]
    records: Sequence[int]
    weights: Sequence[float]
    states: Sequence[bytes | None]
    failures: Sequence[Failure | None]
    packed: Sequence[bytes | None]
    summed: Summed | None = None  # of the last rows, where an engine has added them up

    def __len__(self) -> int:
        return len(self.rows)

    def each(self) -> list[Contribution]:
        """One after the other; the rows are views."""
        return [
            Contribution(*one)
            for one in zip(
                self.rows,
                self.records,
                self.weights,
                self.states,
                self.failures,
                self.packed,
                strict=True,
            )
        ]

    def at(self, places: Sequence[int]) -> Contributions:
        """The sites at these places, in this order; the rows are a copy if they are not all."""
        if list(places) == list(range(len(self))):
            return self
        return Contributions(
            self.rows[list(places)],
            [self.records[at] for at in places],
            [self.weights[at] for at in places],
            [self.states[at] for at in places],
            [self.failures[at] for at in places],
            [self.packed[at] for at in places],
        )

    def part(self, lo: int, hi: int) -> Contributions:
        """The sites lo:hi; the rows are a view."""
        summed = self.summed
        if summed is not None:
            has_all = lo <= summed.first < hi >= len(self)
            summed = Summed(summed.first - lo, summed.total) if has_all else None
        return Contributions(
            self.rows[lo:hi],
            self.records[lo:hi],
            self.weights[lo:hi],
            self.states[lo:hi],
            self.failures[lo:hi],
            self.packed[lo:hi],
            summed,
        )

    @property
    def total(self) -> Total | None:
        """The weighted sum of all rows, if an engine has made it."""
        return self.summed.total if self.summed is not None and self.summed.first == 0 else None


def together(one: Contribution) -> Contributions:
    """One site as a block of one."""
    return Contributions(
        one.row[None, :],
        (one.records,),
        (one.weight,),
        (one.state,),
        (one.failure,),
        (one.packed,),
    )


def joined(first: Contributions, then: Contributions) -> Contributions:
    """Both, in this order."""
    return Contributions(
        np.concatenate([first.rows, then.rows]),
        [*first.records, *then.records],
        [*first.weights, *then.weights],
        [*first.states, *then.states],
        [*first.failures, *then.failures],
        [*first.packed, *then.packed],
    )

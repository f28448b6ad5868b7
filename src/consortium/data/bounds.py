"""Moments of columns as numbers between -1 and 1, by limits that are public: pure functions.

What is masked has a fixed range. Limits of each column, and of how many records a site has, make
moments fit into it, whatever their units are; values beyond them count as the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from consortium.data.statistics import MOMENTS, Statistics, local_moments
from consortium.data.table import Doubles
from consortium.errors import SiteDataError

RECORDS = "records"


@dataclass(frozen=True, slots=True, eq=False)
class ColumnBounds:
    """The least and the most value of each column, and the most records of a site. They are told
    to everybody, so they come from what is known, not from the records."""

    low: Doubles  # (f,)
    high: Doubles  # (f,)
    records: int

    def __post_init__(self) -> None:
        if self.low.ndim != 1 or self.low.shape != self.high.shape or not len(self.low):
            raise SiteDataError("bounds have a least and a most value for each column")
        are_apart = np.isfinite(self.low) & np.isfinite(self.high) & (self.low < self.high)
        if not are_apart.all() or self.records < 1:
            raise SiteDataError("a column's least value is below its most, and sites have records")

    @property
    def centre(self) -> Doubles:
        return (self.low + self.high) / 2

    @property
    def half(self) -> Doubles:
        return (self.high - self.low) / 2

    @property
    def longest(self) -> float:
        """No site's numbers are longer, as one vector."""
        return math.sqrt(len(MOMENTS) * len(self.low) + 1)

    def start(self) -> dict[str, Doubles]:
        """Before anybody has added anything."""
        zeros = {name: np.zeros(len(self.low)) for name in MOMENTS}
        return {**zeros, RECORDS: np.zeros(1)}

    def scaled_moments(self, features: npt.NDArray[Any]) -> dict[str, Doubles]:
        """What a site adds: its moments times its records, and its records, all of them as parts
        of the most that they can be."""
        if features.ndim != 2 or features.shape[1] != len(self.low):
            raise SiteDataError(f"the bounds are of {len(self.low)} columns, the features are not")
        scaled = (np.clip(features, self.low, self.high) - self.centre) / self.half
        share = min(len(features) / self.records, 1.0)
        parts = {name: share * part for name, part in local_moments(scaled).items()}
        return {**parts, RECORDS: np.array([share])}

    def statistics(
        self, columns: Sequence[str], mean: Mapping[str, Doubles], sites: int
    ) -> Statistics:
        """From the mean of what so many sites added."""
        if set(mean) != {*MOMENTS, RECORDS} or not mean[RECORDS][0] > 0:
            raise SiteDataError("these are not the moments of any records")
        share = float(mean[RECORDS][0])
        moments = {name: mean[name] / share for name in MOMENTS}
        records = max(1, round(share * self.records * sites))
        found = Statistics.of(columns, moments, records)
        return Statistics(
            found.columns, self.centre + self.half * found.mean, self.half * found.std, records
        )

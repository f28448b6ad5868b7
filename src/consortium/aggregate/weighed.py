"""The mean of rows that sites have weighed themselves, from their sum alone.

A masked row holds values that were multiplied with the site's weight, and the weight behind them:
nobody else knows it. Numbers are whole steps of a grid, so that sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from consortium.aggregate.columns import Columns, Combine, Source, ranked, weighted_sum
from consortium.errors import InsufficientParticipantsError, InternalError


@dataclass(frozen=True, slots=True)
class WeighedMean:
    """Σ wᵢΔᵢ / Σ wᵢ; or, with a denominator, Σ wᵢΔᵢ over that. `extra` numbers stand behind the
    values, the first of them the weight."""

    extra: int = 1
    denominator: float | None = None
    name: str = "weighed mean"
    linear: bool = True

    def columns(self, sources: Sequence[Source]) -> Combine:
        total = sum_of(sources)
        at = len(sources[0].values) - self.extra
        divisor = float(total(at, at + 1)[0]) if self.denominator is None else self.denominator
        if not divisor > 0.0:
            raise InsufficientParticipantsError("there is nothing to average")

        def combine(lo: int, hi: int) -> Columns:
            return np.divide(total(lo, hi), divisor)

        return combine


def sum_of(sources: Sequence[Source]) -> Combine:
    """The sum of single rows, and of sums that were made elsewhere."""
    rows = ranked(sources)
    if any(row.weight != 1.0 for row in rows if not row.is_sum):
        raise InternalError("a row that its site has weighed is not weighed again")
    pairs = [(row.values, 1.0) for row in rows]
    return lambda lo, hi: weighted_sum(pairs, lo, hi)

"""One L2 clip over the whole update: the bound on what a single site can do."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from consortium.errors import FormatError
from consortium.update.stage import Bound, Domain, Rows, Weights


def norms(rows: Rows) -> Weights:
    """The L2 norm of each row, (n,), summed in float64."""
    return np.array([np.sqrt(np.sum(np.square(row, dtype=np.float64))) for row in rows.values])


@dataclass(frozen=True, slots=True)
class ClipByNorm:
    """Scales every row down to at most `norm`; shorter rows stay as they are.

    The factor is C / max(norm, C): with `min(1, C / norm)` a row of NaN would pass. Rows
    that are not finite are refused. Casting back to float32 can round up past C, so the
    result is checked again and shrunk by one part in a million where it did.
    """

    norm: float
    takes: Domain = Domain.REAL
    gives: Domain = Domain.REAL

    def apply(self, rows: Rows) -> Rows:
        if not np.isfinite(rows.values).all():
            raise FormatError("an update has numbers that are not finite")
        lengths = norms(rows)
        clipped = _scaled(rows, self.norm / np.maximum(lengths, self.norm))
        is_over = norms(clipped) > self.norm
        if is_over.any():
            clipped = _scaled(clipped, np.where(is_over, 1 - 1e-6, 1.0))
        return clipped

    def bound(self, bound: Bound) -> Bound:
        return replace(bound, norm=self.norm)


def _scaled(rows: Rows, factors: Weights) -> Rows:
    return replace(rows, values=rows.values * factors[:, None].astype(rows.values.dtype))

"""How much each site counts: M(n) = M(n-1) + Σ wᵢΔᵢ / Σ wᵢ (McMahan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from consortium.update.stage import Bound, Domain, Rows

# No site has more records than this; a larger claim is a lie or a mistake.
MAX_SAMPLES = 1e12


class Weighting(Enum):
    """By sample count, all alike, by sample count up to a cap, or by its square root."""

    SAMPLES = "samples"
    UNIFORM = "uniform"
    CAPPED = "capped"
    SQRT = "sqrt"


@dataclass(frozen=True, slots=True)
class Weigh:
    """Sets each row's weight. The values stay as they are: the sum multiplies.

    `cap` is in samples and public. CAPPED gives min(n / cap, 1), so that no site weighs
    more than one whatever it claims; SQRT with a cap gives √min(n, cap). SAMPLES, and SQRT without
    a cap, have no such bound.
    """

    by: Weighting
    cap: float = 0.0
    takes: Domain = Domain.REAL
    gives: Domain = Domain.REAL

    def apply(self, rows: Rows) -> Rows:
        samples = rows.samples
        match self.by:
            case Weighting.SAMPLES:
                weights = samples.copy()
            case Weighting.UNIFORM:
                weights = np.ones_like(samples)
            case Weighting.CAPPED:
                weights = np.minimum(samples / self.cap, 1.0)
            case Weighting.SQRT:
                weights = np.sqrt(np.minimum(samples, self.cap) if self.cap else samples)
        return replace(rows, weights=weights)

    def limits(self) -> tuple[float, float]:
        """The least and the most that a site may weigh: what a coordinator checks."""
        match self.by:
            case Weighting.UNIFORM:
                return 1.0, 1.0
            case Weighting.CAPPED:
                return 0.0, 1.0
            case Weighting.SAMPLES:
                return 1.0, MAX_SAMPLES
            case Weighting.SQRT:
                return min(1.0, self.most or 1.0), self.most or MAX_SAMPLES**0.5

    @property
    def most(self) -> float | None:
        """The most that a site can weigh, whatever it claims; None: without limit."""
        match self.by:
            case Weighting.UNIFORM | Weighting.CAPPED:
                return 1.0
            case Weighting.SQRT if self.cap:
                return float(np.sqrt(self.cap))
        return None

    def bound(self, bound: Bound) -> Bound:
        return replace(bound, weight=self.most)

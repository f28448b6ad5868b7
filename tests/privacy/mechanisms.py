"""Mechanisms to be audited: the real ones, and those that people build by mistake."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from consortium.privacy.gaussian import sigma_for
from consortium.privacy.noise import Noise, SimulatedNoise
from consortium.testing.masked_audit import UnderMasks
from consortium.testing.mechanism_audit import Central, Claim, Local, Mechanism
from consortium.update.clip import ClipByNorm
from consortium.update.noise import CentralNoise, LocalNoise
from consortium.update.ring import Ring
from consortium.update.ring_noise import share_for
from consortium.update.stage import Bound, Domain, Rows, chain
from consortium.update.weigh import Weigh, Weighting

Floats = npt.NDArray[np.float64]

DELTA = 1e-5
CLAIM = Claim(0.5, DELTA)
SIGMA = sigma_for(CLAIM.epsilon, DELTA)
# Of rows, which are clipped one by one in the audit, too: fewer draws show as much of a larger ε.
ROW_CLAIM = Claim(2.0, DELTA)
ROW_SIGMA = sigma_for(ROW_CLAIM.epsilon, DELTA)
CLIP = 1.0
SITES = 10  # that were planned for
SURE = 1 - 1e-7


def seeded(seed: int = 0) -> Noise:
    return SimulatedNoise(np.random.default_rng(seed))


def central(noise: Noise, weighing: Weighting = Weighting.UNIFORM, sigma: float = SIGMA) -> Central:
    stages = chain(Weigh(weighing, cap=100.0), ClipByNorm(CLIP))
    return Central(stages, CentralNoise(sigma, CLIP, float(SITES), noise))


def local(noise: Noise, sigma: float = ROW_SIGMA) -> Local:
    return Local(chain(Weigh(Weighting.UNIFORM), ClipByNorm(CLIP), LocalNoise(sigma, CLIP, noise)))


# ---- planted ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClipEach:
    """Every tensor by itself; tensors have one number each here."""

    norm: float
    takes: Domain = Domain.REAL
    gives: Domain = Domain.REAL

    def apply(self, rows: Rows) -> Rows:
        return replace(rows, values=np.clip(rows.values, -self.norm, self.norm))

    def bound(self, bound: Bound) -> Bound:
        return replace(bound, norm=self.norm)


class TrustsTheClip(CentralNoise):
    """Does not clip once more."""

    def rows(self, rows: Rows) -> Rows:
        values = self.grid.rounded(np.nan_to_num(rows.values), rows.weights[:, None])
        return replace(rows, values=values, weights=np.ones_like(rows.weights))


def per_tensor() -> Mechanism:
    stages = chain(Weigh(Weighting.UNIFORM), ClipEach(CLIP))
    return Central(stages, TrustsTheClip(SIGMA, CLIP, float(SITES), seeded()))


def by_samples(rows: Rows, draws: int) -> Floats:
    """The mean by data size, with noise for the C/n of a plain one."""
    rows = _clipped(rows)
    mean = rows.samples / rows.samples.sum() @ rows.values
    return _noised(mean, SIGMA * CLIP / SITES, draws)


def by_those_who_came(rows: Rows, draws: int) -> Floats:
    """The mean of those who came, with noise for the hundred that were planned."""
    return _noised(_clipped(rows).values.mean(0), SIGMA * CLIP / 100, draws)


def clipped_by_least(rows: Rows, draws: int) -> Floats:
    """`min(1, C / norm)`: of NaN it is one."""
    lengths = [math.sqrt(float(row @ row)) for row in rows.values.astype(np.float64)]
    factors = [min(1.0, CLIP / length) if length else 1.0 for length in lengths]
    return _noised(np.array(factors) @ rows.values, SIGMA * CLIP, draws)


class OnlyTheValues(LocalNoise):
    """How many samples there are leaves as it is."""

    def apply(self, rows: Rows) -> Rows:
        # By its class: `super()` does not know the one that `slots` has made.
        return replace(LocalNoise.apply(self, rows), samples=rows.samples)


def only_the_values() -> Mechanism:
    stages = (Weigh(Weighting.UNIFORM), ClipByNorm(CLIP), OnlyTheValues(ROW_SIGMA, CLIP, seeded()))
    return Local(chain(*stages))


def as_it_comes_to_the_coordinator() -> Mechanism:
    """What is sent when the noise is added on the other side."""
    return Local(chain(Weigh(Weighting.UNIFORM), ClipByNorm(CLIP)))


def _clipped(rows: Rows) -> Rows:
    """Those that are numbers."""
    good = np.isfinite(rows.values).all(1)
    return ClipByNorm(CLIP).apply(Rows(rows.values[good], rows.samples[good], rows.weights[good]))


def _noised(released: Floats, deviation: float, draws: int) -> Floats:
    rng = np.random.default_rng(1)
    return released + rng.normal(0, deviation, (draws, len(released)))


# ---- under masks --------------------------------------------------------------------

COHORT, QUORUM, COLLUDING = 10, 7, 2  # nine others and the one that is looked for
# As of rows: a larger ε takes fewer draws.
MASKED_CLAIM = Claim(2.0, DELTA)
MASKED_SIGMA = sigma_for(MASKED_CLAIM.epsilon, DELTA)


def under_masks(
    noise: Noise, weighing: Weighting = Weighting.UNIFORM, honest: int = QUORUM - COLLUDING
) -> UnderMasks:
    """Noise that is made for so many honest sites, in rounds of the fewest survivors."""
    stages = chain(Weigh(weighing, cap=100.0), ClipByNorm(CLIP))
    ring = Ring(CLIP, COHORT, 20)
    share = share_for(ring, 8, MASKED_SIGMA, honest)
    return UnderMasks(stages, ring, share, QUORUM, COLLUDING, noise)

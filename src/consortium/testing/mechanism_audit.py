"""Does a mechanism hide what it says? Its own code runs with and without a worst-case site.

The whole way is run: weigh → clip → grid → sum → noise, with a canary that does what a site can
do: as long as allowed, far too long, spread over all tensors, not finite, with an absurd claim of
samples, against the rest. A guesser looks along the canary's direction; its threshold is fixed on
draws of their own, and what it gets wrong on others is a lower bound on ε, with its confidence.

A bound above the claim refutes it. A bound below proves nothing: it is what these canaries show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from consortium.aggregate.columns import weighted_sum
from consortium.errors import UpdateError
from consortium.privacy.evidence import Guesses
from consortium.testing.canaries import Neighbours
from consortium.update.noise import CentralNoise
from consortium.update.stage import Bound, Rows, Stage

Floats = npt.NDArray[np.float64]
# A round's rows as training made them, and how often to draw: what is released, (draws, d).
Mechanism = Callable[[Rows, int], Floats]

_PILOT = 4  # one draw to fix the threshold, for so many to test it
_QUANTILES = np.linspace(0.02, 0.98, 49)


@dataclass(frozen=True, slots=True)
class Central:
    """The release of a sum, by the code that a coordinator runs. A site whose update is refused
    does not count, and the others do not notice."""

    stages: Stage
    release: CentralNoise

    def __call__(self, rows: Rows, draws: int) -> Floats:
        self.release.check(self.stages.bound(Bound()))
        sent = [self._sent(_part(rows, at, at + 1)) for at in range(len(rows.values))]
        counted = [(one.values[0], float(one.weights[0])) for one in sent if one is not None]
        size = rows.values.shape[1]
        total = weighted_sum(counted, 0, size) if counted else np.zeros(size)
        return self.release.release(np.broadcast_to(total, (draws, size)), len(counted))

    def _sent(self, row: Rows) -> Rows | None:
        try:
            return self.release.rows(self.stages.apply(row))
        except UpdateError:
            return None


@dataclass(frozen=True, slots=True)
class Local:
    """What leaves one site, by the code that it runs: the row, its weight, its samples."""

    stages: Stage

    def __call__(self, rows: Rows, draws: int) -> Floats:
        self.stages.bound(Bound())
        one = _part(rows, 0, 1)
        values = np.repeat(one.values, draws, 0)
        block = Rows(values, np.repeat(one.samples, draws), np.repeat(one.weights, draws))
        sent = self.stages.apply(block)
        return np.column_stack([sent.values, sent.weights, sent.samples])


@dataclass(frozen=True, slots=True)
class Claim:
    """Nobody learns more than (ε, δ)."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class Audited:
    """The highest lower bound on ε of all canaries, and whose it is."""

    claim: Claim
    lower_bound: float
    canary: str
    draws: int  # in each world, without those that fixed the threshold
    confidence: float  # that no bound, of any canary, is too high

    @property
    def is_refuted(self) -> bool:
        return self.lower_bound > self.claim.epsilon


def audit(
    mechanism: Mechanism,
    neighbours: Sequence[Neighbours],
    claim: Claim,
    draws: int = 100_000,
    confidence: float = 0.95,
) -> Audited:
    """Try every pair of neighbours. A true claim is refuted with a probability of at most
    1 - `confidence`, over all of them together."""
    doubt = (1 - confidence) / len(neighbours)
    bounds = [
        (_guess(mechanism, pair, draws).epsilon(claim.delta, doubt), pair.name)
        for pair in neighbours
    ]
    highest, name = max(bounds)
    return Audited(claim, highest, name, draws, confidence)


def _guess(mechanism: Mechanism, pair: Neighbours, draws: int) -> Guesses:
    without, having = _looks(mechanism, pair, math.ceil(draws / _PILOT))
    sign = 1.0 if np.median(having) >= np.median(without) else -1.0
    threshold = _threshold(_seen(without, sign), _seen(having, sign))
    without, having = (_seen(looks, sign) for looks in _looks(mechanism, pair, draws))
    alarms, misses = (without >= threshold).sum(), (having < threshold).sum()
    return Guesses(draws, int(alarms), int(misses))


def _looks(mechanism: Mechanism, pair: Neighbours, draws: int) -> tuple[Floats, Floats]:
    """What is released in both worlds, along the direction. What is no number stands out."""
    with np.errstate(all="ignore"):
        looks = [
            np.asarray(mechanism(rows, draws) @ pair.direction, np.float64)
            for rows in (pair.without, pair.having)
        ]
    return looks[0], looks[1]


def _seen(looks: Floats, sign: float) -> Floats:
    return np.where(np.isfinite(looks), sign * looks, np.inf)


def _threshold(without: Floats, having: Floats) -> float:
    """The one that tells the worlds apart best, with rates that are two standard errors worse
    than they look."""
    finite = np.concatenate([without, having])
    finite = finite[np.isfinite(finite)]
    candidates = [np.finfo(np.float64).max]
    if len(finite):
        candidates.extend(np.quantile(finite, _QUANTILES))
    normal = NormalDist()

    def apart(threshold: float) -> float:
        alarms = _raised(float((without >= threshold).mean()), len(without))
        misses = _raised(float((having < threshold).mean()), len(having))
        return normal.inv_cdf(1 - alarms) - normal.inv_cdf(misses)

    return float(max(candidates, key=apart))


def _raised(rate: float, tries: int) -> float:
    raised = rate + 2 * math.sqrt(max(rate * (1 - rate), 1 / tries) / tries)
    return min(raised, 1 - 1 / tries)


def _part(rows: Rows, begin: int, end: int) -> Rows:
    return Rows(rows.values[begin:end], rows.samples[begin:end], rows.weights[begin:end])

"""What samples of a source must look like, and how unlikely they are if they do not.

Every check gives the probability that a right source looks at least as strange.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from mpmath import mp, mpf
from scipy import stats

Samples = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


def exact(sigma: float, most: int) -> list[mpf]:
    """Probabilities of 0, 1, … `most` under the discrete Gaussian, to 60 digits."""
    with mp.workdps(60):
        weights = [mp.exp(-(mpf(x) ** 2) / (2 * mpf(sigma) ** 2)) for x in range(most + 1)]
        total = 2 * mp.fsum(weights) - weights[0]
        return [weight / total for weight in weights]


def fits_discrete(sample: Whole, sigma: float) -> float:
    """Chi-square over the single numbers, or over about 100 groups of them; the tails are one."""
    most = math.ceil(12 * sigma)
    half = np.array([float(one) for one in exact(sigma, most)])
    chances = np.concatenate([half[:0:-1], half])  # of -most … most
    expected = chances * len(sample)
    found = np.bincount(np.clip(sample, -most, most) + most, minlength=2 * most + 1)
    groups = np.floor(np.cumsum(expected) / max(20.0, len(sample) / 100)).astype(int)
    sizes, counts = np.bincount(groups, expected), np.bincount(groups, found)
    sizes, counts = sizes[sizes > 0], counts[np.bincount(groups) > 0]
    return float(stats.chisquare(counts, sizes * counts.sum() / sizes.sum()).pvalue)


def fits_normal(sample: Samples) -> float:
    """Kolmogorov & Smirnov, and the number beyond four, whichever is stranger (times two)."""
    whole = float(stats.kstest(sample, "norm", method="asymp").pvalue)
    tail = 2 * stats.norm.sf(4.0)
    beyond = int((np.abs(sample) > 4.0).sum())
    return min(1.0, 2 * min(whole, float(stats.binomtest(beyond, len(sample), tail).pvalue)))


def fits_moments(sample: npt.NDArray[np.generic], variance: float, kurtosis: float = 3.0) -> float:
    """Mean, variance and fourth moment, each by its standard error (times three)."""
    wide, count = np.asarray(sample, np.float64) / math.sqrt(variance), len(sample)
    errors = (
        abs(wide.mean()),
        abs((wide**2).mean() - 1) / math.sqrt(kurtosis - 1),
        abs((wide**4).mean() - kurtosis) / math.sqrt(96),
    )
    return min(1.0, 3 * 2 * stats.norm.sf(max(errors) * math.sqrt(count)))


def are_apart(sample: npt.NDArray[np.generic]) -> float:
    """Whether a number tells anything about another, 1 to 8 or some powers of two later."""
    wide = np.asarray(sample, np.float64)
    wide = (wide - wide.mean()) / wide.std()
    lags = [*range(1, 9), *(1 << power for power in range(4, 18))]
    lags = [lag for lag in lags if lag < len(wide) // 2]
    strange = max(abs(wide[lag:] @ wide[:-lag]) / math.sqrt(len(wide) - lag) for lag in lags)
    return min(1.0, len(lags) * 2 * float(stats.norm.sf(strange)))

"""Gaussian noise without sampling, exactly.

k releases with noise σᵢ, in units of the sensitivity, are together exactly as private as one with
μ = √Σ 1/σᵢ² (Dong, Roth & Su 2019), and for every ε

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)     (Balle & Wang 2018).

The textbook's σ = √(2 ln(1.25/δ)) / ε is not used: it is proven for ε < 1 only, wasteful there,
and too small for large ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

_MOST = 1e6  # of ε and of μ that anything here is asked about


def mu_of(sigmas: Iterable[float]) -> float:
    """μ of releases with these noise multipliers."""
    return math.sqrt(math.fsum(1 / (sigma * sigma) for sigma in sigmas))


def delta_of(mu: float, epsilon: float) -> float:
    """The δ that goes with ε."""
    if mu == 0:
        return 0.0
    one = _log_phi(mu / 2 - epsilon / mu)
    other = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    return max(0.0, -math.exp(one) * math.expm1(other - one))


def epsilon_of(mu: float, delta: float) -> float:
    """The ε that goes with δ."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    return _least(lambda epsilon: delta_of(mu, epsilon) <= delta)


def mu_for(epsilon: float, delta: float) -> float:
    """The largest μ that is (ε, δ)-private."""
    return 1 / sigma_for(epsilon, delta)


def sigma_for(epsilon: float, delta: float, releases: int = 1) -> float:
    """The least noise multiplier with which so many releases together are (ε, δ)-private."""
    one = _least(lambda sigma: delta_of(1 / sigma, epsilon) <= delta)
    return math.sqrt(releases) * one


def _least(is_enough: Callable[[float], bool]) -> float:
    """The least number for which this holds, to the last bits; it holds for all larger ones."""
    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, high * 2
        if high > _MOST:
            return math.inf
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _log_phi(x: float) -> float:
    """log Φ(x), also where Φ(x) is smaller than any number."""
    if x > -30:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    # Φ(-t) = φ(t)/t (1 - 1/t² + 3/t⁴ - 15/t⁶ + ...): at t = 30 the next term is 1e-10.
    square = x * x
    series = 1 - 1 / square + 3 / square**2 - 15 / square**3 + 105 / square**4
    return -square / 2 - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log(series)

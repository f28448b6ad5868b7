"""Facts of a privacy account: what may be spent on one data set, and what was.

An account has a log of its own, at the coordinator (one a data set and unit, across
federations) and at every site. House rules as in `facts`; the numbers 64 to 71 are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args


@dataclass(frozen=True, slots=True)
class Cost:
    """`releases` times Gaussian noise of `sigma`, in units of the sensitivity; each time on what a
    coin of probability `rate` picked, one coin a record (or site). A rate of one: everybody."""

    sigma: float
    releases: int
    rate: float

    def is_sound(self) -> bool:
        return 0 < self.sigma < _HUGE and 0 < self.releases < _HUGE and 0 < self.rate <= 1


_HUGE = 1 << 40
Costs = tuple[Cost, ...]  # of one round: the model, and what else is released


@dataclass(frozen=True, slots=True)
class Limits:
    """The most ε, all at the same δ, in any 7 days, in any 30 days, and ever. Infinite: no limit
    of this kind."""

    delta: float
    weekly: float | None
    monthly: float | None
    lifetime: float | None

    def are_sound(self) -> bool:
        given = [one for one in (self.weekly, self.monthly, self.lifetime) if one is not None]
        return 0 < self.delta < 1 and all(0 <= one < _HUGE for one in given)


@dataclass(frozen=True, slots=True)
class AccountOpened:
    KIND = 64
    account: str  # of whose records, in which unit: no name of a person or place
    unit: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class LimitsSet:
    KIND = 65
    limits: Limits
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpendingReserved:
    """Before anything is asked of anybody. Until it is charged or returned it counts as spent."""

    KIND = 66
    federation: str
    round: int
    costs: Costs
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpendingCharged:
    """Before the sum exists: from here on it is spent, whatever becomes of the round."""

    KIND = 67
    federation: str
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpendingReturned:
    """The round ended before anything was made of it."""

    KIND = 68
    federation: str
    round: int
    at_ms: int


AccountFact = AccountOpened | LimitsSet | SpendingReserved | SpendingCharged | SpendingReturned
ACCOUNT_FACTS = get_args(AccountFact)

"""Facts of scores that come inside the sum of a round, where nobody sees a single site's. House
rules as in `facts`; their numbers are of those of secret sums.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScoringAdopted:
    """Members of the plan that was just adopted try the model that a round begins from, and what
    they find is part of what they send: no candidate is tried before it is published."""

    KIND = 89
    at_ms: int


@dataclass(frozen=True, slots=True)
class BaseScored:
    """What the members found of the model that the round began from: sums over `samples` of their
    test records, in the order of `Terms.metrics`. Without samples it has no score."""

    KIND = 90
    round: int
    version: int  # of that model
    samples: int
    sums: tuple[float, ...]
    is_improvement: bool  # on the best version before it
    at_ms: int

    @property
    def means(self) -> tuple[float, ...]:
        """Of each metric; empty where nobody had a test record."""
        return tuple(total / self.samples for total in self.sums) if self.samples else ()

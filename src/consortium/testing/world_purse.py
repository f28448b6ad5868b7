"""What rounds cost in a `World` with budgets, who pays, and how much there is.

Budgets are small: a few rounds a week, some more ever, so that every world comes to their ends.
Time leaps from the end of one to the next, and a neighbour spends from the same account.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from random import Random

from consortium.core.account_facts import Cost, Costs, Limits
from consortium.core.ids import Digest
from consortium.core.terms import DAY_MS, Budget, Terms
from consortium.privacy.gaussian import epsilon_of, mu_of
from consortium.testing.world_setting import Setting

ACCOUNT, SITE_ACCOUNT = "heart", "records"
CLIP = 2.0  # above the norm of any step that a site makes here
_DELTA = 1e-5
_SIGMAS = (2.0, 3.0)  # of the plan, and of the one that the lead may change to
_SEEN_WITHIN_MS = 400 * DAY_MS  # nobody is forgotten while the budget makes all wait
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Purse:
    """The budgets of one world."""

    budgets: tuple[Budget, ...]  # of the plan, and of another one
    limits: Limits  # of the account that all coordinators share
    site_limits: tuple[Limits, ...]  # of each site's own account; only where sites spend
    has_neighbour: bool
    is_leaping: bool  # whether time leaps to when the budget frees

    @property
    def is_central(self) -> bool:
        """Whether the coordinators make the noise."""
        return not self.budgets[0].is_spent_at_sites

    def terms(self, terms: Terms, number: int) -> Terms:
        """The plan's terms by one of the prices."""
        return replace(terms, budget=self.budgets[number])


def price(costs: Sequence[Cost], delta: float) -> float:
    """ε of all these together. No cost here has a rate."""
    return _priced(mu_of(cost.sigma for cost in costs for _ in range(cost.releases)), delta)


@lru_cache(maxsize=1 << 12)
def _priced(mu: float, delta: float) -> float:
    return epsilon_of(mu, delta)


def plan_digest(number: int) -> Digest:
    """Of the plan, and of the other."""
    return Digest(sha256(b"plan" + b"'" * number).digest())


def draw_purse(setting: Setting, die: Random) -> tuple[Setting, Purse]:
    """The same day for a federation whose rounds cost something."""
    is_central, sites = die.random() < 0.5, setting.sites
    unit = "site" if is_central else "record"
    budgets = tuple(Budget(ACCOUNT, unit, _costs(sigma), not is_central) for sigma in _SIGMAS)
    purse = Purse(
        budgets=budgets,
        limits=_limits(die, plenty=1),
        site_limits=() if is_central else tuple(_limits(die, plenty=0) for _ in range(sites)),
        has_neighbour=die.random() < 0.5,
        is_leaping=die.random() < 0.8,
    )
    terms = replace(
        setting.terms,
        rounds=die.choice((4, 6, 9)),
        seen_within_ms=_SEEN_WITHIN_MS,
        norm_factor=0 if is_central else setting.terms.norm_factor,
        every_ms=0,
    )
    steps = setting.steps + die.randrange(300)
    return replace(setting, terms=purse.terms(terms, 0), steps=steps), purse


def _costs(sigma: float) -> Costs:
    return (Cost(sigma, 1, 1.0),)


def _limits(die: Random, plenty: int) -> Limits:
    """Each for a few rounds of the dearer plan; some are missing, never all."""
    week = die.choice((1, 2, 3)) + plenty
    month = week + die.choice((0, 1, 2))
    ever = month + die.choice((0, 1, 3))
    kept = die.choice(("wme", "wme", "we", "m", "w", "e"))
    given = zip("wme", (week, month, ever), strict=True)
    return Limits(_DELTA, *(_worth(count) if name in kept else None for name, count in given))


def _worth(rounds: int) -> float:
    dearest = _costs(min(_SIGMAS))
    return price(dearest * rounds, _DELTA) * _ROUNDING

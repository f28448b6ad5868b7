"""Prices for a simulation, which has no time to lose: exact only where they decide something."""

from __future__ import annotations

from collections.abc import Sequence

from consortium.core.account_facts import Cost, Limits
from consortium.privacy.accountant import epsilon, is_closed
from consortium.privacy.budget import Price

_ROUGH = 1e-3  # a grid ten times as coarse: a little dearer, and ten times as quick


def price_for(limits: Limits) -> Price:
    """The price by which these limits are kept as a coordinator keeps them: what is within all of
    them on a rough grid is so on a fine one, and only what is not is looked at again."""
    given = [one for one in (limits.weekly, limits.monthly, limits.lifetime) if one is not None]

    def price(costs: Sequence[Cost], delta: float) -> float:
        rough = epsilon(costs, delta, grid=_ROUGH)
        if is_closed(costs) or all(rough <= limit for limit in given):
            return rough
        return epsilon(costs, delta)

    return price

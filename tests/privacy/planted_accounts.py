"""Budgets as people build them, and what must hold of every budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from consortium.core import account as acc
from consortium.core.account import Account, Standing
from consortium.core.account_facts import Cost, Costs, Limits
from consortium.core.terms import DAY_MS
from consortium.errors import PrivacyBudgetExceededError, Refusal, StaleQuoteError, WrongPhaseError
from consortium.privacy.accountant import epsilon
from consortium.privacy.budget import MONTH_MS, WEEK_MS, Price, Quote, quote, spent
from consortium.privacy.gaussian import sigma_for

Decide = Callable[[Account, acc.AccountInput], acc.Facts]
Quoting = Callable[[Account, Costs, int, Price], Quote]

DELTA = 1e-5
WEEKLY = Limits(DELTA, 3.5, None, None)
LIFETIME = Limits(DELTA, None, None, 15.0)
ROUND = (Cost(sigma_for(0.5, DELTA), 1, 1.0),)
DEAR = (Cost(sigma_for(3.4, DELTA, 3), 1, 1.0),)  # three a week, and no fourth


def opened(limits: Limits, kind: type[Account] = Account) -> Account:
    account = kind()
    _fed(account, acc.OpenAccount("records", "site", 0))
    _fed(account, acc.SetLimits(limits, 0))
    return account


def _fed(account: Account, item: acc.AccountInput, decide: Decide = acc.decide) -> None:
    for fact in decide(account, item):
        acc.evolve(account, fact)


def _paid(account: Account, number: int, costs: Costs, now_ms: int, quoting: Quoting) -> None:
    offer = quoting(account, costs, now_ms, epsilon)
    _fed(account, offer.reserving("fed", number, costs, now_ms))
    _fed(account, acc.Charge("fed", number, now_ms))


# ---- checks: whether it holds -------------------------------------------------------


def pays_for_33_rounds(price: Price) -> bool:
    """What ε = 3.5 at δ = 1e-5 truly pays for: more would be a lie, fewer a waste."""
    account = opened(WEEKLY)
    with suppress(PrivacyBudgetExceededError):
        for number in range(1, 50):
            offer = quote(account, ROUND, 0, price)
            _fed(account, offer.reserving("fed", number, ROUND, 0))
            _fed(account, acc.Charge("fed", number, 0))
    return len(account.counting()) == 33


def holds_in_any_week(quoting: Quoting) -> bool:
    """Somebody tries to spend every six hours, for six weeks, from a Sunday evening on."""
    account, begin_ms = opened(WEEKLY), 10 * WEEK_MS - DAY_MS
    for number in range(1, 4 * 42):
        with suppress(PrivacyBudgetExceededError):
            _paid(account, number, DEAR, begin_ms + number * DAY_MS // 4, quoting)
    times = [one.since_ms for one in account.counting()]
    most = max(sum(end - WEEK_MS < at <= end for at in times) for end in times)
    return epsilon(DEAR * most, DELTA) <= 3.5 and len(times) > 12


def holds_for_life(quoting: Quoting) -> bool:
    """Somebody tries to spend once a day, for two years."""
    account = opened(LIFETIME)
    for day in range(1, 2 * 365):
        with suppress(PrivacyBudgetExceededError):
            _paid(account, day, DEAR, day * DAY_MS, quoting)
    return epsilon(DEAR * len(account.counting()), DELTA) <= 15.0


def counts_what_a_crash_left(kind: type[Account]) -> bool:
    """Reserved, released, and gone before it could be charged."""
    account = opened(WEEKLY, kind)
    _fed(account, quote(account, DEAR, 0, epsilon).reserving("fed", 1, DEAR, 0))
    return spent(account, 30 * DAY_MS, epsilon)[0].epsilon > 0


def lets_one_of_two_have_the_last(decide: Decide) -> bool:
    """Both were told that there is enough, at the same moment."""
    account = opened(WEEKLY)
    for number in (1, 2):
        _paid(account, number, DEAR, 0, quote)
    offer = quote(account, DEAR, 0, epsilon)
    _fed(account, offer.reserving("fed", 3, DEAR, 0), decide)
    with suppress(StaleQuoteError):
        _fed(account, offer.reserving("other", 1, DEAR, 0), decide)
    return len(account.counting()) == 3


def keeps_units_apart(decide: Decide) -> bool:
    """An account of sites is asked to pay for records."""
    try:
        decide(opened(WEEKLY), acc.OpenAccount("records", "record", 0))
    except WrongPhaseError:
        return True
    except Refusal:
        return False
    return False


# ---- planted ------------------------------------------------------------------------


def summed(costs: Sequence[Cost], delta: float) -> float:
    """ε after ε; that δ adds up too, nobody says."""
    return sum(cost.releases * epsilon([replace(cost, releases=1)], delta) for cost in costs)


def of_this_week(account: Account, costs: Costs, now_ms: int, price: Price) -> Quote:
    """Weeks begin at midnight, all at once."""
    return _since(now_ms // WEEK_MS * WEEK_MS, account, costs, now_ms, price)


def of_this_month(account: Account, costs: Costs, now_ms: int, price: Price) -> Quote:
    """ "Your budget has been reset"."""
    return _since(now_ms // MONTH_MS * MONTH_MS, account, costs, now_ms, price)


def _since(begin_ms: int, account: Account, costs: Costs, now_ms: int, price: Price) -> Quote:
    recent = {key: one for key, one in account.spent.items() if one.since_ms >= begin_ms}
    seen = Account(account.id, account.unit, account.limits, recent, account.position)
    return quote(seen, costs, now_ms, price)


@dataclass(slots=True)
class ForgetsReserved(Account):
    """Only what is charged counts."""

    def counting(self) -> list[acc.Spending]:
        return [one for one in self.spent.values() if one.standing is Standing.CHARGED]


def at_any_position(account: Account, item: acc.AccountInput) -> acc.Facts:
    """An old price is as good as a new one."""
    if isinstance(item, acc.Reserve):
        item = replace(item, position=account.position)
    return acc.decide(account, item)


def of_any_unit(account: Account, item: acc.AccountInput) -> acc.Facts:
    """ε is ε."""
    if isinstance(item, acc.OpenAccount) and account.id:
        item = replace(item, unit=account.unit)
    return acc.decide(account, item)

"""A privacy account: what is reserved counts, what is charged stays, and nobody spends twice."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from consortium.core import account as acc
from consortium.core import account_facts as a
from consortium.core.account import Account, Standing, decide, evolve
from consortium.core.codec import account_kinds, decode, encode
from consortium.errors import (
    InvalidInputError,
    PrivacyBudgetExceededError,
    StaleQuoteError,
    WrongPhaseError,
)

COSTS = (a.Cost(1.1, 100, 0.01), a.Cost(50.0, 1, 1.0))
LIMITS = a.Limits(1e-5, 3.5, 15.0, None)


def fed(account: Account, *items: acc.AccountInput) -> Account:
    for item in items:
        for fact in decide(account, item):
            assert decode(encode(fact), account_kinds) == fact
            evolve(account, fact)
    return account


def opened() -> Account:
    return fed(Account(), acc.OpenAccount("records", "record", 1), acc.SetLimits(LIMITS, 2))


def reserve(account: Account, number: int = 1, **changed: object) -> acc.Reserve:
    item = acc.Reserve("fed", number, COSTS, account.position, True, None, 10)
    return replace(item, **changed)  # type: ignore[arg-type]


def test_an_account_is_opened_once_and_has_limits() -> None:
    with pytest.raises(WrongPhaseError):
        decide(Account(), acc.SetLimits(LIMITS, 1))
    account = opened()
    assert (account.id, account.unit, account.limits) == ("records", "record", LIMITS)
    assert decide(account, acc.OpenAccount("records", "record", 5)) == ()
    assert decide(account, acc.SetLimits(LIMITS, 5)) == ()
    with pytest.raises(WrongPhaseError):
        decide(account, acc.OpenAccount("others", "record", 5))
    for wrong_id in ("not a plain id", ""):
        with pytest.raises(InvalidInputError):
            decide(Account(), acc.OpenAccount(wrong_id, "", 5))
    for wrong in (replace(LIMITS, delta=0.0), replace(LIMITS, delta=1.0)):
        with pytest.raises(InvalidInputError):
            decide(account, acc.SetLimits(wrong, 5))
    with pytest.raises(InvalidInputError):
        decide(account, acc.SetLimits(replace(LIMITS, weekly=-1.0), 5))


def test_a_reservation_is_charged_or_returned() -> None:
    account = opened()
    fed(account, reserve(account))
    spent = account.spent["fed", 1]
    assert (spent.standing, spent.counts_since(77)) == (Standing.RESERVED, 77)
    fed(account, acc.Charge("fed", 1, 20))
    assert (spent.standing, spent.counts_since(77)) == (Standing.CHARGED, 20)
    assert decide(account, acc.Charge("fed", 1, 30)) == ()
    with pytest.raises(WrongPhaseError):
        decide(account, acc.Return("fed", 1, 30))
    fed(account, reserve(account, 2), acc.Return("fed", 2, 40))
    assert account.counting() == [spent]
    assert decide(account, acc.Return("fed", 2, 50)) == ()
    for number in (2, 3):
        with pytest.raises(WrongPhaseError):
            decide(account, acc.Charge("fed", number, 50))


def test_what_was_returned_is_over_and_another_price_may_take_its_place() -> None:
    account = opened()
    fed(account, reserve(account), acc.Return("fed", 1, 40))
    with pytest.raises(WrongPhaseError):
        decide(account, reserve(account))
    fed(account, reserve(account, costs=COSTS[:1]))
    assert account.spent["fed", 1].standing is Standing.RESERVED


def test_what_was_returned_before_it_was_reserved_never_is() -> None:
    account = opened()
    fed(account, acc.Return("fed", 3, 50))
    assert decide(account, acc.Return("fed", 3, 60)) == ()
    assert account.counting() == []
    with pytest.raises(WrongPhaseError):  # somebody has slept through the round
        decide(account, reserve(account, 3))
    with pytest.raises(WrongPhaseError):
        decide(account, acc.Charge("fed", 3, 70))


def test_the_same_reservation_again_makes_no_facts_and_another_price_is_refused() -> None:
    account = opened()
    first = reserve(account)
    fed(account, first)
    assert decide(account, first) == ()  # although its position is old: the answer is on record
    assert decide(account, replace(first, is_affordable=False)) == ()
    with pytest.raises(WrongPhaseError):
        decide(account, replace(first, costs=COSTS[:1]))


def test_a_price_of_another_position_is_refused() -> None:
    account = opened()
    one, two = reserve(account), reserve(account, 2)
    fed(account, one)
    with pytest.raises(StaleQuoteError):
        decide(account, two)


def test_what_cannot_be_paid_says_when_it_could() -> None:
    account = opened()
    with pytest.raises(PrivacyBudgetExceededError) as refused:
        decide(account, reserve(account, is_affordable=False, frees_ms=99))
    assert refused.value.frees_ms == 99 == refused.value.details["frees_ms"]


@pytest.mark.parametrize(
    "changed",
    [
        {"federation": "not a plain id"},
        {"round": 0},
        {"costs": ()},
        {"costs": (a.Cost(0.0, 1, 1.0),)},
        {"costs": (a.Cost(1.0, 0, 1.0),)},
        {"costs": (a.Cost(1.0, 1, 1.5),)},
    ],
)
def test_a_reservation_that_makes_no_sense_is_refused(changed: dict[str, object]) -> None:
    account = opened()
    with pytest.raises(InvalidInputError):
        decide(account, reserve(account, **changed))


def test_without_limits_nothing_is_reserved() -> None:
    account = fed(Account(), acc.OpenAccount("records", "record", 1))
    with pytest.raises(WrongPhaseError):
        decide(account, reserve(account))


def test_a_clock_that_goes_back_gives_nothing_back() -> None:
    account = opened()
    fed(account, reserve(account, now_ms=1000), acc.Charge("fed", 1, 5))
    assert account.spent["fed", 1].since_ms == 1000


def test_every_fact_has_its_own_number_in_the_range_of_the_budget() -> None:
    numbers = [fact.KIND for fact in get_args(a.AccountFact)]
    assert sorted(numbers) == numbers == list(range(64, 64 + len(numbers)))

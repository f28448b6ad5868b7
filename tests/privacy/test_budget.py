"""Windows of an account: what is in them, when they free, and what a clock cannot do."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consortium.core import account as acc
from consortium.core.account import Account
from consortium.core.account_facts import Cost, Limits
from consortium.core.terms import DAY_MS
from consortium.errors import PrivacyBudgetExceededError, WrongPhaseError
from consortium.privacy.accountant import epsilon
from consortium.privacy.budget import (
    MONTH_MS,
    WEEK_MS,
    Quote,
    can_train,
    gauges,
    quote,
    spent,
    windows_of,
)
from consortium.privacy.gaussian import sigma_for

DELTA = 1e-5
ROUND = (Cost(sigma_for(3.5, DELTA, 3), 1, 1.0),)  # three of these are 3.5 together
WEEKLY = Limits(DELTA, 3.5 * (1 + 1e-9), None, None)
LIFETIME = Limits(DELTA, None, None, 3.5 * (1 + 1e-9))


def fed(account: Account, item: acc.AccountInput) -> None:
    for fact in acc.decide(account, item):
        acc.evolve(account, fact)


def opened(limits: Limits | None = WEEKLY) -> Account:
    account = Account()
    fed(account, acc.OpenAccount("records", "site", 0))
    if limits is not None:
        fed(account, acc.SetLimits(limits, 0))
    return account


def asked(account: Account, now_ms: int) -> Quote:
    return quote(account, ROUND, now_ms, epsilon)


def reserved(account: Account, number: int, now_ms: int) -> None:
    fed(account, asked(account, now_ms).reserving("fed", number, ROUND, now_ms))


def charged(account: Account, number: int, now_ms: int) -> None:
    reserved(account, number, now_ms)
    fed(account, acc.Charge("fed", number, now_ms))


def test_windows_are_the_limits_that_there_are() -> None:
    assert windows_of(Limits(DELTA, None, None, None)) == ()
    names = [one.name for one in windows_of(Limits(DELTA, 3.5, 15.0, 60.0))]
    assert names == ["weekly", "monthly", "lifetime"]


def test_an_account_without_limits_has_no_prices() -> None:
    for ask in (lambda one: spent(one, 0, epsilon), lambda one: asked(one, 0)):
        with pytest.raises(WrongPhaseError):
            ask(opened(None))


def test_epsilon_of_a_window_is_of_all_together_and_no_sum() -> None:
    account = opened()
    assert spent(account, 0, epsilon)[0].epsilon == 0.0
    charged(account, 1, DAY_MS)
    charged(account, 2, 2 * DAY_MS)
    found = spent(account, 2 * DAY_MS, epsilon)[0].epsilon
    assert found == pytest.approx(epsilon([*ROUND, *ROUND], DELTA), rel=1e-12)
    assert found < 2 * epsilon(ROUND, DELTA)


def test_gauges_show_all_windows_whether_limited_or_not() -> None:
    account = opened()
    charged(account, 1, 0)
    now = {one.window: one for one in gauges(account, ROUND, 20 * DAY_MS, epsilon)}
    one, two = epsilon(ROUND, DELTA), pytest.approx(epsilon(ROUND * 2, DELTA), rel=1e-12)
    assert [(name, gauge.spent) for name, gauge in now.items()] == [
        ("weekly", 0.0),
        ("monthly", one),
        ("lifetime", one),
    ]
    assert [gauge.after_next for gauge in now.values()] == [one, two, two]
    assert [gauge.limit for gauge in now.values()] == [WEEKLY.weekly, None, None]


def test_a_window_looks_back_from_every_moment() -> None:
    account = opened()
    for number, day in ((1, 5), (2, 6), (3, 7)):
        charged(account, number, day * DAY_MS)
    first = 5 * DAY_MS + WEEK_MS
    assert not can_train(account, ROUND, first - 1, epsilon)
    assert asked(account, 8 * DAY_MS).frees_ms == first
    assert can_train(account, ROUND, first, epsilon)
    charged(account, 4, first)
    assert asked(account, first).frees_ms == 6 * DAY_MS + WEEK_MS


def test_the_slower_of_two_windows_says_when() -> None:
    account = opened(Limits(DELTA, 3.5 * (1 + 1e-9), epsilon(ROUND * 4, DELTA), None))
    for number in (1, 2, 3):
        charged(account, number, 0)
    charged(account, 4, WEEK_MS)
    offer = asked(account, WEEK_MS)
    assert [one.epsilon <= one.window.limit for one in offer.after] == [True, False]
    assert offer.frees_ms == MONTH_MS


def test_what_is_reserved_counts_as_of_now() -> None:
    account = opened()
    charged(account, 1, 0)
    reserved(account, 2, DAY_MS)
    reserved(account, 3, DAY_MS)
    later = 40 * DAY_MS
    assert spent(account, later, epsilon)[0].epsilon == pytest.approx(
        epsilon(ROUND * 2, DELTA), rel=1e-12
    )
    reserved(account, 4, later)
    assert asked(account, later).frees_ms == later + WEEK_MS
    fed(account, acc.Return("fed", 4, later))
    assert can_train(account, ROUND, later, epsilon)


def test_what_does_not_fit_into_an_empty_window_never_fits() -> None:
    account = opened()
    dear = (Cost(1.1, 1, 1.0),)
    assert quote(account, dear, 0, epsilon).frees_ms is None
    charged(account, 1, 0)
    assert quote(account, dear, 0, epsilon).frees_ms is None


def test_a_lifetime_never_resets() -> None:
    account = opened(LIFETIME)
    for number in (1, 2, 3):
        charged(account, number, number)
    offer = asked(account, 100 * 365 * DAY_MS)
    assert not offer.is_affordable and offer.frees_ms is None


def test_a_lifetime_that_is_only_held_may_come_back() -> None:
    """Else a federation would end for good because another one has a round open."""
    account = opened(LIFETIME)
    charged(account, 1, 1)
    reserved(account, 2, 5)
    reserved(account, 3, 5)
    offer = asked(account, 10)
    assert not offer.is_affordable and offer.frees_ms == 10
    fed(account, acc.Return("fed", 3, 11))
    assert asked(account, 12).is_affordable


def test_a_clock_that_goes_back_frees_nothing_and_takes_nothing() -> None:
    account = opened()
    charged(account, 1, 9 * DAY_MS)
    charged(account, 2, 10 * DAY_MS)
    for now_ms in (0, 9 * DAY_MS, 10 * DAY_MS):
        assert asked(account, now_ms) == asked(account, 10 * DAY_MS)
        assert spent(account, now_ms, epsilon) == spent(account, 10 * DAY_MS, epsilon)


def test_a_price_that_is_no_number_is_too_much() -> None:
    for price in (lambda costs, delta: math.nan, lambda costs, delta: math.inf):
        offer = quote(opened(), ROUND, 0, price)
        assert not offer.is_affordable and offer.frees_ms is None


def in_any_window(times_ms: Sequence[int], length_ms: int) -> int:
    """The most charges that any half-open window of this length holds."""
    return max((sum(end - length_ms < at <= end for at in times_ms) for end in times_ms), default=0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "charge", "return"]),
        st.integers(1, 6),
        st.integers(-DAY_MS, 5 * DAY_MS),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_whatever_happens_no_week_holds_more_than_three(
    steps: list[tuple[str, int, int]],
) -> None:
    """Rounds are reserved, charged late, returned and asked for again, by a clock that jumps."""
    account, now_ms = opened(), 10 * DAY_MS
    for what, number, later_ms in steps:
        now_ms += later_ms
        try:
            match what:
                case "reserve":
                    offer = asked(account, now_ms)
                    if not offer.is_affordable:
                        assert offer.frees_ms is not None and offer.frees_ms > account.last_ms
                    fed(account, offer.reserving("fed", number, ROUND, now_ms))
                case "charge":
                    fed(account, acc.Charge("fed", number, now_ms))
                case _:
                    fed(account, acc.Return("fed", number, now_ms))
        except (WrongPhaseError, PrivacyBudgetExceededError):
            continue
    times = [one.since_ms for one in account.counting() if one.standing is acc.Standing.CHARGED]
    assert in_any_window(times, WEEK_MS) <= 3

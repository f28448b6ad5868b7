"""A privacy account on a log: nobody spends more than there is, whoever asks at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from consortium.core.account import Standing
from consortium.core.account_facts import Cost, Limits
from consortium.core.terms import DAY_MS, Budget
from consortium.drive.accounts import STREAMS, Accounts, Ledger, stricter
from consortium.drive.clock import ManualClock
from consortium.errors import InternalError, PrivacyBudgetExceededError, WrongPhaseError
from consortium.privacy.gaussian import epsilon_of, mu_of, sigma_for
from consortium.store.memory import MemoryLog
from consortium.store.ports import Log
from consortium.store.sqlite import SqliteLog

DELTA = 1e-5
ROUND = (Cost(sigma_for(3.5, DELTA, 3), 1, 1.0),)  # three of these are 3.5 together
LIMITS = Limits(DELTA, 3.5 * (1 + 1e-9), None, None)


def price(costs: Sequence[Cost], delta: float) -> float:
    return epsilon_of(mu_of([cost.sigma for cost in costs for _ in range(cost.releases)]), delta)


def ledger(log: Log, clock: ManualClock | None = None) -> Ledger:
    made = Ledger(log, "records", clock or ManualClock(), price)
    made.open("site", LIMITS)
    return made


def test_three_rounds_are_paid_and_the_fourth_says_when() -> None:
    clock = ManualClock()
    account = ledger(MemoryLog(), clock)
    for number in (1, 2, 3):
        account.reserve("fed", number, ROUND)
        account.charge("fed", number)
        clock.advance_to(clock.now_ms() + DAY_MS)
    with pytest.raises(PrivacyBudgetExceededError) as refused:
        account.reserve("fed", 4, ROUND)
    assert refused.value.frees_ms == account.state.spent["fed", 1].since_ms + 7 * DAY_MS
    clock.advance_to(refused.value.frees_ms - 1)
    assert not account.quote(ROUND).is_affordable
    clock.advance_to(refused.value.frees_ms)
    account.reserve("fed", 4, ROUND)
    assert account.spent()[0].epsilon <= LIMITS.weekly


def test_asked_again_after_a_crash_the_answer_is_the_same() -> None:
    log = MemoryLog()
    first = ledger(log)
    position = first.reserve("fed", 1, ROUND)
    again = ledger(log)
    assert again.reserve("fed", 1, ROUND) == position
    again.settle("fed", 1, is_charged=True)
    again.settle("fed", 1, is_charged=True)
    with pytest.raises(WrongPhaseError):
        first.settle("fed", 1, is_charged=False)  # it was charged meanwhile
    assert [one.standing for one in ledger(log).state.counting()] == [Standing.CHARGED]


def test_a_round_has_one_price() -> None:
    account = ledger(MemoryLog())
    account.reserve("fed", 1, ROUND)
    dearer = (*ROUND, Cost(100.0, 1, 1.0))
    for _ in range(2):  # while it is held, and when it is spent
        with pytest.raises(WrongPhaseError):
            account.reserve("fed", 1, dearer)
        assert [one.costs for one in account.state.counting()] == [ROUND]
        account.charge("fed", 1)


def test_an_account_that_forgot_a_round_does_not_know_it() -> None:
    account = ledger(MemoryLog())
    assert not account.knows("fed", 1)
    account.reserve("fed", 1, ROUND)
    assert account.knows("fed", 1)
    account.give_back("fed", 1)
    assert account.knows("fed", 1)


def test_what_somebody_else_gave_back_can_be_had() -> None:
    log = MemoryLog()
    here, there = ledger(log), ledger(log)
    for number in (1, 2, 3):
        here.reserve("fed", number, ROUND)
    there.catch_up()
    here.settle("fed", 3, is_charged=False)
    there.reserve("other", 1, ROUND)  # it had not heard of it


@pytest.mark.parametrize("in_memory", [True, False])
def test_ten_at_once_for_three_rounds(in_memory: bool, tmp_path: Path) -> None:
    log: Log = MemoryLog() if in_memory else SqliteLog(tmp_path / "log.db")
    outcomes: list[bool] = []

    def ask(number: int) -> None:
        try:
            ledger(log).reserve(f"fed{number}", 1, ROUND)
            outcomes.append(True)
        except PrivacyBudgetExceededError:
            outcomes.append(False)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True] * 3
    assert len(ledger(log).state.counting()) == 3


# ---- several accounts on one log ------------------------------------------------------

SITES = Budget("records", "site", ROUND, False)


def test_accounts_are_opened_by_plans_and_owners_know_nothing_of_each_other() -> None:
    log, clock = MemoryLog(), ManualClock()
    mine, yours = (Accounts(log, clock, price, owner) for owner in ("me", "you"))
    mine.open(SITES, LIMITS).reserve("fed", 1, ROUND)
    assert mine.of("records") is mine.open(SITES, LIMITS)
    assert not yours.open(SITES, LIMITS).state.counting()
    assert not Accounts(log, clock, price).open(SITES, LIMITS).state.counting()
    assert all(stream.startswith(STREAMS) for stream in log._streams)
    with pytest.raises(WrongPhaseError):
        mine.open(Budget("records", "record", ROUND, True), LIMITS)


def test_a_plan_makes_limits_stricter_and_never_looser() -> None:
    accounts = Accounts(MemoryLog(), ManualClock(), price)
    ledger = accounts.open(SITES, Limits(DELTA, 3.0, None, 20.0))
    accounts.open(SITES, Limits(DELTA, 4.0, 15.0, 10.0))
    assert ledger.state.limits == Limits(DELTA, 3.0, 15.0, 10.0)
    with pytest.raises(WrongPhaseError):
        stricter(LIMITS, Limits(1e-6, 3.0, None, None))


def test_limits_that_another_process_has_lowered_stay() -> None:
    log, clock = MemoryLog(), ManualClock()
    here, there = Accounts(log, clock, price), Accounts(log, clock, price)
    here.open(SITES, Limits(DELTA, 5.0, None, None))
    there.open(SITES, Limits(DELTA, 3.0, None, None))
    assert here.open(SITES, Limits(DELTA, 4.0, None, None)).state.limits == Limits(
        DELTA, 3.0, None, None
    )


def test_gauges_are_of_what_is_in_the_log_by_now() -> None:
    log = MemoryLog()
    here, there = ledger(log), ledger(log)
    there.reserve("fed", 1, ROUND)
    assert [one.spent for one in here.gauges(ROUND)] == [price(ROUND, DELTA)] * 3
    assert [one.limit for one in here.gauges(ROUND)] == [LIMITS.weekly, None, None]


def test_a_price_that_is_old_by_the_time_it_is_made_is_made_again() -> None:
    """Somebody else spends while it is computed."""
    log, others = MemoryLog(), iter(range(2))
    other = ledger(log)

    def slow(costs: Sequence[Cost], delta: float) -> float:
        number = next(others, None)
        if number is not None:
            other.reserve(f"other{number}", 1, ROUND)
        return price(costs, delta)

    here = Ledger(log, "records", ManualClock(), slow)
    here.reserve("fed", 1, ROUND)
    assert len(here.state.counting()) == 3
    with pytest.raises(PrivacyBudgetExceededError):
        here.reserve("fed", 2, ROUND)


def test_whoever_is_always_too_slow_gives_up() -> None:
    log = MemoryLog()
    other = ledger(log)
    cheap = (Cost(1e5, 1, 1.0),)

    def slower(costs: Sequence[Cost], delta: float) -> float:
        other.reserve("other", len(other.state.spent) + 1, cheap)
        return 0.0

    with pytest.raises(InternalError):
        Ledger(log, "records", ManualClock(), slower).reserve("fed", 1, ROUND)

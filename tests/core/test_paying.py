"""Rounds that are paid for: reserved before they open, charged before anything exists that they
pay for, and told to the account whatever becomes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.account_facts import Cost
from consortium.core.federation import decide, evolve, is_legal, owed
from consortium.core.ids import Seat
from consortium.core.snapshot import load, save
from consortium.core.state import Payment
from consortium.core.terms import Budget
from consortium.errors import (
    InvalidInputError,
    PrivacyBudgetExceededError,
    RestoredBackupError,
    WrongPhaseError,
)

from .small import TERMS, World, digest, ready

CENTRAL = Budget("heart", "site", (Cost(7.0, 1, 1.0),), False)
AT_SITES = replace(CENTRAL, unit="record", is_spent_at_sites=True)


def paid(budget: Budget = CENTRAL) -> World:
    return ready(3, replace(TERMS, budget=budget))


def ask(world: World) -> d.Reserve:
    assert [type(fact) for fact in world.give(i.OpenRound(world.now_ms))] == [f.BudgetAsked]
    (duty,) = owed(world.state)
    assert isinstance(duty, d.Reserve)
    return duty


def opened(budget: Budget = CENTRAL) -> World:
    world = paid(budget)
    duty = ask(world)
    facts = world.give(i.Granted(duty.round, 9, world.now_ms))
    assert [type(fact) for fact in facts] == [f.BudgetReserved, f.RoundOpened]
    return world


def test_a_plan_tells_what_its_rounds_cost() -> None:
    world = paid()
    assert world.state.terms is not None and world.state.terms.budget == CENTRAL
    assert world.replayed() == world.state
    assert not is_legal(world.state, f.BudgetAdopted("heart", "site", CENTRAL.costs, False, 1))
    for wrong in (
        replace(CENTRAL, account="no plain name"),
        replace(CENTRAL, unit=""),
        replace(CENTRAL, costs=()),
        replace(CENTRAL, costs=(Cost(0.0, 1, 1.0),)),
    ):
        terms = replace(TERMS, budget=wrong)
        with pytest.raises(InvalidInputError):
            decide(world.state, i.AdoptPlan(digest("p"), digest("t"), digest("layout"), terms, 2))
    assert not is_legal(World().state, f.BudgetAdopted("heart", "site", CENTRAL.costs, False, 1))


def test_a_round_opens_once_the_account_holds_its_costs_ready() -> None:
    world = paid()
    duty = ask(world)
    assert (duty.round, duty.budget) == (1, CENTRAL)
    assert world.give(i.OpenRound(world.now_ms)) == ()  # it is being asked
    assert world.give(i.Granted(7, 9, world.now_ms)) == ()
    forged = f.RoundOpened(1, 0, digest("model 0"), None, 3, 3, 10**9, world.now_ms)
    assert not is_legal(world.state, forged)
    facts = world.give(i.Granted(1, 9, world.now_ms))
    assert [type(fact) for fact in facts] == [f.BudgetReserved, f.RoundOpened]
    assert world.give(i.Granted(1, 9, world.now_ms)) == ()
    assert world.state.unsettled == {1: ("heart", Payment.HELD)}


def test_the_cadence_asks_by_itself() -> None:
    world = paid()
    assert [type(fact) for fact in world.tick()] == [f.BudgetAsked]
    assert world.tick() == ()


def test_what_is_held_up_meanwhile_does_not_open() -> None:
    world = paid()
    ask(world)
    world.give(i.Hold(world.now_ms))
    assert owed(world.state) == ()
    assert world.give(i.Granted(1, 9, world.now_ms)) == ()
    world.give(i.Resume(world.now_ms))
    assert isinstance(owed(world.state)[0], d.Reserve)


def test_what_cannot_be_paid_waits_until_it_can() -> None:
    world = paid()
    duty = ask(world)
    later_ms = world.now_ms + 10**6
    assert world.give(i.Denied(7, later_ms, world.now_ms)) == ()
    assert world.give(i.Denied(duty.round, later_ms, world.now_ms)) == (
        f.BudgetRefused(1, later_ms, world.now_ms),
    )
    assert owed(world.state) == (d.WakeAt(later_ms),)
    assert world.tick(later_ms - 1) == ()
    with pytest.raises(PrivacyBudgetExceededError) as refused:
        world.give(i.OpenRound(world.now_ms))
    assert refused.value.frees_ms == later_ms
    assert [type(fact) for fact in world.tick(later_ms)] == [f.BudgetAsked]
    world.give(i.Granted(1, 9, world.now_ms))
    assert world.state.frees_ms == 0


def test_a_budget_that_frees_at_once_is_not_asked_again_at_once() -> None:
    world = paid()
    ask(world)
    (refused,) = world.give(i.Denied(1, world.now_ms, world.now_ms))
    assert refused.frees_ms == world.now_ms + TERMS.retry_ms


def test_a_budget_that_never_pays_again_ends_the_federation() -> None:
    world = paid()
    ask(world)
    facts = world.give(i.Denied(1, None, world.now_ms))
    assert [type(fact) for fact in facts] == [f.BudgetRefused, f.FederationFinished]
    assert world.state.finished is f.Finish.BUDGET_SPENT
    # Somebody may be asking still: whatever comes of it goes back.
    assert owed(world.state) == (d.Settle(world.state.id, 1, "heart", False),)
    world.give(i.AccountTold(1, world.now_ms))
    assert owed(world.state) == ()


def test_another_plan_may_cost_less() -> None:
    world = paid()
    ask(world)
    cheap = replace(TERMS, budget=None)
    world.give(i.AdoptPlan(digest("cheap"), digest("t"), digest("layout"), cheap, world.now_ms))
    assert world.state.asked == 0
    assert [type(fact) for fact in world.give(i.OpenRound(world.now_ms))] == [f.RoundOpened]


def test_another_plan_need_not_wait_for_what_the_last_one_cost() -> None:
    world = paid()
    ask(world)
    world.give(i.Denied(1, world.now_ms + 10**9, world.now_ms))
    assert owed(world.state) == (d.WakeAt(world.now_ms + 10**9),)
    world.adopt(replace(TERMS, budget=replace(CENTRAL, costs=(Cost(9.0, 1, 1.0),))), "cheap")
    assert [type(fact) for fact in world.tick()] == [f.BudgetAsked]


def test_an_answer_about_the_last_plan_is_none_about_this_one() -> None:
    """Whoever was slow to ask speaks of another price, or of another account."""
    for budget in (replace(CENTRAL, costs=(Cost(3.0, 1, 1.0),)), replace(CENTRAL, account="lung")):
        world = paid()
        ask(world)
        world.adopt(replace(TERMS, budget=budget), "dear")
        assert owed(world.state)[0] == d.Settle(world.state.id, 1, "heart", False)
        world.give(i.OpenRound(world.now_ms))
        assert (world.state.asked, world.state.next_number) == (2, 2)  # no round 1 ever opens
        assert world.give(i.Granted(1, 9, world.now_ms)) == ()
        assert world.give(i.Denied(1, None, world.now_ms)) == ()
        facts = world.give(i.Granted(2, 10, world.now_ms))
        assert [fact.round for fact in facts] == [2, 2]
        world.give(i.AccountTold(1, world.now_ms))
        assert world.state.unsettled == {2: (budget.account, Payment.HELD)}


def test_a_number_that_was_asked_for_is_used_up() -> None:
    world = ready(3, replace(TERMS, rounds=1, budget=CENTRAL))
    ask(world)
    with pytest.raises(WrongPhaseError):
        world.adopt(replace(TERMS, rounds=1), "free")
    world.adopt(replace(TERMS, rounds=2), "free")
    assert [fact.round for fact in world.give(i.OpenRound(world.now_ms))] == [2]


def test_what_was_asked_for_goes_back_when_the_lead_stops() -> None:
    world = paid()
    ask(world)
    world.give(i.Stop(world.now_ms))
    assert world.give(i.Granted(1, 9, world.now_ms)) == ()
    assert world.give(i.Denied(1, None, world.now_ms)) == ()
    assert owed(world.state) == (d.Settle(world.state.id, 1, "heart", False),)
    world.give(i.AccountTold(1, world.now_ms))
    world.adopt(replace(TERMS, budget=CENTRAL), "again")
    assert world.state.unsettled == {}  # once is enough
    assert world.state.next_number == 2


def test_an_account_that_has_forgotten_is_refused() -> None:
    world = opened()
    world.give(i.CancelRound(1, world.now_ms))
    world.give(i.AccountTold(1, world.now_ms))
    ask(world)
    for position in (8, 9):
        assert not is_legal(world.state, f.BudgetReserved(2, position, world.now_ms))
        with pytest.raises(RestoredBackupError):
            decide(world.state, i.Granted(2, position, world.now_ms))
    assert decide(world.state, i.Granted(2, 10, world.now_ms))


def test_central_noise_is_charged_with_the_closing_before_the_sum() -> None:
    world = opened()
    world.give(i.Drawn(1, bytes(32), world.now_ms))
    assert world.state.unsettled[1][1] is Payment.HELD
    assert not is_legal(world.state, f.BudgetCharged(1, world.now_ms))
    facts = world.send(1, 2, 3)
    assert [type(fact) for fact in facts[-2:]] == [f.RoundClosed, f.BudgetCharged]
    settle, aggregate = owed(world.state)
    assert settle == d.Settle(world.state.id, 1, "heart", True)
    assert isinstance(aggregate, d.Aggregate)
    assert world.give(i.AccountTold(1, world.now_ms)) == (f.BudgetSettled(1, world.now_ms),)
    assert world.give(i.AccountTold(1, world.now_ms)) == ()
    assert isinstance(world.sum()[0], f.Aggregated)


def test_a_sum_without_its_charge_is_not_legal() -> None:
    world = opened()
    world.give(i.Drawn(1, bytes(32), world.now_ms))
    facts = [*decide(world.state, i.Tick(world.now_ms))]
    assert facts == []
    for seat in (1, 2):
        world.send(seat)
    world.submit(3)
    checked = i.Checked(1, Seat(3), digest("update 3"), None, 1.0, 1.0, world.now_ms)
    state = world.state.clone()
    for fact in decide(world.state, checked):
        if not isinstance(fact, f.BudgetCharged):
            evolve(state, fact)
    assert not is_legal(state, f.Aggregated(1, 3, digest("m"), None, 0, world.now_ms))
    assert is_legal(state, f.BudgetCharged(1, world.now_ms))
    assert not is_legal(state, f.BudgetCharged(2, world.now_ms))


def test_what_sites_spend_is_charged_with_the_invitations() -> None:
    world = opened(AT_SITES)
    facts = world.give(i.Drawn(1, bytes(32), world.now_ms))
    assert [type(fact) for fact in facts[-2:]] == [f.SitesInvited, f.BudgetCharged]
    assert not is_legal(world.state, f.BudgetCharged(1, world.now_ms))  # once
    assert [type(fact) for fact in world.send(1, 2, 3)][-1] is f.RoundClosed
    unpaid = world.state.clone()
    unpaid.unsettled[1] = "heart", Payment.HELD
    assert not is_legal(unpaid, f.UpdateReceived(1, Seat(3), digest("u"), None, world.now_ms))


def test_without_a_barrier_a_site_answers_by_what_was_paid_for_before() -> None:
    terms = replace(TERMS, quorum=1, wait_for=1, target=2, max_staleness=1, buffer=1)
    world = ready(2, replace(terms, budget=AT_SITES))
    ask(world)
    world.give(i.Granted(1, 9, world.now_ms))
    world.give(i.Drawn(1, bytes(32), world.now_ms))
    world.send(1)
    for duty in owed(world.state):
        if isinstance(duty, d.Settle):
            world.give(i.AccountTold(duty.round, world.now_ms))
    world.finish_round()
    ask(world)
    world.give(i.Granted(2, 11, world.now_ms))
    assert world.state.unsettled == {2: ("heart", Payment.HELD)}
    # Round 2 has invited nobody yet; seat 2 trains by its invitation of round 1.
    assert [type(fact) for fact in world.submit(2, number=1)] == [f.UpdateReceived]


def test_a_round_that_fails_before_its_charge_gives_back() -> None:
    world = opened()
    world.give(i.Drawn(1, bytes(32), world.now_ms))
    world.give(i.CancelRound(1, world.now_ms))
    settle = owed(world.state)[0]
    assert settle == d.Settle(world.state.id, 1, "heart", False)
    world.give(i.AccountTold(1, world.now_ms))
    assert world.state.unsettled == {}
    assert not is_legal(world.state, f.BudgetSettled(1, world.now_ms))


def test_a_round_that_fails_after_its_charge_has_spent() -> None:
    world = opened(AT_SITES)
    world.give(i.Drawn(1, bytes(32), world.now_ms))
    world.give(i.CancelRound(1, world.now_ms))
    assert owed(world.state)[0] == d.Settle(world.state.id, 1, "heart", True)


def test_a_snapshot_keeps_what_is_owed_to_the_account() -> None:
    world = opened()
    world.give(i.Drawn(1, bytes(32), world.now_ms))
    world.send(1, 2, 3)
    again = load(save(world.state, b"last", b"code"), b"last", b"code")
    assert again == world.state == world.replayed()
    assert owed(again) == owed(world.state)


def test_what_nobody_asked_for_is_not_legal() -> None:
    world = paid()
    assert world.give(i.Granted(0, 9, world.now_ms)) == ()
    assert world.give(i.Denied(0, None, world.now_ms)) == ()
    for fact in (f.BudgetReserved(1, 9, 1), f.BudgetRefused(1, None, 1), f.BudgetCharged(1, 1)):
        assert not is_legal(world.state, fact)
    ask(world)
    assert not is_legal(world.state, f.BudgetAsked(1, 1))
    assert not is_legal(world.state, f.BudgetReserved(2, 9, 1))
    free = ready(terms=TERMS)
    assert not is_legal(free.state, f.BudgetAsked(1, 1))
    free.state.asked = 1
    assert not is_legal(free.state, f.BudgetReserved(1, 9, 1))
    assert decide(free.state, i.Granted(1, 9, 1)) == ()
    free.state.asked = 0
    assert not is_legal(free.state, f.BudgetCharged(1, 1))

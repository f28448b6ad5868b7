"""What must hold of paying: no round opens before an account holds its costs ready, nothing that
they pay for exists before they are spent, and the account hears what became of them.

As in `rules` and `causes`, all is worked out again from the requirements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.federation import owed
from consortium.core.state import Federation, Payment
from consortium.core.terms import Budget
from consortium.errors import RestoredBackupError
from consortium.testing.transitions import Change

_AFTER_PAYMENT: dict[Payment, tuple[Payment | None, ...]] = {
    Payment.HELD: (Payment.HELD, Payment.CHARGED, Payment.RETURNED),
    Payment.CHARGED: (Payment.CHARGED, None),
    Payment.RETURNED: (Payment.RETURNED, None),
}


def _budget(state: Federation) -> Budget | None:
    return None if state.terms is None else state.terms.budget


def _payment(state: Federation, number: int) -> Payment | None:
    found = state.unsettled.get(number)
    return None if found is None else found[1]


def _has(change: Change, kind: type[Any]) -> bool:
    return any(isinstance(fact, kind) for fact in change.facts)


# ---- states -------------------------------------------------------------------------


def only_the_open_round_is_held_ready(state: Federation) -> bool:
    """Costs are held ready for the open round alone, and only until it is charged."""
    held = [number for number, (_, payment) in state.unsettled.items() if payment is Payment.HELD]
    return held in ([], [state.round.number if state.round else 0])


def what_sites_or_sums_spend_is_charged(state: Federation) -> bool:
    """Whoever trains at the cost of the account, or is summed at it, was charged for."""
    present, budget = state.round, _budget(state)
    if present is None or budget is None:
        return True
    own = present.invited.keys() - present.kept.keys()
    is_spent = bool(own) if budget.is_spent_at_sites else bool(present.members)
    return not is_spent or _payment(state, present.number) in (None, Payment.CHARGED)


def an_account_is_asked_between_rounds(state: Federation) -> bool:
    """An account is asked for the next round alone, while none is open and more are to come."""
    if not state.asked:
        return True
    is_idle = state.round is None and state.finished is None and _budget(state) is not None
    return is_idle and state.asked == state.named == max(state.last_number, state.voided) + 1


def every_account_is_told(state: Federation) -> bool:
    """What became of costs is owed to the account until it knows, and says which of the two."""
    told = {(x.round, x.account, x.is_charged) for x in owed(state) if isinstance(x, d.Settle)}
    return told == {
        (number, account, payment is Payment.CHARGED)
        for number, (account, payment) in state.unsettled.items()
        if payment is not Payment.HELD
    }


def who_is_asked_is_asked(state: Federation) -> bool:
    """While an account is to be asked and nothing is in the way, that is owed, at the plan's
    price."""
    asked = [duty for duty in owed(state) if isinstance(duty, d.Reserve)]
    terms = state.terms
    if not state.asked or state.is_held or terms is None or len(state.roster) < terms.wait_for:
        return not asked
    if terms.budget is None:
        return not asked
    after = state.newest_paid.get(terms.budget.account, 0)
    return asked == [d.Reserve(state.id, state.asked, terms.budget, after)]


# ---- facts --------------------------------------------------------------------------


def a_round_opens_when_it_is_paid(change: Change, fact: f.RoundOpened) -> bool:
    """A round that costs something opens with the very answer that its costs are held ready."""
    held = [one.round for one in change.facts if isinstance(one, f.BudgetReserved)]
    return held == ([] if change.terms.budget is None else [fact.round])


def an_account_is_asked_once(change: Change, fact: f.BudgetAsked) -> bool:
    """The account is asked when a round is due, and not again while it is asked."""
    before = change.before
    is_due = isinstance(change.item, i.OpenRound) or change.item.now_ms >= before.next_due_ms
    is_free = not before.asked and before.round is None and before.finished is None
    is_early = change.item.now_ms < before.frees_ms
    return is_due and is_free and not before.is_held and not is_early


def costs_are_held_as_was_asked(change: Change, fact: f.BudgetReserved) -> bool:
    """Costs are held by the account that was asked, for the round that it was asked for, and that
    account knows at least what it knew the last time."""
    item, before, budget = change.item, change.before, change.terms.budget
    if not isinstance(item, i.Granted) or budget is None:
        return False
    is_asked = before.asked == item.round == fact.round > 0
    is_longer = fact.position == item.position > before.positions.get(budget.account, 0)
    return is_asked and is_longer and _has(change, f.RoundOpened)


def a_refusal_pauses_or_finishes(change: Change, fact: f.BudgetRefused) -> bool:
    """Who cannot be paid waits until it is said, at least a while; who never can is finished."""
    item, before = change.item, change.before
    if not isinstance(item, i.Denied) or before.asked != item.round or item.round < 1:
        return False
    if item.frees_ms is None:
        return fact.frees_ms is None and change.after.finished is f.Finish.BUDGET_SPENT
    least_ms = max(item.frees_ms, item.now_ms + change.terms.retry_ms)
    return fact.frees_ms == change.after.frees_ms == least_ms and change.after.asked == 0


def a_charge_comes_with_what_it_pays_for(change: Change, fact: f.BudgetCharged) -> bool:
    """What sites spend is charged with their invitation, what a sum spends with the closing."""
    budget = change.terms.budget
    if budget is None or _payment(change.before, fact.round) is not Payment.HELD:
        return False
    paid_for = f.SitesInvited if budget.is_spent_at_sites else f.RoundClosed
    return _has(change, paid_for) and fact.round == change.was.number


def what_is_paid_for_is_charged(change: Change, fact: f.SitesInvited | f.RoundClosed) -> bool:
    """Invitations to spend, and closings before a sum that spends, are charged in their commit."""
    budget = change.terms.budget
    is_due = budget is not None and budget.is_spent_at_sites is isinstance(fact, f.SitesInvited)
    return not is_due or sum(isinstance(one, f.BudgetCharged) for one in change.facts) == 1


def an_account_is_told_once(change: Change, fact: f.BudgetSettled) -> bool:
    """That an account knows is written when it was told, and it was owed to it."""
    is_told = isinstance(change.item, i.AccountTold) and change.item.round == fact.round
    payment = _payment(change.before, fact.round)
    return is_told and payment in (Payment.CHARGED, Payment.RETURNED)


PAYING_FACT_RULES: dict[type[Any], tuple[Callable[[Change, Any], bool], ...]] = {
    f.RoundOpened: (a_round_opens_when_it_is_paid,),
    f.BudgetAsked: (an_account_is_asked_once,),
    f.BudgetReserved: (costs_are_held_as_was_asked,),
    f.BudgetRefused: (a_refusal_pauses_or_finishes,),
    f.BudgetCharged: (a_charge_comes_with_what_it_pays_for,),
    f.SitesInvited: (what_is_paid_for_is_charged,),
    f.RoundClosed: (what_is_paid_for_is_charged,),
    f.BudgetSettled: (an_account_is_told_once,),
}


# ---- changes ------------------------------------------------------------------------


def payments_go_forwards(change: Change) -> bool:
    """Costs that are held are charged or returned, and stay so until the account knows: what was
    charged is never returned."""
    settled = {fact.round for fact in change.facts if isinstance(fact, f.BudgetSettled)}
    charged = {fact.round for fact in change.facts if isinstance(fact, f.BudgetCharged)}
    for number, (account, payment) in change.before.unsettled.items():
        now = change.after.unsettled.get(number)
        if (now is None) is not (number in settled):
            return False
        if now is not None and now[0] != account:
            return False
        after = None if now is None else now[1]
        is_charged = after is Payment.CHARGED and payment is Payment.HELD
        if after not in _AFTER_PAYMENT[payment] or is_charged is not (number in charged):
            return False
    return True


def what_is_held_goes_back_with_a_failure(change: Change) -> bool:
    """A round that fails before it was charged returns its costs; one that completes was
    charged, if it cost anything."""
    if change.before.round is None or change.after.round is not None:
        return True
    number = change.was.number
    was_held = _payment(change.before, number) is Payment.HELD
    payment = _payment(change.after, number)
    if _has(change, f.RoundFailed) and was_held and not _has(change, f.BudgetCharged):
        return payment is Payment.RETURNED
    return payment in (None, Payment.CHARGED)


def what_will_not_open_goes_back(change: Change) -> bool:
    """With another plan, or at the end, the costs of a round that an account was asked for and
    that did not open go back, and no round has its number."""
    before, after = change.before, change.after
    is_over = _has(change, f.PlanAdopted) or _has(change, f.FederationFinished)
    if not is_over or before.named <= max(after.last_number, before.voided):
        return True
    is_back = _payment(after, before.named) is Payment.RETURNED
    return is_back and after.voided == before.named and not after.asked


def numbers_are_used_once(change: Change) -> bool:
    """A round has a number that no account was asked about under another plan."""
    opened = [fact.round for fact in change.facts if isinstance(fact, f.RoundOpened)]
    used = max(change.before.last_number, change.before.voided)
    return all(number == used + 1 for number in opened)


PAYING_CHANGE_RULES = (
    payments_go_forwards,
    what_is_held_goes_back_with_a_failure,
    what_will_not_open_goes_back,
    numbers_are_used_once,
)
PAYING_STATE_RULES = (
    only_the_open_round_is_held_ready,
    what_sites_or_sums_spend_is_charged,
    an_account_is_asked_between_rounds,
    every_account_is_told,
    who_is_asked_is_asked,
)


# ---- replies ------------------------------------------------------------------------


def grants_are_heard(state: Federation, item: i.Granted, reply: Exception | None) -> bool:
    """The answer that a round waits for opens it; an account that has forgotten is refused, and
    any other answer is old news."""
    terms, budget = state.terms, _budget(state)
    is_asked = 0 < item.round == state.asked and budget is not None and terms is not None
    if not is_asked or state.is_held or (terms and len(state.roster) < terms.wait_for):
        return reply is None
    assert budget is not None
    is_short = item.position <= state.positions.get(budget.account, 0)
    return is_short and isinstance(reply, RestoredBackupError)


def denials_are_heard(state: Federation, item: i.Denied, reply: Exception | None) -> bool:
    """The answer that a round waits for is never ignored, and no other is taken."""
    return reply is None and not 0 < item.round == state.asked


def accounts_are_heard(state: Federation, item: i.AccountTold, reply: Exception | None) -> bool:
    """That an account knows is never ignored while it is owed."""
    return reply is None and _payment(state, item.round) in (None, Payment.HELD)


PAYING_REPLY_RULES: dict[type[Any], tuple[Callable[[Federation, Any, Any], bool], ...]] = {
    i.Granted: (grants_are_heard,),
    i.Denied: (denials_are_heard,),
    i.AccountTold: (accounts_are_heard,),
}

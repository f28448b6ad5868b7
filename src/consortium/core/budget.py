"""Paying for rounds: no round opens before an account holds its costs ready, and they are spent
before anything that they pay for exists.

The account has a log of its own, because others spend from it too. So it is told in two steps,
each of which may be done twice: costs are reserved there before the round opens here, and once
it is known here what became of them, the account is told. A crash between the two leaves too
much spent, never too little.
"""

from __future__ import annotations

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.ending import Facts
from consortium.core.state import Federation, Payment, Round
from consortium.core.terms import Budget, Terms
from consortium.errors import PrivacyBudgetExceededError, RestoredBackupError


def ask(state: Federation, now_ms: int) -> Facts:
    """A round is due. Old news when the account is being asked already."""
    return () if state.asked else (f.BudgetAsked(state.next_number, now_ms),)


def refuse_early(state: Federation, now_ms: int) -> None:
    """Say at once what was heard already: that no round can be paid for yet."""
    if now_ms < state.frees_ms:
        raise PrivacyBudgetExceededError(
            "the privacy budget does not pay for another round yet", frees_ms=state.frees_ms
        )


def granted(state: Federation, item: i.Granted) -> Facts:
    """The costs are held ready; what opens the round comes after. Refuses an account that has
    forgotten what it held ready before: then nobody knows what is spent."""
    budget = _asked_for(state, item.round)
    if budget is None:
        return ()
    account = budget.account
    least = state.positions.get(account, 0) + 1
    if item.position < least:
        raise RestoredBackupError(
            f"account {account} has {item.position} facts, and this log tells of {least} or more",
            hint="put the newest copy of the coordinator's log back",
        )
    return (f.BudgetReserved(item.round, item.position, item.now_ms),)


def _asked_for(state: Federation, number: int) -> Budget | None:
    """What an account is asked for by this number, if it is."""
    is_asked = 0 < number == state.asked
    return state.terms.budget if is_asked and state.terms is not None else None


def denied(state: Federation, item: i.Denied) -> Facts:
    """Wait until the account can pay; a budget that will never pay again ends the federation."""
    if state.terms is None or _asked_for(state, item.round) is None:
        return ()
    if item.frees_ms is None:
        refused = f.BudgetRefused(item.round, None, item.now_ms)
        return (refused, f.FederationFinished(f.Finish.BUDGET_SPENT, item.now_ms))
    # Not at once, whatever was said: asking again and again would fill the log.
    frees_ms = max(item.frees_ms, item.now_ms + state.terms.retry_ms)
    return (f.BudgetRefused(item.round, frees_ms, item.now_ms),)


def told(state: Federation, item: i.AccountTold) -> Facts:
    """The account knows."""
    _, payment = state.unsettled.get(item.round, ("", Payment.HELD))
    return () if payment is Payment.HELD else (f.BudgetSettled(item.round, item.now_ms),)


def charge(terms: Terms, open_round: Round, now_ms: int, *, at_sites: bool) -> Facts:
    """What invitations, or a closing, must have in the same commit."""
    budget = terms.budget
    if budget is None or budget.is_spent_at_sites is not at_sites:
        return ()
    return (f.BudgetCharged(open_round.number, now_ms),)

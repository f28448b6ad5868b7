"""Planted bugs of federations whose rounds cost something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consortium.core import budget as paying
from consortium.core import duties as d
from consortium.core import evolve as records
from consortium.core import facts as f
from consortium.core import federation, legal, owing
from consortium.core import inputs as i
from consortium.core.state import Federation, Payment, Round
from consortium.core.terms import Terms
from consortium.errors import RestoredBackupError
from consortium.testing.federations import PAID, PAID_AT_SITES, PAID_BUFFERED
from consortium.testing.patches import Bug, Facts, Patches, Wrapper, nothing

# ---- before the round ---------------------------------------------------------------


def _open_unpaid(patches: Patches) -> None:
    def open_or_ask(real: Wrapper, state: Federation, now_ms: int) -> Any:
        return federation._opening(state, now_ms)

    patches.attribute(federation, "_open_or_ask", open_or_ask)


def _ask_again(patches: Patches) -> None:
    def ask(real: Wrapper, state: Federation, now_ms: int) -> Facts:
        return (f.BudgetAsked(state.next_number, now_ms),)

    patches.attribute(paying, "ask", ask)


def _take_any_grant(patches: Patches) -> None:
    def granted(real: Wrapper, state: Federation, item: i.Granted) -> Any:
        return real(state, replace(item, round=state.asked) if state.asked else item)

    patches.attribute(paying, "granted", granted)


def _believe_the_forgetful(patches: Patches) -> None:
    def granted(real: Wrapper, state: Federation, item: i.Granted) -> Any:
        try:
            return real(state, item)
        except RestoredBackupError:
            return (f.BudgetReserved(item.round, item.position, item.now_ms),)

    patches.attribute(paying, "granted", granted)


def _ask_at_once(patches: Patches) -> None:
    def refused(real: Wrapper, state: Federation, fact: f.BudgetRefused) -> None:
        real(state, fact)
        state.frees_ms = 0

    patches.record(f.BudgetRefused, refused)


def _never_finish_unpaid(patches: Patches) -> None:
    def denied(real: Wrapper, state: Federation, item: i.Denied) -> Any:
        return real(state, replace(item, frees_ms=item.frees_ms or item.now_ms))

    patches.rule(i.Denied, denied)


def _use_a_number_twice(patches: Patches) -> None:
    def ask_no_more(real: Wrapper, state: Federation) -> None:
        state.asked, state.frees_ms = 0, 0

    patches.attribute(records, "_ask_no_more", ask_no_more)


def _keep_what_was_asked_for(patches: Patches) -> None:
    def finished(real: Wrapper, state: Federation, fact: f.FederationFinished) -> None:
        state.finished = fact.reason

    patches.record(f.FederationFinished, finished)


# ---- charging -----------------------------------------------------------------------


def _forget_to_charge(patches: Patches) -> None:
    patches.attribute(paying, "charge", nothing)


def _charge_at_the_other_end(patches: Patches) -> None:
    """Sites are charged at the closing, and sums with the invitations."""

    def charge(real: Wrapper, terms: Terms, one: Round, now_ms: int, *, at_sites: bool) -> Any:
        return real(terms, one, now_ms, at_sites=not at_sites)

    patches.attribute(paying, "charge", charge)


def _return_what_was_charged(patches: Patches) -> None:
    def failed(real: Wrapper, state: Federation, fact: f.RoundFailed) -> None:
        real(state, fact)
        if fact.round in state.unsettled:
            account, _ = state.unsettled[fact.round]
            state.unsettled[fact.round] = account, Payment.RETURNED

    patches.record(f.RoundFailed, failed)


def _keep_what_was_not_needed(patches: Patches) -> None:
    def failed(real: Wrapper, state: Federation, fact: f.RoundFailed) -> None:
        before = state.unsettled.copy()
        real(state, fact)
        state.unsettled = before

    patches.record(f.RoundFailed, failed)


# ---- the account is told ------------------------------------------------------------


def _never_tell(patches: Patches) -> None:
    patches.attribute(owing, "_owe_settling", nothing)


def _tell_the_opposite(patches: Patches) -> None:
    def settling(real: Wrapper, state: Federation) -> tuple[d.Settle, ...]:
        return tuple(replace(duty, is_charged=not duty.is_charged) for duty in real(state))

    patches.attribute(owing, "_owe_settling", settling)


def _told_before_it_was_owed(patches: Patches) -> None:
    def told(real: Wrapper, state: Federation, item: i.AccountTold) -> Facts:
        is_there = item.round in state.unsettled
        return (f.BudgetSettled(item.round, item.now_ms),) if is_there else ()

    patches.rule(i.AccountTold, told)


def _doubt_what_was_paid_before(patches: Patches) -> None:
    """A verifier looks at the open round, which may not be the one that invited the site."""

    def is_unpaid(real: Wrapper, state: Federation, number: int) -> Any:
        return real(state, state.round.number if state.round else number)

    patches.attribute(legal, "_is_unpaid_at_sites", is_unpaid)


BUGS = (
    Bug("a round opens before it is paid for", PAID, _open_unpaid),
    Bug("an account is asked while it is asked", PAID, _ask_again),
    Bug("an answer about another round opens this one", PAID, _take_any_grant),
    Bug("an account that has forgotten is believed", PAID, _believe_the_forgetful),
    Bug("a refusal is not waited for", PAID, _ask_at_once),
    Bug("a budget that is spent finishes nothing", PAID, _never_finish_unpaid),
    Bug("two plans ask by the same number", PAID, _use_a_number_twice),
    Bug("what was asked for does not go back at the end", PAID, _keep_what_was_asked_for),
    Bug("a sum is not charged", PAID, _forget_to_charge),
    Bug("invitations are not charged", PAID_AT_SITES, _forget_to_charge),
    Bug("what sites spend is charged at the closing", PAID_AT_SITES, _charge_at_the_other_end),
    Bug("what was charged is returned", PAID, _return_what_was_charged),
    Bug("what was not needed is not returned", PAID, _keep_what_was_not_needed),
    Bug("the account is never told", PAID, _never_tell),
    Bug("the account is told the opposite", PAID, _tell_the_opposite),
    Bug("the account is said to know what is not decided", PAID, _told_before_it_was_owed),
    Bug("what was paid before is doubted", PAID_BUFFERED, _doubt_what_was_paid_before),
)

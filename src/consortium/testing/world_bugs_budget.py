"""Planted bugs about budgets: what is held ready, charged and told when, by whom, and how often
noise is drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consortium.core import account as acc
from consortium.core import budget as paying
from consortium.core import duties as d
from consortium.core import evolve as records
from consortium.core import facts as f
from consortium.core import federation, verdict
from consortium.core import inputs as i
from consortium.core import participant as p
from consortium.core.account import Account, Spending, Standing
from consortium.core.account_facts import Cost, Costs
from consortium.core.state import Federation, Payment
from consortium.core.tables import Step
from consortium.core.terms import Terms
from consortium.drive.accounts import Ledger
from consortium.drive.hands import CoordinatorHands
from consortium.errors import RestoredBackupError
from consortium.privacy import budget as windows
from consortium.privacy.budget import MONTH_MS, Quote, Window
from consortium.testing import world_paying, world_site_account
from consortium.testing.patches import Facts, Patches, Plant, nothing
from consortium.testing.world_coordinator import STREAM
from consortium.testing.world_site import SitePlayer
from consortium.testing.world_site_account import SiteAccount

# Planted functions take the original first and then whatever the original takes.
Original = Any


# ---- the order of things ------------------------------------------------------------


def _charged_with_the_release(patches: Patches) -> None:
    def release(original: Original, state: Federation, terms: Terms, item: i.Released) -> Facts:
        facts: Facts = original(state, terms, item)
        if not facts or terms.budget is None:
            return facts
        return (*facts[:1], f.BudgetCharged(item.round, item.now_ms), *facts[1:])

    patches.attribute(paying, "charge", nothing)
    patches.rule(i.Released, release)


def _opened_without_asking(patches: Patches) -> None:
    def open_or_ask(original: Original, state: Federation, now_ms: int) -> Facts:
        return federation._opening(state, now_ms)

    patches.attribute(federation, "_open_or_ask", open_or_ask)


def _reserved_in_memory(patches: Patches) -> None:
    """That an account can pay is taken for having reserved."""

    def decided(original: Original, ledger: Ledger, item: acc.AccountInput) -> bool:
        if not isinstance(item, acc.Reserve) or item.federation != STREAM:
            return original(ledger, item)  # type: ignore[no-any-return]
        return bool(acc.decide(ledger.state, item))

    patches.attribute(Ledger, "_decided", decided)


def _returned_though_charged(patches: Patches) -> None:
    def failed(original: Original, state: Federation, fact: f.RoundFailed) -> None:
        original(state, fact)
        if fact.round in state.unsettled:
            account, _ = state.unsettled[fact.round]
            state.unsettled[fact.round] = account, Payment.RETURNED

    patches.record(f.RoundFailed, failed)


def _settle_is_lost(patches: Patches) -> None:
    def perform(original: Original, hands: CoordinatorHands, duty: d.Duty) -> i.Input:
        if isinstance(duty, d.Settle):
            return i.AccountTold(duty.round, hands.clock.now_ms())
        return original(hands, duty)  # type: ignore[no-any-return]

    patches.attribute(CoordinatorHands, "perform", perform)


def _held_for_nobody(patches: Patches) -> None:
    """Who stops, or changes plans, forgets what an account was asked for."""

    def ask_no_more(original: Original, state: Federation) -> None:
        state.asked, state.frees_ms = 0, 0

    patches.attribute(records, "_ask_no_more", ask_no_more)


def _returned_is_taken_again(patches: Patches) -> None:
    patches.attribute(Spending, "is_over_for", lambda original, one, costs: False)


# ---- the price ----------------------------------------------------------------------


def _old_quote(patches: Patches) -> None:
    """Whoever was slower takes the price that was made before."""

    def reserve(original: Original, ledger: Ledger, who: str, number: int, costs: Costs) -> int:
        ledger.catch_up()
        offer: Quote = windows.quote(ledger.state, costs, ledger._clock.now_ms(), ledger._price)

        def again(now_ms: int) -> acc.Reserve:
            moved = replace(offer, position=ledger.state.position)
            return moved.reserving(who, number, costs, now_ms)

        ledger._feed(again)
        return ledger.state.position

    patches.attribute(Ledger, "reserve", reserve)


def _tumbling(patches: Patches) -> None:
    """A week begins on its first day, whatever was spent on the day before."""

    def costs(original: Original, account: Account, window: Window, now_ms: int) -> list[Cost]:
        length_ms = window.length_ms
        if length_ms is None:
            return original(account, window, now_ms)  # type: ignore[no-any-return]
        return windows._after(account, now_ms - now_ms % length_ms, now_ms)

    patches.attribute(windows, "_costs", costs)


def _lifetime_resets(patches: Patches) -> None:
    def costs(original: Original, account: Account, window: Window, now_ms: int) -> list[Cost]:
        short = replace(window, length_ms=window.length_ms or MONTH_MS)
        return original(account, short, now_ms)  # type: ignore[no-any-return]

    patches.attribute(windows, "_costs", costs)


def _reserved_is_free(patches: Patches) -> None:
    def counting(original: Original, account: Account) -> list[Spending]:
        return [one for one in original(account) if one.standing is Standing.CHARGED]

    patches.attribute(Account, "counting", counting)


def _clock_goes_back(patches: Patches) -> None:
    def decide(original: Original, account: Account, item: acc.AccountInput) -> acc.Facts:
        ahead = replace(account, last_ms=0)
        return original(ahead, item)  # type: ignore[no-any-return]

    patches.attribute(acc, "decide", decide)


def _never_denied(patches: Patches) -> None:
    """An account that says no is taken for one that does not answer."""

    def reserve(original: Original, hands: CoordinatorHands, duty: d.Reserve) -> i.Input:
        answer = original(hands, duty)
        if isinstance(answer, i.Denied):
            position = hands._ledger(duty.budget.account).state.position
            return i.Granted(duty.round, position + 1, answer.now_ms)
        return answer  # type: ignore[no-any-return]

    patches.attribute(CoordinatorHands, "_reserve", reserve)


# ---- noise --------------------------------------------------------------------------


def _summed_again(patches: Patches) -> None:
    """What is published is summed once more, with other noise."""
    sums: dict[int, d.Aggregate] = {}

    def perform(original: Original, hands: CoordinatorHands, duty: d.Duty) -> i.Input:
        if isinstance(duty, d.Aggregate):
            sums[id(hands)] = duty
        done = original(hands, duty)
        summed = sums.get(id(hands))
        if not isinstance(duty, d.Release) or summed is None or summed.round != duty.round:
            return done  # type: ignore[no-any-return]
        other = original(hands, summed)
        return replace(done, model=other.model)  # type: ignore[no-any-return]

    def release(original: Original, state: Federation, terms: Terms, item: i.Released) -> Facts:
        present = verdict.at_step(state, item.round, Step.RELEASING)
        if present is None or present.model is None:
            return ()
        facts: Facts = original(state, terms, replace(item, model=present.model))
        published = [x for x in facts if isinstance(x, f.ModelPublished)]
        rest = [x for x in facts if not isinstance(x, f.ModelPublished)]
        return (*(replace(x, model=item.model) for x in published), *rest)

    patches.attribute(CoordinatorHands, "perform", perform)
    patches.rule(i.Released, release)


def _without_noise(patches: Patches) -> None:
    def hands(original: Original, *arguments: Any) -> CoordinatorHands:
        made: CoordinatorHands = original(*arguments)
        return replace(made, release=lambda number: None)

    patches.attribute(world_paying, "CoordinatorHands", hands)


# ---- old backups --------------------------------------------------------------------


def _forgetful_account(patches: Patches) -> None:
    def granted(original: Original, state: Federation, item: i.Granted) -> Facts:
        try:
            return original(state, item)  # type: ignore[no-any-return]
        except RestoredBackupError:
            return (f.BudgetReserved(item.round, item.position, item.now_ms),)

    def knows(original: Original, *_: Any) -> bool:
        return True

    patches.attribute(paying, "granted", granted)
    patches.attribute(Ledger, "knows", knows)


def _forgetful_site_account(patches: Patches) -> None:
    patches.attribute(SiteAccount, "check", nothing)


# ---- sites --------------------------------------------------------------------------


def _site_pays_later(patches: Patches) -> None:
    def spool_paid(original: Original, site: SitePlayer, item: p.Trained) -> None:
        site.feed(item)
        if site.account is not None:
            site.account.pay(item.round)

    patches.attribute(SitePlayer, "spool_paid", spool_paid)


def _site_never_pays(patches: Patches) -> None:
    patches.attribute(SiteAccount, "pay", nothing)


def _site_trains_again(patches: Patches) -> None:
    """A round that has been paid for is trained once more, for nothing."""

    def hold(original: Original, account: SiteAccount, number: int) -> bool:
        held = account._ledger.state.spent.get((STREAM, number))
        if held is not None and held.standing is Standing.CHARGED:
            return True
        return original(account, number)  # type: ignore[no-any-return]

    patches.attribute(SiteAccount, "hold", hold)


def _site_ignores_its_limits(patches: Patches) -> None:
    patches.attribute(world_site_account, "price", lambda original, costs, delta: 0.0)


PLANTS: tuple[tuple[str, Plant], ...] = (
    ("a round is charged when it is published", _charged_with_the_release),
    ("a round opens before it is paid for", _opened_without_asking),
    ("a reservation is in memory only", _reserved_in_memory),
    ("a round that fails returns what was charged", _returned_though_charged),
    ("the account is not told, and said to know", _settle_is_lost),
    ("what was asked for is held for nobody", _held_for_nobody),
    ("what was returned is reserved by whoever is behind", _returned_is_taken_again),
    ("a price is not bound to its position", _old_quote),
    ("windows tumble", _tumbling),
    ("the lifetime total resets", _lifetime_resets),
    ("what is held ready costs nothing", _reserved_is_free),
    ("a clock that goes back gives back", _clock_goes_back),
    ("a refusal of the account is not heard", _never_denied),
    ("noise is drawn again for what is published", _summed_again),
    ("a sum is told without noise", _without_noise),
    ("an account that has forgotten is believed", _forgetful_account),
    ("a site believes an old account", _forgetful_site_account),
    ("a site pays after its update may leave", _site_pays_later),
    ("a site never pays", _site_never_pays),
    ("a site trains again what it has paid for", _site_trains_again),
    ("a site ignores its own limits", _site_ignores_its_limits),
)

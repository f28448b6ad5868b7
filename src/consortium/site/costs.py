"""What a plan costs a site in privacy, in words: for the review, the status, and whoever is told
that there is nothing left."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from consortium.core.account import Account
from consortium.core.account_facts import Costs
from consortium.errors import PrivacyBudgetExceededError
from consortium.plan.noise import total_costs
from consortium.plan.values import Plan
from consortium.privacy.budget import Gauge, Price, Quote, gauges, quote

_WINDOWS = {"weekly": "in 7 days", "monthly": "in 30 days", "lifetime": "ever"}


def not_paid(offer: Quote, now_ms: int) -> PrivacyBudgetExceededError:
    """Why a round is not paid for, and from when on it would be."""
    over = [
        f"epsilon {one.epsilon:.3g} of at most {one.window.limit:g} {_WINDOWS[one.window.name]}"
        for one in offer.after
        if not one.epsilon <= one.window.limit
    ]
    told = [f"with it {', '.join(over)}"] if over else []  # others may have given back since
    told.append(frees_in_words(offer.frees_ms, now_ms))
    return PrivacyBudgetExceededError(
        f"this site's privacy budget does not pay for another round: {'; '.join(told)}",
        hint="consortium site policy    # shows this site's own limits",
        frees_ms=offer.frees_ms,
    )


def frees_in_words(frees_ms: int | None, now_ms: int) -> str:
    """When a budget pays again."""
    if frees_ms is None:
        return "it never frees"
    if frees_ms <= now_ms:
        return "it frees if what another round holds ready is given back"
    return f"it frees at {in_utc(frees_ms)}"


def in_utc(at_ms: int) -> str:
    """A time that is the same for everybody, to the next full minute.

    >>> in_utc(1_795_000_000_000)
    '2026-11-18 11:07 UTC'
    """
    at_s = -(-at_ms // 60_000) * 60  # upwards: a minute earlier it would not have freed yet
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True, slots=True)
class Purse:
    """A site's own account as it is now, with the policy's limits, and what prices it."""

    name: str
    account: Account
    now_ms: int
    price: Price

    @property
    def delta(self) -> float:
        assert self.account.limits is not None
        return self.account.limits.delta

    def gauges(self, costs: Costs) -> tuple[Gauge, ...]:
        return gauges(self.account, costs, self.now_ms, self.price)

    def frees(self, costs: Costs) -> str:
        """When these can be paid for, in words; empty: now."""
        offer = quote(self.account, costs, self.now_ms, self.price)
        return "" if offer.is_affordable else frees_in_words(offer.frees_ms, self.now_ms)

    def in_words(self) -> str:
        """What was spent, in one line."""
        told = "; ".join(f"{_window(one)} ({_limit(one)})" for one in self.gauges(()))
        return f"{self.name}, epsilon at delta {self.delta:g}: {told}"


def costs_in_words(plan: Plan, price: Price) -> str:
    """What one round and all rounds of a private plan cost, at its own delta."""
    rounds, delta = plan.federation.rounds, plan.privacy.delta
    one, many = (price(total_costs(plan, count), delta) for count in (1, rounds))
    return f"epsilon {one:.4g} at delta {delta:g} for one round, {many:.4g} for all {rounds} rounds"


def account_lines(plan: Plan, purse: Purse) -> list[str]:
    """What this site's own account has spent, and what the plan would make of that."""
    one, many = (total_costs(plan, count) for count in (1, plan.federation.rounds))
    pairs = zip(purse.gauges(one), purse.gauges(many), strict=True)
    lines = [f"this site's own account {purse.name} counts at delta {purse.delta:g}"]
    lines += [
        f"{_window(next_)}, {next_.after_next:.4g} with one round, {all_.after_next:.4g} with all; "
        f"{_limit(next_)}"
        for next_, all_ in pairs
    ]
    frees = purse.frees(one)
    return [*lines, f"it does not pay for a round now: {frees}"] if frees else lines


def _window(found: Gauge) -> str:
    return f"{_WINDOWS[found.window]}: {found.spent:.4g} spent"


def _limit(found: Gauge) -> str:
    return "no limit" if found.limit is None else f"at most {found.limit:g}"

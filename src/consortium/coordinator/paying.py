"""What an operator is told of a federation's privacy budget, and whether the next round is paid."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from consortium.coordinator.desk import Desk
from consortium.core.account import Standing
from consortium.core.terms import Budget
from consortium.drive.accounts import Ledger
from consortium.errors import PrivacyBudgetExceededError
from consortium.privacy.accountant import name_for
from consortium.privacy.budget import Gauge

View = dict[str, Any]
_NOTHING_HIDDEN = 1e9


def budget_view(desk: Desk) -> View:
    """The account of a federation: limits, what each window holds, what another round would make
    of it, and every round of this federation that was paid from it."""
    budget = _budget(desk)
    if budget is None:
        return {"federation": desk.name, "account": None}
    ledger, privacy = desk.accounts.of(budget.account), desk.study_of_plan().plan.privacy
    after = ledger.quote(budget.costs)
    limits = ledger.state.limits
    return {
        "federation": desk.name,
        "account": budget.account,
        "unit": budget.unit,
        "delta": None if limits is None else limits.delta,
        "accountant": name_for(budget.costs),
        "noise_multiplier": privacy.noise_multiplier,
        "windows": [_told(gauge) for gauge in ledger.gauges(budget.costs)],
        "is_affordable": after.is_affordable,
        "frees_ms": after.frees_ms,
        "rounds": _spent(ledger, desk.id),
        "spendings": [
            {"at_ms": one.since_ms, "costs": [asdict(cost) for cost in one.costs]}
            for one in ledger.state.counting()
        ],
    }


def refuse_unpaid(desk: Desk) -> None:
    """Say at once what the account would say: that it cannot pay for another round."""
    budget = _budget(desk)
    if budget is None:
        return
    quote = desk.accounts.of(budget.account).quote(budget.costs)
    with desk.lock:
        is_asked = bool(desk.state.asked)  # what is being paid for may be held already
    if not quote.is_affordable and not is_asked:
        raise PrivacyBudgetExceededError(
            "the privacy budget does not pay for another round", frees_ms=quote.frees_ms
        )


def _budget(desk: Desk) -> Budget | None:
    with desk.lock:
        return None if desk.state.terms is None else desk.state.terms.budget


def _told(gauge: Gauge) -> View:
    """JSON has no infinity; what is beyond this says as little."""
    spent, after_next = (min(one, _NOTHING_HIDDEN) for one in (gauge.spent, gauge.after_next))
    return asdict(replace(gauge, spent=spent, after_next=after_next))


def _spent(ledger: Ledger, federation: str) -> list[View]:
    return [
        {"round": number, "standing": one.standing.value, "at_ms": one.since_ms}
        for (owner, number), one in sorted(ledger.state.spent.items())
        if owner == federation and one.standing is not Standing.RETURNED
    ]

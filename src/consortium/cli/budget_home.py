"""`consortium budget show --home DIR`: a site's own ledger, which counts what left this site
whatever a coordinator says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from consortium.cli.budget import with_meaning
from consortium.cli.gauges import budget_sheet
from consortium.cli.report import data, envelope, say
from consortium.cli.sheet import show
from consortium.cli.told import Budget
from consortium.errors import UsageError

if TYPE_CHECKING:
    from consortium.core.terms import Budget as RoundBudget
    from consortium.site.costs import Purse
    from consortium.site.home import SiteHome


def show_home(folder: Path, plot: Path | None) -> None:
    """Every account of the site's records that something was spent from, or would be."""
    from consortium.cli.site_review import site_of

    with site_of(folder) as (home, machine):
        found = _accounts(home)
        for one in found:
            if one is not found[0]:
                data("")
            show(budget_sheet(one, machine.clock.now_ms(), "this site's own account"))
        if not found:
            say("nothing was spent here, and the study that this site knows costs nothing")
    if plot is not None:
        _draw(found, plot)
    left_out = {"federation", "rounds", "noise_multiplier"}
    raw = [{"site": one.federation, **one.model_dump(exclude=left_out)} for one in found]
    envelope("budget show", {"budgets": [with_meaning(one) for one in raw]})


def _accounts(home: SiteHome) -> list[Budget]:
    from consortium.privacy.accountant import epsilon
    from consortium.site.account import UNITS, purse_of
    from consortium.site.studies import held_study

    study = held_study(home)
    budget = None if study is None else study.plan.budget
    found = []
    for unit in UNITS:
        purse = purse_of(home, unit, epsilon)
        mine = budget if budget is not None and budget.unit == unit else None
        if mine is not None or purse.account.spent:
            found.append(_told(home.enrolment.name, unit, purse, mine))
    return found


def _told(site: str, unit: str, purse: Purse, budget: RoundBudget | None) -> Budget:
    """The account in the form in which a coordinator tells of one."""
    from dataclasses import asdict

    from consortium.privacy.accountant import name_for
    from consortium.privacy.budget import quote

    counting = purse.account.counting()
    costs = () if budget is None else budget.costs
    offer = quote(purse.account, costs, purse.now_ms, purse.price)
    paid = [cost for one in counting for cost in one.costs]
    return Budget.model_validate(
        {
            "federation": site,
            "account": purse.name,
            "unit": unit,
            "delta": purse.delta,
            "accountant": name_for([*paid, *costs]),
            "windows": [asdict(one) for one in purse.gauges(costs)],
            "is_affordable": offer.is_affordable,
            "frees_ms": offer.frees_ms,
            "spendings": [
                {"at_ms": one.since_ms, "costs": [asdict(cost) for cost in one.costs]}
                for one in counting
            ],
        }
    )


def _draw(found: list[Budget], plot: Path) -> None:
    from consortium.cli.spending import draw_spending, spendings_of

    spent = [one for one in found if one.spendings]
    if len(spent) != 1:
        raise UsageError(f"a plot is of one account, and {len(spent)} have spent something")
    draw_spending(spendings_of(spent[0]), plot)
    say(f"drawn: {plot}")

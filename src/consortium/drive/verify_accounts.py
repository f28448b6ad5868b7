"""Auditing privacy accounts: was every spending within the limits of its time, and did every round
that a federation's log says was paid for get paid?

An account's log has no signatures of its own. What a federation charged is in the federation's
log, which has: an account that tells less than that is found out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from consortium.core import account as acc
from consortium.core import account_facts as a
from consortium.core import facts as f
from consortium.core.codec import account_kinds, decode, encode
from consortium.core.state import Federation
from consortium.drive.accounts import STREAMS
from consortium.errors import ConsortiumError
from consortium.privacy.accountant import epsilon
from consortium.privacy.budget import quote
from consortium.store.ports import Log

_OTHERWISE = "the rules of an account lead to something else"


@dataclass(frozen=True, slots=True)
class Booked:
    """One account: its facts, and what they fold into."""

    facts: tuple[a.AccountFact, ...]
    state: acc.Account

    def has_reserved(self, federation: str, number: int, costs: a.Costs, position: int) -> bool:
        """Whether a round's costs were reserved among the first facts."""
        wanted = (federation, number, costs)
        return any(
            isinstance(fact, a.SpendingReserved)
            and (fact.federation, fact.round, fact.costs) == wanted
            for fact in self.facts[:position]
        )


class AccountCheck:
    """Looks at what federations say of the accounts on the same log."""

    def __init__(self, log: Log, streams: list[str]) -> None:
        self.findings: list[tuple[str, str]] = []
        self._booked = [(stream, self._read(log, stream)) for stream in streams]

    def complaint(self, state: Federation, fact: f.Fact) -> str | None:
        """What is wrong with a fact about paying; None when it is right."""
        budget = None if state.terms is None else state.terms.budget
        if budget is None or not isinstance(fact, f.BudgetReserved | f.BudgetCharged):
            return None
        if isinstance(fact, f.BudgetReserved):
            place = state.id, fact.round, budget.costs, fact.position
            is_there = any(one.has_reserved(*place) for one in self._named(budget.account))
            return None if is_there else "no account has reserved what this round costs"
        known = [one.state.spent.get((state.id, fact.round)) for one in self._named(budget.account)]
        is_spent = any(one and one.standing is not acc.Standing.RETURNED for one in known)
        return None if is_spent else "no account says that this round was spent"

    def _named(self, account: str) -> Iterator[Booked]:
        """Those of this name: each tenant has one."""
        return (one for stream, one in self._booked if stream.rpartition("/")[2] == account)

    def _read(self, log: Log, stream: str) -> Booked:
        state, facts = acc.Account(), list[a.AccountFact]()
        for position, record in enumerate(log.read(stream)):
            try:
                fact = decode(record, account_kinds)
                wrong = "" if encode(fact) == record else "its bytes are not its encoding"
                wrong = wrong or _complaint(state, fact)
            except ConsortiumError as error:
                wrong = error.message
            if wrong:
                self.findings.append((f"{stream}, fact {position}", wrong))
                break
            acc.evolve(state, fact)
            facts.append(fact)
        return Booked(tuple(facts), state)


def is_account(stream: str) -> bool:
    return stream.startswith(STREAMS)


def _complaint(state: acc.Account, fact: a.AccountFact) -> str:
    """The rules are asked again, at the price of that time."""
    return "" if acc.decide(state, _input(state, fact)) == (fact,) else _OTHERWISE


def _input(state: acc.Account, fact: a.AccountFact) -> acc.AccountInput:
    match fact:
        case a.AccountOpened():
            return acc.OpenAccount(fact.account, fact.unit, fact.at_ms)
        case a.LimitsSet():
            return acc.SetLimits(fact.limits, fact.at_ms)
        case a.SpendingReserved():
            offer = quote(state, fact.costs, fact.at_ms, epsilon)
            return offer.reserving(fact.federation, fact.round, fact.costs, fact.at_ms)
        case a.SpendingCharged():
            return acc.Charge(fact.federation, fact.round, fact.at_ms)
        case a.SpendingReturned():
            return acc.Return(fact.federation, fact.round, fact.at_ms)

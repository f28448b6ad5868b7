"""Facts of a federation about what its rounds cost in privacy, and who pays. House rules as in
`facts`; the numbers 72 to 79 are theirs."""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core.account_facts import Costs


@dataclass(frozen=True, slots=True)
class BudgetAdopted:
    """Every round of the plan that was just adopted is paid from this account."""

    KIND = 72
    account: str
    unit: str
    costs: Costs
    is_spent_at_sites: bool
    at_ms: int


@dataclass(frozen=True, slots=True)
class BudgetAsked:
    """A round is due: the account is asked to pay for it."""

    KIND = 73
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class BudgetReserved:
    """The account holds the round's costs ready, since its own fact of this position."""

    KIND = 74
    round: int
    position: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class BudgetRefused:
    """The account cannot pay for the round before `frees_ms`; None: never."""

    KIND = 75
    round: int
    frees_ms: int | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class BudgetCharged:
    """The round's costs are spent: before the sum exists, or any site has answered."""

    KIND = 76
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class BudgetSettled:
    """The account knows what became of the round's costs."""

    KIND = 77
    round: int
    at_ms: int


BudgetFact = (
    BudgetAdopted | BudgetAsked | BudgetReserved | BudgetRefused | BudgetCharged | BudgetSettled
)

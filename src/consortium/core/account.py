"""A privacy account, as a machine like the federation's.

`decide` and `evolve` mean what they mean in `federation`. What a spending costs in ε is computed
outside, because it takes floating-point mathematics: `Reserve` carries the verdict and the
position of the log that it was made at, and one that was made at another position is refused.
So two who ask at once cannot both have the last of the budget.

A reservation is keyed by federation and round: the same again makes no facts. It counts as spent
until it is returned, so whoever crashes after reserving has spent too much, never too little. What
was returned is over, also if it was never reserved: whoever asks for it slept through the round,
and nobody would return it a second time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from consortium.core import account_facts as a
from consortium.core.account_facts import AccountFact, Costs, Limits
from consortium.core.ids import is_plain_id
from consortium.errors import (
    InvalidInputError,
    PrivacyBudgetExceededError,
    StaleQuoteError,
    WrongPhaseError,
)

Facts = tuple[AccountFact, ...]
Key = tuple[str, int]  # federation, round


class Standing(Enum):
    """What became of a reservation."""

    RESERVED = "reserved"
    CHARGED = "charged"
    RETURNED = "returned"


@dataclass(slots=True)
class Spending:
    """What one round costs. `since_ms` is when it was charged; until then it is now, always."""

    costs: Costs
    standing: Standing
    since_ms: int

    def counts_since(self, now_ms: int) -> int:
        """The time that windows look at."""
        return now_ms if self.standing is Standing.RESERVED else self.since_ms

    def is_over_for(self, costs: Costs) -> bool:
        """Whether these costs were returned; without any, all of them were."""
        return self.standing is Standing.RETURNED and self.costs in (costs, ())


@dataclass(slots=True)
class Account:
    """The fold of an account's log."""

    id: str = ""
    unit: str = ""
    limits: Limits | None = None
    spent: dict[Key, Spending] = field(default_factory=dict)
    position: int = 0  # facts so far
    last_ms: int = 0

    def counting(self) -> list[Spending]:
        """All that was not returned."""
        return [one for one in self.spent.values() if one.standing is not Standing.RETURNED]


# ---- inputs -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenAccount:
    account: str
    unit: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class SetLimits:
    limits: Limits
    now_ms: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """`position`: of the log, when the price was made; `is_affordable`: what it came to; and when
    it would be, at the latest, if it is not now (None: never)."""

    federation: str
    round: int
    costs: Costs
    position: int
    is_affordable: bool
    frees_ms: int | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class Charge:
    federation: str
    round: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Return:
    federation: str
    round: int
    now_ms: int


AccountInput = OpenAccount | SetLimits | Reserve | Charge | Return


def decide(account: Account, item: AccountInput) -> Facts:
    """The facts that `item` brings about, or a `Refusal`. `account` is left as it was."""
    if isinstance(item, OpenAccount):
        return _open(account, item)
    if not account.id:
        raise WrongPhaseError("open the account first")
    # A clock that goes back gives nothing back: what is charged later counts as later.
    item = replace(item, now_ms=max(item.now_ms, account.last_ms))
    if isinstance(item, SetLimits):
        return _limit(account, item)
    if isinstance(item, Reserve):
        return _reserve(account, item)
    return _charge(account, item) if isinstance(item, Charge) else _return(account, item)


def _open(account: Account, item: OpenAccount) -> Facts:
    if account.id:
        if (account.id, account.unit) == (item.account, item.unit):
            return ()
        raise WrongPhaseError("this log already belongs to an account")
    if not is_plain_id(item.account) or not is_plain_id(item.unit):
        raise InvalidInputError("an account's id is 1 to 64 letters, digits and dashes")
    return (a.AccountOpened(item.account, item.unit, item.now_ms),)


def _limit(account: Account, item: SetLimits) -> Facts:
    if account.limits == item.limits:
        return ()
    if not item.limits.are_sound():
        raise InvalidInputError("limits are numbers from zero on, and delta lies between 0 and 1")
    return (a.LimitsSet(item.limits, item.now_ms),)


def _reserve(account: Account, item: Reserve) -> Facts:
    are_sound = bool(item.costs) and all(cost.is_sound() for cost in item.costs)
    if not is_plain_id(item.federation) or item.round < 1 or not are_sound:
        raise InvalidInputError("a reservation names a federation, a round and what it costs")
    if account.limits is None:
        raise WrongPhaseError("set the account's limits first")
    held = account.spent.get((item.federation, item.round))
    if held is not None and held.is_over_for(item.costs):
        raise WrongPhaseError("this round is over, and its costs were returned")
    if held is not None and held.standing is not Standing.RETURNED:
        if held.costs != item.costs:
            raise WrongPhaseError("this round has its place in the account, at another price")
        return ()  # asked again after a crash: the answer is on record
    if item.position != account.position:
        raise StaleQuoteError("the account has moved on since this price was made")
    if not item.is_affordable:
        raise PrivacyBudgetExceededError(
            "the privacy budget does not pay for another round", frees_ms=item.frees_ms
        )
    return (a.SpendingReserved(item.federation, item.round, item.costs, item.now_ms),)


def _charge(account: Account, item: Charge) -> Facts:
    held = account.spent.get((item.federation, item.round))
    if held is None or held.standing is Standing.RETURNED:
        raise WrongPhaseError("nothing is reserved for this round")
    if held.standing is Standing.CHARGED:
        return ()
    return (a.SpendingCharged(item.federation, item.round, item.now_ms),)


def _return(account: Account, item: Return) -> Facts:
    held = account.spent.get((item.federation, item.round))
    if held is not None and held.standing is Standing.RETURNED:
        return ()
    if held is not None and held.standing is Standing.CHARGED:
        raise WrongPhaseError("what was charged stays spent")
    return (a.SpendingReturned(item.federation, item.round, item.now_ms),)


def evolve(account: Account, fact: AccountFact) -> None:
    """Bookkeeping; the only code that replay runs."""
    account.position += 1
    account.last_ms = max(account.last_ms, fact.at_ms)
    match fact:
        case a.AccountOpened():
            account.id, account.unit = fact.account, fact.unit
        case a.LimitsSet():
            account.limits = fact.limits
        case a.SpendingReserved():
            reserved = Spending(fact.costs, Standing.RESERVED, fact.at_ms)
            account.spent[fact.federation, fact.round] = reserved
        case a.SpendingCharged():
            one = account.spent[fact.federation, fact.round]
            one.standing, one.since_ms = Standing.CHARGED, fact.at_ms
        case _:
            key = fact.federation, fact.round  # maybe it was never reserved
            held = account.spent.setdefault(key, Spending((), Standing.RETURNED, fact.at_ms))
            held.standing = Standing.RETURNED

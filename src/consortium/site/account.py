"""A site's own privacy ledger: what its records have paid for, whatever a coordinator counts.

One log in a folder, for one home or for several that share it; in it an account for each data set
and unit. What a round costs is written there as noise, not as ε, so it can be priced at any δ: here
always at the policy's, and a plan's own has no say. Windows go by this machine's clock, because the
coordinator's could be set forward until they are empty.

The order is fixed: hold ready, note it in the site's log, train, spend, note that; only then may
an update be spooled. So a crash leaves too much spent, never too little. Whoever finds the ledger
shorter than the site's log says spends nothing: it is an old copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.account import Account, Standing
from consortium.core.tables import Stage
from consortium.core.terms import Budget
from consortium.drive.accounts import Ledger
from consortium.drive.clock import Clock, SystemClock
from consortium.errors import (
    ConsortiumError,
    OnHoldError,
    PrivacyBudgetExceededError,
    RestoredBackupError,
    StoreFailedError,
)
from consortium.plan.noise import check_noise
from consortium.plan.values import Plan
from consortium.privacy.budget import Price, quote
from consortium.site.costs import Purse, not_paid
from consortium.site.home import Enrolment, SiteHome
from consortium.site.machine import Machine
from consortium.site.policy import Policy, read_policy
from consortium.store.files import sync_folder
from consortium.store.sqlite import SqliteLog

FOLDER, FILE = "ledger", "ledger.sqlite"
UNITS = ("record", "site", "local", "contribution")  # each has its own account: they never mix

Made = TypeVar("Made")


class OwnLedger:
    """The ledger at work, for the threads of an agent. It is opened when a plan first costs
    something; nothing of it is kept in memory, since other homes may spend from it too."""

    def __init__(
        self, home: SiteHome, machine: Machine, price: Price, clock: Clock | None = None
    ) -> None:
        self._home, self._machine, self._price = home, machine, price
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._logs: dict[Path, SqliteLog] = {}

    # ---- looking --------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the ledger has forgotten what this site's log says was spent."""
        with self._machine.lock:
            told = self._machine.state.account_position
        if not told:
            return
        path = ledger_file(self._home, self._policy())
        found = _size(self._opened(path)) if path.exists() else 0
        if found < told:
            raise RestoredBackupError(
                f"this site's privacy ledger has {found} facts, and its log tells of {told}",
                hint=f"put the newest copy of {path.parent} back, or let `ledger` in the policy "
                "name the folder that it was moved to",
            )

    def demand(self, plan: Plan) -> None:
        """Raise `PrivacyBudgetExceededError`, which says when it frees, if this site's own limits
        do not let it pay for another round of the plan now. Nothing is written."""
        if plan.budget is None:
            return
        check_noise(plan, self._price)  # whoever made the plan may have promised too much
        policy, account = self._policy(), Account()
        path = ledger_file(self._home, policy)
        if path.exists():
            account = self._ledger(self._opened(path), policy, plan.budget.unit).state
        # Others who share the ledger may have written limits of their own into it.
        account = replace(account, limits=policy.limits)
        offer = quote(account, plan.budget.costs, self._clock.now_ms(), self._price)
        if not offer.is_affordable:
            raise not_paid(offer, self._clock.now_ms())

    # ---- paying ---------------------------------------------------------------------

    def pay_for(self, number: int, plan: Plan, make: Callable[[], Made]) -> Made:
        """What `make` makes in a round: held ready before it is made, and spent when this
        returns. Where nothing is made, or nobody wants it any more, it is given back."""
        if plan.budget is None:
            return make()
        self.check()
        policy = self._policy()
        log = self._made(ledger_file(self._home, policy))
        ledger = self._ledger(log, policy, plan.budget.unit)
        self._hold(ledger, policy, number, plan.budget)
        self._note(number, log)
        try:
            made = make()
            self._refuse_unwanted(number)
        except ConsortiumError as error:
            # What was only given up, as at the end of an agent, is trained again by what is held.
            is_over = not isinstance(error, OnHoldError) or self._training() != number
            with suppress(ConsortiumError):  # what stays reserved counts as spent until `settle`
                if is_over:
                    ledger.give_back(self._who, number)
            raise
        ledger.charge(self._who, number)
        self._note(number, log)
        return made

    def settle(self) -> None:
        """What a crash left reserved here, of rounds that are not being trained: what was spooled
        is spent, and the rest is given back."""
        path = ledger_file(self._home, self._policy())
        if not path.exists():
            return
        log, policy = self._opened(path), self._policy()
        ledgers = [self._ledger(log, policy, unit) for unit in UNITS]
        held = [(ledger, number) for ledger in ledgers for number in self._held(ledger)]
        with self._machine.lock:  # after looking at the ledger: what is begun later is not in it
            self._machine.catch_up()
            present = self._training()
            spooled = {
                fact.round for _, fact in self._machine.facts() if isinstance(fact, s.UpdateSpooled)
            }
        for ledger, number in held:
            if number != present:
                ledger.settle(self._who, number, is_charged=number in spooled)

    def close(self) -> None:
        with self._lock:
            while self._logs:
                self._logs.popitem()[1].close()

    def _hold(self, ledger: Ledger, policy: Policy, number: int, budget: Budget) -> None:
        """What was held before a crash is not held twice. The limits are the policy's of now: a
        site's people change their own as they like, and every change is a fact. Homes that share
        a ledger and have different limits write theirs in turns."""
        ledger.open(budget.unit, policy.limits)
        try:
            ledger.reserve(self._who, number, budget.costs)
        except PrivacyBudgetExceededError:
            raise not_paid(ledger.quote(budget.costs), self._clock.now_ms()) from None

    def _note(self, number: int, log: SqliteLog) -> None:
        """Have the site's log say how long the ledger is, so that an old copy is known."""
        self._machine.feed(p.Reserved(number, _size(log), self._machine.clock.now_ms()))

    def _refuse_unwanted(self, number: int) -> None:
        with self._machine.lock:
            if self._training() != number:
                raise OnHoldError("the work is not wanted any more")

    def _training(self) -> int:
        """The round that is being trained; 0: none."""
        state = self._machine.state
        return state.round if state.stage is Stage.TRAINING else 0

    # ---- the log --------------------------------------------------------------------

    @property
    def _who(self) -> str:
        return payer(self._home.enrolment)

    def _policy(self) -> Policy:
        return read_policy(self._home.policy_file)

    def _made(self, path: Path) -> SqliteLog:
        """The log in this file, which is made where there is none."""
        if not path.exists():
            _make_folder(path.parent)
        log = self._opened(path)
        sync_folder(path.parent)
        return log

    def _opened(self, path: Path) -> SqliteLog:
        """One that was opened stays open: a policy that names another may change in a round."""
        with self._lock:
            if path not in self._logs:
                self._logs[path] = SqliteLog(path)
            return self._logs[path]

    def _ledger(self, log: SqliteLog, policy: Policy, unit: str) -> Ledger:
        return Ledger(log, account_name(policy, unit), self._clock, self._price)

    def _held(self, ledger: Ledger) -> list[int]:
        return [
            number
            for (who, number), one in ledger.state.spent.items()
            if who == self._who and one.standing is Standing.RESERVED
        ]


# ---- where it is, and whose ---------------------------------------------------------


def ledger_file(home: SiteHome, policy: Policy) -> Path:
    """The ledger that this policy names."""
    folder = home.path / FOLDER if policy.ledger is None else Path(policy.ledger)
    return folder / FILE


def account_name(policy: Policy, unit: str) -> str:
    """Of the site's data set: what a plan calls it is the coordinator's affair."""
    return f"{policy.dataset}-{unit}"


def payer(who: Enrolment) -> str:
    """Who spends, in a ledger: a federation alone is not enough, because one institution may
    have two homes in it, and each of them trains in every round."""
    return f"{who.federation}{who.site}"


def purse_of(home: SiteHome, unit: str, price: Price) -> Purse:
    """The account as it stands, for people to look at. Nothing is made."""
    policy, clock = read_policy(home.policy_file), SystemClock()
    path, name, account = ledger_file(home, policy), account_name(policy, unit), Account()
    if path.exists():
        with closing(SqliteLog(path)) as log:
            account = Ledger(log, name, clock, price).state
    return Purse(name, replace(account, limits=policy.limits), clock.now_ms(), price)


def _size(log: SqliteLog) -> int:
    """Facts of all accounts together: it grows whichever of them is used."""
    return sum(log.follow(stream, 0, 0.0) for stream in log.streams())


def _make_folder(folder: Path) -> None:
    """For its owner alone. Where its parent is missing, a disk may not be mounted."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreFailedError(f"{folder}: {error.strerror}") from None
    sync_folder(folder.parent)

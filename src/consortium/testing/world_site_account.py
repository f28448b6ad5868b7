"""A site's own privacy account in a `World`: the real ledger, on a disk of its own.

It does what `consortium.site.account` does, in its order: hold ready, note it, train, spend, note
that; only then is the update spooled. It can be killed before and after every write, and an old
copy of the account, of the site's log, or of both can be put back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from consortium.core import participant as p
from consortium.core.account import Standing
from consortium.core.account_facts import Costs, Limits
from consortium.core.facts import Failure
from consortium.core.ids import Digest
from consortium.core.tables import Stage
from consortium.drive.accounts import Ledger, stream_of
from consortium.errors import PrivacyBudgetExceededError, RestoredBackupError, WrongPhaseError
from consortium.testing.world_book import Book
from consortium.testing.world_coordinator import STREAM
from consortium.testing.world_faults import Durable
from consortium.testing.world_purse import SITE_ACCOUNT, plan_digest, price

if TYPE_CHECKING:
    from consortium.testing.world_site import SitePlayer

_STREAM = stream_of(SITE_ACCOUNT)
_STRESS = 3.0
_OPENED = 2  # facts of an account that was opened and has limits


class _CrashingLog(Durable):
    """The account's log: the site may die before and after every append."""

    def __init__(self, site: SitePlayer) -> None:
        super().__init__()
        self._site = site

    def append(self, stream: str, expected: int, records: Sequence[bytes]) -> int:
        self._site.may_crash("before its account's commit", _STRESS)
        length = super().append(stream, expected, records)
        money = self._site.world.money
        assert money is not None
        money.site_appended(self._site, records)
        self._site.may_crash("after its account's commit", _STRESS)
        return length


class SiteAccount:
    """What one site may spend of its own records."""

    def __init__(self, site: SitePlayer, limits: Limits) -> None:
        self._site, self._limits = site, limits
        self._log = _CrashingLog(site)
        self._newest: list[bytes] | None = None  # while an old copy is in its place

    @property
    def _ledger(self) -> Ledger:
        """Folded from the log whenever it is used: others may spend from it too."""
        return Ledger(self._log, SITE_ACCOUNT, self._site.clock, price)

    def open(self) -> None:
        self._ledger.open("record", self._limits)

    def new_book(self) -> Book:
        return Book(f"account of seat {self._site.seat}", self._limits)

    @property
    def is_old(self) -> bool:
        return self._newest is not None

    # ---- paying ---------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the account has forgotten what the site's log says was spent."""
        told, found = self._site.state.account_position, self._ledger.state.position
        if found < told:
            raise RestoredBackupError(f"the account has {found} facts, and the log tells of {told}")

    def can_pay(self, plan: Digest) -> bool:
        """Whether a round of this plan is within the site's own limits; nothing is written."""
        return self._ledger.quote(self._costs(plan)).is_affordable

    def hold(self, number: int) -> bool:
        """Hold ready what a round costs. A round that has been paid for is not trained again: what
        was made of it may have left before an old copy of the log was put back."""
        self.check()
        held = self._ledger.state.spent.get((STREAM, number))
        try:
            if held is not None and held.standing is Standing.CHARGED:
                raise PrivacyBudgetExceededError("this round has been paid for", frees_ms=None)
            self._ledger.reserve(STREAM, number, self._costs(self._site.state.plan))
        except (PrivacyBudgetExceededError, WrongPhaseError):  # or it was given back before
            self._site.feed(p.Broke(number, Failure.BUDGET, self._site.clock.now_ms()))
            return False
        self._note(number)
        return True

    def pay(self, number: int) -> None:
        """What was held ready is spent."""
        self._ledger.charge(STREAM, number)
        self._note(number)

    def settle(self) -> None:
        """What was held ready for rounds that are not being trained goes back."""
        self.check()
        state = self._site.state
        training = state.round if state.stage is Stage.TRAINING else 0
        ledger = self._ledger
        for (_, number), one in list(ledger.state.spent.items()):
            if one.standing is Standing.RESERVED and number != training:
                ledger.give_back(STREAM, number)

    def _note(self, number: int) -> None:
        position = self._ledger.state.position
        self._site.feed(p.Reserved(number, position, self._site.clock.now_ms()))

    def _costs(self, plan: Digest | None) -> Costs:
        purse = self._site.world.purse
        assert purse is not None
        return purse.budgets[int(plan == plan_digest(1))].costs

    # ---- old copies -----------------------------------------------------------------

    def put_back_old(self) -> bool:
        """An old copy of the account is put in its place, one that the site can notice."""
        records, told = self._log.records(_STREAM), self._site.state.account_position
        if self.is_old or told <= _OPENED:
            return False
        self._newest = list(records)
        del records[self._site.world.rng.randrange(_OPENED, told) :]
        return True

    def put_back_newest(self) -> None:
        if self._newest is not None:
            self._log.records(_STREAM)[:] = self._newest
            self._newest = None

    def forget(self, length: int) -> Book:
        """An old copy that goes with an old copy of the site's log: nobody here can notice. What
        is on record from now on."""
        records = self._log.records(_STREAM)
        del records[max(_OPENED, length) :]
        book = self.new_book()
        for record in records:
            book.add(record)
        return book

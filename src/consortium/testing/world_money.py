"""The invariants of budgets in a `World`: nothing is told before it is paid for, accounts hold at
least what was told and at most what they may, and every account hears what became of its costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from consortium.core import account_facts as a
from consortium.core import facts as f
from consortium.core.ids import Digest, Seat
from consortium.core.terms import Budget
from consortium.model import Vector
from consortium.testing.world_book import Book
from consortium.testing.world_coordinator import STREAM
from consortium.testing.world_purse import ACCOUNT, CLIP
from consortium.testing.world_violation import must
from consortium.update.noise import grid_for

if TYPE_CHECKING:
    from consortium.testing.world import World
    from consortium.testing.world_site import SitePlayer

_PAID, _ONE, _OLD = "I-P1", "I-P2", "I-P3"
Draw = np.ndarray[tuple[int], np.dtype[np.int64]]


class Money:
    """Sees every commit of accounts, every draw of noise and everything that is told."""

    def __init__(self, world: World) -> None:
        self._world = world
        assert world.purse is not None
        self.book = Book(f"account {ACCOUNT}", world.purse.limits)
        self.lengths = [0]  # of the account, when the federation's log had so many facts
        self.charged: set[int] = set()  # rounds, by the federation's own log
        self.draws: dict[int, list[Draw]] = {}  # noise that was ever drawn for a round
        self._told: dict[int, Digest] = {}  # what was told of a round's sum, for ever
        self._site_books: dict[Seat, Book] = {}

    @property
    def _is_off(self) -> bool:
        return self._world.watch.is_off

    # ---- the account that coordinators share ----------------------------------------

    def appended(self, records: Sequence[bytes]) -> None:
        """Facts of the shared account are durable from now on."""
        for record in records if not self._is_off else ():
            fact = self.book.add(record)
            self._world.trace(f"account: {type(fact).__name__} is fact {self.book.facts - 1}")
            if isinstance(fact, a.SpendingReturned) and fact.federation == STREAM:
                is_spent = fact.round in self.charged
                must(not is_spent, _PAID, f"round {fact.round} was charged, and its costs go back")

    # ---- the federation's log -------------------------------------------------------

    def add(self, fact: f.Fact) -> None:
        """The next fact of the federation, before it is recorded."""
        budget = self._budget()
        match fact:
            case f.RoundOpened() if budget is not None:
                self._is_held(fact.round, budget, "opens")
            case f.BudgetReserved() if budget is not None:
                self._is_held(fact.round, budget, "is said to be held ready")
                is_there = fact.position <= self.book.facts
                must(is_there, _PAID, "an account is said to be longer than it is")
            case f.BudgetCharged() if budget is not None:
                self._is_held(fact.round, budget, "is charged")
                self.charged.add(fact.round)
            case f.UpdateReceived() if budget is not None and budget.is_spent_at_sites:
                is_paid = fact.round in self.charged
                must(
                    is_paid, _PAID, f"a site has answered round {fact.round} before it was charged"
                )
            case f.Aggregated() | f.ModelPublished():
                self.tells(fact.round, fact.model)
            case f.BudgetSettled():
                self._is_settled(fact.round)
            case _:
                pass

    def recorded(self) -> None:
        """A fact of the federation was recorded."""
        self.lengths.append(len(self._world.account()))

    def _budget(self) -> Budget | None:
        terms = self._world.watch.past.state.terms
        return None if terms is None else terms.budget

    def _is_held(self, number: int, budget: Budget, what: str) -> None:
        is_held = self.book.costs((STREAM, number)) == budget.costs
        must(is_held, _PAID, f"round {number} {what}, and the account does not hold its costs")

    def _is_settled(self, number: int) -> None:
        key, is_charged = (STREAM, number), number in self.charged
        is_known = self.book.is_charged(key) if is_charged else not self.book.counts(key)
        must(is_known, _PAID, f"the account is said to know of round {number}, and does not")

    # ---- sums and what is told of them ----------------------------------------------

    def drawn(self, number: int, draw: Draw) -> None:
        """Noise is drawn for a round: its sum is about to exist."""
        if self._is_off:
            return
        self.draws.setdefault(number, []).append(draw)
        self._is_paid(number, "summed")

    def tells(self, number: int, model: Digest) -> None:
        """Somebody gets to see what a round has made."""
        if self._is_off or number == 0:
            return
        self._is_paid(number, "told")
        first = self._told.setdefault(number, model)
        must(first == model, _ONE, f"round {number} is told a second time, in other bytes")

    def _is_paid(self, number: int, what: str) -> None:
        is_paid = number in self.charged and self.book.counts((STREAM, number))
        must(is_paid, _PAID, f"round {number} is {what} before it was charged")

    def noised(
        self, number: int, base: Vector, steps: Sequence[tuple[Vector, float]]
    ) -> list[Vector]:
        """Every model that the round could have made: with each noise that was drawn for it."""
        budget = self._budget()
        assert budget is not None
        grid, denominator = grid_for(budget.costs[0].sigma, CLIP), self._world.denominator
        total = np.sum([grid.rounded(step, weight) for step, weight in steps], axis=0)
        return [
            base + (total + draw * grid.step) / denominator for draw in self.draws.get(number, [])
        ]

    # ---- sites ----------------------------------------------------------------------

    def site_appended(self, site: SitePlayer, records: Sequence[bytes]) -> None:
        """Facts of a site's own account are durable from now on."""
        must(not site.has_old_account, _OLD, f"seat {site.seat} spends by an old account")
        assert site.account is not None
        book = self._site_books.setdefault(site.seat, site.account.new_book())
        for record in records:
            book.add(record)

    def forgets(self, site: SitePlayer, book: Book) -> None:
        """Log and account of a site are older than they were, and nobody can know."""
        self._site_books[site.seat] = book

    def leaves(self, site: SitePlayer, number: int) -> None:
        """An update leaves a site that makes its own noise."""
        if self._is_off:
            return
        self._is_paid(number, "answered")
        is_paid = self._site_books[site.seat].is_charged((STREAM, number))
        is_excused = site.forgot_since is not None and number >= site.forgot_since
        must(is_paid or is_excused, _PAID, f"seat {site.seat} sends what its account has not paid")

    # ---- at the end -----------------------------------------------------------------

    def finish(self) -> None:
        """Every account knows what became of every round."""
        state = self._world.watch.past.state
        for (who, number), entry in self.book.entries.items():
            if who != STREAM or entry.is_returned or number == state.asked:
                continue
            is_known = entry.since_ms is not None and number in self.charged
            must(is_known, "I-R2", f"the account holds ready what round {number} does not need")
        lost = [number for number in self.charged if not self.book.is_charged((STREAM, number))]
        must(not lost, _PAID, f"rounds {lost} were charged, and the account does not know")

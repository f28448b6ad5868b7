"""What became of one invitation of a federation without a barrier, as its log tells it.

Such an invitation outlives the round that made it, so its end stands somewhere behind: in the
round that has it in its sum, in a fact that says that it is over, or nowhere yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from consortium.core import facts as f
from consortium.core.ids import Seat

_WITHDRAWING = (f.PlanAdopted, f.ModelInstalled, f.RolledBack, f.FederationFinished)


@dataclass(slots=True)
class Fate:
    """One seat's invitation of round `number`, followed fact by fact."""

    number: int
    seat: Seat
    received_at: int | None = None
    flush: int = 0  # the round that has the update in its sum; 0: none yet
    is_over: bool = False
    is_summed: bool = False  # in a completed round, whatever became of its candidate
    is_published: bool = False

    def add(self, at: int, fact: f.Fact) -> None:
        match fact:
            case f.UpdateReceived(round=self.number, seat=self.seat):
                self.received_at = at
            case f.RoundClosed() if self.seat in fact.members:
                self.flush = fact.round
            case f.ModelPublished(round=self.flush):
                self.is_published = True
            case f.RoundCompleted(round=self.flush):
                self.is_over = self.is_summed = True
            case f.RoundFailed(round=self.flush):
                self.is_over = True
            case _:
                self.is_over = self._is_end(fact)

    def _is_end(self, fact: f.Fact) -> bool:
        """Whether it is over before any sum has it, or is taken out of one."""
        match fact:
            case f.UpdateRejected() | f.UpdateExcluded() | f.MemberRemoved():
                return fact.seat == self.seat
            case f.SiteDeparted() | f.SiteDropped():  # a member may leave when its sum is made
                return fact.seat == self.seat and not self.flush
            case f.InvitationsKept():
                return fact.round > self.number and self.seat not in fact.seats
            case _:
                return isinstance(fact, _WITHDRAWING)


def fate(facts: Iterable[tuple[int, f.Fact]], number: int, seat: Seat) -> Fate:
    """What the facts from the opening of round `number` on say, up to its end."""
    found = Fate(number, seat)
    for at, fact in facts:
        found.add(at, fact)
        if found.is_over:
            break
    return found

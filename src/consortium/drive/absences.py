"""Who was waited for in a secret sum and did not answer, and with what: the log has who did.

Of keys, shares and updates everybody's is waited for. Of signatures and answers two thirds are
enough, so who comes later is at no fault, unless the round fails for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from consortium.core import facts as f
from consortium.core import secagg_facts as m
from consortium.core.ids import Seat

_FOR_SILENCE = (f.RoundEnd.NO_QUORUM, f.RoundEnd.NOT_AGREED, f.RoundEnd.NOT_ANSWERED)
_HEARD = (
    m.KeysReceived,
    m.SharesReceived,
    f.UpdateReceived,
    m.ConsentReceived,
    m.AnswerReceived,
)


class Absences:
    """Follows the facts of one federation."""

    def __init__(self) -> None:
        self._is_masked = False
        self._awaited: set[Seat] = set()
        self._heard: set[Seat] = set()
        self._lacking = ""  # what of those who are awaited and not heard; empty: nobody waits

    def add(self, fact: object) -> list[tuple[Seat, str]]:
        """Who is known by this fact not to have answered, and what is lacking."""
        if isinstance(fact, f.PlanAdopted):
            self._is_masked = False
        elif isinstance(fact, m.MaskingAdopted):
            self._is_masked = True
        elif self._is_masked:
            return self._of_round(fact)
        return []

    def _of_round(self, fact: object) -> list[tuple[Seat, str]]:
        if isinstance(fact, f.SitesInvited):
            self._wait_for(fact.seats, "no keys")
        elif isinstance(fact, _HEARD):
            self._heard.add(fact.seat)
        elif isinstance(fact, f.SiteDropped | f.UpdateRejected | f.SiteDeparted):
            self._awaited.discard(fact.seat)  # it said why, or was told
        elif isinstance(fact, m.KeysClosed):
            return self._closed(fact.seats, "no shares")
        elif isinstance(fact, m.SharesClosed):
            return self._closed(fact.seats, "no update")
        elif isinstance(fact, f.RoundClosed):
            return self._closed(fact.members, "no signature")
        elif isinstance(fact, m.ConsentsClosed):
            self._wait_for(self._awaited, "no answer")
        elif isinstance(fact, m.AnswersClosed):
            self._wait_for((), "")
        elif isinstance(fact, f.RoundFailed):
            found = self._missing() if fact.reason in _FOR_SILENCE else []
            self._wait_for((), "")
            return found
        return []

    def _closed(self, seats: Iterable[Seat], lacking: str) -> list[tuple[Seat, str]]:
        """These go on, and something else is waited for."""
        found = self._missing()
        self._wait_for(seats, lacking)
        return found

    def _wait_for(self, seats: Iterable[Seat], lacking: str) -> None:
        self._awaited, self._heard, self._lacking = set(seats), set(), lacking

    def _missing(self) -> list[tuple[Seat, str]]:
        if not self._lacking:
            return []
        return [(seat, self._lacking) for seat in sorted(self._awaited - self._heard)]

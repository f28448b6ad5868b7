"""What a site is told about its own answer: the same, however often and whenever it asks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from consortium.core.facts import Failure, Fault
from consortium.core.ids import Digest, Seat
from consortium.core.state import Federation, Round
from consortium.core.tables import Step


class Status(Enum):
    """How an update stands. COUNTED and NOT_COUNTED are final."""

    RECEIVED = "received"
    ACCEPTED = "accepted"
    COUNTED = "counted"
    NOT_COUNTED = "not counted"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The update is durable at the coordinator; `why` says what kept it from counting."""

    round: int
    seat: Seat
    update: Digest
    status: Status
    why: Fault | Failure | None


def receipt(state: Federation, number: int, seat: Seat) -> Receipt | None:
    """The receipt for what `seat` submitted to round `number`, open or just ended."""
    for candidate in (state.round, state.ended):
        if candidate is not None and candidate.number == number and seat in candidate.submitted:
            update, why = candidate.submitted[seat], candidate.fallen.get(seat)
            return Receipt(number, seat, update, _status(candidate, seat), why)
    return None


def _status(asked: Round, seat: Seat) -> Status:
    if seat in asked.fallen:
        return Status.NOT_COUNTED
    if asked.step is Step.TRAINING:
        return Status.RECEIVED if seat in asked.unchecked else Status.ACCEPTED
    if asked.step is Step.FAILED or seat not in asked.members:
        return Status.NOT_COUNTED
    return Status.COUNTED if asked.step is Step.COMPLETED else Status.ACCEPTED

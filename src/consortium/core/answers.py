"""What a site is told about its own answer: the same, however often and whenever it asks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from consortium.core.buffer import is_passing, outlived
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
    """The receipt for what `seat` sent by its invitation of round `number`, while that round or
    the one that it passed on into is open or has just ended."""
    made = outlived(state, number, seat)
    if made is not None:
        status = Status.RECEIVED if is_passing(state, seat, made) else Status.NOT_COUNTED
        return None if made.update is None else Receipt(number, seat, made.update, status, None)
    for candidate in (state.round, state.ended):
        if candidate is None or seat not in candidate.submitted:
            continue
        if candidate.number_of(seat) == number:
            update, why = candidate.submitted[seat], candidate.fallen.get(seat)
            return Receipt(number, seat, update, _status(state, candidate, seat), why)
    return None


def may_send(state: Federation, seat: Seat) -> bool:
    """Whether the site may send the bytes of an update now: somebody waits for them, or has them
    and lets it send them again."""
    open_round, terms = state.round, state.terms
    if open_round is None or terms is None:
        return seat in state.passing
    is_open = open_round.step is Step.TRAINING or terms.is_buffered
    return is_open and seat in open_round.invited and seat not in open_round.fallen


class Settlement(Enum):
    """How an invitation ended for a site, as far as the state remembers it."""

    OPEN = "not over"
    COUNTED = "a model was published with the site's update in it"
    NOT_COUNTED = "over, and no model has it"
    FORGOTTEN = "the log knows"


def settlement(state: Federation, number: int, seat: Seat) -> Settlement:
    """How the invitation of round `number` ended for `seat`."""
    made = outlived(state, number, seat)
    if made is not None:
        return Settlement.OPEN if is_passing(state, seat, made) else Settlement.NOT_COUNTED
    if state.round is not None and state.round.number_of(seat) == number:
        return Settlement.OPEN
    over = state.ended
    if over is None or over.number_of(seat) != number:
        return Settlement.FORGOTTEN
    is_published = any(version.round == over.number for version in state.versions.values())
    is_counted = is_published and seat in over.members
    return Settlement.COUNTED if is_counted else Settlement.NOT_COUNTED


def _status(state: Federation, asked: Round, seat: Seat) -> Status:
    if seat in asked.fallen:
        return Status.NOT_COUNTED
    assert state.terms is not None
    if state.terms.is_buffered and not asked.is_over and seat in asked.unchecked:
        return Status.RECEIVED  # whatever the round does just now: it passes on
    if asked.step is Step.TRAINING:
        return Status.RECEIVED if seat in asked.unchecked else Status.ACCEPTED
    if asked.step is Step.FAILED or seat not in asked.members:
        return Status.NOT_COUNTED
    return Status.COUNTED if asked.step is Step.COMPLETED else Status.ACCEPTED

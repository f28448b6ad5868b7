"""Bookkeeping of a secret sum: what its facts do to the state. House rules as in `evolve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from consortium.core import secagg_facts as m
from consortium.core.facts import Failure
from consortium.core.ids import Seats
from consortium.core.names import session_name, sharing_name
from consortium.core.state import Federation, Round
from consortium.core.terms import Masking


def _masking_adopted(state: Federation, fact: m.MaskingAdopted) -> None:
    assert state.terms is not None, "masks, and no plan was adopted"
    state.terms = replace(state.terms, masking=Masking(fact.phase_ms))


def _keys_received(state: Federation, fact: m.KeysReceived) -> None:
    open_round = _open(state)
    open_round.keys[fact.seat] = fact
    open_round.named[fact.seat] = state.roster.members[fact.seat].site


def _keys_closed(state: Federation, fact: m.KeysClosed) -> None:
    open_round = _open(state)
    _leave_out(open_round, fact.seats)
    open_round.keys = {seat: open_round.keys[seat] for seat in fact.seats}
    open_round.keyed = fact
    open_round.session = session_name(open_round.seed, open_round.keys.values(), fact)
    open_round.quorum, open_round.deadline_ms = fact.quorum, fact.deadline_ms


def _shares_received(state: Federation, fact: m.SharesReceived) -> None:
    _open(state).shares[fact.seat] = fact.shares


def _shares_closed(state: Federation, fact: m.SharesClosed) -> None:
    open_round = _open(state)
    _leave_out(open_round, fact.seats)
    open_round.sharers, open_round.deadline_ms = dict.fromkeys(fact.seats), fact.deadline_ms
    open_round.shared, open_round.sharing = fact, sharing_name(fact)


def _consent_received(state: Federation, fact: m.ConsentReceived) -> None:
    _open(state).consents[fact.seat] = fact


def _consents_closed(state: Federation, fact: m.ConsentsClosed) -> None:
    open_round = _open(state)
    open_round.agreed, open_round.deadline_ms = dict.fromkeys(fact.seats), fact.deadline_ms


def _answer_received(state: Federation, fact: m.AnswerReceived) -> None:
    _open(state).answers[fact.seat] = fact.answer


def _answers_closed(state: Federation, fact: m.AnswersClosed) -> None:
    _open(state).lifters = dict.fromkeys(fact.seats)


def _leave_out(open_round: Round, seats: Seats) -> None:
    """Whoever was waited for and is not among them has fallen out."""
    left = set(seats)
    for seat in [seat for seat in open_round.waiting if seat not in left]:
        open_round.fall(seat, Failure.ABSENT)


def _open(state: Federation) -> Round:
    assert state.round is not None, "a fact about a round, and none is open"
    return state.round


RECORD: dict[type[Any], Callable[[Federation, Any], None]] = {
    m.MaskingAdopted: _masking_adopted,
    m.KeysReceived: _keys_received,
    m.KeysClosed: _keys_closed,
    m.SharesReceived: _shares_received,
    m.SharesClosed: _shares_closed,
    m.ConsentReceived: _consent_received,
    m.ConsentsClosed: _consents_closed,
    m.AnswerReceived: _answer_received,
    m.AnswersClosed: _answers_closed,
}

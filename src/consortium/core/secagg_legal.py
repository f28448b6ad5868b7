"""Whether a fact of a secret sum can stand where it stands: see `legal`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from consortium.core import secagg_facts as m
from consortium.core.state import Federation, Round
from consortium.core.terms import LEAST_MASKED, Masking


def adopted(state: Federation, fact: m.MaskingAdopted) -> bool:
    """Once a plan, and the plan's other terms allow it."""
    terms = state.terms
    if terms is None or terms.masking is not None:
        return False
    return replace(terms, masking=Masking(fact.phase_ms)).are_sound()


def _keys_received(state: Federation, open_round: Round, fact: m.KeysReceived) -> bool:
    """Once a site that is no simulated one, and nobody else has them."""
    known = {key for held in open_round.keys.values() for key in (held.mask_key, held.seal_key)}
    is_there = fact.seat in open_round.waiting and fact.seat in state.roster.members
    is_new = is_there and fact.seat not in open_round.keys
    own = {fact.mask_key, fact.seal_key}
    return is_new and len(own) == 2 and own.isdisjoint(known)


def _keys_closed(state: Federation, open_round: Round, fact: m.KeysClosed) -> bool:
    """All who gave keys. Two thirds of them must be left for a sum, and never fewer than the
    plan says: else a few could be told apart."""
    count = len(fact.seats)
    return (
        set(fact.seats) == open_round.keys.keys() & open_round.waiting.keys()
        and LEAST_MASKED <= fact.quorum <= count
        and 2 * count <= 3 * fact.quorum
        and fact.quorum >= open_round.quorum
    )


def _shares_received(state: Federation, open_round: Round, fact: m.SharesReceived) -> bool:
    return fact.seat in open_round.waiting and fact.seat not in open_round.shares


def _shares_closed(state: Federation, open_round: Round, fact: m.SharesClosed) -> bool:
    is_all = set(fact.seats) == open_round.shares.keys() & open_round.waiting.keys()
    return is_all and len(fact.seats) >= open_round.quorum


def _consent_received(state: Federation, open_round: Round, fact: m.ConsentReceived) -> bool:
    is_there = fact.seat in open_round.members and fact.seat in state.roster.members
    return is_there and fact.seat not in open_round.consents


def _consents_closed(state: Federation, open_round: Round, fact: m.ConsentsClosed) -> bool:
    """All who signed, and two thirds of those who gave keys: with fewer, others could be told
    another split."""
    is_all = set(fact.seats) == open_round.consents.keys()
    return is_all and 3 * len(fact.seats) >= 2 * len(open_round.keys)


def _answer_received(state: Federation, open_round: Round, fact: m.AnswerReceived) -> bool:
    is_there = fact.seat in open_round.members and fact.seat in state.roster.members
    return is_there and fact.seat not in open_round.answers


def _answers_closed(state: Federation, open_round: Round, fact: m.AnswersClosed) -> bool:
    """All who answered, and two thirds of those who gave keys."""
    is_all = set(fact.seats) == open_round.answers.keys()
    return is_all and 3 * len(fact.seats) >= 2 * len(open_round.keys)


CHECKS: dict[type[Any], Callable[[Federation, Round, Any], bool]] = {
    m.KeysReceived: _keys_received,
    m.KeysClosed: _keys_closed,
    m.SharesReceived: _shares_received,
    m.SharesClosed: _shares_closed,
    m.ConsentReceived: _consent_received,
    m.ConsentsClosed: _consents_closed,
    m.AnswerReceived: _answer_received,
    m.AnswersClosed: _answers_closed,
}

"""The rules of a round whose sum is secret (Bonawitz et al. 2017), as a machine inside the round:

    KEYING      invited sites give keys, new in every round
    SHARING     those whose keys count share their seeds among each other
    TRAINING    those who shared send masked updates; `RoundClosed` says who is in the sum
    AGREEING    members sign who is in the sum and who is not
    UNMASKING   once two thirds of all have signed the same: members give, of every member, a share
                of its own seed; of everybody else who had shared, one of its pairwise seed

Whoever had both seeds of a site could read what it sent. So the split into members and dropped is
a fact, there is one such fact a round, and nothing is asked of anybody before it is on record. A
coordinator could still tell sites different splits. So they sign the one that they were told, and
answer when they see two thirds of all under the same: no two splits have as many.

Whose answers fit together, and what is in them, is not decided here: see `crypto.secure_sum`.
"""

from __future__ import annotations

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import secagg_facts as m
from consortium.core.ending import Facts, fail
from consortium.core.ids import Digest, Seat
from consortium.core.round import invited_round
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.core.terms import LEAST_MASKED, Terms
from consortium.errors import (
    AlreadySubmittedError,
    DeadlineExpiredError,
    InvalidInputError,
    NotNeededError,
    UnauthorizedClientError,
)

KEY_BYTES = COMMITMENT_BYTES = 32
SIGNATURE_BYTES = 64
# Up to so many sites everybody masks with everybody, and any two thirds of them can answer for
# all. Beyond, a site has neighbours, and who is missed by whom is seen only by trying.
FULL_UP_TO = 100


def two_thirds(sites: int) -> int:
    """Of so many, rounded up. Two groups of so many share a third of all: so no two splits are
    signed by as many, unless a third of all collude with the coordinator and sign both.

    >>> [two_thirds(sites) for sites in (3, 4, 50, 100)]
    [2, 3, 34, 67]
    """
    return -(-2 * sites // 3)


def quorum_of(terms: Terms, sites: int) -> int:
    """Without so many of those who gave keys there is no sum."""
    return max(terms.quorum, two_thirds(sites), LEAST_MASKED)


def answers_needed(open_round: Round) -> int:
    """With so many answers nobody else's is waited for."""
    sites = len(open_round.keys)
    return two_thirds(sites) if sites <= FULL_UP_TO else len(open_round.members)


# ---- keys ---------------------------------------------------------------------------


def give_keys(state: Federation, terms: Terms, item: i.GiveKeys) -> Facts:
    """A site's keys. They count for one round, and no two sites have the same."""
    asked = invited_round(state, item.round, item.seat)
    told = (item.mask_key, item.seal_key, item.commitment, item.signature)
    _check_lengths(told)
    held = asked.keys.get(item.seat)
    if held is not None:
        if (held.mask_key, held.seal_key, held.commitment, held.signature) == told:
            return ()
        raise AlreadySubmittedError("this site has given other keys for this round")
    _check_open(asked, Step.KEYING, item.seat in asked.waiting)
    if state.roster.is_simulated(item.seat):
        raise InvalidInputError("a simulated site has no keys")
    if not {item.mask_key, item.seal_key}.isdisjoint(_keys_of(asked)):
        raise InvalidInputError("somebody else has given this key")
    received = m.KeysReceived(item.round, item.seat, *told, item.now_ms)
    is_last = len(asked.keys) + 1 == len(asked.waiting)
    if not is_last:
        return (received,)
    return (received, *_close_keys(terms, asked, {*asked.keys, item.seat}, item.now_ms))


def _check_lengths(told: tuple[bytes, bytes, bytes, bytes]) -> None:
    if [len(part) for part in told] != [KEY_BYTES, KEY_BYTES, COMMITMENT_BYTES, SIGNATURE_BYTES]:
        raise InvalidInputError("keys and commitments have 32 bytes, signatures 64")
    if told[0] == told[1]:
        raise InvalidInputError("the two keys of a site are different ones")


def _keys_of(asked: Round) -> set[bytes]:
    return {key for held in asked.keys.values() for key in (held.mask_key, held.seal_key)}


def _close_keys(terms: Terms, asked: Round, seats: set[Seat], now_ms: int) -> Facts:
    assert terms.masking is not None
    quorum = quorum_of(terms, len(seats))
    if len(seats) < quorum:
        return fail(asked, terms, f.RoundEnd.NO_QUORUM, now_ms)
    by_ms = now_ms + terms.masking.phase_ms
    return (m.KeysClosed(asked.number, tuple(sorted(seats)), quorum, by_ms, now_ms),)


# ---- shares -------------------------------------------------------------------------


def give_shares(state: Federation, terms: Terms, item: i.GiveShares) -> Facts:
    """A site's seeds are with the coordinator, sealed for their holders."""
    asked = invited_round(state, item.round, item.seat)
    held = asked.shares.get(item.seat)
    if held is not None:
        if held == item.shares:
            return ()
        raise AlreadySubmittedError("this site has shared its seeds in this round")
    _check_open(asked, Step.SHARING, item.seat in asked.waiting)
    received = m.SharesReceived(item.round, item.seat, item.shares, item.envelope, item.now_ms)
    is_last = len(asked.shares) + 1 == len(asked.waiting)
    if not is_last:
        return (received,)
    return (received, *_close_shares(terms, asked, {*asked.shares, item.seat}, item.now_ms))


def _close_shares(terms: Terms, asked: Round, seats: set[Seat], now_ms: int) -> Facts:
    if len(seats) < asked.quorum:
        return fail(asked, terms, f.RoundEnd.NO_QUORUM, now_ms)
    by_ms = now_ms + terms.duration_ms
    return (m.SharesClosed(asked.number, tuple(sorted(seats)), by_ms, now_ms),)


# ---- consents -----------------------------------------------------------------------


def give_consent(state: Federation, terms: Terms, item: i.GiveConsent) -> Facts:
    """A member has signed the split. As soon as there are enough, all members are asked."""
    asked = _asked_member(state, item.round, item.seat, "sign who is in the sum")
    if len(item.signature) != SIGNATURE_BYTES:
        raise InvalidInputError("signatures have 64 bytes")
    held = asked.consents.get(item.seat)
    if held is not None:
        if held.signature == item.signature:
            return ()
        raise AlreadySubmittedError("this site has signed who is in the sum")
    if asked.step is Step.UNMASKING:
        return ()  # enough have signed: nobody waits for it any more, but its site is to answer
    _check_needed(asked, has_enough=bool(asked.agreed))
    _check_open(asked, Step.AGREEING, item.seat in asked.members)
    received = m.ConsentReceived(item.round, item.seat, item.signature, item.now_ms)
    seats = {*asked.consents, item.seat}
    if len(seats) < two_thirds(len(asked.keys)):
        return (received,)
    assert terms.masking is not None
    by_ms = item.now_ms + terms.masking.phase_ms
    return (received, m.ConsentsClosed(asked.number, tuple(sorted(seats)), by_ms, item.now_ms))


def _asked_member(state: Federation, number: int, seat: Seat, what: str) -> Round:
    asked = invited_round(state, number, seat)
    if asked.split is not None and seat not in asked.members:
        raise UnauthorizedClientError(f"only members of the round {what}")
    return asked


# ---- answers ------------------------------------------------------------------------


def give_answer(state: Federation, terms: Terms, item: i.GiveAnswer) -> Facts:
    """A member answers for the others. The first answer counts."""
    asked = _asked_member(state, item.round, item.seat, "answer for the others")
    held = asked.answers.get(item.seat)
    if held is not None:
        if held == item.answer:
            return ()
        raise AlreadySubmittedError("this site has answered for the others")
    _check_needed(asked, has_enough=bool(asked.lifters))
    _check_open(asked, Step.UNMASKING, item.seat in asked.members)
    received = m.AnswerReceived(item.round, item.seat, item.answer, item.envelope, item.now_ms)
    seats = {*asked.answers, item.seat}
    if len(seats) < answers_needed(asked):
        return (received,)
    return (received, m.AnswersClosed(asked.number, tuple(sorted(seats)), item.now_ms))


def _check_needed(asked: Round, *, has_enough: bool) -> None:
    """Two thirds are enough, so the slowest of a round that goes well come too late."""
    if has_enough:
        raise NotNeededError(f"round {asked.number} has the answers of enough others")


def _check_open(asked: Round, step: Step, is_asked: bool) -> None:
    if asked.step is not step or not is_asked:
        raise DeadlineExpiredError(f"round {asked.number} does not wait for this any more")


# ---- dropout, departure, time -------------------------------------------------------


def drop(terms: Terms, open_round: Round, item: i.Fail) -> Facts:
    """While KEYING or SHARING: a site that is waited for says that it cannot go on."""
    dropped = f.SiteDropped(item.round, item.seat, item.failure, item.envelope, item.now_ms)
    return (dropped, *lose(terms, open_round, item.seat, item.now_ms))


def depart_member(terms: Terms, open_round: Round, seat: Seat, now_ms: int) -> Facts:
    """A member is revoked when the split is on record: what it sent can neither be taken out of
    the sum, nor may the split be made again."""
    if seat not in open_round.members:
        return ()
    return fail(open_round, terms, f.RoundEnd.MEMBER_REVOKED, now_ms)


def lose(terms: Terms, open_round: Round, seat: Seat, now_ms: int) -> Facts:
    """While KEYING or SHARING: a site falls out. Who is left may now be all that is waited for."""
    if seat not in open_round.waiting:
        return ()
    left = open_round.waiting.keys() - {seat}
    given = _given(open_round).keys() & left
    if len(left) < open_round.quorum:
        return fail(open_round, terms, f.RoundEnd.NO_QUORUM, now_ms)
    return _close_phase(terms, open_round, set(given), now_ms) if len(given) == len(left) else ()


def tick(terms: Terms, open_round: Round, item: i.Tick) -> Facts:
    """While KEYING, SHARING, AGREEING or UNMASKING: whoever has not answered in time is left
    out. Sites have the whole of a phase from when the coordinator was there to hear them."""
    assert terms.masking is not None
    ends_ms = max(open_round.deadline_ms, item.awake_ms + terms.masking.phase_ms)
    if item.now_ms <= ends_ms:
        return ()
    if open_round.step is Step.AGREEING:
        return fail(open_round, terms, f.RoundEnd.NOT_AGREED, item.now_ms)
    if open_round.step is not Step.UNMASKING:
        given = _given(open_round).keys() & open_round.waiting.keys()
        return _close_phase(terms, open_round, set(given), item.now_ms)
    if len(open_round.answers) < two_thirds(len(open_round.keys)):
        return fail(open_round, terms, f.RoundEnd.NOT_ANSWERED, item.now_ms)
    seats = tuple(sorted(open_round.answers))
    return (m.AnswersClosed(open_round.number, seats, item.now_ms),)


def _given(open_round: Round) -> dict[Seat, m.KeysReceived] | dict[Seat, Digest]:
    return open_round.keys if open_round.step is Step.KEYING else open_round.shares


def _close_phase(terms: Terms, open_round: Round, seats: set[Seat], now_ms: int) -> Facts:
    if open_round.step is Step.KEYING:
        return _close_keys(terms, open_round, seats, now_ms)
    return _close_shares(terms, open_round, seats, now_ms)

"""What must hold of secret sums: whoever has both seeds of a site can read what it sent, so nobody
is ever asked for both, and who is in the sum is settled before anybody is asked at all.

As in `rules` and `causes`, all is worked out again from the requirements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consortium.core import duties as d
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core import secagg_facts as m
from consortium.core.federation import owed, owed_by
from consortium.core.ids import Seat
from consortium.core.state import Federation, Round
from consortium.core.tables import Step
from consortium.errors import AlreadySubmittedError, DeadlineExpiredError, UnauthorizedClientError
from consortium.testing.transitions import Change

# (round, which of the two seeds, whose): what some site was asked to give a share of.
Asked = frozenset[tuple[int, str, Seat]]
NOTHING_ASKED: Asked = frozenset()

_GIVING = {
    i.GiveKeys: Step.KEYING,
    i.GiveShares: Step.SHARING,
    i.GiveConsent: Step.AGREEING,
    i.GiveAnswer: Step.UNMASKING,
}
_EXCHANGING = (Step.KEYING, Step.SHARING)
_BEFORE_SHARES = (Step.INITIALIZED, Step.SELECTING, *_EXCHANGING)


def _least(count: int) -> int:
    """Two thirds, rounded up."""
    return (2 * count + 2) // 3


def _rounds(state: Federation) -> list[Round]:
    return [known for known in (state.round, state.ended) if known is not None]


def _is_masked(state: Federation) -> bool:
    return state.terms is not None and state.terms.masking is not None


# ---- what was ever asked ------------------------------------------------------------


def asked_since(asked: Asked, state: Federation) -> Asked:
    """All that was asked in the open round: on the way here, and now. A site that is asked to
    unmask gives a share of the own seed of each member, and of the pairwise seed of everybody
    else who had shared."""
    present = state.round
    if present is None:
        return NOTHING_ASKED
    kept = {one for one in asked if one[0] == present.number}
    if any(isinstance(owed_by(state, seat), d.Unmask) for seat in present.invited):
        members = present.members.keys()
        kept |= {(present.number, "own", seat) for seat in members}
        kept |= {(present.number, "pair", seat) for seat in present.sharers.keys() - members}
    return frozenset(kept)


def nobody_is_laid_bare(asked: Asked) -> bool:
    """No site's own seed and pairwise seed are ever both asked for in one round."""
    own = {(number, seat) for number, kind, seat in asked if kind == "own"}
    return not any((number, seat) in own for number, kind, seat in asked if kind == "pair")


# ---- states -------------------------------------------------------------------------


def each_step_follows_the_one_before(state: Federation) -> bool:
    """Members have shared, sharers have given keys, and whoever answers is a member."""
    return all(
        known.shares.keys() <= known.keys.keys() <= known.named.keys()
        and known.sharers.keys() <= known.shares.keys()
        and (not known.sharers or known.members.keys() <= known.sharers.keys())
        and known.agreed.keys() <= known.consents.keys() <= known.members.keys()
        and known.lifters.keys() <= known.answers.keys() <= known.members.keys()
        for known in _rounds(state)
    )


def no_two_sites_have_the_same_key(state: Federation) -> bool:
    """Every key of a round is there once."""
    for known in _rounds(state):
        keys = [key for held in known.keys.values() for key in (held.mask_key, held.seal_key)]
        if len(keys) != len(set(keys)):
            return False
    return True


def a_secret_sum_has_its_quorum(state: Federation) -> bool:
    """Two thirds of those who gave keys, three at least, and as many as the plan says, are in
    every secret sum and share its seeds; two thirds of them sign who is in it before anybody is
    asked, and answer before it is made."""
    if not _is_masked(state) or state.terms is None:
        return True
    for known in _rounds(state):
        least = max(3, _least(len(known.keys)), state.terms.quorum)
        if known.session is not None and known.quorum != least:
            return False
        if known.sharing is not None and len(known.sharers) < least:
            return False
        if known.split is not None and len(known.members) < least:
            return False
        is_summed = known.model is not None or known.step is Step.SUMMING
        is_asked = is_summed or known.step is Step.UNMASKING or bool(known.answers)
        if is_asked and len(known.agreed) < _least(len(known.keys)):
            return False
        if is_summed and len(known.lifters) < _least(len(known.keys)):
            return False
    return True


def names_come_one_after_the_other(state: Federation) -> bool:
    """A round has a session from SHARING on, sharers from TRAINING on, a split from its closing
    on; a plain one has none of them."""
    is_masked = _is_masked(state)
    for known in _rounds(state):
        has = known.session is not None, known.sharing is not None, known.split is not None
        if not is_masked and any(has):
            return False
        if is_masked and known.step is not Step.FAILED:
            is_past = known.step not in _BEFORE_SHARES
            is_closed = is_past and known.step is not Step.TRAINING
            if has != (known.step is Step.SHARING or is_past, is_past, is_closed):
                return False
        if list(has) != sorted(has, reverse=True):
            return False
    return True


def sites_are_asked_for_what_the_step_lacks(state: Federation) -> bool:
    """Keys, shares, signatures and answers are asked of who can give them and has not, and of
    nobody else; each is told the session, the sharers or the split that is on record."""
    present = state.round
    if present is None or not _is_masked(state):
        return True
    for seat in present.invited:
        duty, is_here = owed_by(state, seat), seat in state.roster
        match present.step:
            case Step.KEYING:
                is_due = seat in present.waiting and seat not in present.keys
                is_right = isinstance(duty, d.JoinSum) and duty.base == present.base
            case Step.SHARING:
                is_due = seat in present.waiting and seat not in present.shares
                is_right = isinstance(duty, d.Share) and duty.session == present.session
            case Step.TRAINING:
                is_due = seat in present.waiting
                is_right = isinstance(duty, d.Train) and duty.sharing == present.sharing
            case Step.AGREEING:
                is_due = seat in present.members and seat not in present.consents
                is_right = isinstance(duty, d.Agree) and duty.split == present.split
            case Step.UNMASKING:
                is_due = seat in present.members and seat not in present.answers
                is_right = isinstance(duty, d.Unmask) and duty.split == present.split
            case _:
                is_due, is_right = False, False
        if is_right != (is_due and is_here) or (duty is not None and not is_right):
            return False
    return True


def what_is_lifted_is_what_was_agreed(state: Federation) -> bool:
    """A secret sum is lifted with all keys of the session, all who shared, the members and the
    answers of those who closed it; a plain one is not."""
    for duty in owed(state):
        if not isinstance(duty, d.Aggregate):
            continue
        known, lifting = state.round, duty.lifting
        if not _is_masked(state) or lifting is None:
            return lifting is None and not _is_masked(state)
        assert known is not None
        named = known.named
        ranked = sorted(known.members, key=lambda seat: known.invited[seat])
        return (
            {keys.seat: site for site, keys in lifting.keys}
            == {seat: named[seat] for seat in known.keys}
            and set(lifting.sharers) == {named[seat] for seat in known.sharers}
            and list(lifting.members) == [named[seat] for seat in ranked]
            and dict(lifting.answers)
            == {named[seat]: known.answers[seat] for seat in known.lifters}
            and lifting.quorum == known.quorum
        )
    return True


MASKING_STATE_RULES: tuple[Callable[[Federation], bool], ...] = (
    each_step_follows_the_one_before,
    no_two_sites_have_the_same_key,
    a_secret_sum_has_its_quorum,
    names_come_one_after_the_other,
    sites_are_asked_for_what_the_step_lacks,
    what_is_lifted_is_what_was_agreed,
)


# ---- changes ------------------------------------------------------------------------


def the_split_never_changes(change: Change) -> bool:
    """Once members and dropped are on record, they stay so for ever, whatever the name."""
    if change.before.round is None or change.was.split is None:
        return True
    was, became = change.was, change.became
    return (was.split, was.members, was.sharers) == (became.split, became.members, became.sharers)


def the_session_never_changes(change: Change) -> bool:
    """Once keys are closed nobody's are added, taken away or swapped; nor are sharers, once
    sharing is closed."""
    if change.before.round is None:
        return True
    was, became = change.was, change.became
    is_same = was.session is None or (was.session, was.keys) == (became.session, became.keys)
    is_kept = was.sharing is None or (was.sharing, was.sharers) == (became.sharing, became.sharers)
    return is_same and is_kept


def nobody_comes_to_a_secret_sum_later(change: Change) -> bool:
    """Whoever was not invited with the first is in no secret sum."""
    if change.before.round is None or not change.was.invited or not _is_masked(change.before):
        return True
    return change.was.invited == change.became.invited


def a_round_has_its_own_keys(change: Change) -> bool:
    """Keys, shares, signatures and answers of a round come with the messages of that very round: a
    new one begins with none."""
    was, became = change.before.round, change.after.round
    if became is None:
        return True
    for name, kind in (
        ("keys", m.KeysReceived),
        ("shares", m.SharesReceived),
        ("consents", m.ConsentReceived),
        ("answers", m.AnswerReceived),
    ):
        known = getattr(was, name).keys() if was is not None else set[Seat]()
        if not getattr(became, name).keys() <= known | change.names(kind):
            return False
    return all(held.round == became.number for held in became.keys.values())


def a_plan_stays_masked(change: Change) -> bool:
    """Once sums are secret, no plan shows single updates again."""
    return not _is_masked(change.before) or _is_masked(change.after)


MASKING_CHANGE_RULES: tuple[Callable[[Change], bool], ...] = (
    the_split_never_changes,
    the_session_never_changes,
    nobody_comes_to_a_secret_sum_later,
    a_round_has_its_own_keys,
    a_plan_stays_masked,
)


# ---- facts --------------------------------------------------------------------------


def keys_are_given_once_and_are_ones_own(change: Change, fact: m.KeysReceived) -> bool:
    """Keys are recorded as they were given, for this round, from a site that is waited for."""
    item, was = change.item, change.was
    if not isinstance(item, i.GiveKeys) or was.step is not Step.KEYING:
        return False
    told = (item.round, item.seat, item.mask_key, item.seal_key, item.commitment)
    is_told = told == (fact.round, fact.seat, fact.mask_key, fact.seal_key, fact.commitment)
    is_due = fact.seat in was.waiting and fact.seat not in was.keys
    return is_told and is_due and fact.round == was.number


def shares_are_given_once(change: Change, fact: m.SharesReceived) -> bool:
    """Shares are recorded as they came, from a site whose keys count and who is waited for."""
    item, was = change.item, change.was
    is_told = isinstance(item, i.GiveShares) and item.shares == fact.shares
    is_due = was.step is Step.SHARING and fact.seat in was.waiting and fact.seat in was.keys
    return is_told and is_due and fact.seat not in was.shares and fact.round == was.number


def only_members_sign(change: Change, fact: m.ConsentReceived) -> bool:
    """A signature is recorded as it came, from a member that has not signed."""
    item, was = change.item, change.was
    is_told = isinstance(item, i.GiveConsent) and item.signature == fact.signature
    is_due = was.step is Step.AGREEING and fact.seat in was.members and was.split is not None
    return is_told and is_due and fact.seat not in was.consents and fact.round == was.number


def only_members_answer(change: Change, fact: m.AnswerReceived) -> bool:
    """An answer is recorded as it came, from a member that has not answered."""
    item, was = change.item, change.was
    is_told = isinstance(item, i.GiveAnswer) and item.answer == fact.answer
    is_due = was.step is Step.UNMASKING and fact.seat in was.members and was.split is not None
    return is_told and is_due and fact.seat not in was.answers and fact.round == was.number


def exchanges_close_when_they_are_due(
    change: Change, fact: m.KeysClosed | m.SharesClosed | m.ConsentsClosed | m.AnswersClosed
) -> bool:
    """Keys and shares are closed when all who are waited for have given theirs, or time is over;
    signatures and answers when they are of two thirds of those who gave keys. All who gave are in
    it."""
    was = change.was
    gone = change.names(f.SiteDeparted, f.SiteDropped)
    if isinstance(fact, m.ConsentsClosed):
        given = was.consents.keys() | change.names(m.ConsentReceived)
        is_enough = len(given) >= _least(len(was.keys))
        return set(fact.seats) == given and is_enough and was.step is Step.AGREEING
    if isinstance(fact, m.AnswersClosed):
        given = was.answers.keys() | change.names(m.AnswerReceived)
        is_enough = len(given) >= _least(len(was.keys))
        return set(fact.seats) == given and is_enough and was.step is Step.UNMASKING
    is_keying = isinstance(fact, m.KeysClosed)
    before = was.keys.keys() if is_keying else was.shares.keys()
    given = (before | change.names(m.KeysReceived, m.SharesReceived)) - gone
    is_whole = given == was.waiting.keys() - gone
    is_step = was.step is (Step.KEYING if is_keying else Step.SHARING)
    return set(fact.seats) == given and (is_whole or change.is_late) and is_step


def no_secret_sum_is_below_its_quorum(change: Change, fact: f.RoundClosed) -> bool:
    """Two thirds of those who gave keys, three at least, and as many as the plan says, are in a
    secret sum, and all of them have shared."""
    if change.terms.masking is None:
        return True
    least = max(3, _least(len(change.was.keys)), change.terms.quorum)
    return len(fact.members) >= least and set(fact.members) <= change.was.sharers.keys()


MASKING_FACT_RULES: dict[type[Any], tuple[Callable[[Change, Any], bool], ...]] = {
    m.KeysReceived: (keys_are_given_once_and_are_ones_own,),
    m.SharesReceived: (shares_are_given_once,),
    m.ConsentReceived: (only_members_sign,),
    m.ConsentsClosed: (exchanges_close_when_they_are_due,),
    m.AnswerReceived: (only_members_answer,),
    m.KeysClosed: (exchanges_close_when_they_are_due,),
    m.SharesClosed: (exchanges_close_when_they_are_due,),
    m.AnswersClosed: (exchanges_close_when_they_are_due,),
    f.RoundClosed: (no_secret_sum_is_below_its_quorum,),
}


# ---- replies ------------------------------------------------------------------------

_Given = i.GiveKeys | i.GiveShares | i.GiveConsent | i.GiveAnswer


def _spoken_of(state: Federation, item: _Given) -> Round | None:
    known = [one for one in _rounds(state) if one.number == item.round]
    return known[0] if known else None


def _held(known: Round, item: _Given) -> object:
    """What the site has given before; None: nothing."""
    match item:
        case i.GiveKeys():
            held = known.keys.get(item.seat)
            return None if held is None else (held.mask_key, held.seal_key, held.commitment)
        case i.GiveShares():
            return known.shares.get(item.seat)
        case i.GiveConsent():
            signed = known.consents.get(item.seat)
            return None if signed is None else signed.signature
        case i.GiveAnswer():
            return known.answers.get(item.seat)


def _told(item: _Given) -> object:
    match item:
        case i.GiveKeys():
            return item.mask_key, item.seal_key, item.commitment
        case i.GiveShares():
            return item.shares
        case i.GiveConsent():
            return item.signature
        case i.GiveAnswer():
            return item.answer


def what_is_waited_for_is_taken(state: Federation, item: _Given, reply: Exception | None) -> bool:
    """What a site is asked for is taken from it, unless another has given the same key; the same
    again is fine for ever, and something else is refused. A member's signature that comes after
    enough others have signed does no harm."""
    known = _spoken_of(state, item)
    if known is None or item.seat not in state.roster or item.seat not in known.invited:
        return reply is not None
    held = _held(known, item)
    if held is not None:
        return reply is None if held == _told(item) else isinstance(reply, AlreadySubmittedError)
    is_of_members = isinstance(item, i.GiveConsent | i.GiveAnswer)
    asked = known.members if is_of_members else known.waiting
    is_asked = known is state.round and known.step is _GIVING[type(item)] and item.seat in asked
    if not is_asked:
        is_late = isinstance(item, i.GiveConsent) and known is state.round
        if is_late and known.step is Step.UNMASKING and item.seat in known.members:
            return reply is None  # whoever was turned away would not answer either
        return isinstance(reply, DeadlineExpiredError | UnauthorizedClientError)
    return isinstance(item, i.GiveKeys) and _is_copied(known, item) and reply is not None


def _is_copied(known: Round, item: i.GiveKeys) -> bool:
    keys = {key for held in known.keys.values() for key in (held.mask_key, held.seal_key)}
    return not keys.isdisjoint({item.mask_key, item.seal_key})


MASKING_REPLY_RULES: dict[type[Any], tuple[Callable[[Federation, Any, Any], bool], ...]] = {
    i.GiveKeys: (what_is_waited_for_is_taken,),
    i.GiveShares: (what_is_waited_for_is_taken,),
    i.GiveConsent: (what_is_waited_for_is_taken,),
    i.GiveAnswer: (what_is_waited_for_is_taken,),
}

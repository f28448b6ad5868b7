"""Signatures on who is in the sum: what they bind, how many it takes, and whose."""

from __future__ import annotations

import pytest

from consortium.core.ids import Secret, SiteId
from consortium.crypto.hazmat.framing import framed
from consortium.crypto.recipes import SigningKey
from consortium.crypto.secure_sum.consent import check_consents
from consortium.crypto.secure_sum.keys import SEED_BYTES, Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Split, terms_for
from consortium.errors import InsufficientParticipantsError, InvalidInputError, SignatureError

SITES = tuple(SiteId(name) for name in ("a", "b", "c", "d", "e", "f"))
KEYS = {site: SigningKey.from_secret(Secret(bytes([at]) * 32)) for at, site in enumerate(SITES, 1)}
IDENTITIES = {site: key.public for site, key in KEYS.items()}
NAME = RoundName("federation", 7)
SPLIT = Split(frozenset(SITES[:4]), frozenset(SITES[4:5]))  # the last one did not share


def session_of(name: RoundName = NAME, seed: int = 0) -> Session:
    adverts = [
        make_keys(name, site, Seeds.from_secret(Secret(bytes([at + seed]) * 4 * SEED_BYTES)))
        for at, site in enumerate(SITES)
    ]
    return Session(name, terms_for(len(SITES)), adverts)


SESSION = session_of()


def signed(*sites: SiteId, split: Split = SPLIT, session: Session = SESSION) -> dict[SiteId, bytes]:
    return {site: KEYS[site].sign(split.to_sign(session)) for site in sites}


def check(signatures: dict[SiteId, bytes]) -> None:
    check_consents(SESSION, SPLIT, signatures, IDENTITIES)


def test_what_is_signed_names_round_session_members_and_dropped() -> None:
    told = SPLIT.to_sign(SESSION)
    assert told == framed("split", "federation", 7, SESSION.digest, 4, "a", "b", "c", "d", "e")
    assert told.startswith(b"consortium/secure-sum/v1/split\0")


def test_two_thirds_of_all_who_gave_keys_are_enough_and_fewer_are_not() -> None:
    check(signed(*SITES[:4]))
    with pytest.raises(InsufficientParticipantsError, match=r"3 of 6 sites .* it takes 4"):
        check(signed(*SITES[:3]))


@pytest.mark.parametrize(
    "other",
    [
        Split(frozenset(SITES[:3]), frozenset(SITES[3:5])),  # another member is out
        Split(frozenset(SITES[:5]), frozenset()),  # nobody is out
        Split(frozenset(SITES[:4]), frozenset(SITES[4:])),  # another one shared
        Split(frozenset(SITES[:4]), frozenset()),  # nobody else shared
    ],
)
def test_signature_on_another_split_counts_for_nothing(other: Split) -> None:
    with pytest.raises(SignatureError):
        check({**signed(*SITES[:3]), **signed(SITES[3], split=other)})


@pytest.mark.parametrize(
    "other",
    [
        session_of(RoundName("federation", 8)),
        session_of(RoundName("another", 7)),
        session_of(seed=9),
    ],
    ids=["round", "federation", "keys"],
)
def test_signature_from_another_session_counts_for_nothing(other: Session) -> None:
    with pytest.raises(SignatureError):
        check({**signed(*SITES[:3]), **signed(SITES[3], session=other)})


def test_signature_in_the_name_of_another_counts_for_nothing() -> None:
    copied = signed(SITES[0])[SITES[0]]
    with pytest.raises(SignatureError, match="site d has not signed who is in the sum as this"):
        check({**signed(*SITES[:3]), SITES[3]: copied})


def test_signature_of_a_stranger_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="gave no keys"):
        check({**signed(*SITES[:4]), SiteId("z"): bytes(64)})

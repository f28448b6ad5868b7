"""What sites and the coordinator do not take, whoever says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from consortium.core.ids import Secret, SiteId
from consortium.crypto.hazmat import sealing
from consortium.crypto.recipes import SigningKey, verify
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.keys import Seeds
from consortium.crypto.secure_sum.session import Advert, RoundName, Session, Split, Terms
from consortium.crypto.secure_sum.site import Site
from consortium.errors import (
    DimensionError,
    ImpossiblePlanError,
    InsufficientParticipantsError,
    InternalError,
    InvalidInputError,
    SignatureError,
    WeakKeyError,
)
from tests.secagg.scene import Scene, scene

A, B, C, D = (SiteId(f"site-{at:03}") for at in range(4))
STRANGER = SiteId("stranger")


@pytest.fixture(scope="module")
def four() -> Scene:
    return scene(4)


# ---- the session ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda advert: replace(advert, mask_key=bytes(32)), WeakKeyError),
        (lambda advert: replace(advert, seal_key=bytes(31)), WeakKeyError),
        (lambda advert: replace(advert, seal_key=advert.mask_key), WeakKeyError),
        (lambda advert: replace(advert, commitment=b""), InvalidInputError),
        (lambda advert: replace(advert, site=B), InvalidInputError),
        (lambda advert: replace(advert, site=SiteId("a/b")), InvalidInputError),
    ],
)
def test_bad_keys_are_refused(
    four: Scene, change: Callable[[Advert], Advert], error: type[Exception]
) -> None:
    adverts = [four.session.advert(site) for site in four.sites]
    with pytest.raises(error):
        Session(four.name, four.terms, [change(adverts[0]), *adverts[1:]])


@pytest.mark.parametrize(
    "terms",
    [
        Terms(2, 3),  # two of four: half of the holders could read a seed, and the rest its key
        Terms(5, 3),
        Terms(3, 2),
        Terms(3, 3, 1, bytes(32)),
        Terms(3, 3, 2),  # neighbours, and nothing that draws them
        Terms(3, 3, seed=bytes(32)),
    ],
)
def test_terms_under_which_secrets_could_be_read_are_refused(four: Scene, terms: Terms) -> None:
    adverts = [four.session.advert(site) for site in four.sites]
    with pytest.raises(ImpossiblePlanError):
        Session(four.name, terms, adverts)


def test_as_many_neighbours_are_on_each_side() -> None:
    with pytest.raises(ImpossiblePlanError):
        _ = scene(6, Terms(3, 4, 3, bytes(32))).session


@pytest.mark.parametrize(("federation", "number"), [("", 1), ("a b", 1), ("a", -1), ("a", 1 << 63)])
def test_a_round_has_a_name(federation: str, number: int) -> None:
    with pytest.raises(InvalidInputError):
        RoundName(federation, number)


def test_what_is_agreed_changes_every_key(four: Scene) -> None:
    """The round, a term, or one other key: nothing that was derived before fits."""
    others = [
        scene(4, round=4).session,
        Session(four.name, Terms(4, 3), map(four.session.advert, four.sites)),
        Session(four.name, Terms(3, 3), [four.session.advert(site) for site in (A, B, C)]),
    ]
    assert len({session.digest for session in (four.session, *others)}) == 4


# ---- the identity's signature --------------------------------------------------------


def test_keys_and_splits_are_signed_for_one_round_and_one_purpose(four: Scene) -> None:
    identity, advert = SigningKey.generate(), four.session.advert(A)
    signature = identity.sign(advert.to_sign(four.name))
    verify(identity.public, advert.to_sign(four.name), signature)
    split = Split(frozenset({A, B, C}), frozenset({D}))
    for other in (
        advert.to_sign(RoundName("federation", 4)),
        four.session.advert(B).to_sign(four.name),
        split.to_sign(four.session),
    ):
        with pytest.raises(SignatureError):
            verify(identity.public, other, signature)
    moved = Split(frozenset({A, B}), frozenset({C, D}))
    assert split.to_sign(four.session) != moved.to_sign(four.session)


# ---- seeds ---------------------------------------------------------------------------


def test_fresh_seeds_differ_and_are_not_shown() -> None:
    first, second = Seeds.fresh(), Seeds.fresh()
    raw = first.secret().reveal()
    assert len({raw[at : at + 16] for at in range(0, 64, 16)}) == 4
    assert raw != second.secret().reveal()
    assert Seeds.from_secret(Secret(raw)).secret().reveal() == raw
    assert raw[:16].hex() not in repr(first) and repr(raw[:16]) not in repr(first)


def test_seeds_of_another_length_are_refused() -> None:
    with pytest.raises(InternalError):
        Seeds.from_secret(Secret(bytes(63)))


def test_a_site_shows_nothing_of_itself(four: Scene) -> None:
    assert repr(four.parties[A]) == "Site('site-000', …)"


# ---- a site --------------------------------------------------------------------------


def test_a_site_refuses_a_session_with_other_keys_for_it(four: Scene) -> None:
    with pytest.raises(InvalidInputError, match="not this site's"):
        Site(four.session, A, four.seeds[B])
    with pytest.raises(InvalidInputError, match="no keys"):
        Site(four.session, STRANGER, four.seeds[A])


def test_shares_of_strangers_and_broken_seals_are_refused(four: Scene) -> None:
    sealed, party = four.sealed[B][A], four.parties[A]
    broken = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for owner, one in ((STRANGER, sealed), (A, sealed), (C, sealed), (B, broken), (B, b"")):
        with pytest.raises(InvalidInputError):
            party.open_shares({owner: one})
    with pytest.raises(InvalidInputError):
        four.parties[C].open_shares({B: sealed})


def test_a_seal_of_a_site_that_is_no_neighbour_is_refused_though_it_is_whole() -> None:
    here = scene(11, Terms(3, 6, 4, bytes(32)))
    around = set(here.session.holders(A))
    other = next(site for site in here.sites if site not in around)
    sealed = here.parties[other]._sealed(A, 1, 2)
    for owner in (other, STRANGER, A):
        with pytest.raises(InvalidInputError, match="no neighbour"):
            here.parties[A].open_shares({owner: sealed})


def test_a_seal_does_not_fit_another_round() -> None:
    now, later = scene(4), scene(4, round=4)
    with pytest.raises(InvalidInputError):
        later.parties[A].open_shares({B: now.sealed[B][A]})


@pytest.mark.parametrize("text", [bytes(33), bytes(35), b"\xff" * 34])
def test_a_seal_that_holds_something_else_is_refused(four: Scene, text: bytes) -> None:
    sender = four.parties[B]
    key = keys.seal_key(four.session, sender._shared_with(A), B, A)
    sealed = sealing.seal(key, text, keys.share_label(four.session, B, A))
    with pytest.raises(InvalidInputError):
        four.parties[A].open_shares({B: sealed})


@pytest.mark.parametrize(
    ("sharers", "error"),
    [
        ({A, B}, InsufficientParticipantsError),
        ({B, C, D}, InvalidInputError),
        ({A, B, C, STRANGER}, InvalidInputError),
    ],
)
def test_a_site_does_not_mask_with_too_few_or_strangers(
    four: Scene, sharers: set[SiteId], error: type[Exception]
) -> None:
    with pytest.raises(error):
        four.parties[A].mask(four.vector(A), sharers)


@pytest.mark.parametrize(
    ("survivors", "dropped", "error"),
    [
        ({A, B, C, D}, {D}, InvalidInputError),  # both seeds of D would be told
        ({A, B, C}, {C, D}, InvalidInputError),
        ({A, B, C, STRANGER}, {D}, InvalidInputError),
        ({A, B, C}, {D, STRANGER}, InvalidInputError),
        ({A, B, C}, set(), InvalidInputError),  # D shared, and is nowhere
        ({A, B}, {C, D}, InsufficientParticipantsError),
        ({B, C, D}, {A}, InvalidInputError),
        ({B, C, D}, set(), InvalidInputError),
    ],
)
def test_a_site_does_not_answer_a_bad_split(
    four: Scene, survivors: set[SiteId], dropped: set[SiteId], error: type[Exception]
) -> None:
    held = four.held(A, four.everybody())
    with pytest.raises(error):
        four.parties[A].answer(Split(frozenset(survivors), frozenset(dropped)), held)


def test_a_site_that_did_not_share_is_no_survivor(four: Scene) -> None:
    sharers = frozenset({A, B, C})
    with pytest.raises(InvalidInputError):
        four.parties[A].answer(Split(four.everybody(), frozenset()), four.held(A, sharers))


def test_an_answer_has_one_share_of_each_owner(four: Scene) -> None:
    held = four.held(A, four.everybody())
    answer = four.parties[A].answer(Split(frozenset({A, B, C}), frozenset({D})), held)
    assert (set(answer.own), set(answer.mask)) == ({A, B, C}, {D})
    assert {len(share) for share in (*answer.own.values(), *answer.mask.values())} == {17}


# ---- the coordinator -----------------------------------------------------------------


def test_the_sum_takes_each_sharer_once_and_in_its_form(four: Scene) -> None:
    total = MaskedSum(four.session, {A, B, C}, four.size)
    total.add(A, four.vector(A))
    for site in (A, D, STRANGER):
        with pytest.raises(InvalidInputError):
            total.add(site, four.vector(A))
    for vector in (four.vector(B)[1:], four.vector(B).astype(np.int64)):
        with pytest.raises(DimensionError):
            total.add(B, vector)
    assert (total.total == four.vector(A)).all()
    assert total.split() == Split(frozenset({A}), frozenset({B, C}))


@pytest.mark.parametrize(
    ("sharers", "error"),
    [({A, B}, InsufficientParticipantsError), ({A, B, C, STRANGER}, InvalidInputError)],
)
def test_no_sum_begins_with_too_few_or_strangers(
    four: Scene, sharers: set[SiteId], error: type[Exception]
) -> None:
    with pytest.raises(error):
        MaskedSum(four.session, sharers, 1)


def test_unmasking_takes_one_answer_of_each_survivor(four: Scene) -> None:
    everybody = four.everybody()
    survivors = everybody - {D}
    total = four.masked(everybody, survivors)
    answers = {
        site: four.parties[site].answer(total.split(), four.held(site, everybody))
        for site in survivors
    }
    given = list(answers.values())
    assert (unmask(total, given) == four.true_sum(survivors)).all()
    assert (unmask(total, given, threads=1) == four.true_sum(survivors)).all()  # and again
    for bad in ([*given, given[0]], [*given[1:], replace(given[0], site=D)]):
        with pytest.raises(InvalidInputError, match="answers once"):
            unmask(total, bad)
    with pytest.raises(InsufficientParticipantsError, match="answered"):
        unmask(total, given[1:])


@pytest.mark.parametrize("kind", ["own", "mask"])
def test_one_wrong_share_gives_no_sum(four: Scene, kind: str) -> None:
    """A holder that lies spoils the round and is found out: the sum is exact or there is none."""
    everybody = four.everybody()
    total = four.masked(everybody, everybody - {D})
    answers = [
        four.parties[site].answer(total.split(), four.held(site, everybody)) for site in (A, B, C)
    ]
    owner = B if kind == "own" else D
    shares = dict(getattr(answers[0], kind))
    for wrong in (bytes(17), bytes(16) + b"\1", b"\xff" * 17, shares[owner][1:]):
        told = replace(answers[0], **{kind: {**shares, owner: wrong}})
        with pytest.raises(InvalidInputError):
            unmask(total, [told, *answers[1:]])


@pytest.mark.parametrize("kind", ["own", "mask"])
def test_a_seed_that_fits_but_is_another_is_found_out(four: Scene, kind: str) -> None:
    """Shares of zero from everybody give the seed zero, which is a seed like any other."""
    everybody = four.everybody()
    total = four.masked(everybody, everybody - {D})
    answers = [
        four.parties[site].answer(total.split(), four.held(site, everybody)) for site in (A, B, C)
    ]
    owner = B if kind == "own" else D
    told = [replace(one, **{kind: {**getattr(one, kind), owner: bytes(17)}}) for one in answers]
    with pytest.raises(InvalidInputError, match="seed"):
        unmask(total, told)


def test_a_sum_of_too_few_is_not_unmasked(four: Scene) -> None:
    total = four.masked(four.everybody(), frozenset({A, B}))
    with pytest.raises(InsufficientParticipantsError):
        unmask(total, [])

"""What holds for all secrets, points, sites and vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consortium.crypto.hazmat import masks, shamir
from consortium.crypto.secure_sum import keys
from tests.secagg.scene import Scene, ids, scene, terms_for

P = shamir.PRIME
SECRETS = st.binary(min_size=16, max_size=16)
ELEMENTS = st.integers(0, P - 1)
POINTS = st.lists(st.integers(1, 2000), min_size=2, max_size=24, unique=True)


def coefficients_through(points: Sequence[int], values: Sequence[int]) -> list[int]:
    """Of the one polynomial through these points, lowest first: Newton, in whole numbers."""
    table = list(values)
    for order in range(1, len(points)):
        for at in reversed(range(order, len(points))):
            span = points[at] - points[at - order]
            table[at] = (table[at] - table[at - 1]) * pow(span, -1, P) % P
    out = [0] * len(points)
    for at in reversed(range(len(points))):
        moved = [0, *out[:-1]]
        out = [(up - points[at] * one) % P for up, one in zip(moved, out, strict=True)]
        out[0] = (out[0] + table[at]) % P
    return out


@given(SECRETS, POINTS, st.data())
def test_any_threshold_of_shares_gives_the_secret(
    secret: bytes, points: list[int], data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, len(points)))
    drawn = data.draw(st.lists(ELEMENTS, min_size=threshold - 1, max_size=threshold - 1))
    shares = dict(zip(points, shamir.split(secret, points, drawn), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert shamir.join(tuple(chosen), [shares[x] for x in chosen]) == secret


@given(SECRETS, SECRETS, POINTS, st.data())
def test_one_share_less_fits_every_secret_by_exactly_one_polynomial(
    secret: bytes, other: bytes, points: list[int], data: st.DataObject
) -> None:
    """As coefficients are even, so is what t - 1 shares say of the secret: they say nothing."""
    drawn = data.draw(st.lists(ELEMENTS, min_size=len(points), max_size=len(points)))
    shares = shamir.split(secret, points, drawn)  # t is one more than there are points
    at_zero = int.from_bytes(other, "big")
    fitting = coefficients_through([0, *points], [at_zero, *shares])
    assert fitting[0] == at_zero
    assert shamir.split(other, points, fitting[1:]) == shares
    mine = coefficients_through([0, *points], [int.from_bytes(secret, "big"), *shares])
    assert mine[1:] == drawn  # and it is the only one


@given(st.integers(2, 6), st.integers(0, 300), st.randoms(use_true_random=False))
def test_masks_that_are_added_and_taken_cancel(count: int, size: int, random: object) -> None:
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]  # a Random
    start = rng.integers(0, 1 << 32, size, dtype=np.uint32)
    names = [rng.bytes(16) for _ in range(count)]
    total = start.copy()
    masks.add_masks(total, names)
    masks.add_masks(total, [], names[::-1])
    assert (total == start).all()


@settings(max_examples=25)
@given(st.integers(3, 7), st.text("abc", min_size=1, max_size=3))
def test_pairwise_masks_cancel_and_own_masks_stay(count: int, tag: str) -> None:
    here = Scene(ids(count), terms_for(count), size=20, tag=tag)
    everybody = here.everybody()
    total = here.masked(everybody, everybody).total.copy()
    own = [keys.own_mask(here.session, site, here.seeds[site].own.reveal()) for site in here.sites]
    assert (total != here.true_sum(everybody)).any()
    masks.add_masks(total, [], own)
    assert (total == here.true_sum(everybody)).all()


def test_no_two_keys_of_a_round_or_of_the_next_are_the_same() -> None:
    found = []
    for here in (scene(5), scene(5, round=4)):
        session = here.session
        for me in here.sites:
            seeds = here.seeds[me]
            pair = keys.mask_pair(session.name, me, seeds.mask.reveal())
            found.append(keys.own_mask(session, me, seeds.own.reveal()))
            found += [keys.pair_mask(session, pair, me, peer) for peer in here.sites if peer > me]
            shared = {
                peer: here.parties[me]._shared_with(peer) for peer in here.sites if peer != me
            }
            found += [keys.seal_key(session, one, me, peer)[:16] for peer, one in shared.items()]
    assert len(set(found)) == len(found) == 2 * (5 + 10 + 20)

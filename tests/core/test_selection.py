"""Whom a round invites: sizes, strategies, the same choice from the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from itertools import combinations, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.core.ids import Seat, SiteId
from consortium.core.roster import Member, Roster
from consortium.core.selection import (
    _Draw,
    _words,
    choose,
    choose_backups,
    invitation_size,
)
from consortium.core.terms import PPM, ReportValue, Selection, Terms

from .small import SEED, TERMS

POOL = [Seat(number) for number in range(1, 13)]
RANDOM = TERMS
FAIR = replace(TERMS, selection=Selection.FAIR)
DIVERSE = replace(TERMS, selection=Selection.DIVERSE, spread=("region", "size"))

# The 99.99 % points of chi-square: a false alarm once in 10,000 seeds, and ours is fixed.
CHI_SQUARE = {2: 18.42, 9: 33.72}


def _seed(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def _roster(*reports: dict[str, ReportValue]) -> Roster:
    roster = Roster()
    for number, report in enumerate(reports, start=1):
        member = Member(SiteId(f"s{number}"), b"", 0, tuple(sorted(report.items())))
        roster.members[Seat(number)] = member
    return roster


def _is_uniform(counts: Iterable[int], cells: int) -> bool:
    seen = list(counts)
    seen += [0] * (cells - len(seen))
    expected = sum(seen) / cells
    return sum((count - expected) ** 2 / expected for count in seen) < CHI_SQUARE[cells - 1]


@pytest.mark.parametrize("terms", [RANDOM, FAIR, DIVERSE])
def test_a_range_of_seats_is_a_pool_like_any_other(terms: Terms) -> None:
    roster, seats = _roster(), range(1, 2001)
    pool = [Seat(number) for number in seats]
    lazy: list[Seat] = seats  # type: ignore[assignment]  # seats are whole numbers
    assert choose(terms, roster, lazy, 40, SEED) == choose(terms, roster, pool, 40, SEED)
    assert choose(terms, roster, lazy, 2000, SEED) == tuple(pool)
    assert choose_backups(lazy, 9, SEED, 1) == choose_backups(pool, 9, SEED, 1)


# ---- sizes (R3) ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "fraction", "overselect", "eligible", "expected"),
    [
        (0, 0.5, 1.0, 3, (3, 3)),  # the quorum is the floor
        (0, 0.5, 1.0, 6, (3, 3)),
        (0, 0.5, 1.0, 7, (4, 4)),  # ⌈3.5⌉
        (0, 0.5, 1.0, 100, (50, 50)),
        (0, 0.1, 1.0, 101, (11, 11)),  # ⌈10.1⌉
        (0, 0.1, 1.0, 100, (10, 10)),  # exactly ten: binary fractions would say eleven
        (0, 0.3, 1.0, 10, (3, 3)),  # 0.3 × 10 is 3.0000000000000004 in some orders
        (0, 1.0, 1.0, 41, (41, 41)),
        (5, 0.5, 1.0, 100, (5, 5)),  # a target overrides the fraction
        (5, 0.5, 1.3, 100, (5, 7)),  # ⌈6.5⌉
        (10, 0.5, 1.1, 100, (10, 11)),  # exactly 11
        (10, 0.5, 1.1, 10, (10, 10)),  # nobody is there to over-select
        (10, 0.5, 1.5, 7, (7, 7)),  # a target beyond the eligible comes down to them
    ],
)
def test_invitations_follow_target_fraction_and_over_selection(
    target: int, fraction: float, overselect: float, eligible: int, expected: tuple[int, int]
) -> None:
    terms = replace(
        TERMS,
        target=target,
        fraction_ppm=round(fraction * PPM),
        overselect_ppm=round(overselect * PPM),
    )
    assert invitation_size(terms, eligible) == expected


# ---- the same choice everywhere -----------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "expected"),
    [(RANDOM, (1, 2, 6, 7, 8)), (FAIR, (3, 4, 8, 10, 11)), (DIVERSE, (1, 2, 4, 5, 6))],
    ids=["random", "fair", "diverse"],
)
def test_choice_from_a_seed_is_the_same_for_ever(terms: Terms, expected: tuple[int, ...]) -> None:
    regions = ["north", "north", "north", "south", "south", "west"] * 2
    roster = _roster(*({"region": region, "size": 1} for region in regions))
    roster.taken_part = {Seat(1): 3, Seat(2): 1, Seat(5): 1, Seat(9): 2}
    assert choose(terms, roster, POOL, 5, SEED) == expected


def test_backups_from_a_seed_are_the_same_for_ever_and_differ_by_attempt() -> None:
    assert choose_backups(POOL, 3, SEED, 0) == (5, 8, 10)
    assert choose_backups(POOL, 3, SEED, 1) == (1, 4, 12)


@given(st.sampled_from([RANDOM, FAIR, DIVERSE]), st.integers(0, 20), st.binary(min_size=1))
def test_choice_is_sorted_distinct_and_as_large_as_asked(
    terms: Terms, count: int, seed: bytes
) -> None:
    chosen = choose(terms, Roster(), POOL, count, seed)
    assert len(chosen) == min(count, len(POOL))
    assert list(chosen) == sorted(set(chosen))
    assert set(chosen) <= set(POOL)


def test_backups_are_at_most_the_pool() -> None:
    assert choose_backups(POOL[:2], 5, SEED, 0) == (1, 2)
    assert choose_backups([], 5, SEED, 0) == ()


# ---- random -------------------------------------------------------------------------


def test_every_pair_is_equally_likely() -> None:
    pool = POOL[:5]
    counts = Counter(choose(RANDOM, Roster(), pool, 2, _seed(trial)) for trial in range(5000))
    assert set(counts) == set(combinations(pool, 2))
    assert _is_uniform(counts.values(), 10)


def test_every_backup_is_equally_likely() -> None:
    counts = Counter(choose_backups(POOL[:10], 1, _seed(trial), 2) for trial in range(5000))
    assert _is_uniform(counts.values(), 10)


# Numbers below this bound cannot come from 64-bit words without throwing a quarter away.
AWKWARD = 3 << 62


def test_draw_throws_away_the_words_that_would_favour_small_numbers() -> None:
    key = b"consortium/selection/v1\0" + SEED + b"test"
    words = list(islice(_words(key), 400))
    kept = [word for word in words if word < AWKWARD]
    assert 50 < len(words) - len(kept) < 150  # a quarter of 400
    draw = _Draw(SEED, "test")
    assert [draw.below(AWKWARD) for _ in kept] == kept


def test_draw_has_no_bias_and_the_test_would_see_one() -> None:
    draw = _Draw(SEED, "test")
    thirds = Counter(draw.below(AWKWARD) >> 62 for _ in range(3000))
    assert _is_uniform(thirds.values(), 3)
    biased = Counter(word % AWKWARD >> 62 for word in islice(_words(SEED), 3000))
    assert not _is_uniform(biased.values(), 3)


def test_draw_below_one_is_zero() -> None:
    assert _Draw(SEED, "test").below(1) == 0


# ---- fair ---------------------------------------------------------------------------


def test_fair_takes_those_who_took_part_least() -> None:
    roster = Roster(taken_part={Seat(seat): seat // 4 for seat in POOL})
    for trial in range(20):
        chosen = choose(FAIR, roster, POOL, 5, _seed(trial))
        assert set(chosen) > {1, 2, 3}  # never took part
        assert set(chosen) < {1, 2, 3, 4, 5, 6, 7}


def test_fair_breaks_ties_at_random() -> None:
    counts = Counter(choose(FAIR, Roster(), POOL[:10], 1, _seed(trial)) for trial in range(5000))
    assert _is_uniform(counts.values(), 10)


def test_fair_gives_everybody_the_same_share_over_many_rounds() -> None:
    roster = Roster()
    for number in range(60):
        for seat in choose(FAIR, roster, POOL, 5, _seed(number)):
            roster.taken_part[seat] = roster.taken_part.get(seat, 0) + 1
    assert {roster.taken_part[seat] for seat in POOL} == {25}


# ---- diverse ------------------------------------------------------------------------


def test_diverse_spreads_over_the_declared_attributes() -> None:
    kinds = [("north", "large")] * 9 + [("south", "large"), ("south", "small"), ("west", "small")]
    roster = _roster(*({"region": region, "size": size} for region, size in kinds))
    for trial in range(20):
        chosen = choose(DIVERSE, roster, POOL, 4, _seed(trial))
        assert {kinds[seat - 1] for seat in chosen} == set(kinds)
        assert len(choose(DIVERSE, roster, POOL, 7, _seed(trial))) == 7


def test_diverse_treats_sites_that_declare_nothing_as_one_kind() -> None:
    roster = _roster(*[{}] * 10, {"region": "north"}, {"region": "south", "size": 2})
    chosen = choose(DIVERSE, roster, POOL, 3, SEED)
    assert {11, 12} < set(chosen)


def test_diverse_chooses_at_random_within_a_kind() -> None:
    roster = _roster(*[{"region": "north"}] * 10)
    counts = Counter(choose(DIVERSE, roster, POOL[:10], 1, _seed(trial)) for trial in range(5000))
    assert _is_uniform(counts.values(), 10)


def test_diverse_prefers_no_kind_when_not_all_can_be_had() -> None:
    roster = _roster(*({"region": f"r{number}"} for number in range(10)))
    counts = Counter(choose(DIVERSE, roster, POOL[:10], 1, _seed(trial)) for trial in range(5000))
    assert _is_uniform(counts.values(), 10)

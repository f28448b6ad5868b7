"""Cutting a data set into sites: every record exactly once, and the skew that was asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.data import by_id, dirichlet, iid, quantity_skew, shards
from consortium.data.partition import Parts
from consortium.errors import SiteDataError

Cut = Callable[[np.ndarray, int, np.random.Generator], Parts]
CUTS: dict[str, Cut] = {
    "iid": lambda labels, sites, rng: iid(len(labels), sites, rng),
    "quantity_skew": lambda labels, sites, rng: quantity_skew(len(labels), sites, 5.0, rng),
    "dirichlet": lambda labels, sites, rng: dirichlet(labels, sites, 5.0, rng),
    "shards": lambda labels, sites, rng: shards(labels, sites, 2, rng),
}
cases = st.tuples(st.lists(st.integers(0, 3), min_size=60, max_size=120), st.integers(1, 5))


@pytest.mark.parametrize("name", CUTS)
@given(cases, st.integers(0, 9))
def test_every_record_is_at_exactly_one_site(
    name: str, case: tuple[list[int], int], seed: int
) -> None:
    parts = CUTS[name](np.array(case[0]), case[1], np.random.default_rng(seed))
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(case[0])))


@pytest.mark.parametrize("name", CUTS)
@given(cases)
def test_every_site_has_records_in_ascending_order(name: str, case: tuple[list[int], int]) -> None:
    parts = CUTS[name](np.array(case[0]), case[1], np.random.default_rng(0))
    assert len(parts) == case[1]
    for part in parts:
        assert part.dtype == np.int64 and len(part) and (np.diff(part) > 0).all()


@pytest.mark.parametrize("name", CUTS)
def test_the_same_generator_gives_the_same_cut(name: str) -> None:
    labels = np.arange(100) % 4
    first, second = (CUTS[name](labels, 4, np.random.default_rng(7)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


@given(st.integers(1, 200), st.integers(1, 20))
def test_iid_sizes_differ_by_one_at_most(n: int, sites: int) -> None:
    if n >= sites:
        sizes = [len(part) for part in iid(n, sites, np.random.default_rng(0))]
        assert max(sizes) - min(sizes) <= 1


@given(cases, st.integers(1, 4))
def test_dirichlet_gives_everybody_the_minimum(case: tuple[list[int], int], least: int) -> None:
    parts = dirichlet(np.array(case[0]), case[1], 2.0, np.random.default_rng(0), least)
    assert min(len(part) for part in parts) >= least


def test_a_smaller_alpha_makes_classes_more_uneven() -> None:
    labels = np.arange(4000) % 4

    def top_share(alpha: float) -> float:
        parts = dirichlet(labels, 8, alpha, np.random.default_rng(1))
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert top_share(0.1) > 0.6 > 0.3 > top_share(1000.0)


def test_a_smaller_alpha_makes_sizes_more_uneven() -> None:
    def spread(alpha: float) -> int:
        sizes = [len(part) for part in quantity_skew(4000, 8, alpha, np.random.default_rng(1))]
        return max(sizes) - min(sizes)

    assert spread(0.5) > 500 > 200 > spread(1000.0)


def test_shards_hold_few_classes() -> None:
    labels = np.arange(1000) % 10
    parts = shards(labels, 10, 2, np.random.default_rng(0))
    assert max(len(np.unique(labels[part])) for part in parts) <= 2


def test_ids_are_sites_in_order_of_appearance() -> None:
    parts = by_id(np.array([7, 3, 7]).tolist())
    assert [(key, index.tolist()) for key, index in parts.items()] == [(7, [0, 2]), (3, [1])]


def test_a_minimum_that_no_draw_reaches_ends_with_an_error() -> None:
    with pytest.raises(SiteDataError, match="1000 draws gave no cut") as caught:
        dirichlet(np.zeros(40, int), 10, 0.01, np.random.default_rng(0), min_records=4)
    assert "larger alpha" in caught.value.hint


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda rng: iid(3, 4, rng), "3 records cannot give 4 sites"),
        (lambda rng: iid(3, 0, rng), "one site or more"),
        (lambda rng: quantity_skew(9, 2, 0.0, rng), "alpha above 0"),
        (lambda rng: quantity_skew(9, 2, float("nan"), rng), "alpha above 0"),
        (lambda rng: dirichlet(np.zeros(9), 2, 1.0, rng, 5), "9 records cannot give 2 sites 5"),
        (lambda rng: shards(np.zeros(9), 3, 4, rng), "9 records cannot give 3 sites 4"),
        (lambda rng: shards(np.zeros(9), 3, 0, rng), "at least one shard"),
    ],
)
def test_an_impossible_cut_is_refused(
    cut: Callable[[np.random.Generator], Parts], message: str
) -> None:
    with pytest.raises(SiteDataError, match=message):
        cut(np.random.default_rng(0))

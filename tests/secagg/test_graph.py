"""Who masks with whom: both ways, evenly, and with the chances that are claimed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import hypergeom

from consortium.core.ids import SiteId
from consortium.crypto.secure_sum.graph import (
    Graph,
    Tolerance,
    degree_for,
    failure_chance,
    threshold_for,
    tolerated_for,
)
from consortium.errors import ImpossiblePlanError
from tests.secagg.scene import ids


@pytest.mark.parametrize(
    ("sites", "degree"), [(3, 2), (50, 49), (100, 99), (101, 54), (300, 56), (500, 66), (1000, 74)]
)
def test_degrees_are_those_of_the_reference(sites: int, degree: int) -> None:
    assert degree_for(sites) == degree


def stands(sites: int, degree: int) -> bool:
    """By SciPy's hypergeometric distribution."""
    threshold, colluding, dropped = threshold_for(degree + 1), sites // 5, sites // 10
    read = sites * hypergeom.sf(threshold - 1, sites - 1, colluding, degree)
    lost = sites * hypergeom.cdf(threshold - 2, sites - 1, sites - 1 - dropped, degree)
    apart = sites * 0.3 ** (degree / 2)
    return bool(max(read, apart) <= 2**-40 and lost <= 2**-20)


@pytest.mark.parametrize("sites", [101, 109, 127, 160, 220, 300, 333, 404, 500, 650, 818, 1000])
def test_the_degree_is_enough_and_a_smaller_one_is_not(sites: int) -> None:
    assert stands(sites, degree_for(sites))
    assert not stands(sites, degree_for(sites) - 2)


@pytest.mark.parametrize(("sites", "degree"), [(101, 54), (300, 56), (500, 66), (40, 12)])
def test_the_chance_of_failure_is_that_of_the_distribution(sites: int, degree: int) -> None:
    threshold, dropped = threshold_for(degree + 1), sites // 8
    wanted = sites * hypergeom.cdf(threshold - 2, sites - 1, sites - 1 - dropped, degree)
    found = failure_chance(sites, degree, threshold, dropped)
    assert found == pytest.approx(min(1.0, wanted), rel=1e-9)


def test_of_many_sites_eighteen_may_work_with_a_coordinator_that_lies() -> None:
    """The plan's sentences say so of every number of sites beyond a hundred."""
    assert min(map(tolerated_for, range(101, 160))) == 18
    assert min(map(tolerated_for, range(160, 2000, 97))) >= 18


@pytest.mark.parametrize(("sites", "chance"), [(300, 0.6), (500, 0.5), (1000, 0.8)])
def test_a_fifth_is_too_many_for_a_coordinator_that_lies(sites: int, chance: float) -> None:
    """How likely it is that some site has 2t - h colluding holders, about: so it can be told a list
    by which it is laid bare. It is why a fifth is promised of one that keeps to the protocol."""
    degree = degree_for(sites)
    needed = 2 * threshold_for(degree + 1) - (degree + 1)
    for_one = hypergeom.sf(needed - 1, sites - 1, sites // 5, degree)
    assert 1 - (1 - for_one) ** (sites * 4 // 5) > chance


def test_who_cannot_be_protected_by_some_masks_with_all() -> None:
    assert degree_for(150, Tolerance(40, 50)) == 149


def test_more_dropouts_take_more_neighbours() -> None:
    assert degree_for(300, Tolerance(dropped_percent=20)) == 144


def test_the_chance_of_failure_is_a_bound_on_what_happens() -> None:
    """120 sites, 20 neighbours, 17 of 21 holders, six gone: 300 draws fail less often."""
    sites, rng, failures = ids(120), np.random.default_rng(5), 0
    for draw in range(300):
        graph = Graph(sites, 20, draw.to_bytes(2, "big"))
        gone = {sites[at] for at in rng.choice(120, 6, replace=False)}
        left = [len(set(graph.holders(site)) - gone) for site in sites if site not in gone]
        failures += min(left) < 17
    bound = failure_chance(120, 20, 17, 6)
    assert 0 < failures / 300 <= bound < 0.5


def test_a_full_graph_fails_when_too_few_are_left() -> None:
    assert (failure_chance(10, 9, 7, 3), failure_chance(10, 9, 7, 4)) == (0.0, 1.0)


@pytest.mark.parametrize(("count", "degree"), [(3, 2), (7, 6), (7, 4), (8, 2), (30, 10)])
def test_neighbours_are_neighbours_both_ways(count: int, degree: int) -> None:
    sites = ids(count)
    graph = Graph(sites, degree, b"order")
    held = Counter(holder for site in sites for holder in graph.holders(site))
    assert set(held.values()) == {degree + 1}
    for site in sites:
        holders = graph.holders(site)
        assert site in holders and len(set(holders)) == degree + 1
        assert all(site in graph.holders(other) for other in holders)


def test_holders_of_a_full_graph_have_the_same_points_for_everybody() -> None:
    graph = Graph(ids(5), 9, b"order")
    assert graph.degree == 4
    assert {graph.holders(site) for site in ids(5)} == {ids(5)}


def test_the_order_on_the_circle_is_drawn_evenly() -> None:
    """How often two sites of nine are neighbours, of two each: a quarter; 5 σ of 2,000 draws."""
    sites = ids(9)
    together = sum(
        sites[1] in Graph(sites, 2, draw.to_bytes(2, "big")).holders(sites[0])
        for draw in range(2000)
    )
    assert abs(together / 2000 - 1 / 4) < 5 * (3 / 16 / 2000) ** 0.5


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_an_uneven_circle_is_refused(degree: int) -> None:
    with pytest.raises(ImpossiblePlanError):
        Graph(tuple(SiteId(str(at)) for at in range(8)), degree, b"")

"""Which sums are known follows from which masks are: the same as by elimination."""

from __future__ import annotations

import doctest
from itertools import combinations
from random import Random

import numpy as np

from consortium.core.ids import SiteId
from consortium.testing import bare
from consortium.testing.bare import Sight, laid_bare

SITES = tuple(SiteId(str(number)) for number in range(5))


def _drawn(rng: Random) -> Sight:
    masked = {
        site: frozenset(peer for peer in SITES if peer != site and rng.random() < 0.8)
        for site in SITES
        if rng.random() < 0.9
    }
    own = {site for site in SITES if rng.random() < 0.8}
    pairwise = {site for site in SITES if rng.random() < 0.4}
    return Sight(masked, own, pairwise)


def _by_elimination(sight: Sight) -> set[frozenset[SiteId]]:
    """A column for every mask that is not known, a row for every vector: the rows that add up to
    nothing. No shorter way to the same groups is taken."""
    rows = sorted(sight.masked)
    pairs = [pair for pair in combinations(SITES, 2) if not sight.pairwise & set(pair)]
    columns = [site for site in SITES if site not in sight.own]
    matrix = np.zeros((len(rows), len(columns) + len(pairs)))
    for at, site in enumerate(rows):
        if site in columns:
            matrix[at, columns.index(site)] = 1
        for peer in sight.masked[site]:
            pair = (min(site, peer), max(site, peer))
            if pair in pairs:
                matrix[at, len(columns) + pairs.index(pair)] = 1 if site < peer else -1
    known = set()
    for size in range(1, len(rows) + 1):
        for group in combinations(range(len(rows)), size):
            named = frozenset(rows[at] for at in group)
            is_whole = not any(found < named for found in known)
            if is_whole and not matrix[list(group)].sum(axis=0).any():
                known.add(named)
    return known


def test_known_sums_are_those_that_elimination_finds() -> None:
    rng, seen = Random(7), set()
    for _ in range(3000):
        sight = _drawn(rng)
        found = laid_bare(sight)
        assert set(found) == _by_elimination(sight), sight
        seen |= {len(group) for group in found}
    assert seen == {1, 2, 3, 4, 5}


def test_example_runs() -> None:
    assert doctest.testmod(bare).attempted > 0
    assert doctest.testmod(bare).failed == 0

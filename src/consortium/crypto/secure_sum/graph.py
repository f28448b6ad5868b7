"""Who masks with whom, and how many of them can give a secret back.

Up to a hundred sites everybody masks with everybody. Beyond, a site has k neighbours: k / 2 on
each side of a circle (a Harary graph), in an order that public randomness decided after the
keys were there (Bell et al. 2020, section 3). A site's secrets are shared among its *holders*,
which are its neighbours and itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from math import comb

from consortium.core.ids import SiteId
from consortium.errors import ImpossiblePlanError

FULL_UP_TO = 100


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a sparse graph must stand, in percent of all sites, and how surely.

    With chances of at most 2**-secrecy, sites that collude with the coordinator are enough
    holders of somebody's secrets to read them, or all masks between two groups of the others are
    known to them. With chances of at most 2**-success, some secret cannot be given back. The
    defaults give k = 56 for 300 sites, 66 for 500 and 74 for 1,000.

    The coordinator is taken to keep to the protocol: it tells all sites the same, counts nobody as
    dropped who did not drop out, and lets nobody choose keys who knows the others'. For one that
    does not, chances mean nothing: see `tolerated_for`.
    """

    colluding_percent: int = 20
    dropped_percent: int = 10
    secrecy: int = 40
    success: int = 20


USUAL = Tolerance()


def threshold_for(holders: int) -> int:
    """Two thirds of the holders. The holders that are left cannot be split into two groups, of
    which one gives a site's own seed and the other its key, unless 2t - holders collude.

    >>> [threshold_for(holders) for holders in (3, 4, 50, 100)]
    [2, 3, 34, 67]
    """
    return -(-2 * holders // 3)


def tolerated_for(sites: int) -> int:
    """How many of so many sites may work with a coordinator that tells sites different things, for
    sure: whoever they are, and whoever is whose neighbour.

    Sites answer by one split alone, since two thirds of all have signed it. A site that was told of
    other sharers than the others may still be in it. To give its own seed back, t of its h holders
    must answer; to know all its masks, the coordinator must have told it of t holders who collude,
    or count as dropped, and those do not answer. So 2t - h of its holders must collude. With fewer,
    no sum is known of fewer than t of the others less those who collude; and where everybody masks
    with everybody, none of fewer than a quorum less those.

    >>> [tolerated_for(sites) for sites in (3, 4, 6, 50, 100, 101, 500, 1000)]
    [0, 1, 1, 17, 33, 18, 22, 24]
    """
    holders = degree_for(sites) + 1
    return 2 * threshold_for(holders) - holders - 1


@lru_cache(maxsize=64)
def degree_for(sites: int, tolerance: Tolerance = USUAL) -> int:
    """How many neighbours each site has: all up to a hundred sites, then the least even k that
    stands what it must.

    >>> degree_for(100), degree_for(500), degree_for(1000)
    (99, 66, 74)
    """
    if sites <= FULL_UP_TO:
        return sites - 1
    for degree in range(2, sites - 1, 2):
        if _stands(sites, degree, tolerance):
            return degree
    return sites - 1


def _stands(sites: int, degree: int, tolerance: Tolerance) -> bool:
    """Union bounds over all sites, in whole numbers. The neighbours of a site are drawn from the
    others without putting back. A circle falls apart when k / 2 sites in a row are gone."""
    colluding = sites * tolerance.colluding_percent // 100
    dropped = sites * tolerance.dropped_percent // 100
    threshold, others = threshold_for(degree + 1), sites - 1
    gone = tolerance.colluding_percent + tolerance.dropped_percent
    if sites * gone ** (degree // 2) << tolerance.secrecy > 100 ** (degree // 2):
        return False
    draws = comb(others, degree)
    read = _ways(colluding, others, degree, range(threshold, degree + 1))
    # One of the holders is the owner itself, of which we think that it is there.
    lost = _ways(others - dropped, others, degree, range(threshold - 1))
    return sites * read << tolerance.secrecy <= draws and sites * lost << tolerance.success <= draws


def _ways(marked: int, others: int, degree: int, counts: range) -> int:
    """How many draws of `degree` out of `others` have so many marked ones (hypergeometric)."""
    return sum(comb(marked, count) * comb(others - marked, degree - count) for count in counts)


def failure_chance(sites: int, degree: int, threshold: int, dropped: int) -> float:
    """A bound on the chance that, with so many dropped, some secret cannot be given back.

    >>> failure_chance(500, 66, 45, 50) < 2**-20
    True
    """
    lost = _ways(sites - 1 - dropped, sites - 1, degree, range(threshold - 1))
    return min(1.0, sites * lost / comb(sites - 1, degree))


class Graph:
    """Sites on a circle. A holder of somebody's secrets has a number among the holders, above
    zero: the point of its shares."""

    __slots__ = ("_around", "_place", "degree", "is_full")

    def __init__(self, sites: tuple[SiteId, ...], degree: int, order: bytes) -> None:
        """`sites` are sorted. `order` decides the order on the circle."""
        self.degree = min(degree, len(sites) - 1)
        self.is_full = self.degree == len(sites) - 1
        if self.degree < 2 or (self.degree % 2 and not self.is_full):
            raise ImpossiblePlanError("neighbours are two or more, as many on each side")
        circle = sites if self.is_full else tuple(sorted(sites, key=partial(_draw, order)))
        half = self.degree // 2
        self._around = circle[-half:] + circle + circle[:half]
        self._place = {site: at for at, site in enumerate(circle)}

    def holders(self, owner: SiteId) -> tuple[SiteId, ...]:
        """The owner and its neighbours; the first has the point 1."""
        # Of a full graph, holders have the same points for everybody: one set of coefficients.
        first = self.degree // 2 if self.is_full else self._place[owner]
        return self._around[first : first + self.degree + 1]


def _draw(order: bytes, site: SiteId) -> bytes:
    return sha256(order + site.encode()).digest()

"""Which sums of single vectors follow from masked ones, once some of the seeds are known.

A masked vector is the site's own, its own mask, and one mask for each site that it masked with. A
mask of two sites is known to whoever has the pairwise seed of either. Masks are independent, so a
sum of masked vectors tells a sum of plain ones only if every mask in it is known, or is there with
both signs. That is all that this module uses: who is honest, what was agreed to and what anybody
may ask are the affair of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from consortium.core.ids import SiteId

Sites = frozenset[SiteId]


@dataclass(frozen=True, slots=True)
class Sight:
    """What somebody has of one session: masked vectors, each with those that its site masked with,
    and whose seeds. Of those who tell all that they know, both seeds are known, and their vectors
    are not among these."""

    masked: Mapping[SiteId, Sites]
    own: Set[SiteId]
    pairwise: Set[SiteId]


def laid_bare(sight: Sight) -> list[Sites]:
    """The smallest groups of sites of which the sum is known, by their first site. Every sum that
    is known is made of these.

    >>> one, two, three = map(SiteId, ("1", "2", "3"))
    >>> everybody = frozenset((one, two, three))
    >>> masked = {site: everybody - {site} for site in everybody}
    >>> [sorted(group) for group in laid_bare(Sight(masked, everybody, set()))]
    [['1', '2', '3']]
    >>> [sorted(group) for group in laid_bare(Sight(masked, {one}, {two, three}))]
    [['1']]
    >>> laid_bare(Sight(masked, {one}, {two}))
    []
    """
    live = _live(sight)
    found = []
    while live:
        group = _group(sight, min(live))
        live -= group
        found.append(group)
    return found


def _hidden(sight: Sight, site: SiteId) -> Set[SiteId]:
    """Those with whom it has a mask that is not known."""
    return set() if site in sight.pairwise else sight.masked[site] - sight.pairwise


def _live(sight: Sight) -> set[SiteId]:
    """Those that can be in a sum without masks: not whose own mask is not known, nor who has a mask
    that is not known together with a site which has it not, or which cannot be there either."""
    live = set(sight.masked) & sight.own
    while True:
        gone = {
            site
            for site in live
            if any(
                peer not in live or site not in sight.masked[peer] for peer in _hidden(sight, site)
            )
        }
        if not gone:
            return live
        live -= gone


def _group(sight: Sight, first: SiteId) -> Sites:
    """All that must be in a sum that this site is in, so that the masks between them cancel."""
    group, todo = {first}, [first]
    while todo:
        new = _hidden(sight, todo.pop()) - group
        group |= new
        todo += new
    return frozenset(group)

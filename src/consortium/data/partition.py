"""One data set cut into sites, for simulation. Every record goes to exactly one site.

Each function gives one array of record numbers a site, in ascending order. The generator
is always a parameter: the same generator and labels give the same cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from consortium.data.table import Doubles, Integers
from consortium.errors import SiteDataError

Parts = list[Integers]
Key = TypeVar("Key", bound=Hashable)
_MAX_DRAWS = 1000


def iid(n: int, sites: int, rng: np.random.Generator) -> Parts:
    """Shuffled and dealt evenly: sizes differ by one record at most."""
    _check(n, sites, 1)
    return [_sorted(part) for part in np.array_split(rng.permutation(n), sites)]


def quantity_skew(
    n: int, sites: int, alpha: float, rng: np.random.Generator, min_records: int = 1
) -> Parts:
    """Sizes in proportions drawn from Dirichlet(alpha): the smaller, the more uneven."""
    _check(n, sites, min_records, alpha)

    def draw() -> Parts:
        shares = rng.dirichlet(np.full(sites, alpha))
        return np.split(rng.permutation(n), _cuts(shares, n))

    return _until_enough(draw, min_records)


def dirichlet(
    labels: npt.NDArray[Any],
    sites: int,
    alpha: float,
    rng: np.random.Generator,
    min_records: int = 1,
) -> Parts:
    """Each class is spread over the sites in proportions drawn from Dirichlet(alpha).

    Hsu, Qi and Brown (2019) draw one mix of classes a site, for sites of one size; this is
    the form of Yurochkin et al. (2019, section 4) that draws one spread a class, so that
    sizes differ too and no record is left over. alpha = 0.1 is strong skew, 100 nearly none.
    """
    _check(len(labels), sites, min_records, alpha)
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]

    def draw() -> Parts:
        pieces: list[list[npt.NDArray[Any]]] = [[] for _ in range(sites)]
        for group in groups:
            shares = rng.dirichlet(np.full(sites, alpha))
            dealt = np.split(rng.permutation(group), _cuts(shares, len(group)))
            for site, piece in zip(pieces, dealt, strict=True):
                site.append(piece)
        return [np.concatenate(site) for site in pieces]

    return _until_enough(draw, min_records)


def shards(
    labels: npt.NDArray[Any], sites: int, shards_per_site: int, rng: np.random.Generator
) -> Parts:
    """Sorted by label, cut into equal shards, `shards_per_site` dealt to each site
    (McMahan et al. 2017, section 3: two shards of 300 a client)."""
    if shards_per_site < 1:
        raise SiteDataError("a site gets at least one shard")
    _check(len(labels), sites, shards_per_site)
    pieces = np.array_split(np.argsort(labels, kind="stable"), sites * shards_per_site)
    dealt = rng.permutation(len(pieces)).reshape(sites, shards_per_site)
    return [_sorted(np.concatenate([pieces[place] for place in places])) for places in dealt]


def by_id(ids: Iterable[Key]) -> dict[Key, Integers]:
    """The natural cut: one site for each id, in order of first appearance.

    >>> {site: index.tolist() for site, index in by_id(["a", "b", "a"]).items()}
    {'a': [0, 2], 'b': [1]}
    """
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(ids):
        places.setdefault(key, []).append(place)
    return {key: np.array(found, np.int64) for key, found in places.items()}


def _cuts(shares: Doubles, n: int) -> Integers:
    """Where to cut n records so that the parts have these shares, as nearly as whole."""
    edges: Integers = np.rint(np.cumsum(shares)[:-1] * n).astype(np.int64)
    return np.minimum(edges, n)


def _until_enough(draw: Callable[[], Parts], min_records: int) -> Parts:
    for _ in range(_MAX_DRAWS):
        parts = draw()
        if min(len(part) for part in parts) >= min_records:
            return [_sorted(part) for part in parts]
    raise SiteDataError(
        f"{_MAX_DRAWS} draws gave no cut with {min_records} records or more at every site",
        hint="use a larger alpha, fewer sites, or a smaller min_records",
    )


def _check(n: int, sites: int, min_records: int, alpha: float = 1.0) -> None:
    if sites < 1 or min_records < 0 or not 0.0 < alpha < np.inf:
        raise SiteDataError("a cut needs one site or more, and an alpha above 0")
    if n < sites * max(min_records, 1):
        raise SiteDataError(
            f"{n} records cannot give {sites} sites {max(min_records, 1)} each",
            hint="use fewer sites",
        )


def _sorted(part: npt.NDArray[Any]) -> Integers:
    return np.sort(part).astype(np.int64)

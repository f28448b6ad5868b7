"""What everybody knows of one secure sum: its round, its terms, and the keys of its sites.

The session's digest is in every key that is derived, so a site that was shown another list of
keys has other masks and other seals: nothing that it says fits what others say.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from hashlib import sha256

from consortium.core.ids import SiteId, is_plain_id
from consortium.crypto.hazmat.agreement import check_public_key
from consortium.crypto.hazmat.framing import framed
from consortium.crypto.secure_sum.graph import USUAL, Graph, Tolerance, degree_for, threshold_for
from consortium.errors import (
    ImpossiblePlanError,
    InsufficientParticipantsError,
    InvalidInputError,
    WeakKeyError,
)

LEAST_SITES = 3
SEED_BYTES = 32
COMMITMENT_BYTES = 32


@dataclass(frozen=True, slots=True)
class RoundName:
    """One round of one federation."""

    federation: str
    round: int

    def __post_init__(self) -> None:
        if not is_plain_id(self.federation) or not 0 <= self.round < 1 << 63:
            raise InvalidInputError("a round has the name of its federation and a number")


@dataclass(frozen=True, slots=True)
class Terms:
    """What is agreed before any key is there.

    `threshold` holders give a secret back; `quorum` survivors are the least that are summed.
    Without `degree`, everybody masks with everybody. With it, there is a `seed` that is public
    and nobody's choice: whoever can choose it chooses a site's neighbours.
    """

    threshold: int
    quorum: int
    degree: int | None = None
    seed: bytes = b""


def terms_for(sites: int, seed: bytes = b"", tolerance: Tolerance = USUAL) -> Terms:
    """The usual terms for so many sites: two thirds of them, and of the holders of a secret.
    More than a hundred need a public seed.

    >>> usual = terms_for(500, bytes(32))
    >>> usual.threshold, usual.quorum, usual.degree
    (45, 334, 66)
    """
    degree = degree_for(sites, tolerance)
    sparse = degree if degree < sites - 1 else None
    return Terms(threshold_for(degree + 1), threshold_for(sites), sparse, seed)


@dataclass(frozen=True, slots=True)
class Advert:
    """A site's public keys for one round, and what its own seed is checked with."""

    site: SiteId
    mask_key: bytes
    seal_key: bytes
    commitment: bytes

    def to_sign(self, name: RoundName) -> bytes:
        """What the site's identity signs, and whoever gets the keys verifies."""
        return framed("keys", name.federation, name.round, *self.fields)

    @property
    def fields(self) -> tuple[str, bytes, bytes, bytes]:
        return self.site, self.mask_key, self.seal_key, self.commitment


class Session:
    """The sites that gave keys, under their terms. It never changes."""

    __slots__ = ("_adverts", "digest", "graph", "name", "sites", "terms")

    def __init__(self, name: RoundName, terms: Terms, adverts: Iterable[Advert]) -> None:
        """Refuses fewer sites than three or the quorum, one site twice, weak keys, one key twice,
        and terms under which a minority could read secrets."""
        listed = sorted(adverts, key=lambda advert: advert.site)
        self.name, self.terms = name, terms
        self._adverts = {advert.site: advert for advert in listed}
        self.sites = tuple(self._adverts)
        _check_adverts(listed, self.sites, max(LEAST_SITES, terms.quorum))
        self.digest = _digest(name, terms, listed)
        self.graph = Graph(self.sites, self._degree, framed("circle", self.digest))
        _check_terms(terms, len(self.sites), self.graph.degree + 1)

    @property
    def _degree(self) -> int:
        return len(self.sites) - 1 if self.terms.degree is None else self.terms.degree

    def advert(self, site: SiteId) -> Advert:
        if site not in self._adverts:
            raise InvalidInputError("a site gave no keys for this round")
        return self._adverts[site]

    def holders(self, owner: SiteId) -> tuple[SiteId, ...]:
        return self.graph.holders(owner)

    def check_enough(self, sites: Set[SiteId]) -> None:
        """Refuses strangers, and fewer sites than are ever summed."""
        if not sites <= self._adverts.keys():
            raise InvalidInputError("a site gave no keys for this round")
        if len(sites) < self.terms.quorum:
            raise InsufficientParticipantsError(
                f"{len(sites)} sites are left, and {self.terms.quorum} are the least to be summed"
            )

    def check_holders(self, owner: SiteId, sites: Set[SiteId]) -> None:
        """Refuses when fewer of the owner's holders are left than give its secrets back."""
        left = len(sites & set(self.holders(owner)))
        if left < self.terms.threshold:
            raise InsufficientParticipantsError(
                f"{left} holders of a site's shares are left, and it takes {self.terms.threshold}"
            )


@dataclass(frozen=True, slots=True)
class Split:
    """Of those who shared seeds: whose masked vector is in the sum, and whose is not."""

    survivors: frozenset[SiteId]
    dropped: frozenset[SiteId]

    def to_sign(self, session: Session) -> bytes:
        """For a site that wants to see that all others were told the same."""
        return framed(
            "split",
            session.name.federation,
            session.name.round,
            session.digest,
            len(self.survivors),
            *sorted(self.survivors),
            *sorted(self.dropped),
        )


def _digest(name: RoundName, terms: Terms, adverts: list[Advert]) -> bytes:
    agreed = (terms.threshold, terms.quorum, terms.degree or 0, terms.seed)
    fields = [field for advert in adverts for field in advert.fields]
    return sha256(framed("session", name.federation, name.round, *agreed, *fields)).digest()


def _check_adverts(adverts: list[Advert], sites: tuple[SiteId, ...], least: int) -> None:
    if len(sites) < least:
        raise InsufficientParticipantsError(
            f"{len(sites)} sites gave keys, and this secure sum is of {least} or more"
        )
    if len(sites) < len(adverts) or not all(is_plain_id(site) for site in sites):
        raise InvalidInputError("every site has an id of its own")
    keys = [key for advert in adverts for key in (advert.mask_key, advert.seal_key)]
    for key in keys:
        check_public_key(key)
    if len(set(keys)) < len(keys):
        raise WeakKeyError("one key is there twice: somebody copied it, or did not make a new one")
    if any(len(advert.commitment) != COMMITMENT_BYTES for advert in adverts):
        raise InvalidInputError(f"a commitment has {COMMITMENT_BYTES} bytes")


def _check_terms(terms: Terms, sites: int, holders: int) -> None:
    if not holders < 2 * terms.threshold <= 2 * holders or not sites < 2 * terms.quorum:
        raise ImpossiblePlanError(
            "threshold and quorum are more than half of all that there are",
            hint="take two thirds",
        )
    if len(terms.seed) != (SEED_BYTES if terms.degree else 0):
        raise ImpossiblePlanError(f"neighbours are drawn by a public seed of {SEED_BYTES} bytes")

"""Small secure sums with fixed seeds, phase by phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha512

import numpy as np

from consortium.core.ids import Secret, SiteId
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Terms, terms_for
from consortium.crypto.secure_sum.site import Held, Site

Ids = frozenset[SiteId]


def ids(count: int) -> tuple[SiteId, ...]:
    return tuple(SiteId(f"site-{at:03}") for at in range(count))


def seeds_of(site: SiteId, tag: str) -> Seeds:
    return Seeds.from_secret(Secret(sha512(f"{tag} {site}".encode()).digest()))


@dataclass
class Scene:
    """Sites that gave keys, and what they can say next."""

    sites: tuple[SiteId, ...]
    terms: Terms
    size: int = 5
    tag: str = "scene"
    name: RoundName = field(default_factory=lambda: RoundName("federation", 3))

    @cached_property
    def seeds(self) -> dict[SiteId, Seeds]:
        return {site: seeds_of(site, self.tag) for site in self.sites}

    @cached_property
    def session(self) -> Session:
        adverts = [make_keys(self.name, site, self.seeds[site]) for site in self.sites]
        return Session(self.name, self.terms, adverts)

    @cached_property
    def parties(self) -> dict[SiteId, Site]:
        return {site: Site(self.session, site, self.seeds[site]) for site in self.sites}

    @cached_property
    def sealed(self) -> dict[SiteId, dict[SiteId, bytes]]:
        return {site: party.make_shares() for site, party in self.parties.items()}

    def vector(self, site: SiteId) -> U32:
        key = int.from_bytes(sha512(f"{self.tag} {site} vector".encode()).digest()[:8], "big")
        return np.random.default_rng(key).integers(0, 1 << 32, self.size, dtype=np.uint32)

    def true_sum(self, sites: Iterable[SiteId]) -> U32:
        return np.add.reduce([self.vector(site) for site in sites], dtype=np.uint32)

    def held(self, site: SiteId, sharers: Ids) -> dict[SiteId, Held]:
        senders = [owner for owner in sorted(sharers) if site in self.sealed[owner]]
        return self.parties[site].open_shares({one: self.sealed[one][site] for one in senders})

    def masked(self, sharers: Ids, survivors: Ids) -> MaskedSum:
        total = MaskedSum(self.session, sharers, self.size)
        for site in sorted(survivors):
            total.add(site, self.parties[site].mask(self.vector(site), sharers))
        return total

    def result(self, sharers: Ids, survivors: Ids, answering: Ids) -> U32:
        """The whole sum, in which each phase is reached by these."""
        total = self.masked(sharers, survivors)
        split = total.split()
        answers = [
            self.parties[site].answer(split, self.held(site, sharers)) for site in sorted(answering)
        ]
        return unmask(total, answers)

    def everybody(self) -> Ids:
        return frozenset(self.sites)


def scene(count: int, terms: Terms | None = None, *, size: int = 5, round: int = 3) -> Scene:
    return Scene(ids(count), terms or terms_for(count), size, name=RoundName("federation", round))

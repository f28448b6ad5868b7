"""Secure sums whose sites leave: the exact sum of the survivors, or a refusal and nothing.

    python -m consortium.testing.secure_dropouts --every 6 --random 200 --sites 100

Each site leaves before one of the four phases (keys, shares, vector, answer) or never. With
`--every`, all 5**n cases of n sites; with `--random`, so many cases of a cohort that masks
all-to-all: each has its own share of sites that leave, and each site its own phase. Sites and
coordinator are the product's; seeds and vectors follow from names, so a case can be run again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha512
from itertools import product
from random import Random
from typing import Any

import numpy as np

from consortium.core.ids import Secret, SiteId
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.graph import FULL_UP_TO
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import LEAST_SITES, RoundName, Session, Terms, terms_for
from consortium.crypto.secure_sum.site import Held, Site
from consortium.errors import ConsortiumError, InsufficientParticipantsError

Ids = frozenset[SiteId]
Leaves = tuple[int, ...]  # of each site: the phase before which it leaves, or STAYS

PHASES = ("keys", "shares", "vector", "answer")
STAYS = len(PHASES)


# ---- a cohort -----------------------------------------------------------------------


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
        total: U32 = np.add.reduce([self.vector(site) for site in sites], dtype=np.uint32)
        return total

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


# ---- a case -------------------------------------------------------------------------


@lru_cache(maxsize=64)  # all sets of six sites
def _of_those(sites: Ids, terms: Terms) -> Scene:
    return Scene(tuple(sorted(sites)), terms)


@dataclass(frozen=True, slots=True)
class Case:
    """When each site leaves."""

    leaves: Leaves

    def __str__(self) -> str:
        when = [
            f"{site} before {PHASES[phase]}"
            for site, phase in zip(ids(len(self.leaves)), self.leaves, strict=True)
            if phase < STAYS
        ]
        return f"{len(self.leaves)} sites, {', '.join(when) or 'nobody leaves'}"

    def reached(self, phase: int) -> Ids:
        """Who is still there after a phase."""
        pairs = zip(ids(len(self.leaves)), self.leaves, strict=True)
        return frozenset(site for site, leaves in pairs if leaves > phase)

    @property
    def is_enough(self) -> bool:
        """In a full graph those who answer are all that it takes; two sites have no secrets."""
        terms = terms_for(len(self.leaves))
        return len(self.reached(3)) >= terms.threshold and len(self.reached(0)) >= LEAST_SITES

    def violation(self) -> str:
        """What was wrong with it, or nothing."""
        terms = terms_for(len(self.leaves))
        keyed, sharers, survivors, answering = (self.reached(phase) for phase in range(STAYS))
        try:
            found = _of_those(keyed, terms).result(sharers, survivors, answering)
        except InsufficientParticipantsError:
            return "refused, and enough of them answered" if self.is_enough else ""
        except ConsortiumError as error:
            return f"refused for another reason: {error.code} {error.message}"
        if not self.is_enough:
            return "there is a sum, and too few answered"
        wanted = _of_those(keyed, terms).true_sum(survivors)
        return "" if (found == wanted).all() else "the sum is not that of the survivors"


def every_case(count: int) -> Iterator[Case]:
    return map(Case, product(range(STAYS + 1), repeat=count))


def random_cases(count: int, sites: int, seed: int) -> Iterator[Case]:
    """Up to half of the sites leave: some cases have enough sites left and some have not."""
    for number in range(count):
        draws = Random(f"{seed} {number}")
        share = draws.uniform(0.0, 0.5)
        yield Case(
            tuple(draws.randrange(STAYS) if draws.random() < share else STAYS for _ in range(sites))
        )


# ---- all of them --------------------------------------------------------------------


@dataclass
class Campaign:
    """What came out of the cases so far."""

    sums: int = 0
    refusals: int = 0
    violations: list[str] = field(default_factory=list)

    def run(self, cases: Iterable[Case]) -> None:
        for case in cases:
            wrong = case.violation()
            if wrong:
                self.violations.append(f"{case}: {wrong}")
            elif case.is_enough:
                self.sums += 1
            else:
                self.refusals += 1


def campaign(every: Sequence[int], random: int, sites: int, seed: int) -> dict[str, Any]:
    """Run it; what was done and what was found."""
    seen, begun = Campaign(), time.monotonic()
    for count in every:
        seen.run(every_case(count))
    seen.run(random_cases(random, sites, seed))
    return {
        "cases": seen.sums + seen.refusals + len(seen.violations),
        "exact_sums": seen.sums,
        "refusals": seen.refusals,
        "seconds": round(time.monotonic() - begun, 1),
        "violations": seen.violations,
    }


def _sites(text: str) -> int:
    count = int(text)
    if not LEAST_SITES <= count <= FULL_UP_TO:
        raise argparse.ArgumentTypeError(f"all-to-all is for {LEAST_SITES} to {FULL_UP_TO} sites")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", type=_sites, action="append", default=[], metavar="SITES")
    parser.add_argument("--random", type=int, default=0, metavar="CASES")
    parser.add_argument("--sites", type=_sites, default=FULL_UP_TO, help="of a random case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="as always: one object")
    options = parser.parse_args()
    told = campaign(options.every, options.random, options.sites, options.seed)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

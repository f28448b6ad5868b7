"""A cohort whose secure sum is measured: what its sites say, and what the coordinator gets.

Sites that drop do so where it costs the coordinator most: their shares are with the others, and
their row does not come. Rows are made without the masks that cancel, those of two survivors.
"""

from __future__ import annotations

import statistics
from functools import cached_property, partial

import numpy as np

from benchmarks.secagg_primitives import CORES, Costs, Taken, timed
from consortium.core.ids import SiteId
from consortium.crypto.hazmat import masks, shamir
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.graph import FULL_UP_TO, Tolerance
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, Split, terms_for
from consortium.crypto.secure_sum.site import Answer, Site

KEPT = 10  # masked rows of a closing


class Cohort:
    """All sites of a session, and what they say."""

    def __init__(self, count: int, size: int, tolerance: Tolerance) -> None:
        self.size, self.name = size, RoundName("benchmark", 1)
        self.ids = [SiteId(f"site-{at:04}") for at in range(count)]
        self.seeds = {site: Seeds.fresh() for site in self.ids}
        adverts = [make_keys(self.name, site, self.seeds[site]) for site in self.ids]
        seed = bytes(range(32)) if count > FULL_UP_TO else b""
        self.session = Session(self.name, terms_for(count, seed, tolerance), adverts)
        self.degree, self.terms = self.session.graph.degree, self.session.terms
        self.tolerance, self.everybody = tolerance, frozenset(self.ids)
        self.base = np.random.default_rng(0).integers(0, 1 << 32, size, dtype=np.uint32)

    def __str__(self) -> str:
        stands = f"the least k that stands {self.tolerance.dropped_percent}% dropped"
        is_full = self.terms.degree is None
        graph = "all-to-all" if is_full else f"k = {self.degree} neighbours ({stands})"
        return f"{len(self.ids)} sites x {self.size:,} words, {graph}, t = {self.terms.threshold}"

    @property
    def label(self) -> str:
        return f"{len(self.ids)} x {self.size // 1000}k"

    @cached_property
    def parties(self) -> dict[SiteId, Site]:
        return {site: Site(self.session, site, self.seeds[site]) for site in self.ids}

    @cached_property
    def sealed(self) -> dict[SiteId, dict[SiteId, bytes]]:
        return {site: party.make_shares() for site, party in self.parties.items()}

    def sent_to(self, site: SiteId) -> dict[SiteId, bytes]:
        return {owner: row[site] for owner, row in self.sealed.items() if site in row}

    def whole_site(self, site: SiteId, sent: dict[SiteId, bytes], split: Split) -> Answer:
        """All that a site computes in a round."""
        make_keys(self.name, site, self.seeds[site])
        party = Site(self.session, site, self.seeds[site])
        party.make_shares()
        held = party.open_shares(sent)
        party.mask(self.base, self.everybody)
        return party.answer(split, held)

    def site_limit(self, costs: Costs) -> float:
        """Two keys; two secrets shared; each share sealed and opened, with one agreement and a key
        each way; a mask for each neighbour, with an agreement and a key, and its own."""
        per_neighbour = 2 * costs.agreed + 3 * costs.derived + costs.sealed + costs.opened
        masked = 4 * self.size * (self.degree + 1) * costs.masked
        return 2 * costs.public + 2 * costs.split + self.degree * per_neighbour + masked

    def vector(self, at: int) -> U32:
        return self.base + np.uint32(at)


class Closing:
    """The coordinator's work when some have dropped."""

    def __init__(self, cohort: Cohort, dropped_percent: int) -> None:
        self.cohort, count = cohort, len(cohort.ids)
        self.dropped_percent = dropped_percent
        gone = np.random.default_rng(1).choice(count, count * dropped_percent // 100, replace=False)
        self.dropped = [cohort.ids[at] for at in sorted(gone)]
        self.survivors = [site for site in cohort.ids if site not in set(self.dropped)]
        self.pairs = [
            (site, owner)
            for owner in self.dropped
            for site in cohort.session.holders(owner)
            if site in set(self.survivors)
        ]
        self.rows: dict[SiteId, U32] = {}
        self.masked = self._masked()
        self.answers = self._answers()
        ats = [cohort.ids.index(site) for site in self.survivors]
        self.wanted = cohort.base * np.uint32(len(ats)) + np.uint32(sum(ats))

    def __str__(self) -> str:
        return f"{self.cohort}, {self.dropped_percent}% dropped"

    @property
    def label(self) -> str:
        return f"{self.cohort.label} {self.dropped_percent}%"

    def _masked(self) -> MaskedSum:
        """Rows with their own masks and those of their pairs with the dropped."""
        cohort = self.cohort
        total = MaskedSum(cohort.session, cohort.everybody, cohort.size)
        private = {
            owner: keys.mask_pair(cohort.name, owner, cohort.seeds[owner].mask.reveal())
            for owner in self.dropped
        }
        by_site: dict[SiteId, list[SiteId]] = {site: [] for site in self.survivors}
        for site, owner in self.pairs:
            by_site[site].append(owner)
        for site in self.survivors:
            plus = [keys.own_mask(cohort.session, site, cohort.seeds[site].own.reveal())]
            minus: list[bytes] = []
            for owner in by_site[site]:
                key = keys.pair_mask(cohort.session, private[owner], owner, site)
                (plus if site < owner else minus).append(key)
            row = cohort.vector(cohort.ids.index(site))
            masks.add_masks(row, plus, minus, threads=CORES)
            total.add(site, row)
            if len(self.rows) < KEPT:
                self.rows[site] = row
        return total

    def _answers(self) -> list[Answer]:
        split = self.masked.split()
        return [
            self.cohort.parties[site].answer(
                split, self.cohort.parties[site].open_shares(self.cohort.sent_to(site))
            )
            for site in self.survivors
        ]

    def adding(self) -> Taken:
        """All rows, each as the median of those that were kept. A row is added as it comes: when
        it has just been written to memory, which is whoever receives it and not ours."""
        cohort, received, added = self.cohort, np.empty(self.cohort.size, np.uint32), []
        total = MaskedSum(cohort.session, cohort.everybody, cohort.size)
        for site, row in self.rows.items():
            np.copyto(received, row)
            added.append(timed(partial(total.add, site, received)))
        worked = statistics.median(taken.worked for taken in added)
        clock = statistics.median(taken.clock for taken in added)
        return Taken(worked * len(self.survivors), clock * len(self.survivors))

    def unmasked(self) -> None:
        shamir.coefficients_at_zero.cache_clear()
        assert (unmask(self.masked, self.answers) == self.wanted).all()

    @cached_property
    def _sets(self) -> int:
        """How many different sets of points give all seeds back."""
        self.unmasked()
        return shamir.coefficients_at_zero.cache_info().misses

    def limit(self, costs: Costs) -> float:
        """One addition a row; every seed joined; a key for each mask, and for a pair an agreement,
        too; all masks over all cores."""
        seeds = len(self.survivors) + len(self.dropped)
        expanded = len(self.survivors) + len(self.pairs)
        return (
            len(self.survivors) * costs.added
            + seeds * (costs.joined + costs.derived)
            + self._sets * costs.coefficients
            + len(self.dropped) * costs.public
            + len(self.pairs) * (costs.agreed + costs.derived)
            + 4 * self.cohort.size * expanded * costs.masked_by_all_cores
        )

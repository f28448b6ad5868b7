"""What a secure sum costs, beside the least that its primitives allow on this machine.

    python -m benchmarks.secagg --json

The base of a line is a limit: how often each primitive is needed, times what it takes by itself,
measured in turn with ours in the same run. Both are processor seconds, which other work hardly
moves; `detail` has both by the clock, which mean little on a busy machine. Primitives are AES-CTR
with an addition in a chunk that stays in the cache (at the coordinator, while all cores do the
same), X25519, HKDF, AES-GCM, the making and joining of shares, and the addition of a row. 0.66 or
more is what we want: at most half as long again.

Three sites do all of their work. The coordinator does all of its own, and its sums are checked.
What it is given is made without masks that cancel: those of two sites that both survive.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.report import Line, main
from consortium.core.ids import SiteId
from consortium.crypto.hazmat import agreement, masks, sealing, shamir
from consortium.crypto.hazmat.masks import CHUNK, U32
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.graph import FULL_UP_TO, failure_chance
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, terms_for
from consortium.crypto.secure_sum.site import Answer, Site

SETTINGS = ((50, 1_000_000), (100, 1_000_000), (300, 100_000))
DROPOUT = (0.0, 0.2)
WHOLE = 3  # sites that do all of their work
REPEATS = 5
CORES = os.cpu_count() or 1
MOST_BYTES = 4.2  # a parameter
SIGNATURE_BYTES = 64
INFO = bytes(250)  # about as long as ours


@dataclass(frozen=True, slots=True, order=True)
class Taken:
    """Processor seconds of all threads, and those of the clock."""

    worked: float
    clock: float


def timed(call: Callable[[], object]) -> Taken:
    begun, worked = time.perf_counter(), time.process_time()
    call()
    return Taken(time.process_time() - worked, time.perf_counter() - begun)


def each(call: Callable[[], object], times: int) -> Taken:
    """Of one call, by so many of them."""

    def run() -> None:
        for _ in range(times):
            call()

    taken = timed(run)
    return Taken(taken.worked / times, taken.clock / times)


# ---- the primitives by themselves ---------------------------------------------------


def _expanded(times: int) -> None:
    """Masks in one chunk that stays in the cache."""
    total, stream = np.zeros(CHUNK, np.uint32), np.empty(4 * CHUNK, np.uint8)
    words, zeros = stream.view("<u4"), bytes(4 * CHUNK)
    fill = Cipher(algorithms.AES128(os.urandom(16)), modes.CTR(bytes(16))).encryptor().update_into
    for _ in range(times):
        fill(zeros, stream)
        np.add(total, words, out=total)


def masked_byte(threads: int, times: int = 400) -> Taken:
    """Of one byte of a mask, while so many threads do the same."""
    with ThreadPoolExecutor(threads) as pool:
        taken = timed(lambda: list(pool.map(_expanded, [times] * threads)))
    count = 4 * CHUNK * times * threads
    return Taken(taken.worked / count, taken.clock / count)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of each primitive; `masked` is of one byte of one mask."""

    masked: float
    masked_by_all_cores: float
    agreed: float
    public: float
    derived: float
    sealed: float
    opened: float
    split: float
    joined: float
    coefficients: float
    added: float  # one row


def costs_of(holders: int, threshold: int, size: int) -> list[Taken]:
    """Measured now, in the order of `Costs`."""
    mine, raw = X25519PrivateKey.generate(), agreement.public_bytes(X25519PrivateKey.generate())
    private, secret, about = os.urandom(32), os.urandom(32), bytes(120)
    sealed = sealing.seal(secret, bytes(34), about)
    drawn = shamir.elements(os.urandom(shamir.WIDE_BYTES * (threshold - 1)))
    points = tuple(range(1, threshold + 1))
    total, row = np.zeros(size, np.uint32), np.ones(size, np.uint32)
    return [
        masked_byte(1),
        masked_byte(CORES),
        each(lambda: mine.exchange(X25519PublicKey.from_public_bytes(raw)), 50),
        each(lambda: X25519PrivateKey.from_private_bytes(private).public_key(), 50),
        each(lambda: agreement.derive(secret, INFO, 16), 200),
        each(lambda: sealing.seal(secret, bytes(34), about), 200),
        each(lambda: sealing.unseal(secret, sealed, about), 200),
        each(lambda: shamir.split(secret[:16], range(1, holders + 1), drawn), 3),
        each(lambda: _joined(points, drawn), 20),
        each(lambda: shamir.coefficients_at_zero.__wrapped__(points), 3),
        each(lambda: np.add(total, row, out=total), 5),
    ]


def _joined(points: tuple[int, ...], shares: list[int]) -> int:
    found: int = sum(map(int.__mul__, shamir.coefficients_at_zero(points), shares)) % shamir.PRIME
    return found


def least(found: list[list[Taken]]) -> tuple[Costs, Costs]:
    """The least that was measured of each primitive: processor seconds, and by the clock."""
    columns = list(zip(*found, strict=True))
    worked = [min(taken.worked for taken in column) for column in columns]
    return Costs(*worked), Costs(*[min(taken.clock for taken in column) for column in columns])


# ---- a cohort -----------------------------------------------------------------------


class Cohort:
    """All sites of a session, and what they say."""

    def __init__(self, count: int, size: int) -> None:
        self.size, self.name = size, RoundName("benchmark", 1)
        self.ids = [SiteId(f"site-{at:04}") for at in range(count)]
        self.seeds = {site: Seeds.fresh() for site in self.ids}
        adverts = [make_keys(self.name, site, self.seeds[site]) for site in self.ids]
        self.session = Session(
            self.name, terms_for(count, bytes(range(32)) if count > FULL_UP_TO else b""), adverts
        )
        self.degree, self.terms = self.session.graph.degree, self.session.terms
        self.everybody = frozenset(self.ids)
        self.base = np.random.default_rng(0).integers(0, 1 << 32, size, dtype=np.uint32)

    def __str__(self) -> str:
        graph = "all-to-all" if self.terms.degree is None else f"{self.degree} neighbours"
        return f"{len(self.ids)} sites x {self.size:,} words, {graph}, t = {self.terms.threshold}"

    @cached_property
    def parties(self) -> dict[SiteId, Site]:
        return {site: Site(self.session, site, self.seeds[site]) for site in self.ids}

    @cached_property
    def sealed(self) -> dict[SiteId, dict[SiteId, bytes]]:
        return {site: party.make_shares() for site, party in self.parties.items()}

    def sent_to(self, site: SiteId) -> dict[SiteId, bytes]:
        return {owner: row[site] for owner, row in self.sealed.items() if site in row}

    def whole_site(self, site: SiteId) -> U32:
        """All that a site computes before it answers."""
        make_keys(self.name, site, self.seeds[site])
        party = Site(self.session, site, self.seeds[site])
        party.make_shares()
        party.open_shares(self.sent_to(site))
        return party.mask(self.base, self.everybody)

    def vector(self, at: int) -> U32:
        return self.base + np.uint32(at)


def site_limit(cohort: Cohort, costs: Costs) -> float:
    """Two keys; two secrets shared; each share sealed and opened, with one agreement and a key
    each way; a mask for each neighbour, with an agreement and a key, and its own."""
    per_neighbour = 2 * costs.agreed + 3 * costs.derived + costs.sealed + costs.opened
    masked = 4 * cohort.size * (cohort.degree + 1) * costs.masked
    return 2 * costs.public + 2 * costs.split + cohort.degree * per_neighbour + masked


def site_lines(cohort: Cohort) -> Iterator[Line]:
    ours, found = [], []
    cohort.whole_site(cohort.ids[0])
    for _ in range(REPEATS):
        sites = [timed(partial(cohort.whole_site, site)) for site in cohort.ids[:WHOLE]]
        ours.append(statistics.median_low(sites))
        found.append(costs_of(cohort.degree + 1, cohort.terms.threshold, cohort.size))
    costs, clock = least(found)
    detail = (
        f"{cohort}: keys, shares and masks of a site on one core, the best of {REPEATS} medians "
        f"of {WHOLE} sites; base: the limit, at {1e-9 / costs.masked:.2f} GB/s of masks, "
        f"{1 / costs.agreed:,.0f} agreements/s; by the clock {min(one.clock for one in ours):.4f} "
        f"of {site_limit(cohort, clock):.4f} s"
    )
    name = f"site {len(cohort.ids)} x {cohort.size // 1000}k"
    yield Line(name, min(ours).worked, site_limit(cohort, costs), "s", detail)
    yield _bytes_line(cohort)


def _bytes_line(cohort: Cohort) -> Line:
    """What a site sends: keys with a signature, sealed shares, its masked row, its answer."""
    site = cohort.ids[0]
    advert = cohort.session.advert(site)
    small = sum(len(field) for field in advert.fields) + SIGNATURE_BYTES
    shares = sum(map(len, cohort.sealed[site].values()))
    answer = shamir.SHARE_BYTES * (cohort.degree + 1)
    sent = small + shares + answer + cohort.base.nbytes
    received = len(cohort.ids) * small + shares
    detail = (
        f"{cohort}: all that a site sends, a word; received for the protocol: "
        f"{received / cohort.size:.3f}; base: the limit that we set ourselves"
    )
    name = f"bytes {len(cohort.ids)} x {cohort.size // 1000}k"
    return Line(name, sent / cohort.size, MOST_BYTES, "B", detail)


# ---- the coordinator ----------------------------------------------------------------


class Closing:
    """The coordinator's work when some have dropped."""

    def __init__(self, cohort: Cohort, dropout: float) -> None:
        self.cohort, count = cohort, len(cohort.ids)
        gone = np.random.default_rng(1).choice(count, round(count * dropout), replace=False)
        self.dropped = [cohort.ids[at] for at in sorted(gone)]
        self.survivors = [site for site in cohort.ids if site not in set(self.dropped)]
        self.pairs = [
            (site, owner)
            for owner in self.dropped
            for site in cohort.session.holders(owner)
            if site in set(self.survivors)
        ]
        self.added: list[Taken] = []
        self.masked = self._masked()
        self.answers = self._answers()
        ats = [cohort.ids.index(site) for site in self.survivors]
        self.wanted = cohort.base * np.uint32(len(ats)) + np.uint32(sum(ats))

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
            self.added.append(timed(partial(total.add, site, row)))
        return total

    def _answers(self) -> list[Answer]:
        split = self.masked.split()
        return [
            self.cohort.parties[site].answer(
                split, self.cohort.parties[site].open_shares(self.cohort.sent_to(site))
            )
            for site in self.survivors
        ]

    @property
    def adding(self) -> Taken:
        """All rows, each as the median of them: they are added once, so there is no best."""
        worked = statistics.median(taken.worked for taken in self.added)
        clock = statistics.median(taken.clock for taken in self.added)
        return Taken(worked * len(self.added), clock * len(self.added))

    def unmasked(self) -> None:
        shamir.coefficients_at_zero.cache_clear()
        assert (unmask(self.masked, self.answers) == self.wanted).all()

    def limit(self, costs: Costs) -> float:
        """One addition a row; every seed joined; a key for each mask, and for a pair an agreement,
        too; all masks over all cores."""
        self.unmasked()
        sets = shamir.coefficients_at_zero.cache_info().misses
        seeds = len(self.survivors) + len(self.dropped)
        expanded = len(self.survivors) + len(self.pairs)
        return (
            len(self.survivors) * costs.added
            + seeds * (costs.joined + costs.derived)
            + sets * costs.coefficients
            + len(self.dropped) * costs.public
            + len(self.pairs) * (costs.agreed + costs.derived)
            + 4 * self.cohort.size * expanded * costs.masked_by_all_cores
        )


def coordinator_line(cohort: Cohort, dropout: float) -> Line:
    closing = Closing(cohort, dropout)
    ours, found = [], []
    for _ in range(REPEATS):
        ours.append(timed(closing.unmasked))
        found.append(costs_of(cohort.degree + 1, cohort.terms.threshold, cohort.size))
    costs, clock = least(found)
    passed = closing.adding.clock + min(one.clock for one in ours)
    chance = failure_chance(
        len(cohort.ids), cohort.degree, cohort.terms.threshold, len(closing.dropped)
    )
    detail = (
        f"{cohort}, {dropout:.0%} dropped: {len(closing.survivors)} rows added, "
        f"{len(closing.survivors) + len(closing.pairs)} masks taken away over {CORES} cores, best "
        f"of {REPEATS}, the sum is exact; base: the limit, at "
        f"{1e-9 / costs.masked_by_all_cores:.2f} GB/s of masks a core; by the clock {passed:.4f} "
        f"of {closing.limit(clock):.4f} s; a round with such a dropout fails with a chance of at "
        f"most {chance:.1g}"
    )
    name = f"coordinator {len(cohort.ids)} x {cohort.size // 1000}k {dropout:.0%}"
    worked = closing.adding.worked + min(ours).worked
    return Line(name, worked, closing.limit(costs), "s", detail)


def measure() -> Iterator[Line]:
    for count, size in SETTINGS:
        cohort = Cohort(count, size)
        yield from site_lines(cohort)
        for dropout in DROPOUT:
            yield coordinator_line(cohort, dropout)


if __name__ == "__main__":
    main(measure, __doc__)

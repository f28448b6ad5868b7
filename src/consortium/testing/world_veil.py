"""The rules about secret sums in a `World`: nobody can read what one site sent, nor the sum of a
few, and the sum is exact or there is none.

What ever left a site counts as known to everybody: whatever either coordinator, or an old backup
of one, may have got. The site that lies tells everybody its own seeds, and all shares that it ever
held. All is kept by the world; nothing here asks the machines what they think.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from consortium.core import facts as f
from consortium.core import site_facts as s
from consortium.core.ids import Digest, Seat, SiteId
from consortium.core.state import Federation, Round
from consortium.crypto.hazmat import masks
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session
from consortium.crypto.secure_sum.site import Answer, Site
from consortium.drive.secret_sum import make_session
from consortium.model import Vector, digest_of, read_update_header
from consortium.testing.bare import Sight, Sites, laid_bare
from consortium.testing.world_masked_site import MaskedSitePlayer
from consortium.testing.world_site import fold
from consortium.testing.world_violation import must

if TYPE_CHECKING:
    from consortium.testing.world import World

_TOLERANCE = 1e-12  # far below a step of the ring
_WORD_BITS = 32
_FEW = 60  # words: below that chance alone may look like a pattern
_SIGMAS = 6.0  # of a fair coin: 2e-9 a bit


@dataclass(slots=True)
class Known:
    """What everybody may know of the seeds that one site made for one round."""

    owner: SiteId
    rounds: set[int] = field(default_factory=set)
    # Of each seed, in each session: whose shares were given.
    own: dict[bytes, set[SiteId]] = field(default_factory=dict)
    mask: dict[bytes, set[SiteId]] = field(default_factory=dict)


@dataclass(slots=True)
class Sent:
    """Masked vectors of one session, each with those that its site masked with."""

    session: Session
    masked: dict[SiteId, Sites] = field(default_factory=dict)


class Veil:
    """Sees all that leaves any site of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seeds: dict[bytes, Seeds] = {}  # by the public key that follows from them
        self._known: dict[bytes, Known] = {}  # by the seeds
        self._keys: dict[tuple[int, Seat], set[bytes]] = {}
        self._pins: dict[tuple[str, int, Seat], set[Digest]] = {}
        self._signed: dict[tuple[int, Digest], set[Seat]] = {}  # by round and split
        self._sent: dict[bytes, Sent] = {}  # by session
        self._rows: dict[Digest, U32] = {}  # what a masked file stands for
        self._closed: dict[int, f.RoundClosed] = {}
        self._ones: Counter[int] = Counter()  # of all masks, by bit
        self._words = 0

    # ---- keys and shares ------------------------------------------------------------

    def keys_leave(self, site: MaskedSitePlayer, number: int, mask_key: bytes) -> None:
        """Keys of a round are one pair, follow from seeds that will be there after a crash, and
        are of no other round."""
        seeds = site.secrets.seeds.get(number)
        name = RoundName(self._world.watch.past.state.id, number)
        is_kept = seeds is not None and make_keys(name, site.me, seeds).mask_key == mask_key
        may_differ = site.may_differ(number)
        must(is_kept or may_differ, "I-X1", f"seat {site.seat}: keys without durable seeds")
        told = self._keys.setdefault((number, site.seat), set())
        told.add(mask_key)
        must(len(told) == 1 or may_differ, "I-X1", f"seat {site.seat} gives keys twice")
        if seeds is not None:
            self.made(site.me, number, mask_key, seeds)

    def made(self, owner: SiteId, number: int, mask_key: bytes, seeds: Seeds) -> None:
        """Seeds that a public key follows from."""
        self._seeds[mask_key] = seeds
        known = self._known.setdefault(_name_of(seeds), Known(owner))
        known.rounds.add(number)
        must(len(known.rounds) == 1, "I-X1", f"{owner} uses its seeds in two rounds")

    def shares_leave(self, site: MaskedSitePlayer, number: int, session: Digest) -> None:
        """By a session that is on record at the site."""
        on_record = fold(site.records)
        is_durable = (on_record.round, on_record.session) == (number, session)
        must(is_durable, "I-X1", f"seat {site.seat} shares by what it would not remember")
        self._once("session", site, number, session)

    def pinned(self, site: MaskedSitePlayer, fact: s.SiteFact) -> None:
        """One session, one list of sharers and one split, a site and round."""
        match fact:
            case s.SessionPinned():
                self._once("session", site, fact.round, fact.session)
            case s.SharersPinned():
                self._once("sharers", site, fact.round, fact.sharing)
            case s.SplitPinned():
                self._once("split", site, fact.round, fact.split)
            case _:
                pass

    def _once(self, what: str, site: MaskedSitePlayer, number: int, name: Digest) -> None:
        names = self._pins.setdefault((what, number, site.seat), set())
        names.add(name)
        is_one = len(names) == 1 or site.may_differ(number)
        must(is_one, "I-X1", f"seat {site.seat} agrees to a second {what} in round {number}")

    # ---- updates --------------------------------------------------------------------

    def masked(
        self, site: MaskedSitePlayer, session: Session, sharers: Sites, row: U32, masked: U32
    ) -> None:
        """A row was put under masks: its own, and one with each of its neighbours who shared. They
        are even over the whole ring."""
        peers = (sharers & set(session.holders(site.me))) - {site.me}
        self._sent.setdefault(session.digest, Sent(session)).masked[site.me] = peers
        found = masked - row
        must(bool(found.any()), "I-X1", f"seat {site.seat} sends its row without masks")
        is_right = np.array_equal(found, self._masks_of(site.me, session, peers, len(row)))
        must(is_right, "I-X1", f"seat {site.seat} takes other masks than those of its session")
        self._words += len(found)
        for bit in range(_WORD_BITS):
            self._ones[bit] += int(np.count_nonzero(found >> np.uint32(bit) & np.uint32(1)))
        self._check_sums(session)

    def _masks_of(self, me: SiteId, session: Session, peers: Sites, size: int) -> U32:
        """From the seeds, step by step."""
        seeds, total = self._seeds[session.advert(me).mask_key], np.zeros(size, np.uint32)
        pair = keys.mask_pair(session.name, me, seeds.mask.reveal())
        both = {peer: keys.pair_mask(session, pair, me, peer) for peer in peers}
        plus = [keys.own_mask(session, me, seeds.own.reveal())]
        plus += [key for peer, key in both.items() if me < peer]
        masks.add_masks(total, plus, [key for peer, key in both.items() if peer < me])
        return total

    def kept(self, data: bytes, row: U32) -> None:
        """What a masked file stands for."""
        self._rows[digest_of(data)] = row

    # ---- signatures and answers -----------------------------------------------------

    def consent_leaves(self, site: MaskedSitePlayer, number: int, split: Digest) -> None:
        """By a split that is on record at the site."""
        on_record = fold(site.records)
        is_durable = (on_record.round, on_record.split) == (number, split)
        must(is_durable, "I-X1", f"seat {site.seat} signs what it would not remember")
        self._once("split", site, number, split)
        self.signs(site.seat, number, split)

    def signs(self, seat: Seat, number: int, split: Digest) -> None:
        self._signed.setdefault((number, split), set()).add(seat)

    def answer_leaves(self, site: MaskedSitePlayer, number: int, split: Digest) -> None:
        """By a split that is on record at the site."""
        on_record = fold(site.records)
        is_durable = (on_record.round, on_record.split) == (number, split)
        must(is_durable, "I-X1", f"seat {site.seat} answers by what it would not remember")
        self._once("split", site, number, split)
        signers = self._signed.get((number, split), set())
        is_agreed = 3 * len(signers) >= 2 * len(site.sites_in_session())
        must(is_agreed, "I-X1", f"seat {site.seat} answers, and {len(signers)} signed the split")

    def answers(
        self, site: MaskedSitePlayer, number: int, session: Session, answer: Answer
    ) -> None:
        """Count what is told of whom: never enough of both seeds of one site."""
        self.tells(site.me, session, answer)

    def tells(self, holder: SiteId, session: Session, answer: Answer) -> None:
        for kind, owners in (("own", answer.own), ("mask", answer.mask)):
            for owner in owners:
                seeds = self._seeds.get(session.advert(owner).mask_key)
                if seeds is None:
                    continue  # of a liar's making
                known = self._known[_name_of(seeds)]
                told: dict[bytes, set[SiteId]] = getattr(known, kind)
                told.setdefault(session.digest, set()).add(holder)
                has_both = self._has(session, owner, "own") and self._has(session, owner, "mask")
                must(not has_both, "I-X1", f"both seeds of {owner} can be put together")
        self._check_sums(session)

    def _has(self, session: Session, owner: SiteId, kind: str) -> bool:
        """Whether a seed of a site can be put together: from the shares of any one session, and
        those that a liar holds in this one."""
        seeds = self._seeds.get(session.advert(owner).mask_key)
        if seeds is None:
            return True  # of a liar's making
        told: dict[bytes, set[SiteId]] = getattr(self._known[_name_of(seeds)], kind)
        here = told.get(session.digest, set()) | (self._liars & set(session.holders(owner)))
        return any(
            len(holders) >= session.terms.threshold
            for holders in ({**told, session.digest: here}).values()
        )

    def _check_sums(self, session: Session) -> None:
        """By all seeds of all sites that can be put together by now: no sum of fewer vectors of
        honest sites is known than a round's quorum without those who lie."""
        sent = self._sent.get(session.digest, Sent(session)).masked
        liars = self._liars & set(session.sites)
        own = {site for site in sent if self._has(session, site, "own")}
        pairwise = {site for site in session.sites if self._has(session, site, "mask")} | liars
        for group in laid_bare(Sight(sent, own, pairwise)):
            is_large = len(group) >= session.terms.quorum - len(liars)
            must(is_large, "I-X1", f"the sum of {', '.join(sorted(group))} alone is laid bare")

    @property
    def _liars(self) -> Sites:
        setting = self._world.setting
        return frozenset({SiteId(f"site-{setting.sites}")} if setting.has_hostile else ())

    # ---- the sum --------------------------------------------------------------------

    def closed(self, fact: f.RoundClosed, known: Round) -> None:
        """The split: once a round, of those who shared, and enough of them."""
        must(fact.round not in self._closed, "I-X1", f"round {fact.round} has a second split")
        self._closed[fact.round] = fact
        strangers = set(fact.members) - known.sharers.keys()
        must(not strangers, "I-X2", f"members {sorted(strangers)} have not shared")
        must(len(fact.members) >= self._least(known), "I-X2", "a split below the quorum")

    def recorded(self, state: Federation) -> None:
        """After every fact: members and dropped are what the split says."""
        known = state.round
        closed = self._closed.get(known.number) if known is not None else None
        if known is None or closed is None:
            return
        is_same = tuple(sorted(known.members)) == closed.members and known.closed == closed
        must(is_same, "I-X1", f"the split of round {known.number} has changed")

    def _least(self, known: Round) -> int:
        return max(3, -(-2 * len(known.keys) // 3), self._world.setting.terms.quorum)

    def aggregated(self, known: Round, base: Vector, found: Vector) -> None:
        """The model is the exact sum of what the members of the split sent, and there are enough
        of them and of answers."""
        numbers, closed = self._world.numbers, self._closed[known.number]
        assert numbers is not None
        must(len(known.members) >= self._least(known), "I-X2", "a sum below the quorum")
        is_answered = 3 * len(known.lifters) >= 2 * len(known.keys)
        must(is_answered, "I-X2", "a sum that too few have answered for")
        rows = [self._row_of(known, seat) for seat in closed.members]
        sums = numbers.ring.decode(np.sum(rows, axis=0, dtype=np.uint32))
        expected = base + sums.values / sums.weight
        is_exact = np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
        must(bool(is_exact), "I-X2", f"the sum of round {known.number} is not that of its members")

    def scored(self, known: Round, fact: f.BaseScored) -> None:
        """Scores are the exact sums of what the members of the split sent. Of what liars have
        made impossible there are none."""
        numbers, closed = self._world.numbers, self._closed[known.number]
        assert numbers is not None
        rows = [self._row_of(known, seat) for seat in closed.members]
        *sums, samples = numbers.ring.decode(np.sum(rows, axis=0, dtype=np.uint32)).metrics
        is_exact = (fact.samples, fact.sums) == (round(samples), tuple(sums))
        has_liar = not all(self._world.is_honest(seat) for seat in closed.members)
        is_none = not fact.samples and not any(fact.sums)
        must(
            is_exact or (has_liar and is_none),
            "I-X2",
            f"the scores of round {known.number} are not its members'",
        )

    def _row_of(self, known: Round, seat: Seat) -> U32:
        """What a member's masked row stands for. Of a liar: whatever is left without the masks
        that it should have taken."""
        update = known.submitted[seat]
        if update in self._rows:
            return self._rows[update]
        assert self._world.numbers is not None
        form, data = self._world.numbers.form, self._world.blobs.get(update)
        _, _, start = read_update_header(data, form)
        session = self.session(known)
        site = Site(session, known.named[seat], self._seeds[known.keys[seat].mask_key])
        sharers = {known.named[one] for one in known.sharers}
        return np.frombuffer(data, np.uint32, form.size, start) - site.mask(
            np.zeros(form.size, np.uint32), sharers
        )

    def session(self, known: Round) -> Session:
        keys = [(known.named[seat], fact) for seat, fact in known.keys.items()]
        return make_session(self._world.watch.past.state.id, known.seed, known.quorum, keys)

    # ---- at the end -----------------------------------------------------------------

    def finish(self) -> None:
        """Every bit of all masks is a fair coin; false alarms: 2e-9 a bit."""
        if self._words < _FEW:
            return
        most = _SIGMAS * math.sqrt(self._words) / 2
        for bit in range(_WORD_BITS):
            is_fair = abs(self._ones[bit] - self._words / 2) <= most
            must(is_fair, "I-X1", f"bit {bit} of masks is no fair coin")


def _name_of(seeds: Seeds) -> bytes:
    return sha256(seeds.secret().reveal()).digest()

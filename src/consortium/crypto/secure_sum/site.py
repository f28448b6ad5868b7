"""A site's half of a secure sum.

It keeps nothing but what can be computed again: after a crash, the same seeds and the same
session give the same bytes. House rules for whoever calls: the seeds are new in every round and
durable before the keys leave; a round has one session, one vector that is masked and one split
that is answered, and each is written down before anything that follows from it leaves. Whoever
gets two of a kind from a site can lay its vector bare, and nothing here can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from consortium.core.ids import Secret, SiteId
from consortium.crypto.hazmat import agreement, masks, sealing, shamir
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.keys import Seeds
from consortium.crypto.secure_sum.session import Session, Split
from consortium.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Held:
    """The shares of one owner's two seeds that a site holds."""

    mask: Secret
    own: Secret


@dataclass(frozen=True, slots=True)
class Answer:
    """What a survivor gives to the coordinator: of each owner one share, of the own seed when it
    survived, of the mask's seed when it dropped."""

    site: SiteId
    own: Mapping[SiteId, bytes] = field(repr=False)
    mask: Mapping[SiteId, bytes] = field(repr=False)


class Site:
    """One site in one session."""

    __slots__ = ("_me", "_seal_pair", "_seeds", "_session", "_shared")

    def __init__(self, session: Session, me: SiteId, seeds: Seeds) -> None:
        """Refuses a session that has other keys for this site than its own."""
        if session.advert(me) != keys.make_keys(session.name, me, seeds):
            raise InvalidInputError("others were told keys that are not this site's")
        self._session, self._me, self._seeds = session, me, seeds
        self._seal_pair = keys.seal_pair(session.name, me, seeds.seal.reveal())
        self._shared: dict[SiteId, bytes] = {}

    def __repr__(self) -> str:
        return f"Site({self._me!r}, …)"

    def make_shares(self) -> dict[SiteId, bytes]:
        """For each neighbour its shares of this site's two seeds, sealed."""
        neighbours = sorted(self._neighbours())
        shares = self._shares_for(neighbours)
        return {one: self._sealed(one, *pair) for one, pair in zip(neighbours, shares, strict=True)}

    def open_shares(self, sealed: Mapping[SiteId, bytes]) -> dict[SiteId, Held]:
        """What neighbours sealed for this site, by owner, and its own shares. Refuses a seal that
        is broken, and one of a site that is no neighbour."""
        strangers = sealed.keys() - self._neighbours()
        if strangers:
            raise InvalidInputError("shares came from a site that is no neighbour")
        held = {owner: self._opened(owner, one) for owner, one in sealed.items()}
        return {**held, self._me: _held(*self._shares_for([self._me])[0])}

    def mask(self, vector: U32, sharers: Set[SiteId], *, threads: int = 1) -> U32:
        """The vector under this site's own mask and those of its pairs among `sharers`, who are
        all that shared their seeds. Two vectors under one mask tell their difference: once a
        round. Refuses when too few are left."""
        self._check_left(sharers)
        masked = vector.copy()
        pair = keys.mask_pair(self._session.name, self._me, self._seeds.mask.reveal())
        plus = [keys.own_mask(self._session, self._me, self._seeds.own.reveal())]
        minus: list[bytes] = []
        for peer in sorted(self._neighbours() & sharers):
            key = keys.pair_mask(self._session, pair, self._me, peer)
            (plus if self._me < peer else minus).append(key)
        masks.add_masks(masked, plus, minus, threads=threads)
        return masked

    def answer(self, split: Split, held: Mapping[SiteId, Held]) -> Answer:
        """This site's shares for unmasking, of what `open_shares` gave.

        Refuses a split that has a site on both sides (both of its seeds would lay its vector
        bare), one that has strangers, or not all that shared with this site, or that counts
        this site out; and one in which too few survive.
        """
        survivors, dropped = split.survivors, split.dropped
        if survivors & dropped:
            raise InvalidInputError("a site cannot have survived and dropped")
        self._check_left(survivors)
        self._session.check_enough(survivors | dropped)
        if held.keys() != (survivors | dropped).intersection(self._session.holders(self._me)):
            raise InvalidInputError("those who shared are not those who survived or dropped")
        return Answer(
            self._me,
            {owner: held[owner].own.reveal() for owner in sorted(held.keys() & survivors)},
            {owner: held[owner].mask.reveal() for owner in sorted(held.keys() & dropped)},
        )

    def _check_left(self, sites: Set[SiteId]) -> None:
        self._session.check_enough(sites)
        self._session.check_holders(self._me, sites)
        if self._me not in sites:
            raise InvalidInputError("the coordinator counts this site out")

    def _neighbours(self) -> set[SiteId]:
        return set(self._session.holders(self._me)) - {self._me}

    def _shares_for(self, sites: Sequence[SiteId]) -> list[tuple[int, int]]:
        """What each of these holders has of the mask's seed and of the own one."""
        holders = self._session.holders(self._me)
        points = [holders.index(site) + 1 for site in sites]
        drawn = keys.coefficients(self._session, self._me, self._seeds.shares.reveal())
        mask = shamir.split(self._seeds.mask.reveal(), points, drawn[0])
        own = shamir.split(self._seeds.own.reveal(), points, drawn[1])
        return list(zip(mask, own, strict=True))

    def _sealed(self, holder: SiteId, mask: int, own: int) -> bytes:
        key = keys.seal_key(self._session, self._shared_with(holder), self._me, holder)
        text = shamir.share_bytes(mask) + shamir.share_bytes(own)
        return sealing.seal(key, text, keys.share_label(self._session, self._me, holder))

    def _opened(self, owner: SiteId, sealed: bytes) -> Held:
        key = keys.seal_key(self._session, self._shared_with(owner), owner, self._me)
        text = sealing.unseal(key, sealed, keys.share_label(self._session, owner, self._me))
        half = shamir.SHARE_BYTES
        return _held(*shamir.shares_of([text[:half], text[half:]]))

    def _shared_with(self, peer: SiteId) -> bytes:
        """What is agreed for sealing: the same both ways, and asked for twice."""
        if peer not in self._shared:
            key = self._session.advert(peer).seal_key
            self._shared[peer] = agreement.agree(self._seal_pair, key)
        return self._shared[peer]


def _held(mask: int, own: int) -> Held:
    return Held(Secret(shamir.share_bytes(mask)), Secret(shamir.share_bytes(own)))

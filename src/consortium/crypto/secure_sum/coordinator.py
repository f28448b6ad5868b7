"""The coordinator's half of a secure sum: add what is masked, then take the masks away.

A seed that was given back is checked against what its site said of it before: the sum is exact,
or there is none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set

import numpy as np

from consortium.core.ids import SiteId
from consortium.crypto.hazmat import agreement, masks, shamir
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum import keys
from consortium.crypto.secure_sum.session import Session, Split
from consortium.crypto.secure_sum.site import Answer
from consortium.errors import DimensionError, InsufficientParticipantsError, InvalidInputError

Answered = Mapping[SiteId, Mapping[SiteId, bytes]]  # by holder, by owner: shares of one kind
_NOTHING: Mapping[SiteId, bytes] = {}


class MaskedSum:
    """Masked vectors, added up one by one as they come: memory does not grow with the sites."""

    __slots__ = ("_members", "_sharers", "session", "total")

    def __init__(self, session: Session, sharers: Set[SiteId], size: int) -> None:
        """`sharers` are those whose shares are with their holders: they mask with each other."""
        session.check_enough(sharers)
        self.session, self.total = session, np.zeros(size, np.uint32)
        self._sharers, self._members = frozenset(sharers), set[SiteId]()

    def add(self, site: SiteId, vector: U32) -> None:
        """Add a site's masked vector; refuses a stranger, and a site that is in the sum."""
        if site not in self._sharers or site in self._members:
            raise InvalidInputError("a masked vector is of a site that shared, and comes once")
        if vector.dtype != self.total.dtype or vector.shape != self.total.shape:
            raise DimensionError("a masked vector has other numbers than the sum")
        np.add(self.total, vector, out=self.total)
        self._members.add(site)

    def split(self) -> Split:
        """Who is in the sum, and who is not. Write it down before anybody is asked, and add
        nothing afterwards: no site may ever be on both sides."""
        members = frozenset(self._members)
        return Split(members, self._sharers - members)


def unmask(masked: MaskedSum, answers: Iterable[Answer], *, threads: int | None = None) -> U32:
    """The exact sum modulo 2**32 of the survivors' vectors; `masked` stays as it is.

    Refuses when too few answered to give some seed back, and when a seed that is given back is
    not the one that its site has committed itself to. Without `threads`, it takes all cores.
    """
    session, split = masked.session, masked.split()
    session.check_enough(split.survivors)
    known = _by_site(answers, split)
    own = {site: answer.own for site, answer in known.items()}
    mask = {site: answer.mask for site, answer in known.items()}
    plus: list[bytes] = []
    minus = [_own_key(session, owner, own) for owner in sorted(split.survivors)]
    for owner in sorted(split.dropped):
        for peer, key in _pair_keys(session, owner, mask, split.survivors):
            # The survivor added it when it is the first of the two.
            (minus if peer < owner else plus).append(key)
    total = masked.total.copy()
    masks.add_masks(total, plus, minus, threads=threads or os.cpu_count() or 1)
    return total


def _by_site(answers: Iterable[Answer], split: Split) -> dict[SiteId, Answer]:
    listed = list(answers)
    known = {answer.site: answer for answer in listed}
    if len(known) < len(listed) or not known.keys() <= split.survivors:
        raise InvalidInputError("every survivor answers once, and nobody else")
    return known


def _own_key(session: Session, owner: SiteId, answered: Answered) -> bytes:
    own = _seed(session, owner, answered)
    if keys.commitment(session.name, owner, own) != session.advert(owner).commitment:
        raise InvalidInputError("a site's own seed is not the one that it has committed itself to")
    return keys.own_mask(session, owner, own)


def _pair_keys(
    session: Session, owner: SiteId, answered: Answered, survivors: Set[SiteId]
) -> list[tuple[SiteId, bytes]]:
    """The masks of a dropped site that are in the sum, with the survivor that has each of them."""
    pair = keys.mask_pair(session.name, owner, _seed(session, owner, answered))
    if agreement.public_bytes(pair) != session.advert(owner).mask_key:
        raise InvalidInputError("a seed that was given back is not that of the site's key")
    peers = survivors & set(session.holders(owner))
    return [(peer, keys.pair_mask(session, pair, owner, peer)) for peer in sorted(peers)]


def _seed(session: Session, owner: SiteId, answered: Answered) -> bytes:
    """The seed that the first holders who answered give back. Answers are mostly of the same
    sites, so the coefficients are mostly there."""
    threshold = session.terms.threshold
    points: list[int] = []
    shares: list[bytes] = []
    for point, holder in enumerate(session.holders(owner), 1):
        share = answered.get(holder, _NOTHING).get(owner)
        if share is not None:
            points.append(point)
            shares.append(share)
            if len(points) == threshold:
                return shamir.join(tuple(points), shamir.shares_of(shares))
    raise InsufficientParticipantsError(
        f"{len(points)} holders of a site's shares answered, and it takes {threshold}"
    )

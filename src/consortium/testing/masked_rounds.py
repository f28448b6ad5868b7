"""Whole secure sums in one process: real keys, shares, masks and answers, with dropouts.

What the protocol writes down and when is not here: that is `World`'s. These are its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from consortium.core.ids import SiteId
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName, Session, terms_for
from consortium.crypto.secure_sum.site import Site


def site_ids(count: int) -> list[SiteId]:
    return [SiteId(f"site-{at:04}") for at in range(count)]


def secure_sum(rows: Mapping[SiteId, U32], survivors: Set[SiteId], seed: bytes = b"") -> U32:
    """What a coordinator gets of these rows. All give keys and share their seeds, the survivors
    send what they have masked, and answer for the others. More than a hundred need a seed."""
    name = RoundName("audit", 1)
    seeds = {site: Seeds.fresh() for site in rows}
    adverts = [make_keys(name, site, own) for site, own in seeds.items()]
    session = Session(name, terms_for(len(rows), seed), adverts)
    parties = {site: Site(session, site, own) for site, own in seeds.items()}
    sealed = {site: party.make_shares() for site, party in parties.items()}
    sharers = frozenset(rows)
    size = len(next(iter(rows.values())))
    total = MaskedSum(session, sharers, size)
    for site in sorted(survivors):
        total.add(site, parties[site].mask(rows[site], sharers))
    split, answers = total.split(), []
    for site in sorted(survivors):
        mine = {owner: shares[site] for owner, shares in sealed.items() if site in shares}
        answers.append(parties[site].answer(split, parties[site].open_shares(mine)))
    return unmask(total, answers)

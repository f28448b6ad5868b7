"""A secret sum's facts and blobs in the terms of its arithmetic, for both ends.

The session follows from facts of the log alone, so a site that is shown those facts makes the same
one as the coordinator. Shares and answers are files of numbers without names: who is meant by
which is decided by the session, and by the order of site ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from consortium.core import duties as d
from consortium.core.ids import Digest, SiteId
from consortium.core.secagg_facts import KeysReceived
from consortium.crypto.hazmat.masks import U32
from consortium.crypto.hazmat.sealing import TAG_BYTES
from consortium.crypto.hazmat.shamir import SHARE_BYTES
from consortium.crypto.secure_sum.coordinator import MaskedSum, unmask
from consortium.crypto.secure_sum.graph import degree_for, threshold_for
from consortium.crypto.secure_sum.session import Advert, RoundName, Session, Split, Terms
from consortium.crypto.secure_sum.site import Answer
from consortium.errors import InsufficientParticipantsError, InvalidInputError, WeakKeyError
from consortium.model import Form, read_update_header
from consortium.store.ports import Blobs

# What keeps masks on a sum: too few answers, or one that is not what its site had promised.
NOT_LIFTED = (InsufficientParticipantsError, InvalidInputError, WeakKeyError)
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES  # a holder's shares of two seeds


def make_session(
    federation: str, seed: bytes, quorum: int, keys: Iterable[tuple[SiteId, KeysReceived]]
) -> Session:
    """The session of these keys. Beyond a hundred sites, the round's public seed decides about
    neighbours, together with everybody's keys."""
    listed = list(keys)
    sites, numbers = len(listed), {fact.round for _, fact in listed}
    if len(numbers) != 1:
        raise InvalidInputError("keys are of one round")
    degree = degree_for(sites)
    sparse = degree if degree < sites - 1 else None
    terms = Terms(threshold_for(degree + 1), quorum, sparse, seed if sparse else b"")
    return Session(RoundName(federation, numbers.pop()), terms, map(_advert, listed))


def _advert(one: tuple[SiteId, KeysReceived]) -> Advert:
    site, keys = one
    return Advert(site, keys.mask_key, keys.seal_key, keys.commitment)


# ---- shares -------------------------------------------------------------------------


def neighbours(session: Session, owner: SiteId) -> list[SiteId]:
    """Those who hold shares of the owner's seeds beside itself, in the order of the file."""
    return sorted(set(session.holders(owner)) - {owner})


def shares_file(session: Session, owner: SiteId, sealed: Mapping[SiteId, bytes]) -> bytes:
    return b"".join(sealed[holder] for holder in neighbours(session, owner))


def check_shares_file(session: Session, owner: SiteId, data: bytes) -> None:
    if len(data) != SEALED_BYTES * len(neighbours(session, owner)):
        raise InvalidInputError("shares are as many as the site has neighbours, each of one size")


def sealed_for(
    session: Session, holder: SiteId, blobs: Blobs, files: Mapping[SiteId, Digest]
) -> dict[SiteId, bytes]:
    """What those of `files` who are its neighbours sealed for this holder."""
    found = {}
    for owner in sorted(files.keys() & set(neighbours(session, holder))):
        at = neighbours(session, owner).index(holder) * SEALED_BYTES
        found[owner] = blobs.get(files[owner], at, SEALED_BYTES)
    return found


# ---- answers ------------------------------------------------------------------------


def answer_file(answer: Answer) -> bytes:
    """One share an owner, in the order of owners: which of the two, the split says."""
    shares = {**answer.own, **answer.mask}
    return b"".join(shares[owner] for owner in sorted(shares))


def read_answer(session: Session, holder: SiteId, split: Split, data: bytes) -> Answer:
    """The answer of this holder to this split."""
    owners = sorted((split.survivors | split.dropped) & set(session.holders(holder)))
    if len(data) != SHARE_BYTES * len(owners):
        raise InvalidInputError("an answer has one share of every site that shared with it")
    shares = {
        owner: data[at * SHARE_BYTES : (at + 1) * SHARE_BYTES] for at, owner in enumerate(owners)
    }
    own = {owner: share for owner, share in shares.items() if owner in split.survivors}
    mask = {owner: share for owner, share in shares.items() if owner in split.dropped}
    return Answer(holder, own, mask)


def split_of(sharers: Set[SiteId], members: Iterable[SiteId]) -> Split:
    survivors = frozenset(members)
    return Split(survivors, frozenset(sharers) - survivors)


# ---- the sum ------------------------------------------------------------------------


def lifted(blobs: Blobs, form: Form, lifting: d.Lifting, updates: Sequence[Digest]) -> U32:
    """The exact sum of the members' vectors. One of them is in memory at a time.

    Raises when too few answered, or when an answer is not what its site has committed itself to:
    then there is no sum.
    """
    session = make_session(lifting.federation, lifting.seed, lifting.quorum, lifting.keys)
    masked = MaskedSum(session, frozenset(lifting.sharers), form.size)
    for site, digest in zip(lifting.members, updates, strict=True):
        masked.add(site, _vector(blobs, form, digest))
    split = masked.split()
    answers = [
        read_answer(session, site, split, blobs.get(digest)) for site, digest in lifting.answers
    ]
    return unmask(masked, answers)


def _vector(blobs: Blobs, form: Form, digest: Digest) -> U32:
    data = blobs.get(digest)
    _, _, start = read_update_header(data, form)
    return np.frombuffer(data, np.uint32, form.size, start)

"""The names by which sites know what they agreed to in a secret sum: digests of the facts that say
it. A site pins each of them once a round, so it can be told one session, one list of those who
shared, and one split."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from consortium.core.codec import encode
from consortium.core.facts import RoundClosed
from consortium.core.ids import Digest
from consortium.core.secagg_facts import KeysClosed, KeysReceived, SharesClosed


def session_name(seed: bytes, keys: Iterable[KeysReceived], closed: KeysClosed) -> Digest:
    """Names the sites that mask with each other, and all their keys, in the order of seats; and the
    round's seed, by which many sites have their neighbours."""
    return _named(*keys, closed, first=seed)


def sharing_name(closed: SharesClosed) -> Digest:
    """Names those whose shares are with their holders."""
    return _named(closed)


def split_name(closed: RoundClosed) -> Digest:
    """Names those who are in the sum: who else had shared is not."""
    return _named(closed)


def _named(
    *facts: KeysReceived | KeysClosed | SharesClosed | RoundClosed, first: bytes = b""
) -> Digest:
    return Digest(sha256(first + b"".join(encode(fact) for fact in facts)).digest())

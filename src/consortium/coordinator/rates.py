"""How often somebody may ask: buckets that fill up slowly, in memory, for so many at a time.

Who has not said who it is shares a bucket with all of its address, where a whole hospital
network may be. So nobody who shows a good signature or a good token is refused for what others
do at its address: keys and tokens are too long to be guessed at any speed. Everything here
can be changed in `LIMITS`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from consortium.errors import BadTokenError, NotEnrolledError, RateLimitError

_MOST = 10_000  # buckets of a kind that are remembered: a megabyte or two
AT_ONCE = 16  # requests of one site; its agent has three or four
_HOST_BITS = 64  # of an IPv6 address: a single machine has as many as it likes


@dataclass(frozen=True, slots=True)
class Limit:
    """So many requests at once, and so many a second in the long run."""

    burst: float
    per_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Strangers: joining, health, authority, by address. Known: by site, by operator; a site's
    agent asks once a second at most, and 1 MB chunks come as fast as the line is, so a chunk
    counts for little. Wrong: signatures and tokens that do not hold, by address."""

    strangers: Limit = Limit(burst=1000, per_s=20)
    known: Limit = Limit(burst=1000, per_s=200)
    wrong_tokens: Limit = Limit(burst=60, per_s=0.5)
    wrong_signatures: Limit = Limit(burst=300, per_s=5)
    chunk_cost: float = 0.1


LIMITS = Limits()


class Buckets:
    """One bucket a key. The one that was not used for the longest time is forgotten first;
    a forgotten bucket is full. May be called from several threads."""

    def __init__(
        self, limit: Limit, *, most: int = _MOST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._most, self._clock = limit, most, clock
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how much, when

    def take(self, key: str, cost: float = 1.0) -> None:
        """Returns when the bucket held this much; raises and takes nothing otherwise."""
        with self._lock:
            now_s = self._clock()
            left = self._filled(key, now_s)
            if left < cost:
                raise _too_many((cost - left) / self._limit.per_s)
            self._left[key] = (left - cost, now_s)
            self._left.move_to_end(key)
            if len(self._left) > self._most:
                self._left.popitem(last=False)

    def knows(self, key: str) -> bool:
        """Whether this key has taken something lately."""
        with self._lock:
            return key in self._left

    def __len__(self) -> int:
        return len(self._left)

    def _filled(self, key: str, now_s: float) -> float:
        left, at_s = self._left.get(key, (self._limit.burst, now_s))
        return min(self._limit.burst, left + (now_s - at_s) * self._limit.per_s)


class UnderWay:
    """How many requests of each site are not yet answered. May be called from several threads."""

    def __init__(self, most: int = AT_ONCE) -> None:
        self._most, self._lock = most, threading.Lock()
        self._counts: dict[str, int] = {}

    def enter(self, site: str) -> None:
        """One more. Raises, and counts nothing, when that is too many. Else: `leave`."""
        with self._lock:
            count = self._counts.get(site, 0)
            if count >= self._most:
                raise _too_many(1.0)
            self._counts[site] = count + 1

    def leave(self, site: str) -> None:
        with self._lock:
            count = self._counts.pop(site) - 1
            if count:
                self._counts[site] = count

    def __len__(self) -> int:
        return len(self._counts)


class Rates:
    """The limits of one coordinator."""

    def __init__(
        self, limits: Limits = LIMITS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self._strangers = Buckets(limits.strangers, clock=clock)
        self._sites = Buckets(limits.known, clock=clock)
        self._operators = Buckets(limits.known, clock=clock)
        self._wrong_tokens = Buckets(limits.wrong_tokens, clock=clock)
        self._wrong_signatures = Buckets(limits.wrong_signatures, clock=clock)

    def stranger(self, address: str) -> None:
        """Somebody asks who need not say who it is."""
        self._strangers.take(network_of(address))

    def site(self, site: str, *, is_chunk: bool = False) -> None:
        """A site asks; its signature was verified."""
        self._sites.take(site, self.limits.chunk_cost if is_chunk else 1.0)

    def wrong_signature(self, address: str) -> None:
        """A signature or a certificate did not hold. It is told so, but not without end."""
        self._wrong_signatures.take(network_of(address))

    @contextmanager
    def guess(self, address: str) -> Iterator[None]:
        """A token is about to be looked up. What the block raises tells a wrong one: after too
        many of those from this address, it is not even told so."""
        try:
            yield
        except (BadTokenError, NotEnrolledError):
            self._wrong_tokens.take(network_of(address))
            raise

    def operator(self, token: str) -> None:
        """An operator asks; the token, of which `token` is a hash, holds."""
        self._operators.take(token)


@lru_cache(maxsize=1024)
def network_of(address: str) -> str:
    """What counts as one address: of IPv6 the half that names a network.

    >>> network_of("192.0.2.7"), network_of("2001:db8::1"), network_of("2001:db8::2")
    ('192.0.2.7', '2001:db8::/64', '2001:db8::/64')
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ip_network((found.packed, _HOST_BITS), strict=False))


def _too_many(wait_s: float) -> RateLimitError:
    error = RateLimitError("too many requests")
    error.details = {"retry_after_s": max(1, math.ceil(wait_s))}
    return error

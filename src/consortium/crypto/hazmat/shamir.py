"""WARNING: sharp tool. Coefficients that are drawn twice, or not evenly, give the secret away.

Shamir 1979 over the integers modulo 2**130 - 5: a secret of 128 bits is the value at zero of a
polynomial of degree t - 1, a share is its value at a small point above zero. Any t shares give
the secret, t - 1 of them fit every secret equally well. The prime is larger than any secret;
a raw X25519 key would not fit, so secrets are seeds.

Nothing here takes constant time. Whole numbers of Python are reduced as late as they can be:
points are small, so that sums and products grow slowly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import mul

from consortium.errors import InternalError, InvalidInputError

PRIME = 2**130 - 5
SECRET_BYTES = 16
SHARE_BYTES = 17
# 130 bits and 128 more: reduced, they are even but for one part in 2**128 (RFC 9380, section 5).
WIDE_BYTES = 33
MOST_POINT = 1 << 20
_LAZY = 8  # steps between two reductions: points of 20 bits add 160 to the 130


def elements(stream: bytes) -> list[int]:
    """Elements of the field, even when the bytes are: one of every 33."""
    cuts = range(0, len(stream), WIDE_BYTES)
    return [int.from_bytes(stream[at : at + WIDE_BYTES], "big") % PRIME for at in cuts]


def split(secret: bytes, points: Sequence[int], coefficients: Sequence[int]) -> list[int]:
    """The share at each point; len(coefficients) + 1 of them give the secret back.

    Coefficients are secret, drawn evenly from the field, and used for nothing else.
    """
    if len(secret) != SECRET_BYTES:
        raise InternalError("what is shared is a seed of 16 bytes")
    _check_points(points)
    falling = [*reversed(coefficients), int.from_bytes(secret, "big")]
    blocks = [falling[at : at + _LAZY] for at in range(0, len(falling), _LAZY)]
    return [_value(blocks, x) for x in points]


def _value(blocks: list[list[int]], x: int) -> int:
    """The polynomial at x (Horner), reduced once for each block of coefficients."""
    y = 0
    for block in blocks:
        for coefficient in block:
            y = y * x + coefficient
        y %= PRIME
    return y


def join(points: tuple[int, ...], shares: Sequence[int]) -> bytes:
    """The secret of as many shares as it was split for. Fewer, or others, give another one, and
    nothing here can tell: three times of four it does not fit 128 bits and is refused."""
    secret: int = sum(map(mul, coefficients_at_zero(points), shares)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise InvalidInputError("shares do not belong together")
    return secret.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=2048)  # sites that answer are the same for many secrets
def coefficients_at_zero(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange: λᵢ = Π xⱼ / (xⱼ - xᵢ) over j ≠ i, so that the secret is Σ λᵢ yᵢ."""
    _check_points(points)
    whole = prod(points)
    under = [x * prod([other - x for other in points if other != x]) % PRIME for x in points]
    return tuple([whole * one % PRIME for one in _inverses(under)])


def _inverses(values: list[int]) -> list[int]:
    """All inverses for the price of one (Montgomery 1987)."""
    before, product = [], 1
    for value in values:
        before.append(product)
        product = product * value % PRIME
    inverse, found = pow(product, -1, PRIME), [0] * len(values)
    for at in range(len(values) - 1, -1, -1):
        found[at] = inverse * before[at] % PRIME
        inverse = inverse * values[at] % PRIME
    return found


def share_bytes(share: int) -> bytes:
    return share.to_bytes(SHARE_BYTES, "big")


def shares_of(raws: Sequence[bytes]) -> list[int]:
    """The shares that these bytes are; refuses what is no element of the field."""
    shares = list(map(int.from_bytes, raws))  # big-endian
    if {SHARE_BYTES}.union(map(len, raws)) != {SHARE_BYTES} or max(shares, default=0) >= PRIME:
        raise InvalidInputError("this is not a share")
    return shares


def _check_points(points: Sequence[int]) -> None:
    """The share at zero would be the secret itself."""
    if (
        not points
        or len(set(points)) < len(points)
        or not 0 < min(points) <= max(points) <= MOST_POINT
    ):
        raise InternalError("points are different from each other, above zero and small")

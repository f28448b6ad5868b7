"""Ed25519 signatures with strict keys. `verify` returns nothing or raises.

The library verifies signatures under small-order public keys, for which one signature
fits every message (a key of `01 00 …` is one). Such keys, and encodings that are not the
one canonical form of their point, are refused before anything is verified with them.
"""

from __future__ import annotations

from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from consortium.core.ids import Secret
from consortium.errors import SignatureError, WeakKeyError

KEY_BYTES = 32
SIGNATURE_BYTES = 64

# Curve25519's prime (RFC 8032, section 5.1).
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_SIGN_BIT = 1 << 255


class SigningKey:
    """A private key that never shows itself."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: Secret) -> SigningKey:
        """The key of 32 secret bytes, as `secret` gave them out."""
        return cls(Ed25519PrivateKey.from_private_bytes(secret.reveal()))

    def secret(self) -> Secret:
        """The 32 bytes to keep in a file that only its owner can read."""
        return Secret(self._key.private_bytes_raw())

    def pem(self) -> Secret:
        """The key as PKCS #8, unencrypted: what the `ssl` module reads from a file. Write it
        with `keyfile.write_secret`, which lets nobody but the owner read it."""
        return Secret(
            self._key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"SigningKey({self.public.hex()[:16]}…)"


@lru_cache(maxsize=4096)  # a quarter of a millisecond, for keys that come again and again
def check_public_key(key: bytes) -> None:
    """Refuse what is not the canonical encoding of a point of large order."""
    if len(key) != KEY_BYTES:
        raise WeakKeyError(f"an Ed25519 public key has {KEY_BYTES} bytes")
    encoded = int.from_bytes(key, "little")
    y, is_odd = encoded & ~_SIGN_BIT, bool(encoded & _SIGN_BIT)
    if y >= _P:
        raise WeakKeyError("the public key is not in canonical form")
    x = _x_of(y, is_odd)
    if _is_small_order((x, y)):
        raise WeakKeyError("the public key has small order: one signature would fit everything")


def verify(key: bytes, message: bytes, signature: bytes) -> None:
    """Returns when `signature` is `key`'s on `message`; raises `SignatureError` otherwise."""
    check_public_key(key)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        raise SignatureError("the signature does not fit") from None


def _x_of(y: int, is_odd: bool) -> int:
    """Recover x (RFC 8032, section 5.1.3)."""
    squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(squared, (_P + 3) // 8, _P)
    if (x * x - squared) % _P:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if (x * x - squared) % _P:
        raise WeakKeyError("the public key is not a point of the curve")
    if x == 0 and is_odd:
        raise WeakKeyError("the public key is not in canonical form")
    return _P - x if (x & 1) != is_odd else x


def _is_small_order(point: tuple[int, int]) -> bool:
    """Whether eight times the point is the identity: the curve's cofactor is eight."""
    for _ in range(3):
        point = _add(point, point)
    return point == (0, 1)


def _add(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """Affine addition on the twisted Edwards curve (RFC 8032, section 5.1.4)."""
    (x1, y1), (x2, y2) = left, right
    product = _D * x1 * x2 * y1 * y2 % _P
    x3 = (x1 * y2 + x2 * y1) * pow(1 + product, -1, _P) % _P
    y3 = (y1 * y2 + x1 * x2) * pow(1 - product, -1, _P) % _P
    return x3, y3

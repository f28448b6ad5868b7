"""WARNING: sharp tool. A key from a weak point, or without its purpose in it, is everybody's.

X25519 (RFC 7748) and HKDF with SHA-256 (RFC 5869). A private key is derived from a seed of 128
bits, which is what sites share among each other. Public keys of small order, for which the
result does not depend on the private key, are refused, and so is every encoding but the one.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from consortium.errors import WeakKeyError

KEY_BYTES = 32

_P = 2**255 - 19
# The u-coordinates of all points of order 1, 2, 4 and 8, on the curve and on its twist
# (Bernstein, "Curve25519", "How do I validate public keys?"); larger encodings are refused anyway.
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _P - 1,
    }
)


class _Agrees(Protocol):
    def exchange(self, peer_public_key: X25519PublicKey, /) -> bytes: ...


def private_key(seed: bytes, info: bytes) -> X25519PrivateKey:
    """The key of a seed, for the purpose that `info` names. X25519 clamps it by itself."""
    return X25519PrivateKey.from_private_bytes(derive(seed, info, KEY_BYTES))


def public_bytes(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def check_public_key(key: bytes) -> None:
    """Refuse what is not the canonical encoding of a point of large order."""
    if len(key) != KEY_BYTES:
        raise WeakKeyError(f"an X25519 public key has {KEY_BYTES} bytes")
    u = int.from_bytes(key, "little")
    if u >= _P:
        raise WeakKeyError("the public key is not in canonical form")
    if u in _SMALL_ORDER:
        raise WeakKeyError("the public key has small order: everybody would know the secret")


def agree(key: _Agrees, peer: bytes) -> bytes:
    """The secret of two keys, 32 bytes that are not even: derive from them. Refuses zero."""
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise WeakKeyError("nothing can be agreed with this public key") from None
    if shared == bytes(KEY_BYTES):
        raise WeakKeyError("the agreed secret is zero")
    return shared


def derive(secret: bytes, info: bytes, size_bytes: int, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256. `info` says what for; two purposes must not have the same."""
    return HKDF(hashes.SHA256(), size_bytes, salt, info).derive(secret)

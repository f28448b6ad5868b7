"""WARNING: sharp tool. A key that seals two different texts gives both away, and more.

AES-256-GCM with a nonce of zeros, under a key that is derived for one sender, one receiver and
one text. Sealing the same text again gives the same bytes, so a site that starts anew repeats
itself and needs no memory of nonces. `about` is not secret and is sealed along.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from consortium.errors import InvalidInputError

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE = bytes(12)


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """The text, sixteen bytes longer, for whoever has the key."""
    return AESGCM(key).encrypt(_NONCE, text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The text; refuses one that was not sealed with this key and `about`."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, about)
    except InvalidTag:
        raise InvalidInputError("the seal is broken, or it is somebody else's") from None

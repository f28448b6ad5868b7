"""Ed25519: published vectors, and keys that prove nothing."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from consortium.core.ids import Secret
from consortium.crypto.recipes import SigningKey, check_public_key, verify
from consortium.errors import SignatureError, WeakKeyError

# RFC 8032, section 7.1: (secret, public, message, signature).
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]
# Every encoding of a point of order 1, 2, 4 or 8, and encodings that are not canonical.
P = 2**255 - 19
SMALL = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
UNCANONICAL = [
    *((P + offset).to_bytes(32, "little").hex() for offset in range(19)),
    *((P + offset + 2**255).to_bytes(32, "little").hex() for offset in range(19)),
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
]


@pytest.mark.parametrize(("secret", "public", "message", "signature"), VECTORS)
def test_published_vectors(secret: str, public: str, message: str, signature: str) -> None:
    key = SigningKey.from_secret(Secret(bytes.fromhex(secret)))
    assert key.public.hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature
    verify(key.public, bytes.fromhex(message), bytes.fromhex(signature))
    with pytest.raises(SignatureError):
        verify(key.public, bytes.fromhex(message) + b"x", bytes.fromhex(signature))
    with pytest.raises(SignatureError):
        verify(key.public, bytes.fromhex(message), b"short")


@pytest.mark.parametrize("key", [*SMALL, *UNCANONICAL])
def test_weak_keys_are_refused(key: str) -> None:
    with pytest.raises(WeakKeyError):
        check_public_key(bytes.fromhex(key))
    with pytest.raises(WeakKeyError):
        verify(bytes.fromhex(key), b"anything", bytes(64))


def test_the_library_alone_would_take_one_signature_for_everything() -> None:
    """Why the check exists: if this fails one day, the library has learnt to refuse."""
    identity = bytes.fromhex(SMALL[0])
    forged = identity + bytes(32)
    for message in (b"one", b"two"):
        Ed25519PublicKey.from_public_bytes(identity).verify(forged, message)  # does not raise
    with pytest.raises(WeakKeyError):
        verify(identity, b"one", forged)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), (2).to_bytes(32, "little")])
def test_what_is_no_point_of_the_curve_is_refused(key: bytes) -> None:
    with pytest.raises(WeakKeyError):
        check_public_key(key)


def test_good_keys_pass_and_do_not_show_their_secret() -> None:
    for _ in range(20):
        key = SigningKey.generate()
        check_public_key(key.public)
        secret = key.secret().reveal()
        assert SigningKey.from_secret(key.secret()).public == key.public
        assert secret.hex() not in repr(key) + repr(key.secret())

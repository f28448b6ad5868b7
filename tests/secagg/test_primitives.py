"""Published vectors, for the product and for the plain versions that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from consortium.crypto.hazmat import agreement, masks, sealing, shamir
from consortium.crypto.hazmat.framing import framed
from consortium.errors import InternalError, InvalidInputError, WeakKeyError
from tests.secagg import plain_primitives as plain

# RFC 7748, sections 5.2 and 6.1 (Bob's key and Alice's public one): scalar, point, result.
X25519 = [
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
    (
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
    ),
]
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
# RFC 5869, A.1 to A.3: secret, salt, info, result.
HKDF = [
    (
        "0b" * 22,
        "000102030405060708090a0b0c",
        "f0f1f2f3f4f5f6f7f8f9",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)).hex(),
        bytes(range(0x60, 0xB0)).hex(),
        bytes(range(0xB0, 0x100)).hex(),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c6"
        "5e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    (
        "0b" * 22,
        "",
        "",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]
# RFC 3686, section 6, vectors 1 to 3, and SP 800-38A, F.5.1: key, first counter, text, result.
CTR = [
    (
        "ae6852f8121067cc4bf7a5765577f39e",
        "00000030000000000000000000000001",
        b"Single block msg".hex(),
        "e4095d4fb7a7b3792d6175a3261311b8",
    ),
    (
        "7e24067817fae0d743d6ce1f32539163",
        "006cb6dbc0543b59da48d90b00000001",
        bytes(range(32)).hex(),
        "5104a106168a72d9790d41ee8edad388eb2e1efc46da57c8fce630df9141be28",
    ),
    (
        "7691be035e5020a8ac6e618529f9a0dc",
        "00e0017b27777f3f4a1786f000000001",
        bytes(range(36)).hex(),
        "c1cf48a89f2ffdd9cf4652e9efdb72d74540a42bde6d7836d59a5ceaaef3105325b2072f",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3c",
        "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee",
    ),
]
# McGrew & Viega 2005, appendix B, cases 13, 14 and 16: key, nonce, text, about, sealed.
GCM = [
    ("00" * 32, "00" * 12, "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    (
        "00" * 32,
        "00" * 12,
        "00" * 16,
        "",
        "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
    ),
    (
        "feffe9928665731c6d6a8f9467308308" * 2,
        "cafebabefacedbaddecaf888",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b",
    ),
]
P = 2**255 - 19
SMALL = sorted(agreement._SMALL_ORDER)


def raw(*texts: str) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


# ---- agreement -----------------------------------------------------------------------


@pytest.mark.parametrize("vector", X25519)
def test_x25519_gives_the_published_results(vector: tuple[str, str, str]) -> None:
    scalar, point, result = raw(*vector)
    assert agreement.agree(X25519PrivateKey.from_private_bytes(scalar), point) == result
    assert plain.x25519(scalar, point) == result


def test_a_public_key_is_the_published_one() -> None:
    scalar = bytes.fromhex(X25519[2][0])
    assert agreement.public_bytes(X25519PrivateKey.from_private_bytes(scalar)).hex() == BOB_PUBLIC
    assert plain.x25519(scalar, plain.BASE).hex() == BOB_PUBLIC


def test_x25519_a_thousand_times_gives_the_published_result() -> None:
    scalar = point = plain.BASE
    for count in range(1000):
        result = agreement.agree(X25519PrivateKey.from_private_bytes(scalar), point)
        scalar, point = result, scalar
        if count == 0:
            first = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
            assert result.hex() == first
    last = "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"
    assert scalar.hex() == last


@pytest.mark.parametrize("vector", HKDF)
def test_hkdf_gives_the_published_results(vector: tuple[str, str, str, str]) -> None:
    secret, salt, info, result = raw(*vector)
    assert agreement.derive(secret, info, len(result), salt) == result
    assert plain.hkdf(secret, info, len(result), salt) == result


def test_a_private_key_is_derived_from_its_seed_and_purpose() -> None:
    key = agreement.private_key(b"s" * 16, b"one")
    assert key.private_bytes_raw() == plain.hkdf(b"s" * 16, b"one", 32)
    assert agreement.private_key(b"s" * 16, b"two").private_bytes_raw() != key.private_bytes_raw()


@pytest.mark.parametrize("u", SMALL)
def test_points_of_small_order_are_refused(u: int) -> None:
    """Three ways: by the list, by the library, and by our own look at what was agreed."""
    point = u.to_bytes(32, "little")
    with pytest.raises(WeakKeyError):
        agreement.check_public_key(point)
    with pytest.raises(WeakKeyError):
        agreement.agree(X25519PrivateKey.generate(), point)
    assert plain.x25519(b"\7" * 32, point) == bytes(32)


def test_the_list_of_small_orders_is_whole() -> None:
    """Only a point whose order is a power of two becomes zero by a power of two."""
    scalar = bytes(31) + b"\x40"  # 2**254, also after clamping
    zeros = [u for u in range(50) if plain.x25519(scalar, u.to_bytes(32, "little")) == bytes(32)]
    assert zeros == [u for u in SMALL if u < 50]


class Careless:
    """A library that does not look at what it agrees on."""

    def exchange(self, peer_public_key: object, /) -> bytes:
        return bytes(32)


def test_a_secret_of_zeros_is_refused_whatever_the_library_does() -> None:
    with pytest.raises(WeakKeyError, match="zero"):
        agreement.agree(Careless(), plain.BASE)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\x09" + bytes(30),
        b"\x09" + bytes(32),
        *[(P + more).to_bytes(32, "little") for more in (-1, 0, 1, 9)],
        b"\x09" + bytes(30) + b"\x80",  # the bit that X25519 ignores
        b"\xff" * 32,
    ],
)
def test_other_encodings_of_keys_are_refused(key: bytes) -> None:
    with pytest.raises(WeakKeyError):
        agreement.check_public_key(key)


def test_a_usual_key_is_taken() -> None:
    agreement.check_public_key(agreement.public_bytes(X25519PrivateKey.generate()))


# ---- masks ---------------------------------------------------------------------------


@pytest.mark.parametrize("vector", CTR)
def test_counter_mode_gives_the_published_results(vector: tuple[str, str, str, str]) -> None:
    key, counter, text, result = raw(*vector)
    first = int.from_bytes(counter, "big")
    assert plain.xored(text, masks.keystream(key, len(text), first)) == result
    assert plain.xored(text, plain.keystream(key, len(text), first)) == result


@pytest.mark.parametrize("bits", [128, 256])
def test_plain_aes_gives_the_published_results(bits: int) -> None:
    """FIPS 197, appendix C."""
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    results = {
        128: "69c4e0d86a7b0430d8cdb78070b4c55a",
        256: "8ea2b7ca516745bfeafc49904b496089",
    }
    assert plain.aes(bytes(range(bits // 8)), block).hex() == results[bits]


SIZES = [0, 1, 5, masks.CHUNK - 1, masks.CHUNK, masks.CHUNK + 3, 5 * masks.CHUNK + 2]


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("size", SIZES)
def test_masks_are_the_stream_whatever_the_size_and_the_threads(size: int, threads: int) -> None:
    keys = [bytes([at]) * 16 for at in range(4)]
    streams = [np.frombuffer(masks.keystream(key, 4 * size), "<u4") for key in keys]
    start = np.arange(size, dtype=np.uint32) * np.uint32(0x9E3779B1)
    total = start.copy()
    masks.add_masks(total, keys[:2], keys[2:], threads=threads)
    assert (total == start + streams[0] + streams[1] - streams[2] - streams[3]).all()


@pytest.mark.parametrize(
    "total", [np.zeros(4, np.int32), np.zeros((2, 2), np.uint32), np.zeros(8, np.uint32)[::2]]
)
def test_masks_go_on_rows_of_words_alone(total: np.ndarray) -> None:
    with pytest.raises(InternalError):
        masks.add_masks(total, [bytes(16)])


# ---- sealing -------------------------------------------------------------------------


@pytest.mark.parametrize("vector", GCM)
def test_plain_gcm_gives_the_published_results(vector: tuple[str, ...]) -> None:
    key, nonce, text, about, sealed = raw(*vector)
    assert plain.gcm(key, nonce, text, about) == sealed


@pytest.mark.parametrize("vector", GCM[:2])
def test_seals_are_the_published_ones(vector: tuple[str, ...]) -> None:
    key, _, text, about, sealed = raw(*vector)
    assert sealing.seal(key, text, about) == sealed
    assert sealing.unseal(key, sealed, about) == text


@pytest.mark.parametrize(
    ("key", "change", "about"),
    [(b"l" * 32, 0, b"a"), (b"k" * 32, 1, b"a"), (b"k" * 32, 0, b"b")],
)
def test_a_seal_that_was_touched_is_refused(key: bytes, change: int, about: bytes) -> None:
    sealed = bytearray(sealing.seal(b"k" * 32, b"text", b"a"))
    sealed[0] ^= change
    with pytest.raises(InvalidInputError):
        sealing.unseal(key, bytes(sealed), about)


def test_what_is_too_short_for_a_seal_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        sealing.unseal(b"k" * 32, b"", b"")


# ---- sharing -------------------------------------------------------------------------


def secret_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_shares_are_those_computed_by_hand() -> None:
    """1234 + 166 x + 94 x²; the same numbers modulo p when they are about to wrap."""
    assert shamir.split(secret_of(1234), [1, 2, 3, 6], [166, 94]) == [1494, 1942, 2578, 5614]
    assert shamir.split(secret_of(7), [1, 2], [shamir.PRIME - 3]) == [4, 1]
    assert shamir.split(secret_of(7), [3], [shamir.PRIME - 3]) == [shamir.PRIME - 2]


def test_the_secret_comes_back_as_by_hand() -> None:
    """At 2, 4 and 5 the coefficients are 10/3, -5 and 8/3 (Shamir's example, 1234)."""
    third = pow(3, -1, shamir.PRIME)
    by_hand = (10 * third % shamir.PRIME, shamir.PRIME - 5, 8 * third % shamir.PRIME)
    assert shamir.coefficients_at_zero((2, 4, 5)) == by_hand
    assert shamir.join((2, 4, 5), [1942, 3402, 4414]) == secret_of(1234)


def test_the_field_is_one() -> None:
    """2**130 - 5 is Poly1305's prime. Miller & Rabin: a number that is not prime passes for at
    most a quarter of all bases."""
    p, odd = shamir.PRIME, (shamir.PRIME - 1) // 2
    assert p > 2**128 and odd % 2
    assert all(pow(base, odd, p) in (1, p - 1) for base in range(2, 66))


def test_wide_numbers_are_reduced() -> None:
    stream = (shamir.PRIME + 4).to_bytes(33, "big") + b"\xff" * 33
    assert shamir.elements(stream) == [4, (2**264 - 1) % shamir.PRIME]


def test_shares_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        shamir.join((1, 2), [0, 1 << 129])


@pytest.mark.parametrize("points", [[], [0, 1], [1, 1], [-1, 2], [1, shamir.MOST_POINT + 1]])
def test_points_that_would_tell_or_repeat_are_refused(points: list[int]) -> None:
    with pytest.raises(InternalError):
        shamir.split(bytes(16), points, [1])


def test_what_is_shared_is_a_seed() -> None:
    with pytest.raises(InternalError):
        shamir.split(bytes(32), [1, 2], [1])


@pytest.mark.parametrize("text", [b"", bytes(16), bytes(18), shamir.PRIME.to_bytes(17, "big")])
def test_what_is_no_share_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInputError):
        shamir.shares_of([bytes(17), text])


def test_a_share_comes_back_from_its_bytes() -> None:
    assert shamir.shares_of([shamir.share_bytes(shamir.PRIME - 1)]) == [shamir.PRIME - 1]
    assert shamir.shares_of([]) == []


# ---- framing -------------------------------------------------------------------------


def test_no_two_lists_of_fields_have_the_same_bytes() -> None:
    lists = [("a", "b"), ("ab",), ("a", "b", ""), ("", "ab"), (b"a", 98), ("a", b"b\0"), ()]
    found = {framed(purpose, *fields) for purpose in ("x", "x2") for fields in lists}
    assert len(found) == 2 * len(lists)
    assert all(one.startswith(b"consortium/secure-sum/v1/x") for one in found)

"""The primitives once more, plain and slow, from their standards: whole numbers and lists, no
library but hashes. They are for known answers alone: nothing here takes constant time."""

from __future__ import annotations

import hmac
from functools import cache
from hashlib import sha256

# ---- X25519, RFC 7748, section 5 -----------------------------------------------------

P25519 = 2**255 - 19
BASE = (9).to_bytes(32, "little")


def x25519(scalar: bytes, point: bytes) -> bytes:
    k = int.from_bytes(scalar, "little")
    k = (k & ~7 & ~(1 << 255)) | (1 << 254)
    u = int.from_bytes(point, "little") % 2**255 % P25519
    x2, z2, x3, z3, is_swapped = 1, 0, u, 1, 0
    for at in reversed(range(255)):
        bit = k >> at & 1
        if bit != is_swapped:
            x2, x3, z2, z3 = x3, x2, z3, z2
        is_swapped = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P25519, u * (da - cb) ** 2 % P25519
        x2, z2 = aa * bb % P25519, e * (aa + 121665 * e) % P25519
    if is_swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P25519 - 2, P25519) % P25519).to_bytes(32, "little")


# ---- HKDF, RFC 5869 ------------------------------------------------------------------


def hkdf(secret: bytes, info: bytes, size: int, salt: bytes = b"") -> bytes:
    key = hmac.digest(salt or bytes(32), secret, "sha256")
    out, block = b"", b""
    for count in range(1, -(-size // 32) + 1):
        block = hmac.digest(key, block + info + bytes([count]), "sha256")
        out += block
    return out[:size]


def digest(data: bytes) -> bytes:
    return sha256(data).digest()


# ---- AES, FIPS 197 -------------------------------------------------------------------


def _times(a: int, b: int) -> int:
    """The product in GF(2^8)."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


@cache
def _sbox() -> list[int]:
    box = []
    for value in range(256):
        inverse = next((one for one in range(256) if _times(value, one) == 1), 0)
        out = 0x63
        for turn in range(5):
            out ^= (inverse << turn | inverse >> (8 - turn)) & 0xFF
        box.append(out)
    return box


def _round_keys(key: bytes) -> list[list[int]]:
    box, count = _sbox(), len(key) // 4
    words = [list(key[at : at + 4]) for at in range(0, len(key), 4)]
    factor = 1
    for at in range(count, 4 * (count + 7)):
        word = words[-1]
        if at % count == 0:
            word = [box[one] for one in word[1:] + word[:1]]
            word[0] ^= factor
            factor = _times(factor, 2)
        elif count > 6 and at % count == 4:
            word = [box[one] for one in word]
        words.append([a ^ b for a, b in zip(words[at - count], word, strict=True)])
    flat = [one for word in words for one in word]
    return [flat[at : at + 16] for at in range(0, len(flat), 16)]


def aes(key: bytes, block: bytes) -> bytes:
    box, keys = _sbox(), _round_keys(key)
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for number, round_key in enumerate(keys[1:], 1):
        state = [box[state[(at + 4 * (at % 4)) % 16]] for at in range(16)]
        if number < len(keys) - 1:
            state = [_mixed(state, at) for at in range(16)]
        state = [a ^ b for a, b in zip(state, round_key, strict=True)]
    return bytes(state)


def _mixed(state: list[int], at: int) -> int:
    column, row = at - at % 4, at % 4
    out = 0
    for other, factor in enumerate((2, 3, 1, 1)):
        out ^= _times(state[column + (row + other) % 4], factor)
    return out


def keystream(key: bytes, size: int, first: int = 0) -> bytes:
    """Counter mode (SP 800-38A, section 6.5)."""
    blocks = range(first, first + -(-size // 16))
    return b"".join(aes(key, (at % 2**128).to_bytes(16, "big")) for at in blocks)[:size]


def xored(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


# ---- GCM, SP 800-38D -----------------------------------------------------------------


def _ghash(key: int, data: bytes) -> int:
    total = 0
    for at in range(0, len(data), 16):
        total ^= int.from_bytes(data[at : at + 16], "big")
        product = 0
        for bit in range(128):
            if key >> (127 - bit) & 1:
                product ^= total
            total = (total >> 1) ^ (0xE1 << 120 if total & 1 else 0)
        total = product
    return total


def gcm(key: bytes, nonce: bytes, text: bytes, about: bytes) -> bytes:
    """The text encrypted, with its tag."""
    first = int.from_bytes(nonce + b"\0\0\0\1", "big")
    sealed = xored(text, keystream(key, len(text), first + 1))
    padded = b"".join(part + bytes(-len(part) % 16) for part in (about, sealed))
    sizes = (8 * len(about)).to_bytes(8, "big") + (8 * len(sealed)).to_bytes(8, "big")
    tag = _ghash(int.from_bytes(aes(key, bytes(16)), "big"), padded + sizes)
    return sealed + xored(tag.to_bytes(16, "big"), aes(key, first.to_bytes(16, "big")))

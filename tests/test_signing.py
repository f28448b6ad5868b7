"""Signed requests: a known answer, every field tampered with, one form for each text."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.core.ids import Secret
from consortium.crypto.recipes import SigningKey
from consortium.errors import UnsignedRequestError
from consortium.wire.signing import (
    NO_BODY,
    RequestLine,
    Signed,
    new_nonce,
    parse,
    read_envelope,
    sign,
)

# The key of RFC 8032, section 7.1, test 1.
KEY = SigningKey.from_secret(
    Secret(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
)
AUDIENCE, SITE = "6b1f" * 8, "0c5e" * 8
LINE = RequestLine(
    method="POST",
    path="/v1/rounds/3/update?a=b%20c",
    audience=AUDIENCE,
    site=SITE,
    round=3,
    nonce="000102030405060708090a0b0c0d0e0f",
    digest=sha256(b"body").hexdigest(),
)
MESSAGE = b"""\
consortium/request/v1
POST
/v1/rounds/3/update?a=b%20c
6b1f6b1f6b1f6b1f6b1f6b1f6b1f6b1f
0c5e0c5e0c5e0c5e0c5e0c5e0c5e0c5e
3
000102030405060708090a0b0c0d0e0f
230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5
"""
SIGNATURE = (
    "Tzp9otwk0E079JL28S9hcH8uLE51hEN++GD1YJFb5V0LBe9JXUttpz7xs9GnLjBQcqEQXYeLzAQO5jhvetDHAw=="
)
HEADERS = {
    "Consortium-Site": SITE,
    "Consortium-Round": "3",
    "Consortium-Nonce": "000102030405060708090a0b0c0d0e0f",
    "Consortium-Audience": AUDIENCE,
    "Consortium-Content-Digest": "230d8358dc8e8890b4c58deeb62912ee2f20357ae92a5cc861b98e68fe31acb5",
    "Consortium-Signature": SIGNATURE,
}


def parsed(**changes: str) -> Signed:
    """The known request with some headers changed: `Nonce="…"`."""
    names = {name.removeprefix("Consortium-").replace("-", "_"): name for name in HEADERS}
    return parse(LINE.method, LINE.path, HEADERS | {names[key]: changes[key] for key in changes})


def test_signed_request_is_this_for_ever() -> None:
    assert LINE.message() == MESSAGE
    assert sign(LINE, KEY) == HEADERS
    signed = parse("POST", "/v1/rounds/3/update?a=b%20c", HEADERS)
    assert signed == Signed(LINE, base64.b64decode(SIGNATURE))
    signed.verify(KEY.public, AUDIENCE)


def test_headers_are_found_whatever_their_case_and_company() -> None:
    lower = {name.lower(): value for name, value in HEADERS.items()}
    parse(LINE.method, LINE.path, lower | {"host": "x"}).verify(KEY.public, AUDIENCE)


def test_nonces_are_random_and_no_body_has_a_digest() -> None:
    drawn = {new_nonce() for _ in range(100)}
    assert len(drawn) == 100
    for nonce in drawn:
        replace(LINE, nonce=nonce, digest=NO_BODY)


# ---- tampering ----------------------------------------------------------------------

OTHERS: dict[str, str | int] = {
    "method": "PUT",
    "path": "/v1/rounds/3/update?a=b%20d",
    "audience": "7b1f" * 8,
    "site": "0c5f" * 8,
    "round": 4,
    "nonce": "100102030405060708090a0b0c0d0e0f",
    "digest": sha256(b"bodz").hexdigest(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_changed_field_is_refused(name: str) -> None:
    changed = replace(LINE, **{name: OTHERS[name]})
    signed = Signed(changed, base64.b64decode(SIGNATURE))
    with pytest.raises(UnsignedRequestError, match="does not fit"):
        signed.verify(KEY.public, changed.audience)


def test_every_field_is_tampered_with_above() -> None:
    assert list(OTHERS) == [field.name for field in fields(RequestLine)]


def test_request_for_another_coordinator_is_refused() -> None:
    with pytest.raises(UnsignedRequestError, match="another coordinator"):
        parsed().verify(KEY.public, "7b1f" * 8)


def test_another_sites_key_and_a_weak_key_do_not_fit() -> None:
    for key in (SigningKey.generate().public, bytes([1, *bytes(31)]), b"short"):
        with pytest.raises(UnsignedRequestError, match="does not fit"):
            parsed().verify(key, AUDIENCE)


@given(st.integers(0, 511))
def test_one_flipped_bit_of_the_signature_is_refused(bit: int) -> None:
    raw = bytearray(base64.b64decode(SIGNATURE))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(UnsignedRequestError):
        Signed(LINE, bytes(raw)).verify(KEY.public, AUDIENCE)


def test_signature_without_the_context_does_not_fit() -> None:
    bare = KEY.sign(MESSAGE.partition(b"\n")[2])
    with pytest.raises(UnsignedRequestError):
        Signed(LINE, bare).verify(KEY.public, AUDIENCE)


# ---- forms --------------------------------------------------------------------------

MALFORMED: dict[str, list[str | int | float | bool]] = {
    "method": ["", "post", "POST\n", "PO ST", "P" * 17],
    "path": ["", "v1", "/a b", "/a\nb", "/a\r", "/ä", "/a\x00", "/a\x7f", "/" + "a" * 4001],
    "audience": ["", "a\nb", "a b", "a" * 65],
    "site": ["", "a\nb", "../a", "a" * 65],
    "round": [-1, 10**18, True, 1.0],
    "nonce": ["", "0" * 31, "0" * 33, "A" * 32, "0" * 31 + "\n", "٠" * 32],
    "digest": ["", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in MALFORMED.items() for value in values]
)
def test_malformed_field_is_refused(name: str, value: object) -> None:
    with pytest.raises(UnsignedRequestError, match=name):
        replace(LINE, **{name: value})  # type: ignore[arg-type]


def test_newline_cannot_move_text_from_one_field_to_the_next() -> None:
    """The message of (path, audience) = ("/a\\nx", "y") would be that of another request."""
    for path in ("/a\n" + AUDIENCE, "/a\r\n" + AUDIENCE, "/a\u2028b", "/a\x85b"):
        with pytest.raises(UnsignedRequestError):
            parse("POST", path, HEADERS)
    with pytest.raises(UnsignedRequestError):
        parsed(Audience=f"{AUDIENCE}\n{SITE}")


@pytest.mark.parametrize("text", ["", "03", "+3", "-3", " 3", "3 ", "3.0", "٣", "1e3", "9" * 19])
def test_round_that_is_not_plain_decimal_is_refused(text: str) -> None:
    with pytest.raises(UnsignedRequestError, match="round"):
        parsed(Round=text)


def noncanonical_signatures() -> Iterator[str]:
    yield ""
    yield SIGNATURE.rstrip("=")
    yield SIGNATURE + "="
    yield SIGNATURE + "\n"
    yield SIGNATURE[:10] + "\n" + SIGNATURE[10:]
    yield SIGNATURE.replace("+", "-").replace("/", "_") + " "
    yield base64.b64encode(bytes(63)).decode()
    yield base64.b64encode(bytes(65)).decode()
    yield "ä" + SIGNATURE[1:]
    # 64 bytes leave four bits unused in the last letter: sixteen texts, one of them canonical
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = alphabet.index(SIGNATURE[-3])
    yield SIGNATURE[:-3] + alphabet[last + 1] + "=="


@pytest.mark.parametrize("text", list(noncanonical_signatures()))
def test_signature_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(UnsignedRequestError, match="signature is malformed"):
        parsed(Signature=text)


@pytest.mark.parametrize("name", HEADERS)
def test_missing_header_is_refused(name: str) -> None:
    rest = {key: value for key, value in HEADERS.items() if key != name}
    with pytest.raises(UnsignedRequestError, match=name):
        parse(LINE.method, LINE.path, rest)


@pytest.mark.parametrize("name", HEADERS)
def test_header_that_stands_twice_is_refused(name: str) -> None:
    with pytest.raises(UnsignedRequestError, match="twice"):
        parse(LINE.method, LINE.path, HEADERS | {name.lower(): HEADERS[name]})

    class Several(dict[str, str]):
        """As web frameworks keep headers: `items` gives every one of them."""

        def items(self) -> list[tuple[str, str]]:  # type: ignore[override]
            return [*HEADERS.items(), (name, HEADERS[name])]

    several: Mapping[str, str] = Several()
    with pytest.raises(UnsignedRequestError, match="twice"):
        parse(LINE.method, LINE.path, several)


# ---- envelopes ----------------------------------------------------------------------


def test_envelope_is_message_and_signature_and_is_read_back() -> None:
    envelope = parsed().envelope()
    assert envelope == MESSAGE + SIGNATURE.encode() + b"\n"
    again = read_envelope(envelope)
    assert again == parsed()
    again.verify(KEY.public, AUDIENCE)


ENVELOPE = MESSAGE + SIGNATURE.encode() + b"\n"


@pytest.mark.parametrize(
    "changed",
    [
        b"",
        ENVELOPE[:-1],
        ENVELOPE + b"\n",
        ENVELOPE + b"x",
        b"\n" + ENVELOPE,
        MESSAGE,
        ENVELOPE.replace(b"\n", b"\r\n"),
        ENVELOPE.replace(b"request/v1", b"request/v2"),
        ENVELOPE.replace(b"\n3\n", b"\n03\n"),
        ENVELOPE.replace(b"POST", b"P\xc3\xa4ST"),
        ENVELOPE.replace(b"update", b"u" * 9000),
    ],
)
def test_envelope_in_another_form_is_refused(changed: bytes) -> None:
    with pytest.raises(UnsignedRequestError):
        read_envelope(changed)


@given(st.integers(0, len(ENVELOPE) - 1), st.integers(0, 255))
def test_changed_byte_of_an_envelope_is_found(at: int, value: int) -> None:
    changed = ENVELOPE[:at] + bytes([value]) + ENVELOPE[at + 1 :]
    if changed == ENVELOPE:
        return
    with pytest.raises(UnsignedRequestError):
        read_envelope(changed).verify(KEY.public, AUDIENCE)

"""Signatures on every request of a site: who asks what, of which coordinator, in which round.

    consortium/request/v1
    POST
    /v1/rounds/3/update
    6b1f…                   <- audience: the coordinator's own random id
    0c5e…                   <- the site's id
    3                       <- the round; 0: none
    91d2…                   <- 128 random bits: the same request again, or another one
    e3b0…                   <- SHA-256 of the body

Each line ends with a line feed. Every field has one form, without spaces or control
characters, so a text is read in one way only. The path is the request's target as it
travels, with its query and its percent signs: nothing is decoded before it is verified.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from consortium.core.ids import is_plain_id
from consortium.crypto.recipes import SIGNATURE_BYTES, SigningKey, verify
from consortium.errors import SignatureError, UnsignedRequestError, WeakKeyError

CONTEXT = "consortium/request/v1"
NO_BODY = sha256(b"").hexdigest()
SITE, ROUND, NONCE = "Consortium-Site", "Consortium-Round", "Consortium-Nonce"
AUDIENCE, DIGEST = "Consortium-Audience", "Consortium-Content-Digest"
SIGNATURE = "Consortium-Signature"
_HEADERS = (SITE, ROUND, NONCE, AUDIENCE, DIGEST, SIGNATURE)
_LINES = 9  # context, seven fields, signature
_MAX_ENVELOPE_BYTES = 8192
_METHOD = re.compile(r"[A-Z]{1,16}")
_PATH = re.compile(r"/[!-~]{0,4000}")
_COUNT = re.compile(r"0|[1-9][0-9]{0,17}")
_MAX_ROUND = 10**18
_NONCE_BYTES = 16
_NONCE = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def new_nonce() -> str:
    """128 random bits in hexadecimal: one for each request, the same when it is sent again."""
    return secrets.token_hex(_NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What a site signs. `digest` is the SHA-256 of the body, in hexadecimal."""

    method: str
    path: str
    audience: str
    site: str
    round: int
    nonce: str
    digest: str

    def __post_init__(self) -> None:
        good = {
            "method": _METHOD.fullmatch(self.method),
            "path": _PATH.fullmatch(self.path),
            "audience": is_plain_id(self.audience),
            "site": is_plain_id(self.site),
            "round": type(self.round) is int and 0 <= self.round < _MAX_ROUND,
            "nonce": _NONCE.fullmatch(self.nonce),
            "digest": _DIGEST.fullmatch(self.digest),
        }
        for name, is_good in good.items():
            if not is_good:
                raise UnsignedRequestError(f"the request's {name} is malformed")

    def message(self) -> bytes:
        """The bytes under the signature."""
        fields = (self.method, self.path, self.audience, self.site)
        lines = (CONTEXT, *fields, str(self.round), self.nonce, self.digest)
        return "".join(f"{line}\n" for line in lines).encode("ascii")


@dataclass(frozen=True, slots=True)
class Signed:
    """A request line with a signature that may or may not fit: `verify` tells."""

    line: RequestLine
    signature: bytes

    def verify(self, key: bytes, audience: str) -> None:
        """Returns when `key` signed this request for `audience`; raises otherwise."""
        if self.line.audience != audience:
            raise UnsignedRequestError("the request was signed for another coordinator")
        try:
            verify(key, self.line.message(), self.signature)
        except (SignatureError, WeakKeyError):
            raise UnsignedRequestError("the signature does not fit the request") from None

    def envelope(self) -> bytes:
        """The request line and its signature, to be kept for auditors: the only form that
        `read_envelope` takes."""
        return self.line.message() + base64.b64encode(self.signature) + b"\n"


def sign(line: RequestLine, key: SigningKey) -> dict[str, str]:
    """The headers that make a request a signed one."""
    return {
        SITE: line.site,
        ROUND: str(line.round),
        NONCE: line.nonce,
        AUDIENCE: line.audience,
        DIGEST: line.digest,
        SIGNATURE: base64.b64encode(key.sign(line.message())).decode(),
    }


def parse(method: str, path: str, headers: Mapping[str, str]) -> Signed:
    """The signed request in these headers, whatever the case of their names. A missing,
    repeated or malformed one is refused; whether the signature fits is not yet said."""
    found = _ours(headers)
    line = RequestLine(
        method,
        path,
        found[AUDIENCE],
        found[SITE],
        _round(found[ROUND]),
        found[NONCE],
        found[DIGEST],
    )
    return Signed(line, _signature(found[SIGNATURE]))


def read_envelope(envelope: bytes) -> Signed:
    """The signed request that was kept; refuses all but the exact bytes of `envelope()`."""
    if len(envelope) > _MAX_ENVELOPE_BYTES:
        raise UnsignedRequestError("the envelope is too long")
    try:
        lines = envelope.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise UnsignedRequestError("the envelope is malformed") from None
    if len(lines) != _LINES + 1 or lines[0] != CONTEXT or lines[-1]:
        raise UnsignedRequestError("the envelope is malformed")
    method, path, audience, site, number, nonce, digest, signature = lines[1:-1]
    line = RequestLine(method, path, audience, site, _round(number), nonce, digest)
    return Signed(line, _signature(signature))


def _ours(headers: Mapping[str, str]) -> dict[str, str]:
    """Our headers, each exactly once. Some mappings hold a name several times."""
    names = {name.lower(): name for name in _HEADERS}
    found: dict[str, str] = {}
    for given, value in headers.items():
        name = names.get(given.lower())
        if name is None:
            continue
        if name in found:
            raise UnsignedRequestError(f"the header {name} stands twice")
        found[name] = value
    for name in _HEADERS:
        if name not in found:
            raise UnsignedRequestError(f"the request has no header {name}")
    return found


def _round(text: str) -> int:
    if not _COUNT.fullmatch(text):
        raise UnsignedRequestError("the request's round is malformed")
    return int(text)


def _signature(text: str) -> bytes:
    """Base64 in its one canonical form."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UnsignedRequestError("the request's signature is malformed") from None
    if len(raw) != SIGNATURE_BYTES or base64.b64encode(raw).decode() != text:
        raise UnsignedRequestError("the request's signature is malformed")
    return raw

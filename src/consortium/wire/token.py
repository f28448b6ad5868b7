"""The one line that a site pastes to join: where the coordinator is, which authority to
trust, which place is kept for it, and a secret that works once.

    cj1.eyJhIjoi…

`cj1.` and base64url without padding of a JSON object with sorted keys and no spaces. There
is one text for each token: whatever is not exactly that text is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from consortium.core.ids import is_plain_id
from consortium.errors import BadTokenError

SECRET_BYTES = 20  # 160 bits
_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 16, 64
_MAX_TEXT, _MAX_URL = 4096, 1024
_PREFIX = "cj1."
_CONTEXT = b"consortium/join/v1\0"
_KEYS = {"a": "authority", "f": "federation", "n": "name", "s": "secret", "u": "url"}
_SITE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})?")
_HEX = re.compile(r"[0-9a-f]{64}")
_NOT_WHOLE = "this is not a whole token"


def new_secret() -> str:
    """160 random bits, as base64url without padding."""
    return _encode(secrets.token_bytes(SECRET_BYTES))


def token_hash(secret: str) -> bytes:
    """What a coordinator keeps of a secret. The secret is random and long, so a plain hash
    cannot be turned back. Any text has a hash: what is no secret fits none that is kept."""
    return sha256(_CONTEXT + secret.encode(errors="surrogatepass")).digest()


def is_site_name(text: str) -> bool:
    """Whether a site can be invited under this name: `charite`, or `tenant.location`."""
    return _SITE_NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A place in a federation for one site. `authority` is the SHA-256 of the certificate
    authority's certificate (DER), in hexadecimal. Its text form hides the secret."""

    url: str
    authority: str
    federation: str
    name: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        _check_url(self.url)
        if not _HEX.fullmatch(self.authority):
            raise BadTokenError("the token does not name a certificate authority")
        if not is_plain_id(self.federation) or not is_site_name(self.name):
            raise BadTokenError("the token does not name a federation and a site")
        if not _MIN_SECRET_BYTES <= len(_decode(self.secret)) <= _MAX_SECRET_BYTES:
            raise BadTokenError("the token's secret has the wrong length")

    def text(self) -> str:
        """The line to paste."""
        values = {key: getattr(self, name) for key, name in _KEYS.items()}
        return _PREFIX + _encode(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def read_token(text: str) -> JoinToken:
    """The token in a pasted line. Spaces and line breaks, as mail programs add them, do no
    harm; anything else that is not exactly a token is refused."""
    pasted = "".join(text.split())
    if not pasted.startswith(_PREFIX):
        raise BadTokenError("this is not a token", hint=f"paste the whole line, from {_PREFIX} on")
    if len(pasted) > _MAX_TEXT:
        raise BadTokenError("this is too long for a token")
    token = JoinToken(**_values(_decode(pasted.removeprefix(_PREFIX))))
    if token.text() != pasted:  # another order of keys, a key that stands twice, spaces
        raise BadTokenError(_NOT_WHOLE)
    return token


def _values(data: bytes) -> dict[str, str]:
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise BadTokenError(_NOT_WHOLE) from None
    if not isinstance(found, dict) or found.keys() != _KEYS.keys():
        raise BadTokenError(_NOT_WHOLE)
    if not all(isinstance(value, str) for value in found.values()):
        raise BadTokenError(_NOT_WHOLE)
    return {_KEYS[key]: value for key, value in found.items()}


def _check_url(url: str) -> None:
    """Only printable ASCII: `urlsplit` drops line breaks without a word."""
    if len(url) > _MAX_URL or not re.fullmatch(r"https://[!-~]+", url):
        raise BadTokenError("the token's address does not start with https://")
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or "@" in parts.netloc or parts.query or parts.fragment:
        raise BadTokenError("the token's address is not that of a coordinator")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """Base64url in its one form without padding."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadTokenError(_NOT_WHOLE) from None
    if _encode(data) != text:
        raise BadTokenError(_NOT_WHOLE)
    return data

"""What the head of a request must be before anything else looks at it.

The parser (llhttp) refuses what is not HTTP. This refuses what is, but has no use here, and
whatever two readers could understand differently: nobody stands between a site and us who
would need it, and who sends it is trying something.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import unquote_to_bytes

from consortium.errors import ConsortiumError, WireError

TARGET_BYTES = 8 << 10
_TARGET = re.compile(rb"/[!-~]*")  # a path, and perhaps a query: no other form
_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_ONCE = (b"host", b"content-length", b"authorization", b"range", b"expect")


class Parsed(Protocol):
    """What a parser tells of a head."""

    def get_http_version(self) -> str: ...
    def get_method(self) -> bytes: ...


class Refused(Exception):
    """A head that goes no further, and the status to say so with."""

    def __init__(self, error: ConsortiumError, status: int = 400) -> None:
        super().__init__(error.message)
        self.error, self.status = error, status


def check_head(parsed: Parsed, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Returns when the application may see this. Names are in lower case. Raises `Refused`."""
    if parsed.get_http_version() != "1.1":
        raise _no("only HTTP/1.1 is spoken here")
    if parsed.get_method() in (b"CONNECT", b"TRACE"):
        raise _no("this method is not for us", 405)
    _check_target(target)
    names = [name for name, _ in headers]
    if b"host" not in names or any(names.count(name) > 1 for name in _ONCE):
        raise _no("a field is missing, or stands twice")
    if b"transfer-encoding" in names:
        raise _no("a request says how long its body is: Content-Length", 411)
    if b"upgrade" in names:
        raise _no("nothing else is spoken here")
    for name, value in headers:
        if name == b"content-encoding" and value.lower() != b"identity":
            raise _no("a body comes as it is, not compressed", 415)
        if name == b"expect" and value.lower() != b"100-continue":
            raise _no("this cannot be expected of us", 417)


def _check_target(target: bytes) -> None:
    if len(target) > TARGET_BYTES:
        raise _no("the address is too long", 414)
    if _TARGET.fullmatch(target) is None or b"#" in target:
        raise _no("the address is not a path")
    if b"%" not in target:
        return
    plain = unquote_to_bytes(target)
    if _PERCENT.search(target) or _CONTROL.search(plain):
        raise _no("the address is not well spelt")
    try:
        plain.decode()
    except UnicodeDecodeError:
        raise _no("the address is not text") from None


def _no(message: str, status: int = 400) -> Refused:
    return Refused(WireError(message), status)

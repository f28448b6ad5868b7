"""`HOST:PORT` as `--listen` takes it."""

from __future__ import annotations

from consortium.errors import UsageError

_MAX_PORT = 65_535
_MAX_DIGITS = 5  # looked at first: `int` raises for thousands of them


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT`, where an IPv6 address stands in brackets.

    >>> parse_listen("0.0.0.0:8443"), parse_listen("[::]:8443")
    (('0.0.0.0', 8443), ('::', 8443))
    """
    host, colon, port = text.rpartition(":")
    is_number = port.isdecimal() and len(port) <= _MAX_DIGITS
    if not colon or not host or not is_number or int(port) > _MAX_PORT:
        raise UsageError(f"--listen {text} is not HOST:PORT", hint="--listen 0.0.0.0:8443")
    return host.removeprefix("[").removesuffix("]"), int(port)

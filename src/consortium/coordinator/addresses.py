"""Where a site listens, as an operator says it. Nobody else does: a coordinator that called
whatever address a site names could be sent anywhere in its own network."""

from __future__ import annotations

from urllib.parse import urlsplit

from consortium.errors import UsageError

_HINT = "https://HOST:PORT, where the site's agent was started with --listen HOST:PORT"


def check_url(url: str) -> tuple[str, int]:
    """Host and port of a listening site's address; raises for what is not one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username)
        if parts.scheme != "https" or not host or not port or any(rest):
            raise ValueError
        return host.encode("idna").decode("ascii"), port
    except ValueError:  # UnicodeError is one
        raise UsageError(f"{url!r} is not where a site listens", hint=_HINT) from None

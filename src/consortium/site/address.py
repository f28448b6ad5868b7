"""Where a coordinator is, and through which proxy it is reached, as URLs say it."""

from __future__ import annotations

import ipaddress
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from consortium.errors import UsageError

_HTTPS, _HTTP = 443, 80


@dataclass(frozen=True, slots=True)
class Address:
    """A coordinator's place: its host as in the DNS (an IPv6 address without brackets), its
    port, and what stands before every path."""

    host: str
    port: int
    prefix: str = ""

    @property
    def bracketed(self) -> str:
        """The host as it stands before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def netloc(self) -> str:
        """What the `Host` header says."""
        return self.bracketed if self.port == _HTTPS else f"{self.bracketed}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """Who is asked to CONNECT to the coordinator: what goes through is TLS from end to end."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # with its password


def read_address(url: str) -> Address:
    """The place that an https URL names; raises `UsageError` for any other."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _HTTPS
        if parts.scheme != "https" or not host:
            raise ValueError
        return Address(host.encode("idna").decode("ascii"), port, parts.path.rstrip("/"))
    except ValueError:  # UnicodeError is one
        raise UsageError("the coordinator's address is not an https address") from None


def proxy_for(address: Address) -> Proxy | None:
    """The proxy that HTTPS_PROXY names, as everywhere; never for this machine itself."""
    host = address.host
    if host == "localhost" or _is_loopback(host) or proxy_bypass(host):
        return None
    told = getproxies().get("https")
    return _read_proxy(told) if told else None


def _read_proxy(told: str) -> Proxy:
    try:
        parts = urlsplit(told if "://" in told else f"http://{told}")
        host, port = parts.hostname or "", parts.port or _HTTP
        if parts.scheme != "http" or not host:
            raise ValueError
    except ValueError:  # what it says may have a password in it
        raise UsageError(
            "HTTPS_PROXY does not name an http proxy", hint="HTTPS_PROXY=http://HOST:PORT"
        ) from None
    if parts.username is None:
        return Proxy(host, port)
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    basic = b64encode(login.encode()).decode("ascii")
    return Proxy(host, port, {"Proxy-Authorization": f"Basic {basic}"})


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""The site's side of the wire: signed requests over TLS 1.3, to one coordinator.

The only authority that is trusted is the one that came with the invitation. Nothing here
tries twice: an `UnreachableError` leaves everything so that the caller may do the same thing
again, and a request that is sent again is the same request, with the same nonce, so that
the coordinator answers it from its record.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakSet

import httpx2
from pydantic import BaseModel

from consortium.crypto.recipes import SigningKey
from consortium.errors import (
    CertificateError,
)
from consortium.model import digest_of
from consortium.site.refusals import network_errors, read_all, refusal
from consortium.wire.messages import read_body
from consortium.wire.signing import RequestLine, new_nonce, sign

CONNECT_S = 10.0
READ_S = 15.0  # for an answer that the coordinator gives at once
_PIECE_BYTES = 1 << 16

Reply = TypeVar("Reply", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this site is at its coordinator."""

    site: str
    audience: str
    key: SigningKey


@dataclass(frozen=True, slots=True)
class Request:
    """One request, signed if the site has joined. It may be sent as often as it takes."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def verified_context(authority: bytes) -> ssl.SSLContext:
    """TLS 1.3 with whoever this authority (PEM) vouches for, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody yet
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise CertificateError("the authority's certificate is malformed") from None
    return context


def unverified_context() -> ssl.SSLContext:
    """TLS with anybody: only to fetch an authority that is then compared with a token."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Client:
    """One coordinator, as a site reaches it. Threads share it and its connections."""

    def __init__(self, url: str, context: ssl.SSLContext, identity: Identity | None = None) -> None:
        self.url, self._context, self._identity = url, context, identity
        self._streams: WeakSet[Any] = WeakSet()
        self._http = httpx2.Client(
            base_url=url,
            verify=context,
            trust_env=False,  # neither the system's authorities nor its passwords
            proxy=_proxy(url),
            timeout=httpx2.Timeout(READ_S, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=8, keepalive_expiry=30.0),
            headers={"Accept-Encoding": "identity", "User-Agent": "consortium"},
        )

    def show(self, certificate: Path, key: Path) -> None:
        """Show this certificate from the next connection on."""
        try:
            self._context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError):
            raise CertificateError("this site's certificate or key cannot be used") from None

    # ---- one request, one answer ----------------------------------------------------

    def prepare(
        self, method: str, path: str, body: BaseModel | bytes | None = None, *, round: int = 0
    ) -> Request:
        """A request, signed now. Send the same one again when its answer got lost."""
        data = body.model_dump_json().encode() if isinstance(body, BaseModel) else body or b""
        headers: dict[str, str] = {}
        if self._identity is not None:
            whom = self._identity
            line = RequestLine(
                method=method,
                path=path,
                audience=whom.audience,
                site=whom.site,
                round=round,
                nonce=new_nonce(),
                digest=digest_of(data).hex(),
            )
            headers |= sign(line, whom.key)
        if isinstance(body, BaseModel):
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"
        return Request(method, path, headers, data)

    def send(self, request: Request, reply: type[Reply], *, read_s: float = READ_S) -> Reply:
        """The coordinator's answer to this request, tried once."""
        with self.open(request, read_s=read_s) as response:
            return read_body(reply, read_all(response))

    def call(
        self,
        method: str,
        path: str,
        body: BaseModel | bytes | None = None,
        *,
        reply: type[Reply],
        round: int = 0,
        read_s: float = READ_S,
    ) -> Reply:
        """The answer to a new request, tried once: for what has no effects, or may have them
        twice."""
        return self.send(self.prepare(method, path, body, round=round), reply, read_s=read_s)

    @contextmanager
    def open(
        self,
        request: Request,
        *,
        more: Mapping[str, str] | None = None,
        read_s: float = READ_S,
        takes: tuple[int, ...] = (),
    ) -> Iterator[httpx2.Response]:
        """The open response; a refusal is raised, unless its status is one that the caller
        `takes`. `more` are headers that are not signed."""
        with (
            network_errors(),
            self._http.stream(
                request.method,
                request.path,
                content=_pieces(request.body),
                headers={
                    "Content-Length": str(len(request.body)),
                    **request.headers,
                    **(more or {}),
                },
                timeout=httpx2.Timeout(READ_S, connect=CONNECT_S, read=read_s),
                extensions={"trace": self._trace},
            ) as response,
        ):
            if response.status_code >= 300 and response.status_code not in takes:
                raise refusal(response.status_code, read_all(response))
            yield response

    # ---- the end --------------------------------------------------------------------

    def cut(self) -> None:
        """End every request that is under way, from another thread: each is unreachable."""
        for stream in list(self._streams):
            sock = stream.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):
                    # Not the method of SSLSocket: it would pull its state from under the reader.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._streams.add(info["return_value"])


def _pieces(body: bytes) -> Iterator[bytes]:
    """A body in pieces: a TLS socket takes 16 KiB at a time, and what is left of a whole
    chunk would be copied after each of them."""
    return (body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES))


@dataclass(frozen=True, slots=True)
class ShownAuthority:
    """What a coordinator shows to anybody: its authority (PEM), and what its clock says."""

    pem: bytes
    date_ms: int | None


def fetch_authority(url: str) -> ShownAuthority:
    """The authority that a coordinator shows. Nothing is proven by it: compare it with the
    token before anything else is said."""
    client = Client(url, unverified_context())
    try:
        with client.open(client.prepare("GET", "/v1/authority")) as response:
            return ShownAuthority(read_all(response), _date_ms(response.headers.get("Date", "")))
    finally:
        client.close()


def _date_ms(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except ValueError:
        return None


# ---- the way out --------------------------------------------------------------------


def _proxy(url: str) -> str | None:
    """The proxy that HTTPS_PROXY names, as everywhere; never for this machine itself. What goes
    through it is TLS from end to end."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get("https")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""The site's side of the wire: signed requests over TLS 1.3, to one coordinator.

The only authority that is trusted is the one that came with the invitation. Nothing here
tries twice: an `UnreachableError` leaves everything so that the caller may do the same thing
again, and a request that is sent again is the same request, with the same nonce, so that
the coordinator answers it from its record.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from consortium.crypto.recipes import SigningKey
from consortium.errors import CertificateError, UnreachableError
from consortium.model import digest_of
from consortium.site.address import proxy_for, read_address
from consortium.site.connections import Body, Connection, Connections
from consortium.site.lines import LineConnection, Lines
from consortium.site.refusals import network_errors, refusal
from consortium.site.response import Response
from consortium.wire.messages import MAX_JSON_BYTES, read_body
from consortium.wire.signing import RequestLine, new_nonce, sign
from consortium.wire.version import PRESENT, PROTOCOL, check_version

READ_S = 15.0  # for an answer that the coordinator gives at once
_ALWAYS = {"Accept-Encoding": "identity", "User-Agent": "consortium", PROTOCOL: str(PRESENT)}

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
    body: Body


def verified_context(authority: bytes) -> ssl.SSLContext:
    """TLS 1.3 with whoever this authority (PEM) vouches for, and nobody else."""
    context = _context()
    try:
        context.load_verify_locations(cadata=authority.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError):
        raise CertificateError("the authority's certificate is malformed") from None
    return context


def unverified_context() -> ssl.SSLContext:
    """TLS with anybody: only to fetch an authority that is then compared with a token."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody yet
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    return context


class Client:
    """One coordinator, as a site reaches it. Threads share it and its connections."""

    def __init__(
        self,
        url: str,
        context: ssl.SSLContext,
        identity: Identity | None = None,
        lines: Lines | None = None,
    ) -> None:
        """With `lines`, nothing connects from here: what is asked goes on those."""
        self.url, self._context, self._identity, self._lines = url, context, identity, lines
        self._connections = Connections(self._connection)
        self.their_version = 0  # of the protocol, by the coordinator's last answer; 0: none yet

    @property
    def way(self) -> str:
        """How the coordinator was reached, in words."""
        return f"connected to {self.url}" if self._lines is None else "the coordinator has called"

    def show(self, certificate: Path, key: Path) -> None:
        """Show this certificate from the next connection on."""
        try:
            self._context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError):
            raise CertificateError("this site's certificate or key cannot be used") from None

    # ---- one request, one answer ----------------------------------------------------

    def prepare(
        self,
        method: str,
        path: str,
        body: BaseModel | Body | None = None,
        *,
        round: int = 0,
        digest: bytes | None = None,
    ) -> Request:
        """A request, signed now. Send the same one again when its answer got lost. `digest` is
        what is signed for the body where that is not its own."""
        data = body.model_dump_json().encode() if isinstance(body, BaseModel) else body or b""
        if digest is None:
            assert isinstance(data, bytes)  # who sends a file has hashed it
            digest = digest_of(data)
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
                digest=digest.hex(),
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
            return read_body(reply, response.read_all(MAX_JSON_BYTES))

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
    ) -> Iterator[Response]:
        """The open response; a refusal is raised, unless its status is one that the caller
        `takes`. `more` are headers that are not signed."""
        headers = {**_ALWAYS, **request.headers, **(more or {})}
        connection, is_fit = self._connections.take(), False
        try:
            with network_errors():
                answer = connection.exchange(
                    request.method, request.path, headers, request.body, read_s
                )
            with closing(Response(answer)) as response:
                told = response.headers.get(PROTOCOL)
                self.their_version = check_version(told, "the coordinator")
                if response.status_code >= 300 and response.status_code not in takes:
                    problem = response.read_all(MAX_JSON_BYTES)
                    is_fit = response.is_spent
                    raise refusal(response.status_code, problem)
                yield response
                is_fit = response.is_spent
        finally:
            self._connections.give_back(connection, is_fit=is_fit)

    def _connection(self) -> Connection:
        with network_errors():
            address = read_address(self.url)
            if self._lines is not None:
                return LineConnection(address, self._context, self._lines)
            return Connection(address, proxy_for(address), self._context)

    # ---- the end --------------------------------------------------------------------

    def cut(self) -> None:
        """End every request that is under way, from another thread: each is unreachable."""
        self._connections.cut()

    def close(self) -> None:
        self._connections.close()


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
            pem = response.read_all(MAX_JSON_BYTES)
            return ShownAuthority(pem, _date_ms(response.headers.get("Date", "")))
    except UnreachableError as error:  # nobody has typed this address: it came in a token
        raise UnreachableError(f"{error.message} ({url})", hint=error.hint) from None
    finally:
        client.close()


def _date_ms(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except ValueError:
        return None

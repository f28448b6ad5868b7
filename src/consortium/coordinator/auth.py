"""Who asks: the one place that turns a request into a site or an operator, or raises. What they
may do is decided in `access`.

A site is who signed the request; the certificate of its connection must be for the same key,
so that neither a stolen certificate nor a stolen signature is enough. An operator is who holds
a token. Synchronous: the roster is in a database.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request

from consortium.coordinator.access import Role, Scope, Who
from consortium.coordinator.desk import Desk
from consortium.coordinator.office import Office
from consortium.coordinator.protocol import CERTIFICATE, EXTENSION
from consortium.coordinator.rows import SiteRow
from consortium.core.ids import Digest
from consortium.crypto.authority import public_key_of
from consortium.errors import (
    CertificateError,
    NotEnrolledError,
    WireError,
    WrongRoundError,
)
from consortium.wire.signing import Signed, parse


@dataclass(frozen=True, slots=True)
class Caller:
    """A site whose signature was verified, and what it signed."""

    site: SiteRow
    desk: Desk
    signed: Signed

    @property
    def who(self) -> Who:
        return Who(Role.SITE, Scope(federations=frozenset({self.site.federation})))

    @property
    def body(self) -> Digest:
        """What the body must hash to."""
        return Digest(bytes.fromhex(self.signed.line.digest))

    def in_round(self, number: int, what: str) -> None:
        """The round of the path is the one that was signed for, and the path is spelt in the
        one way that an auditor can spell again."""
        if self.signed.line.round != number:
            raise WrongRoundError("the request was signed for another round")
        if self.signed.line.path != f"/v1/rounds/{number}/{what}":
            raise WireError("the address is not in its canonical form")


def site_of(request: Request, office: Office, *, may_be_out: bool = False) -> Caller:
    """The site that signed this request."""
    signed = parse(request.method, target_of(request), request.headers)
    site = office.site(signed.line.site, may_be_out=may_be_out)
    signed.verify(site.key, office.audience)
    _check_certificate(request, site)
    return Caller(site, office.desk_of(site), signed)


def operator_of(token: str, office: Office) -> Who:
    """Whose token this is. One answer for what is missing, unknown, revoked or expired, or was
    made by another coordinator."""
    row = office.operator(token)
    if row is None:
        raise NotEnrolledError(
            "this needs an operator's token that holds",
            hint="ask an admin for a new one: consortium token new; then --operator FILE, or "
            "`Authorization: Bearer TOKEN`",
        )
    federations = None if row.federations is None else frozenset(row.federations)
    return Who(Role(row.role), Scope(row.tenant, federations), row.label)


def token_of(request: Request) -> str:
    """The token that a request shows, or an empty text, which is nobody's."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def target_of(request: Request) -> str:
    """The request's target as it travelled: this is what was signed."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _check_certificate(request: Request, site: SiteRow) -> None:
    """A site is also who the certificate of its connection says."""
    shown = request.scope.get("extensions", {}).get(EXTENSION, {}).get(CERTIFICATE)
    if shown is None:
        raise CertificateError("this connection shows no certificate")
    if _key_in(shown) != site.key:
        raise CertificateError("the certificate of this connection is another site's")


@lru_cache(maxsize=1024)  # each request of a connection shows the same one
def _key_in(certificate: bytes) -> bytes:
    return public_key_of(certificate)

"""Joining with a token, and keeping the certificate that joining gave.

The token names the authority; whoever answers is compared with it before anything is told.
Every step may be repeated with the same token and the same home: the key that was made there
first redeems it again.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from consortium.crypto.authority import (
    check_authority,
    fingerprint,
    needs_renewal,
    public_key_of,
    remaining_ms,
    request_certificate,
)
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import Clock
from consortium.errors import CertificateError, SiteDataError, UsageError, WireError
from consortium.site.home import Enrolment, SiteHome, is_home
from consortium.site.lines import Lines
from consortium.site.refusals import printable
from consortium.site.transport import Client, Identity, fetch_authority, verified_context
from consortium.wire.messages import Enrol, Enrolled, Renew, Renewed
from consortium.wire.token import JoinToken, token_hash
from consortium.wire.words import words_of

LEAST_DISK_BYTES = 1 << 30
MOST_CLOCK_MS = 60_000


@dataclass(frozen=True, slots=True)
class Joined:
    """A home that has joined, and what its people should know: warnings, a sentence each."""

    home: SiteHome
    warnings: tuple[str, ...]
    is_new: bool = True


def check_data(data: Path) -> None:
    """Whether the site's records can be read at all. What is in them is not looked at."""
    try:
        if data.is_dir():
            next(data.iterdir(), None)
        else:
            with data.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise SiteDataError(
            f"cannot read {data}: {error.strerror}", hint="--data FILE: this site's own records"
        ) from None


def join(
    token: JoinToken, folder: Path, *, data: Path | None, clock: Clock, seed: int | None = None
) -> Joined:
    """Take the place that a token keeps. Joining again with the same token finds what is there."""
    if data is not None:
        check_data(data)
    if is_home(folder):
        return Joined(_held(token, folder, data), (), is_new=False)
    shown = fetch_authority(token.url)
    check_authority(shown.pem, token.authority)  # before anything is told, even the name
    home = SiteHome.prepare(folder)
    warnings = [*_disk_warnings(folder), *_clock_warnings(shown.date_ms, clock.now_ms())]
    enrolled = _enrol(token, shown.pem, home.key)
    words = words_of(token.authority, token.federation, home.key.public)
    if tuple(enrolled.words) != words or enrolled.federation != token.federation:
        raise CertificateError("the coordinator speaks of another federation, or of another key")
    check_certificate(enrolled.certificate.encode(), shown.pem, home.key)
    enrolment = Enrolment(
        name=token.name,
        site=enrolled.site,
        federation=enrolled.federation,
        federation_name=printable(enrolled.federation_name),
        url=token.url,
        audience=enrolled.audience,
        log_key=enrolled.log_key,
        words=words,
        data="" if data is None else str(data.resolve()),
        enrolled_ms=clock.now_ms(),
        token_hash=token_hash(token.secret).hex(),
        seed=seed,
    )
    home.enrol(enrolment, enrolled.certificate, shown.pem.decode())
    return Joined(home, tuple(warnings))


def _held(token: JoinToken, folder: Path, data: Path | None) -> SiteHome:
    """The home that this token made; another's is left alone."""
    home = SiteHome.open(folder)
    held = home.enrolment
    authority = fingerprint(home.authority_file.read_bytes())
    ours = (held.federation, held.name, authority)
    if ours != (token.federation, token.name, token.authority):
        raise UsageError(
            f"{folder} is the home of site {held.name} in {held.federation_name}",
            hint="--home DIR: one folder for each federation",
        )
    if held.token_hash not in ("", token_hash(token.secret).hex()):
        # A new invitation is a new place, with a key and a log of its own.
        raise UsageError(
            f"{folder} belongs to an earlier place of {held.name} in {held.federation_name}",
            hint="take a new folder: consortium join TOKEN --home DIR",
        )
    if data is not None:
        home.change(data=data)
    return home


def _enrol(token: JoinToken, authority: bytes, key: SigningKey) -> Enrolled:
    client = Client(token.url, verified_context(authority))
    try:
        body = Enrol(
            federation=token.federation,
            name=token.name,
            secret=token.secret,
            certificate_request=request_certificate(key).decode(),
        )
        return client.call("POST", "/v1/enrol", body, reply=Enrolled)
    finally:
        client.close()


def check_certificate(certificate: bytes, authority: bytes, key: SigningKey) -> None:
    """Return when `certificate` (PEM) is for this key and from this authority (PEM)."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        raise CertificateError("the certificate is not from the federation's authority") from None
    if public_key_of(found.public_bytes(Encoding.DER)) != key.public:
        raise CertificateError("the certificate is for another key")


# ---- afterwards ---------------------------------------------------------------------


def connect(home: SiteHome, clock: Clock, lines: Lines | None = None) -> Client:
    """The coordinator as a site that has joined reaches it: by itself, or on lines that the
    coordinator has opened."""
    held = home.enrolment
    context = verified_context(home.authority_file.read_bytes())
    client = Client(held.url, context, Identity(held.site, held.audience, home.key), lines)
    # One that has expired would break every connection without a word; without it, the
    # coordinator says what is wrong.
    if remaining_ms(home.certificate_file.read_bytes(), clock.now_ms()) > 0:
        client.show(home.certificate_file, home.key_file)
    return client


def renew(home: SiteHome, client: Client, clock: Clock) -> bool:
    """Take a new certificate when less than a third of the old one's time is left."""
    if not needs_renewal(home.certificate_file.read_bytes(), clock.now_ms()):
        return False
    body = Renew(certificate_request=request_certificate(home.key).decode())
    renewed = client.call("POST", "/v1/renew", body, reply=Renewed).certificate
    check_certificate(renewed.encode(), home.authority_file.read_bytes(), home.key)
    if remaining_ms(renewed.encode(), clock.now_ms()) <= 0:
        raise WireError("the coordinator renews with a certificate that is over already")
    home.renew(renewed)
    client.show(home.certificate_file, home.key_file)
    return True


# ---- warnings -----------------------------------------------------------------------


def _disk_warnings(folder: Path) -> list[str]:
    free = shutil.disk_usage(folder).free
    if free >= LEAST_DISK_BYTES:
        return []
    return [f"only {free >> 20} MiB are free in {folder}: every update is kept there"]


def _clock_warnings(theirs_ms: int | None, ours_ms: int) -> list[str]:
    """The agent goes by the coordinator's time; certificates do not."""
    if theirs_ms is None or abs(theirs_ms - ours_ms) <= MOST_CLOCK_MS:
        return []
    seconds = (ours_ms - theirs_ms) // 1000
    word = "ahead of" if seconds > 0 else "behind"
    return [f"this machine's clock is {abs(seconds)} s {word} the coordinator's"]

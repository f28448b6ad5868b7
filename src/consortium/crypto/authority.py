"""The coordinator's own certificate authority: X.509 for its server, for its calls and for its
sites.

Nobody else's authority is trusted, and a site trusts nothing but the one certificate whose
fingerprint came with its invitation. A site has one Ed25519 key for its certificate and for
its requests: TLS 1.3 signs text that starts with 64 spaces, ours starts with a context
string, so a signature of one kind is never one of the other. (TLS 1.2 signs without such a
prefix: do not allow it.) Of a request for a certificate only the key is taken.

Times are milliseconds since 1970 and always given: nothing here looks at a clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, SignatureAlgorithmOID

from consortium.core.ids import Secret, is_plain_id
from consortium.crypto.recipes import SigningKey, check_public_key
from consortium.errors import CertificateError, UsageError

AUTHORITY_DAYS, SERVER_DAYS, SITE_DAYS = 3650, 90, 365
MAX_REQUEST_BYTES = 4096
_CALLER = "coordinator"  # whom calls to listening sites are from; no site's id, which is random
# A certificate holds from two days before it was made: clocks may be a day apart.
_EARLIER = timedelta(days=2)
_RENEW_BELOW = 1 / 3  # of the whole time that a certificate holds
_MAX_HOST = 253  # RFC 1035
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*")

_IssuedKey = ec.EllipticCurvePublicKey | Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What a TLS server loads: its private key (PEM), and its certificate followed by the
    authority's (PEM)."""

    key: Secret
    chain: bytes

    def pem(self) -> Secret:
        """Both for one file, which is replaced as a whole: a crash between two files would
        leave a key that does not fit its certificate. `load_cert_chain(file)` reads it."""
        return Secret(self.key.reveal() + self.chain)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its private key."""

    certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def make(cls, now_ms: int) -> Authority:
        """A new authority. Its key never leaves the coordinator."""
        key = ec.generate_private_key(ec.SECP256R1())
        # Names differ, so that a chain is never built with another authority of ours.
        name = _name(f"consortium authority {x509.random_serial_number():x}"[:40])
        builder = (
            _builder(name, name, key.public_key(), now_ms, days=AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, key: Secret, certificate: bytes) -> Authority:
        """The authority whose two PEM files were kept; refuses a pair that is none."""
        found = _read(certificate)
        try:
            private = serialization.load_pem_private_key(key.reveal(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise CertificateError("the authority's key is not a private key") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise CertificateError("the authority's key is of another kind")
        if private.public_key() != found.public_key():
            raise CertificateError("the authority's key and certificate do not belong together")
        return cls(found, private)

    def key_pem(self) -> Secret:
        """The private key, for a file that only its owner can read."""
        return Secret(_private_pem(self._key))

    def pem(self) -> bytes:
        """The authority's certificate: public, and what sites pin."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.pem())

    def issue_server(self, names: Sequence[str], now_ms: int) -> ServerIdentity:
        """A new key and certificate for a server at these DNS names and IP addresses."""
        if not names:
            raise UsageError("a server certificate needs a name", hint="give a host or an address")
        hosts = [_host(name) for name in names]
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._leaf(_name(names[0][:64]), key.public_key(), now_ms, days=SERVER_DAYS)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = self._sign(builder, ExtendedKeyUsageOID.SERVER_AUTH)
        return ServerIdentity(Secret(_private_pem(key)), certificate + self.pem())

    def issue_caller(self, now_ms: int) -> ServerIdentity:
        """A new key and certificate for calls to sites that listen: `check_caller` takes it."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._leaf(_name(_CALLER), key.public_key(), now_ms, days=SERVER_DAYS)
        certificate = self._sign(builder, ExtendedKeyUsageOID.CLIENT_AUTH)
        return ServerIdentity(Secret(_private_pem(key)), certificate + self.pem())

    def issue_site(self, request: bytes, site: str, now_ms: int) -> bytes:
        """A certificate (PEM) for the key in `request`, in the name of `site`. The caller has
        made sure that whoever asks is that site; whatever else the request says is ignored."""
        if not is_plain_id(site):
            raise UsageError("a site's id is 1 to 64 letters, digits, dashes and underscores")
        key = Ed25519PublicKey.from_public_bytes(key_of_request(request))
        builder = self._leaf(_name(site), key, now_ms, days=SITE_DAYS)
        return self._sign(builder, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _leaf(
        self, subject: x509.Name, key: _IssuedKey, now_ms: int, *, days: int
    ) -> x509.CertificateBuilder:
        issuer = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer.value)
        return (
            _builder(subject, self.certificate.subject, key, now_ms, days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(signed_by, critical=False)
        )

    def _sign(self, builder: x509.CertificateBuilder, purpose: x509.ObjectIdentifier) -> bytes:
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


# ---- at the site --------------------------------------------------------------------


def request_certificate(key: SigningKey) -> bytes:
    """A request (PEM) for a certificate of this key: it proves that the asker has the key."""
    private = serialization.load_pem_private_key(key.pem().reveal(), password=None)
    assert isinstance(private, Ed25519PrivateKey)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(private, None).public_bytes(serialization.Encoding.PEM)


def check_authority(certificate: bytes, expected: str) -> None:
    """Return when `certificate` (PEM) is the one whose fingerprint is `expected`: the site may
    then trust it, and nothing else, for the coordinator."""
    if fingerprint(certificate) != expected:
        raise CertificateError(
            "the coordinator shows another authority than the token names",
            hint="do not go on: ask the lead, by phone, for a new token",
        )


def check_caller(certificate: bytes) -> None:
    """Return when `certificate` (DER), which TLS has verified, is the coordinator's own: sites
    have certificates of the same authority, for keys of another kind."""
    try:
        found = x509.load_der_x509_certificate(certificate)
        is_caller = isinstance(found.public_key(), ec.EllipticCurvePublicKey)
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError("the certificate is malformed") from None
    if not is_caller or found.subject != _name(_CALLER):
        raise CertificateError("whoever calls is not the coordinator")


# ---- reading certificates -----------------------------------------------------------


def key_of_request(request: bytes) -> bytes:
    """The raw Ed25519 key in a request (PEM) that was signed with it; refuses all others."""
    if len(request) > MAX_REQUEST_BYTES:
        raise CertificateError("the request for a certificate is too long")
    try:
        found = x509.load_pem_x509_csr(request)
        raw = _raw_key(found.public_key())
        if found.signature_algorithm_oid != SignatureAlgorithmOID.ED25519:
            raise CertificateError("the request for a certificate is not signed with its own key")
        is_signed = found.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError("the request for a certificate is malformed") from None
    if not is_signed:
        raise CertificateError("the request for a certificate is not signed with its own key")
    return raw


def public_key_of(certificate: bytes) -> bytes:
    """The raw Ed25519 key of a site's certificate (DER, as `getpeercert(True)` gives it)."""
    try:
        return _raw_key(x509.load_der_x509_certificate(certificate).public_key())
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError("the certificate is malformed") from None


def fingerprint(certificate: bytes) -> str:
    """The SHA-256 of a certificate's DER, in hexadecimal. The certificate is given as PEM."""
    return sha256(_read(certificate).public_bytes(serialization.Encoding.DER)).hexdigest()


def serial_of(certificate: bytes) -> str:
    """The serial number of a certificate (PEM), in hexadecimal."""
    return f"{_read(certificate).serial_number:x}"


def remaining_ms(certificate: bytes, now_ms: int) -> int:
    """How long a certificate (PEM; of a chain, the first) still holds; negative when it is over."""
    return _ms(_read(certificate).not_valid_after_utc) - now_ms


def needs_renewal(certificate: bytes, now_ms: int) -> bool:
    """Whether less than a third of the time is left."""
    found = _read(certificate)
    whole_ms = _ms(found.not_valid_after_utc) - _ms(found.not_valid_before_utc)
    return remaining_ms(certificate, now_ms) < whole_ms * _RENEW_BELOW


def _read(certificate: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise CertificateError("the certificate is malformed") from None


def _raw_key(key: object) -> bytes:
    if not isinstance(key, Ed25519PublicKey):
        raise CertificateError("a site's key is an Ed25519 key")
    raw = key.public_bytes_raw()
    check_public_key(raw)
    return raw


# ---- building certificates ----------------------------------------------------------


def _builder(
    subject: x509.Name, issuer: x509.Name, key: _IssuedKey, now_ms: int, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(now_ms // 1000, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        pass
    host = name.lower()
    if len(host) > _MAX_HOST or not _HOST.fullmatch(host):
        raise UsageError(f"{name!r} is neither a host name nor an address")
    return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000

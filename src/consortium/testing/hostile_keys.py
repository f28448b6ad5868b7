"""Keys and requests for certificates that nobody may join with."""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from consortium.crypto.authority import Authority, request_certificate
from consortium.crypto.recipes import SigningKey

OF_NO_ORDER = bytes([1]) + bytes(31)  # the identity: one signature fits every message
NON_CANONICAL = (2**255 - 19 + 3).to_bytes(32, "little")  # another spelling of y = 3
_PEM = "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n"
_NOW_MS = 1_800_000_000_000


def _spelt(der: bytes) -> str:
    return _PEM.format(base64.b64encode(der).decode())


def _der(pem: bytes) -> bytes:
    return x509.load_pem_x509_csr(pem).public_bytes(serialization.Encoding.DER)


def forged_request(key: bytes) -> str:
    """A request for this key. For the identity, R = identity and S = 0 sign everything."""
    own = SigningKey.generate()
    der = _der(request_certificate(own)).replace(own.public, key)
    return _spelt(der[:-64] + OF_NO_ORDER + bytes(32))


def altered_request() -> str:
    """A request with somebody else's key in it."""
    own = SigningKey.generate()
    return _spelt(_der(request_certificate(own)).replace(own.public, SigningKey.generate().public))


def another_kind() -> str:
    """A request for a key of another kind."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    made = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def authority_request() -> str:
    """A request to be an authority, in another's name: of it only the key may be taken."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "consortium authority")])
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
    )
    made = builder.sign(Ed25519PrivateKey.generate(), None)
    return made.public_bytes(serialization.Encoding.PEM).decode()


def is_plain_site(certificate: str) -> bool:
    """Whether a certificate says nothing but that it is a site's."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    basic = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    kinds = {type(one.value) for one in found.extensions}
    return not basic.ca and x509.SubjectAlternativeName not in kinds


def foreign_certificate(file: Path) -> Path:
    """A key and a certificate of another coordinator's authority, in one file."""
    key = SigningKey.generate()
    made = Authority.make(_NOW_MS).issue_site(request_certificate(key), "0" * 32, _NOW_MS)
    file.touch(0o600)
    file.write_bytes(key.pem().reveal() + made)
    return file

"""The certificate that a coordinator calls listening sites with, and what is not one."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from consortium.crypto.authority import Authority, check_caller, request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.errors import CertificateError

NOW_MS = 1_800_000_000_000


def _der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def test_callers_certificate_is_for_clients_and_is_known() -> None:
    made = Authority.make(NOW_MS).issue_caller(NOW_MS)
    found = x509.load_pem_x509_certificate(made.chain)
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    check_caller(_der(made.chain))


def test_sites_servers_and_rubbish_are_no_callers() -> None:
    authority = Authority.make(NOW_MS)
    request = request_certificate(SigningKey.generate())
    named = authority.issue_site(request, "coordinator", NOW_MS)  # by name alone it would be
    server = authority.issue_server(["coordinator.example"], NOW_MS).chain
    for certificate in (_der(named), _der(server), b"", b"rubbish"):
        with pytest.raises(CertificateError):
            check_caller(certificate)

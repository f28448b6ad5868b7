"""The certificate authority: what it issues, what it refuses, and real handshakes."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from consortium.core.ids import Secret
from consortium.crypto import keyfile
from consortium.crypto.authority import (
    Authority,
    ServerIdentity,
    check_authority,
    fingerprint,
    key_of_request,
    needs_renewal,
    public_key_of,
    remaining_ms,
    request_certificate,
    serial_of,
)
from consortium.crypto.recipes import SigningKey
from consortium.errors import CertificateError, StoreFailedError, UsageError, WeakKeyError

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
AUTHORITY = Authority.make(NOW_MS)


def read(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def der(pem: bytes) -> bytes:
    return read(pem).public_bytes(serialization.Encoding.DER)


def extension(pem: bytes, kind: type[x509.ExtensionType]) -> x509.Extension[x509.ExtensionType]:
    return read(pem).extensions.get_extension_for_class(kind)


# ---- what is issued -----------------------------------------------------------------


def test_authority_signs_certificates_and_nothing_below_it_does() -> None:
    constraints = extension(AUTHORITY.pem(), x509.BasicConstraints)
    usage = extension(AUTHORITY.pem(), x509.KeyUsage)
    assert constraints.critical and usage.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert isinstance(usage.value, x509.KeyUsage)
    assert (usage.value.key_cert_sign, usage.value.digital_signature) == (True, False)
    assert isinstance(read(AUTHORITY.pem()).public_key(), ec.EllipticCurvePublicKey)
    assert remaining_ms(AUTHORITY.pem(), NOW_MS) == 3650 * DAY_MS


def test_two_authorities_have_two_names_and_fingerprints() -> None:
    other = Authority.make(NOW_MS)
    assert other.certificate.subject != AUTHORITY.certificate.subject
    assert other.fingerprint != AUTHORITY.fingerprint
    assert AUTHORITY.fingerprint == fingerprint(AUTHORITY.pem())
    assert len(AUTHORITY.fingerprint) == 64


def test_authority_is_loaded_from_its_two_files() -> None:
    again = Authority.load(AUTHORITY.key_pem(), AUTHORITY.pem())
    assert again.certificate == AUTHORITY.certificate
    certificate = again.issue_site(request_certificate(SigningKey.generate()), "a", NOW_MS)
    read(certificate).verify_directly_issued_by(AUTHORITY.certificate)


def test_pair_that_does_not_belong_together_is_not_loaded() -> None:
    other, own = Authority.make(NOW_MS), SigningKey.generate()
    for key, certificate in (
        (other.key_pem(), AUTHORITY.pem()),
        (own.pem(), AUTHORITY.pem()),
        (Secret(b"no key"), AUTHORITY.pem()),
        (AUTHORITY.key_pem(), b"no certificate"),
    ):
        with pytest.raises(CertificateError):
            Authority.load(key, certificate)


def test_private_keys_do_not_show_themselves() -> None:
    identity = AUTHORITY.issue_server(["localhost"], NOW_MS)
    for shown in (repr(AUTHORITY), repr(AUTHORITY.key_pem()), repr(identity)):
        assert "PRIVATE" not in shown and "PrivateKey" not in shown


def test_server_certificate_has_its_names_and_its_purpose() -> None:
    names = ["Fed.example.org", "localhost", "127.0.0.1", "::1"]
    chain = AUTHORITY.issue_server(names, NOW_MS).chain
    first, second = x509.load_pem_x509_certificates(chain)
    first.verify_directly_issued_by(second)
    assert second == AUTHORITY.certificate
    found = extension(chain, x509.SubjectAlternativeName).value
    assert isinstance(found, x509.SubjectAlternativeName)
    assert found.get_values_for_type(x509.DNSName) == ["fed.example.org", "localhost"]
    assert [str(ip) for ip in found.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    purpose = extension(chain, x509.ExtendedKeyUsage).value
    assert purpose == x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    constraints = extension(chain, x509.BasicConstraints).value
    assert constraints == x509.BasicConstraints(ca=False, path_length=None)
    assert remaining_ms(chain, NOW_MS) == 90 * DAY_MS


@pytest.mark.parametrize(
    "names",
    [
        *([], [""], ["*.example.org"], ["a b"], ["-a"], ["a..b"], ["a\n"], ["1.2.3.4/8"], ["ä.de"]),
        *([".".join(["a" * 63] * 4)], ["a" * 64], ["localhost", "a b"]),
    ],
)
def test_what_is_no_host_gets_no_certificate(names: list[str]) -> None:
    with pytest.raises(UsageError):
        AUTHORITY.issue_server(names, NOW_MS)


def test_site_certificate_is_for_the_sites_own_key() -> None:
    key = SigningKey.generate()
    certificate = AUTHORITY.issue_site(request_certificate(key), "site-1", NOW_MS)
    assert public_key_of(der(certificate)) == key.public
    assert read(certificate).subject.rfc4514_string() == "CN=site-1"
    purpose = extension(certificate, x509.ExtendedKeyUsage).value
    assert purpose == x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    assert remaining_ms(certificate, NOW_MS) == 365 * DAY_MS
    assert serial_of(certificate) == f"{read(certificate).serial_number:x}"


def test_certificate_holds_for_clocks_that_are_a_day_behind() -> None:
    certificate = AUTHORITY.issue_site(request_certificate(SigningKey.generate()), "a", NOW_MS)
    day_before = datetime.fromtimestamp((NOW_MS - DAY_MS) / 1000, UTC)
    for pem in (certificate, AUTHORITY.pem(), AUTHORITY.issue_server(["a"], NOW_MS).chain):
        assert read(pem).not_valid_before_utc < day_before


def test_renewal_is_due_when_less_than_a_third_is_left() -> None:
    certificate = AUTHORITY.issue_server(["localhost"], NOW_MS).chain
    assert not needs_renewal(certificate, NOW_MS + 59 * DAY_MS)
    assert needs_renewal(certificate, NOW_MS + 60 * DAY_MS)
    assert remaining_ms(certificate, NOW_MS + 91 * DAY_MS) == -DAY_MS
    with pytest.raises(CertificateError):
        needs_renewal(b"no certificate", NOW_MS)


def test_authority_is_pinned_by_its_fingerprint() -> None:
    check_authority(AUTHORITY.pem(), AUTHORITY.fingerprint)
    with pytest.raises(CertificateError) as caught:
        check_authority(Authority.make(NOW_MS).pem(), AUTHORITY.fingerprint)
    assert "lead" in caught.value.hint
    with pytest.raises(CertificateError):
        check_authority(b"", AUTHORITY.fingerprint)


# ---- requests -----------------------------------------------------------------------


def test_nothing_but_the_key_is_taken_from_a_request() -> None:
    private = Ed25519PrivateKey.generate()
    greedy = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("victim.org")]), critical=False)
        .sign(private, None)
    )
    pem = greedy.public_bytes(serialization.Encoding.PEM)
    plain = request_certificate(SigningKey(private))
    greedy_found, plain_found = (
        read(AUTHORITY.issue_site(request, "site-1", NOW_MS)) for request in (pem, plain)
    )
    assert list(greedy_found.extensions) == list(plain_found.extensions)
    assert greedy_found.subject == plain_found.subject


def test_request_shows_the_key_that_signed_it() -> None:
    key = SigningKey.generate()
    assert key_of_request(request_certificate(key)) == key.public


def other_kinds() -> list[bytes]:
    keys = [ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = [builder.sign(key, hashes.SHA256()) for key in keys]
    return [request.public_bytes(serialization.Encoding.PEM) for request in signed]


def changed_request(change: Callable[[bytes], bytes]) -> bytes:
    """A good request, changed in its DER."""
    text = request_certificate(SigningKey.generate())
    raw = x509.load_pem_x509_csr(text).public_bytes(serialization.Encoding.DER)
    pem = ssl.DER_cert_to_PEM_cert(change(raw)).encode()
    return pem.replace(b"CERTIFICATE", b"CERTIFICATE REQUEST")


def last_algorithm(raw: bytes, oid: bytes) -> bytes:
    head, _, tail = raw.rpartition(bytes.fromhex("06032b6570"))
    return head + oid + tail


REFUSED = {
    "nothing": lambda: b"",
    "no request": lambda: AUTHORITY.pem(),
    "too long": lambda: request_certificate(SigningKey.generate()) + b" " * 5000,
    "forged": lambda: changed_request(lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),
    "another algorithm": lambda: changed_request(
        lambda raw: last_algorithm(raw, bytes.fromhex("06032b6571"))
    ),
    "an unknown algorithm": lambda: changed_request(
        lambda raw: last_algorithm(raw, bytes.fromhex("06032b657f"))
    ),
    "an unknown kind of key": lambda: changed_request(
        lambda raw: raw.replace(bytes.fromhex("06032b6570"), bytes.fromhex("06032b657f"), 1)
    ),
    "cut off": lambda: changed_request(lambda raw: raw[:-10]),
    "P-256": lambda: other_kinds()[0],
    "RSA": lambda: other_kinds()[1],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_request_is_refused(kind: str) -> None:
    with pytest.raises(CertificateError):
        AUTHORITY.issue_site(REFUSED[kind](), "site-1", NOW_MS)


def test_request_for_a_key_of_small_order_is_refused() -> None:
    """Under this key the forged signature fits every message, so the request is 'signed'."""
    identity = bytes([1, *bytes(31)])

    def weaken(raw: bytes) -> bytes:
        at = raw.index(bytes.fromhex("032100")) + 3
        return raw[:at] + identity + raw[at + 32 : -64] + identity + bytes(32)

    request = changed_request(weaken)
    assert x509.load_pem_x509_csr(request).is_signature_valid
    with pytest.raises(WeakKeyError):
        AUTHORITY.issue_site(request, "site-1", NOW_MS)


@pytest.mark.parametrize("site", ["", "a b", "CN=x,O=y", "a.b", "x" * 65])
def test_site_that_is_no_plain_id_gets_no_certificate(site: str) -> None:
    with pytest.raises(UsageError):
        AUTHORITY.issue_site(request_certificate(SigningKey.generate()), site, NOW_MS)


def test_only_certificates_of_sites_have_a_sites_key() -> None:
    for raw in (b"", b"\x30", der(AUTHORITY.pem())):
        with pytest.raises(CertificateError):
            public_key_of(raw)


# ---- private keys in files ----------------------------------------------------------


def test_private_key_goes_to_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    key, path = SigningKey.generate(), tmp_path / "site.pem"
    path.write_text("an older one")
    path.chmod(0o644)
    (tmp_path / f"site.pem.{os.getpid()}.new").write_text("left over")
    keyfile.write_secret(path, key.pem())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["site.pem"]
    loaded = serialization.load_pem_private_key(keyfile.read_secret(path).reveal(), None)
    assert isinstance(loaded, Ed25519PrivateKey)
    assert loaded.public_key() == Ed25519PublicKey.from_public_bytes(key.public)


def test_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.pem"
    keyfile.write_secret(path, SigningKey.generate().pem())
    path.chmod(0o640)
    with pytest.raises(StoreFailedError) as caught:
        keyfile.read_secret(path)
    assert "chmod 600" in caught.value.hint


def test_folder_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(StoreFailedError):
        keyfile.write_secret(tmp_path / "nowhere" / "key", Secret(b"x"))
    with pytest.raises(StoreFailedError):
        keyfile.read_secret(tmp_path / "nowhere")


# ---- handshakes ---------------------------------------------------------------------


@dataclass
class Peer:
    """A server's or a site's files, and the authority that it trusts."""

    folder: Path
    trusts: Authority
    key: Secret
    chain: bytes

    def context(self, purpose: int) -> ssl.SSLContext:
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
        context.load_verify_locations(cadata=self.trusts.pem().decode())
        self.folder.mkdir()
        keyfile.write_secret(self.folder / "key.pem", self.key)
        (self.folder / "chain.pem").write_bytes(self.chain)
        context.load_cert_chain(self.folder / "chain.pem", self.folder / "key.pem")
        return context


def shake_hands(server: Peer, site: Peer, host: str = "localhost") -> tuple[bytes | None, str]:
    """(the certificate that the server saw, what went wrong) of one connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes | None] = []
    wrong: list[str] = []

    def serve() -> None:
        try:
            plain, _ = listener.accept()
            plain.settimeout(10)
            context = server.context(ssl.PROTOCOL_TLS_SERVER)
            with plain, context.wrap_socket(plain, server_side=True) as line:
                seen.append(line.getpeercert(True))
                line.sendall(b"welcome")
        except OSError as error:
            wrong.append(f"server: {error}")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with socket.create_connection(listener.getsockname(), timeout=10) as plain:
            context = site.context(ssl.PROTOCOL_TLS_CLIENT)
            with context.wrap_socket(plain, server_hostname=host) as line:
                assert line.recv(7) in (b"welcome", b"")
    except OSError as error:
        wrong.append(f"site: {error}")
    thread.join()
    listener.close()
    return seen[0] if seen else None, "; ".join(wrong)


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def server_of(authority: Authority, folder: Path, at_ms: int) -> Peer:
    identity: ServerIdentity = authority.issue_server(["localhost", "127.0.0.1"], at_ms)
    return Peer(folder, authority, identity.key, identity.chain)


def site_of(authority: Authority, folder: Path, at_ms: int) -> tuple[SigningKey, Peer]:
    key = SigningKey.generate()
    certificate = authority.issue_site(request_certificate(key), "site-1", at_ms)
    return key, Peer(folder, authority, key.pem(), certificate)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_server_and_site_know_each_other_by_the_authority(tmp_path: Path, host: str) -> None:
    authority = Authority.make(now_ms())
    key, site = site_of(authority, tmp_path / "site", now_ms())
    shown, wrong = shake_hands(server_of(authority, tmp_path / "server", now_ms()), site, host)
    assert wrong == ""
    assert shown is not None and public_key_of(shown) == key.public


def test_key_and_chain_are_loaded_from_one_file(tmp_path: Path) -> None:
    keyfile.write_secret(tmp_path / "server.pem", AUTHORITY.issue_server(["a"], NOW_MS).pem())
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "server.pem")


def test_site_of_another_authority_is_refused(tmp_path: Path) -> None:
    ours, theirs = Authority.make(now_ms()), Authority.make(now_ms())
    _, site = site_of(theirs, tmp_path / "site", now_ms())
    site.trusts = ours
    shown, wrong = shake_hands(server_of(ours, tmp_path / "server", now_ms()), site)
    assert shown is None and "server: " in wrong and "CERTIFICATE_VERIFY_FAILED" in wrong


def test_server_of_another_authority_is_refused(tmp_path: Path) -> None:
    ours, theirs = Authority.make(now_ms()), Authority.make(now_ms())
    _, site = site_of(ours, tmp_path / "site", now_ms())
    server = server_of(theirs, tmp_path / "server", now_ms())
    server.trusts = ours
    shown, wrong = shake_hands(server, site)
    assert shown is None and "site: " in wrong and "CERTIFICATE_VERIFY_FAILED" in wrong


def test_server_is_not_another_host(tmp_path: Path) -> None:
    authority = Authority.make(now_ms())
    _, site = site_of(authority, tmp_path / "site", now_ms())
    server = server_of(authority, tmp_path / "server", now_ms())
    assert "Hostname mismatch" in shake_hands(server, site, "example.org")[1]


def test_site_cannot_pose_as_the_server(tmp_path: Path) -> None:
    authority = Authority.make(now_ms())
    _, site = site_of(authority, tmp_path / "site", now_ms())
    _, other = site_of(authority, tmp_path / "other", now_ms())
    assert "CERTIFICATE_VERIFY_FAILED" in shake_hands(other, site)[1]


def test_expired_certificate_is_refused(tmp_path: Path) -> None:
    authority = Authority.make(now_ms() - 400 * DAY_MS)
    _, site = site_of(authority, tmp_path / "site", now_ms() - 366 * DAY_MS)
    shown, wrong = shake_hands(server_of(authority, tmp_path / "server", now_ms()), site)
    assert shown is None and "certificate has expired" in wrong

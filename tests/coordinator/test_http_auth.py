"""Who may ask: signatures, certificates, replays, tokens."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consortium.crypto.authority import Authority, request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.wire.signing import (
    AUDIENCE,
    DIGEST,
    NONCE,
    ROUND,
    SIGNATURE,
    SITE,
    new_nonce,
    sign,
)
from tests.coordinator.wired import FEDERATION, Answered, Site, Wired, exchange, flipped, wire

F = f"/v1/federations/{FEDERATION}"
REPORT = b'{"report":{"cases":1}}'


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with wire(tmp_path_factory.mktemp("auth")) as found:
        yield found


@pytest.fixture(scope="module")
def site(wired: Wired) -> Site:
    return wired.enrol("charite")


@pytest.fixture(scope="module")
def stranger(wired: Wired) -> Site:
    return wired.enrol("stranger")


def raw(site: Site, headers: dict[str, str], body: bytes = REPORT) -> Answered:
    """A report with exactly these headers, over the site's own connection."""
    connection = site.wired.connect(site.context())
    try:
        return exchange(connection, "POST", "/v1/report", body, headers)
    finally:
        connection.close()


def position(site: Site) -> int:
    return site.wired.office.desk_of(site.row).size


# ---- signatures ---------------------------------------------------------------------


def test_signed_request_is_taken(site: Site) -> None:
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key)
    assert raw(site, headers).status == 200


@pytest.mark.parametrize("name", [SITE, ROUND, NONCE, AUDIENCE, DIGEST, SIGNATURE])
def test_each_header_is_needed(site: Site, name: str) -> None:
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key)
    del headers[name]
    assert raw(site, headers).code == "E0814"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (ROUND, "1"),
        (ROUND, "00"),
        (ROUND, "-1"),
        (NONCE, "f" * 32),
        (NONCE, "F" * 32),
        (NONCE, ""),
        (AUDIENCE, "e" * 32),
        (DIGEST, "0" * 64),
        (SITE, "d" * 32),
        (SITE, "../../etc/passwd"),
        (SIGNATURE, "x"),
        (SIGNATURE, "A" * 86 + "=="),
    ],
)
def test_changed_header_breaks_the_signature(site: Site, name: str, value: str) -> None:
    before = position(site)
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key) | {name: value}
    told = raw(site, headers)
    assert (told.status, told.code) == (401, "E0814")
    assert position(site) == before


def test_changed_signature_is_refused(site: Site) -> None:
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key)
    headers[SIGNATURE] = flipped(headers[SIGNATURE])
    assert raw(site, headers).code == "E0814"


def test_changed_body_is_refused(site: Site) -> None:
    before = position(site)
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key)
    assert raw(site, headers, b'{"report":{"cases":2}}').code == "E0814"
    assert position(site) == before


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/report"), ("POST", "/v1/leave"), ("POST", "/v1/report?x=1")]
)
def test_signature_is_for_one_method_and_one_path(site: Site, method: str, path: str) -> None:
    headers = sign(site.line(method, path, REPORT), site.key)
    assert raw(site, headers).code == "E0814"


def test_request_for_another_coordinator_is_refused(site: Site) -> None:
    line = replace(site.line("POST", "/v1/report", REPORT), audience="0" * 32)
    told = raw(site, sign(line, site.key))
    assert (told.status, told.code) == (401, "E0814")


def test_another_key_does_not_speak_for_a_site(site: Site, stranger: Site) -> None:
    headers = sign(site.line("POST", "/v1/report", REPORT), stranger.key)
    assert raw(site, headers).code == "E0814"


def test_header_that_stands_twice_is_refused(site: Site) -> None:
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key)
    connection = site.wired.connect(site.context())
    connection.putrequest("POST", "/v1/report")
    for name, value in [*headers.items(), (NONCE, new_nonce())]:
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(REPORT)))
    connection.endheaders(REPORT)
    response = connection.getresponse()
    assert response.status == 401
    response.read()
    connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/ask"),
        ("POST", "/v1/report"),
        ("POST", "/v1/renew"),
        ("POST", "/v1/leave"),
        ("GET", "/v1/study"),
        ("GET", f"/v1/blobs/{'0' * 64}"),
        ("HEAD", f"/v1/blobs/{'0' * 64}"),
        ("GET", f"/v1/uploads/{'0' * 64}"),
        ("PATCH", f"/v1/uploads/{'0' * 64}?offset=0"),
        ("POST", "/v1/rounds/1/update"),
        ("GET", "/v1/rounds/1/receipt"),
        ("POST", "/v1/rounds/1/failure"),
        ("POST", "/v1/rounds/1/score"),
        ("POST", "/federated/client/register"),
    ],
)
def test_no_site_route_answers_an_unsigned_request(wired: Wired, method: str, path: str) -> None:
    told = wired.request(method, path, b"{}" if method in ("POST", "PATCH") else None)
    assert told.status == 401
    if method != "HEAD":
        assert told.code == "E0814"


def test_site_that_never_was_and_one_that_is_out_hear_the_same(wired: Wired) -> None:
    out = wired.enrol("out")
    assert wired.order("POST", f"{F}/sites/out/revoke").status == 200
    told = out.call("POST", "/v1/report", REPORT)
    line = replace(out.line("POST", "/v1/report", REPORT), site="c" * 32)
    unknown = out.send(line, REPORT)
    assert (told.status, told.code) == (401, "E0814")
    assert told.body == unknown.body


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("update", b'{"size_bytes":3,"update":"' + b"0" * 64 + b'"}'),
        ("update", b'{"update":"' + b"0" * 64 + b'", "size_bytes":3}'),
        ("failure", b'{ "failure":"POLICY"}'),
        ("score", b'{"model":"' + b"0" * 64 + b'","samples":1,"candidate":[0.50],"base":[1.0]}'),
    ],
)
def test_answer_to_a_round_has_one_spelling(site: Site, what: str, body: bytes) -> None:
    told = site.call("POST", f"/v1/rounds/1/{what}", body, round=1)
    assert (told.status, told.code) == (400, "E0810")
    assert "canonical" in told.json["detail"]


def test_signed_round_must_be_the_one_of_the_path(site: Site) -> None:
    note = b'{"failure":"POLICY"}'
    told = site.call("POST", "/v1/rounds/1/failure", note, round=2)
    assert (told.status, told.code) == (409, "E0303")


# ---- certificates -------------------------------------------------------------------


def test_signature_without_a_certificate_is_refused(site: Site) -> None:
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key)
    told = site.wired.request("POST", "/v1/report", REPORT, headers)
    assert (told.status, told.code) == (403, "E0818")


def test_signature_under_another_sites_certificate_is_refused(site: Site, stranger: Site) -> None:
    headers = sign(site.line("POST", "/v1/report", REPORT), site.key)
    told = site.wired.request("POST", "/v1/report", REPORT, headers, stranger.context())
    assert (told.status, told.code) == (403, "E0818")


def test_certificate_of_another_authority_opens_no_connection(wired: Wired, tmp_path: Path) -> None:
    other, key = Authority.make(wired.office.clock.now_ms()), SigningKey.generate()
    made = other.issue_site(request_certificate(key), "a" * 32, wired.office.clock.now_ms())
    file = tmp_path / "other.pem"
    file.write_bytes(key.pem().reveal() + made)
    context = wired.context()
    context.load_cert_chain(file)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        wired.request("GET", "/health", context=context)


def test_older_tls_is_not_spoken(wired: Wired) -> None:
    context = wired.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        wired.request("GET", "/health", context=context)


# ---- replays ------------------------------------------------------------------------


def test_same_request_again_has_no_second_effect(site: Site) -> None:
    body = b'{"report":{"cases":77}}'
    line = site.line("POST", "/v1/report", body)
    before = position(site)
    first = site.send(line, body)
    assert site.call("POST", "/v1/report", REPORT).status == 200  # replayed, it would be news
    after = position(site)
    again = site.send(line, body)
    assert (again.status, again.body) == (first.status, first.body)
    assert before < after == position(site)


def test_same_nonce_for_another_request_is_refused(site: Site) -> None:
    line = site.line("POST", "/v1/report", REPORT)
    assert site.send(line, REPORT).status == 200
    before, body = position(site), b'{"report":{"cases":9}}'
    other = replace(site.line("POST", "/v1/report", body), nonce=line.nonce)
    told = site.send(other, body)
    assert (told.status, told.code) == (409, "E0815")
    assert position(site) == before


def test_refusal_is_remembered_too(site: Site) -> None:
    body = b'{"update":"' + b"0" * 64 + b'","size_bytes":3}'
    line = site.line("POST", "/v1/rounds/7/update", body, round=7)
    first = site.send(line, body)
    assert (first.status, first.code) == (409, "E0303")
    again = site.send(line, body)
    assert (again.status, again.body, again.headers["content-type"]) == (
        first.status,
        first.body,
        first.headers["content-type"],
    )
    kept = site.wired.office.registry.answer(site.row.id, line.nonce)
    assert kept is not None and kept.body == first.body


def test_another_site_may_use_the_same_nonce(site: Site, stranger: Site) -> None:
    line = site.line("POST", "/v1/report", REPORT)
    assert site.send(line, REPORT).status == 200
    theirs = replace(stranger.line("POST", "/v1/report", REPORT), nonce=line.nonce)
    assert stranger.send(theirs, REPORT).status == 200


# ---- operators ----------------------------------------------------------------------

OPERATOR_ROUTES = [
    ("GET", "/metrics"),
    ("GET", "/v1/federations"),
    ("GET", F),
    ("GET", f"{F}/rounds"),
    ("GET", f"{F}/rounds/1"),
    ("GET", f"{F}/models"),
    ("GET", f"{F}/models/0"),
    ("GET", f"{F}/models/0/file"),
    ("GET", f"{F}/sites"),
    ("GET", "/federated/server/status"),
    ("POST", f"{F}/models/0/rollback"),
    ("POST", f"{F}/hold"),
    ("POST", f"{F}/resume"),
    ("POST", f"{F}/stop"),
    ("POST", f"{F}/rounds/open"),
    ("POST", f"{F}/rounds/1/cancel"),
    ("POST", f"{F}/invites"),
    ("POST", f"{F}/sites/charite/revoke"),
    ("POST", "/federated/server/start"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/tokens/tests/revoke"),
]


@pytest.mark.parametrize(("method", "path"), OPERATOR_ROUTES)
@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer wrong", "Basic YTpi", "bearer  "])
def test_no_operator_route_answers_without_a_token(
    wired: Wired, method: str, path: str, shown: str
) -> None:
    headers = {"Authorization": shown} if shown else {}
    told = wired.request(method, path, b"{}" if method == "POST" else None, headers)
    assert (told.status, told.code) == (401, "E0812")
    assert told.headers["www-authenticate"] == "Bearer"


def test_site_is_no_operator(site: Site) -> None:
    assert site.call("GET", "/v1/federations").code == "E0812"

"""Refusals as problems, and the routes as OpenAPI."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from consortium.coordinator import patience
from consortium.coordinator.app import MODULES, make_app
from consortium.coordinator.problems import Problem, problem, refusal, status_of
from consortium.errors import Fault, every_error
from consortium.wire.messages import MAX_JSON_BYTES
from tests.coordinator.wired import FEDERATION, Wired, wire

F = f"/v1/federations/{FEDERATION}"
ROUTES = [
    route for module in MODULES for route in module.routes.routes if isinstance(route, APIRoute)
]


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with wire(tmp_path_factory.mktemp("problems")) as found:
        yield found


# ---- problems -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/v1", "/v1/ask/", "/docs", "/redoc", "//health"]
)
def test_unknown_address(wired: Wired, path: str) -> None:
    told = wired.request("GET", path)
    assert (told.status, told.code) == (404, "E0810")


@pytest.mark.parametrize(
    ("method", "path"),
    [("DELETE", "/health"), ("GET", "/v1/ask"), ("PUT", F), ("POST", "/metrics")],
)
def test_wrong_method(wired: Wired, method: str, path: str) -> None:
    told = wired.request(method, path)
    assert (told.status, told.code) == (405, "E0810")
    assert told.headers["allow"]


@pytest.mark.parametrize(
    "path", [f"{F}/rounds/x", f"{F}/rounds/-1", f"{F}/models/1.5", f"{F}/rounds/{1 << 70}"]
)
def test_path_that_is_not_a_number(wired: Wired, path: str) -> None:
    told = wired.order("GET", path)
    assert (told.status, told.code) == (422, "E0810")


def test_unknown_federation(wired: Wired) -> None:
    told = wired.order("GET", "/v1/federations/nobody")
    assert (told.status, told.code) == (404, "E0819")
    assert FEDERATION not in told.body.decode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"name":1}',
        b'{"name":"a","more":1}',
        b'{"name":"a","name":"a"}',
        b"\xff",
    ],
)
def test_body_that_is_not_the_message(wired: Wired, body: bytes) -> None:
    bearer = {"Authorization": f"Bearer {wired.operator_token}"}
    told = wired.request("POST", f"{F}/invites", body, bearer)
    assert (told.status, told.code) == (400, "E0810")


def test_body_that_is_too_long(wired: Wired) -> None:
    bearer = {"Authorization": f"Bearer {wired.operator_token}"}
    told = wired.request("POST", f"{F}/invites", bytes(MAX_JSON_BYTES + 1), bearer)
    assert (told.status, told.code) == (413, "E0817")


def test_what_is_not_http(wired: Wired) -> None:
    plain = socket.create_connection(("127.0.0.1", wired.port))
    with wired.context().wrap_socket(plain, server_hostname="127.0.0.1") as line:
        line.sendall(b"HELO coordinator\r\n\r\n")
        head, _, body = line.recv(4096).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in head
    assert b"E0810" in body


def test_what_should_not_happen_is_in_the_log_and_not_in_the_answer(
    wired: Wired, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = wired.enrol("unlucky")
    desk = wired.office.desk_of(site.row)

    def broken() -> None:
        raise ValueError("a patient's name")

    monkeypatch.setattr(desk, "study", broken)
    told = site.call("GET", "/v1/study")
    assert (told.status, told.code) == (500, "E0001")
    assert b"patient" not in told.body and b"ValueError" not in told.body
    records = [record for record in caplog.records if record.exc_info]
    assert len(records) == 1 and "patient" in caplog.text
    monkeypatch.undo()
    assert site.call("GET", "/v1/study").status == 200  # on the same connection


def test_trouble_with_the_disk_is_ours_and_passes(tmp_path: Path) -> None:
    with wire(tmp_path) as wired:
        site = wired.in_training()[0]
        folder = tmp_path / "data" / "uploads" / site.row.id
        folder.write_text("no folder")
        told = site.call("PATCH", f"/v1/uploads/{'0' * 64}?offset=0", b"x")
        folder.unlink()
        assert site.call("PATCH", f"/v1/uploads/{'0' * 64}?offset=0", b"x").status == 200
    assert (told.status, told.code) == (503, "E0604")
    assert told.headers["retry-after"] == "2"
    assert str(tmp_path).encode() not in told.body


def test_body_that_does_not_come_is_not_waited_for(
    wired: Wired, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0.2)
    connection = wired.connect()
    connection.putrequest("POST", "/v1/enrol")
    connection.putheader("Content-Length", "10")
    connection.endheaders(b"12345")
    response = connection.getresponse()
    assert (response.status, response.getheader("connection")) == (408, "close")
    assert b"E0810" in response.read()
    connection.close()


def test_what_is_still_missing_is_not_remembered(tmp_path: Path) -> None:
    with wire(tmp_path) as wired:
        site = wired.in_training()[0]
        data = site.update()
        digest = sha256(data).hexdigest()
        body = f'{{"update":"{digest}","size_bytes":{len(data)}}}'.encode()
        line = site.line("POST", "/v1/rounds/1/update", body, round=1)
        assert site.send(line, body).code == "E0602"
        site.upload(data)
        assert site.send(line, body).status == 200


def test_our_own_trouble_is_not_remembered(
    wired: Wired, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    site = wired.enrol("again")
    desk, body = wired.office.desk_of(site.row), b'{"report":{}}'
    line = site.line("POST", "/v1/report", body)
    monkeypatch.setattr(desk, "report", None)
    assert site.send(line, body).status == 500
    monkeypatch.undo()
    assert site.send(line, body).json == {"taken": True}


@pytest.mark.parametrize("kind", every_error())
def test_every_error_is_a_problem(kind: type[Any]) -> None:
    error = kind("said") if kind.__init__ is Exception.__init__ else kind.__new__(kind)
    Exception.__init__(error, "said")
    error.message, error.hint, error.details = "said", "do", {}
    status, body = problem(error)
    told = Problem.model_validate_json(body)
    assert told.code == kind.code and told.status == status
    if kind.fault is not Fault.OURS:
        assert 400 <= status_of(error) < 500
    assert (told.detail == "said") is (status < 500)
    assert refusal(error).status_code == status


# ---- OpenAPI ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(wired: Wired) -> dict[str, Any]:
    return dict(wired.request("GET", "/openapi.json").json)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_every_route_is_described(document: dict[str, Any]) -> None:
    there = {(path, method.upper()) for path, method, _ in operations(document)}
    assert there == {(route.path, method) for route in ROUTES for method in route.methods}
    assert len(there) > 30


def test_every_parameter_of_a_path_is_described(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        named = {one["name"] for one in operation.get("parameters", []) if one.get("in") == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path)), (method, path)


def test_every_answer_is_described(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        content = operation["responses"]["200"]["content"]
        (schema,) = [one["schema"] for one in content.values()]
        assert schema and schema != {}, (method, path)
        for status in ("4XX", "5XX"):
            refused = operation["responses"][status]["content"]["application/problem+json"]
            assert refused["schema"] == {"$ref": "#/components/schemas/Problem"}
        assert "422" not in operation["responses"]


def test_every_body_is_described(document: dict[str, Any]) -> None:
    """What a route reads, the document tells, and the other way round."""
    sources = {Path(module.__file__ or "").read_text() for module in MODULES}
    read = set()
    for text in sources:
        read |= set(re.findall(r"edge\.(?:signed|answered)\(request, (\w+)\)", text))
        read |= set(re.findall(r"read_body\((\w+), ", text))
    told = {
        next(iter(operation["requestBody"]["content"].values()))["schema"].get("$ref", "bytes")
        for _, _, operation in operations(document)
        if "requestBody" in operation
    }
    assert told == {f"#/components/schemas/{name}" for name in read} | {"bytes"}


def test_every_route_says_who_may(document: dict[str, Any]) -> None:
    schemes = document["components"]["securitySchemes"]
    for path, method, operation in operations(document):
        for choice in operation["security"]:
            assert choice.keys() <= schemes.keys()
        is_site = "Consortium-Site" in str(operation.get("parameters"))
        assert is_site == (operation["security"] == [{"site": [], "certificate": []}])
        is_open = path in ("/health", "/ready", "/openapi.json", "/v1/authority", "/v1/enrol")
        assert is_open == (operation["security"] == []), (method, path)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    references = set(re.findall(r"'\$ref': '#/([^']+)'", str(document)))
    assert "components/schemas/Answer" in references
    for reference in references:
        place: Any = document
        for part in reference.split("/"):
            assert part in place, reference
            place = place[part]


def test_names_of_operations_are_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_nothing_is_sent_to_collectors(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    app = make_app(wired.office)
    app.state.edge.close()
    assert not getattr(app, "_telemetry", {"auto_configure": False})["auto_configure"]

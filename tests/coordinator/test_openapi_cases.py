"""What the OpenAPI document says, tried: cases that schemathesis makes of it, sent to a real port
with an operator's token and with a site's signature. No 5xx; status, content type and body are
those that the document tells. 4 cases an operation here; `make soak` has 25.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import Case, GenerationMode, checks
from schemathesis.schemas import APIOperation

from consortium.coordinator.matrix import document
from consortium.wire.signing import RequestLine, new_nonce, sign
from tests.coordinator.wired import FEDERATION, Site, Wired, wire

CASES = 25 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 4
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
LAST = ("/v1/leave", "/v1/federations/{name}/stop")  # there is little to ask after these


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with wire(tmp_path_factory.mktemp("openapi")) as found:
        (found.folder / "authority.pem").write_bytes(found.office.authority.pem())
        yield found


@pytest.fixture(scope="module")
def site(wired: Wired) -> Site:
    return wired.in_training()[0]


@pytest.fixture(scope="module")
def session(wired: Wired, site: Site) -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.verify = str(wired.folder / "authority.pem")
        found.cert = str(site.file)
        found.trust_env = False
        yield found


def operations() -> list[APIOperation]:
    found = [one.ok() for one in schemathesis.openapi.from_dict(document()).get_all_operations()]
    return sorted(found, key=lambda one: one.path in LAST)


def prepared(case: Case, wired: Wired, site: Site) -> requests.PreparedRequest:
    """The case as a request that its sender may send: signed, or with a token."""
    told = case.as_transport_kwargs(base_url=f"https://127.0.0.1:{wired.port}")
    told = {key: told.get(key) for key in ("method", "url", "headers", "data", "json", "params")}
    request = requests.Request(**told).prepare()
    security = case.operation.definition.raw.get("security") or [{}]
    if "operator" in security[0]:
        request.headers["Authorization"] = f"Bearer {wired.operator_token}"
    if "site" in security[0]:
        _sign(request, wired, site)
    return request


def _sign(request: requests.PreparedRequest, wired: Wired, site: Site) -> None:
    body = request.body or b""
    data = body.encode() if isinstance(body, str) else bytes(body)
    digest = sha256(data).hexdigest()
    number = next((part for part in request.path_url.split("/") if part.isdecimal()), "0")
    line = RequestLine(
        method=request.method or "",
        path=request.path_url,
        audience=wired.office.audience,
        site=site.row.id,
        round=int(number) if len(number) < 18 else 0,
        nonce=new_nonce(),
        digest=digest,
    )
    request.headers.update(sign(line, site.key))


def sender(wired: Wired, site: Site, session: requests.Session) -> Callable[[Case], int]:
    turns = count()

    def send(case: Case) -> int:
        if "name" in (case.path_parameters or {}) and next(turns) % 2:
            case.path_parameters["name"] = FEDERATION  # nobody would guess it
        response = session.send(prepared(case, wired, site), timeout=30)
        case.validate_response(response, checks=CHECKS)
        return response.status_code

    return send


def test_answers_are_those_that_the_document_tells(
    wired: Wired, site: Site, session: requests.Session
) -> None:
    send, heard = sender(wired, site, session), Counter[int]()
    for operation in operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            heard.update(_tried(operation, mode, send))
    assert not [status for status in heard if status >= 500], heard
    assert heard[200] > CASES and heard[401] < heard.total() / 4, heard  # most come through
    assert heard.total() >= CASES * len(operations()) / 2, heard


def _tried(operation: APIOperation, mode: GenerationMode, send: Callable[[Case], int]) -> list[int]:
    """The statuses of the cases of one operation. Some have nothing that could be wrong."""
    heard: list[int] = []

    @seed(1)
    @settings(
        max_examples=-(-CASES // 2),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        heard.append(send(case))

    try:
        check()
    except Exception as error:
        if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
            raise
    return heard

"""Nothing is answered that has not passed the gate; and what the gate's tokens are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consortium.coordinator import routes_open
from consortium.coordinator.access import RULES, Action, Role, Scope, Who, allowed, check
from consortium.coordinator.app import make_app
from consortium.coordinator.described import declared
from consortium.coordinator.gate import GuardedRoute, guarded
from consortium.coordinator.matrix import Person, Reach
from consortium.coordinator.office import OPERATOR_FILE, Office
from consortium.coordinator.operators import LIFETIME_MS
from consortium.coordinator.rows import FederationRow
from consortium.errors import ForbiddenError, InternalError, UsageError
from tests.coordinator.access_world import ALPHA, BETA, DAY_MS, Clock, Wanted, World, studies, world


@pytest.fixture
def there(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "data") as found:
        yield found


# ---- deny by default ----------------------------------------------------------------


def test_route_without_an_action_cannot_be_made() -> None:
    routes = APIRouter(route_class=GuardedRoute)
    with pytest.raises(ValueError, match="at /new"):

        @routes.get("/new")
        async def new() -> None: ...


def test_action_that_is_not_in_the_table_cannot_be_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(RULES, Action.HOLD)
    with pytest.raises(KeyError):
        declared(Action.HOLD, None, "view")
    admin = Who(Role.ADMIN)
    assert not allowed(admin, Action.HOLD, None)
    with pytest.raises(ForbiddenError):
        check(admin, Action.HOLD, None)


def test_application_with_an_unguarded_route_is_not_made(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = APIRouter()

    @routes.get("/open-to-all")
    async def open_to_all() -> None: ...

    with pytest.raises(InternalError, match="/open-to-all has no guard"):
        guarded(FastAPI(), routes)
    monkeypatch.setattr(routes_open, "routes", routes)
    with pytest.raises(InternalError, match="/open-to-all has no guard"):
        make_app(there.office)


def test_answer_that_no_check_has_passed_is_held_back(
    there: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A way around the gate, as a shortcut could be one."""
    caplog.set_level(logging.CRITICAL)

    async def around(request: Request) -> Response:
        return JSONResponse({"secret": 1})

    there.app.router.add_route("/around", around)
    told = there.call(Wanted("GET", "/around"), {})
    assert (told.status, told.code) == (500, "E0001")
    assert b"secret" not in told.body


def test_every_action_has_a_rule() -> None:
    assert set(RULES) == set(Action)


def test_scope() -> None:
    place = FederationRow("f1", "heart", "clinic", 0)
    assert Scope().covers(place) and Scope().is_whole
    assert Scope("clinic").covers(place) and not Scope("clinic").is_whole
    assert not Scope("other").covers(place)
    assert Scope(None, frozenset({"f1"})).covers(place)
    assert not Scope(None, frozenset()).covers(place)
    assert not Scope("clinic", frozenset({"f2"})).covers(place)


# ---- tenants ------------------------------------------------------------------------


def test_tenants_are_said_once(tmp_path: Path) -> None:
    office = Office(tmp_path / "data", Clock())
    office.host(studies()[ALPHA])
    office.host(studies()[BETA], tenant="clinic")
    rows = {row.name: row.tenant for row in office.registry.federations()}
    assert rows == {ALPHA: ALPHA, BETA: "clinic"}
    office.host(studies()[BETA])  # goes on as it was
    office.host(studies()[BETA], tenant="clinic")
    with pytest.raises(UsageError, match="belongs to the tenant clinic"):
        office.host(studies()[BETA], tenant="other")
    office.close()
    again = Office(tmp_path / "data", Clock())
    assert again.federation(BETA) is not None
    assert again.federation(BETA).tenant == "clinic"  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="tenant's name"):
        again.registry.add_federation("x", "third", "a b", 0)
    again.close()


# ---- tokens over HTTP ---------------------------------------------------------------


def test_tokens_are_made_listed_and_revoked(there: World) -> None:
    admin = there.tokens[Person(Role.ADMIN, Reach.ALL)]
    wanted = {"label": "anna", "role": "lead", "federations": [ALPHA], "days": 30}
    made = json.loads(there.order(admin, "POST", "/v1/tokens", wanted).body)
    assert made["expires_ms"] - made["created_ms"] == 30 * DAY_MS
    assert (made["federations"], made["url"]) == ([ALPHA], there.office.url)
    assert there.order(made["token"], "POST", f"/v1/federations/{ALPHA}/hold").status == 200
    assert there.order(made["token"], "GET", f"/v1/federations/{BETA}").status == 404
    listed = json.loads(there.order(admin, "GET", "/v1/tokens").body)
    (anna,) = [one for one in listed if one["label"] == "anna"]
    assert anna == {key: made[key] for key in made if key not in ("token", "url")}
    assert made["token"] not in json.dumps(listed)
    twice = there.order(admin, "POST", "/v1/tokens", wanted)
    assert (twice.status, twice.code) == (400, "E0003")
    assert there.order(admin, "POST", "/v1/tokens/anna/revoke").status == 200
    assert there.order(made["token"], "GET", f"/v1/federations/{ALPHA}").status == 401
    assert there.order(admin, "POST", "/v1/tokens/anna/revoke").code == "E0003"


@pytest.mark.parametrize(
    "changes",
    [
        {"role": "site"},
        {"role": "root"},
        {"label": "a b"},
        {"label": ""},
        {"days": 0},
        {"days": 367},
        {"days": "30"},
        {"days": True},
        {"federations": []},
        {"federations": ["nobody"]},
        {"everywhere": True},
        {"everywhere": 1},
        {"federations": None},
        {"more": 1},
    ],
)
def test_token_that_cannot_be_is_not_made(there: World, changes: dict[str, object]) -> None:
    admin = there.tokens[Person(Role.ADMIN, Reach.ALL)]
    wanted = {"label": "anna", "role": "lead", "federations": [ALPHA]} | changes
    before = len(there.office.registry.operators())
    told = there.order(admin, "POST", "/v1/tokens", wanted)
    assert told.status in (400, 404), told
    assert len(there.office.registry.operators()) == before


# ---- the operator's file ------------------------------------------------------------


def test_local_token_is_renewed_before_it_expires(tmp_path: Path) -> None:
    clock = Clock()
    office = Office(tmp_path / "data", clock, url="https://127.0.0.1:7")
    office.keep_operator_file()
    assert not (office.folder / OPERATOR_FILE).exists()  # where nobody wrote one, none is made
    path = office.write_operator_file()
    first = json.loads(path.read_text())
    office.url = "https://public.example.org"
    clock.at_ms += LIFETIME_MS * 2 // 3 - 1
    office.keep_operator_file()
    assert json.loads(path.read_text()) == first
    clock.at_ms += 1
    office.keep_operator_file()
    second = json.loads(path.read_text())
    assert second["token"] != first["token"]
    assert second["url"] == first["url"]
    assert path.stat().st_mode & 0o77 == 0
    assert office.operator(first["token"]) is None  # one local token at a time
    assert office.operator(second["token"]) is not None
    office.close()


def test_operator_file_of_an_older_version_gets_a_new_token(tmp_path: Path) -> None:
    office = Office(tmp_path / "data", Clock(), url="https://127.0.0.1:7")
    path = office.folder / OPERATOR_FILE
    path.write_text(json.dumps({"url": office.url, "token": "x" * 27}))
    path.chmod(0o600)
    token = json.loads(office.write_operator_file().read_text())["token"]
    assert office.operator(token) is not None
    office.close()

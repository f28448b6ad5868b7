"""Every route once, over TLS, as it is meant to be used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from consortium.coordinator.access import RULES, Action, Role, Who
from consortium.coordinator.office import Office
from consortium.core.facts import Failure
from consortium.core.ids import Seat
from consortium.crypto.authority import fingerprint, request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import SystemClock
from consortium.errors import UnknownFederationError
from consortium.wire.signing import read_envelope
from consortium.wire.token import read_token
from tests.coordinator.wired import FEDERATION, SIZE, Site, Wired, until, wire

F = f"/v1/federations/{FEDERATION}"


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[Wired]:
    with wire(tmp_path) as found:
        yield found


def test_anybody_may_ask_whether_it_is_there(wired: Wired) -> None:
    assert wired.request("GET", "/health").json == {"status": "ok"}
    assert wired.request("GET", "/ready").json == {"status": "ok"}
    assert wired.request("GET", "/openapi.json").json["openapi"].startswith("3.")


def test_authority_is_the_one_of_the_token(wired: Wired) -> None:
    told = wired.request("GET", "/v1/authority")
    assert fingerprint(told.body) == wired.office.authority.fingerprint


def test_token_opens_a_place_once(wired: Wired) -> None:
    site = wired.enrol("site-0")
    assert site.row.name == "site-0"
    token = wired.order("POST", f"{F}/invites", {"name": "site-0"})
    assert token.status != 200  # the name is taken
    body = {
        "federation": wired.office.desk_of(site.row).id,
        "name": "site-1",
        "secret": "A" * 27,
        "certificate_request": request_certificate(site.key).decode(),
    }
    refused = wired.request("POST", "/v1/enrol", json.dumps(body).encode())
    assert (refused.status, refused.code) == (403, "E0813")


def test_site_fetches_the_study(wired: Wired) -> None:
    site = wired.enrol("site-0")
    sheet = site.call("GET", "/v1/study").json
    for name in ("plan", "layout", "bundle", "lock"):
        told = site.call("GET", f"/v1/blobs/{sheet[name]}")
        assert told.status == 200
        assert sha256(told.body).hexdigest() == sheet[name]
        assert told.headers["etag"] == f'"{sheet[name]}"'


def test_site_reports_registers_and_renews(wired: Wired) -> None:
    site = wired.enrol("site-0")
    here = {"location_id": "site-0", "model_type": "task.py:study"}
    told = site.call("POST", "/federated/client/register", here)
    assert told.json == {"client_id": f"{FEDERATION}.site-0", "registered": True}
    assert site.call("POST", "/v1/report", {"report": {"cases": 12}}).json == {"taken": True}
    request = request_certificate(site.key).decode()
    renewed = site.call("POST", "/v1/renew", {"certificate_request": request}).json["certificate"]
    site.hang_up()
    site.file.write_bytes(site.key.pem().reveal() + renewed.encode())
    assert site.call("GET", "/v1/study").status == 200
    seen = wired.order("GET", f"{F}/sites").json
    assert [(one["name"], one["report"]) for one in seen] == [("site-0", {"cases": 12})]


def test_round_of_three_sites(wired: Wired) -> None:
    sites = wired.in_training()
    for site in sites:
        data = site.update()
        place = f"/v1/uploads/{sha256(data).hexdigest()}"
        assert site.call("GET", place).json == {"offset": 0, "is_complete": False}
        assert site.upload(data).json == {"offset": len(data), "is_complete": False}
        receipt = site.submit(data).json
        assert receipt["update_id"] == sha256(data).hexdigest()
        assert site.call("GET", place).json["is_complete"]
    until(lambda: sites[0].ask(unsettled=1).json["settled"] is not None)
    assert sites[0].ask(unsettled=1).json["settled"] == {"round": 1, "is_counted": True}
    again = sites[0].call("GET", "/v1/rounds/1/receipt").json
    assert (again["status"], again["proof"] != "") == ("counted", True)


def test_submission_is_kept_with_its_signature(wired: Wired) -> None:
    site = wired.in_training()[0]
    data = site.update()
    site.upload(data)
    assert site.submit(data).status == 200
    blobs = wired.office.desk_of(site.row).blobs
    kept = [blobs.get(digest) for digest in blobs.digests() if blobs.size(digest) < 1000]
    envelope = next(blob for blob in kept if blob.startswith(b"consortium/request/v1"))
    signed = read_envelope(envelope)
    signed.verify(site.key.public, wired.office.audience)
    assert (signed.line.path, signed.line.round) == ("/v1/rounds/1/update", 1)


def test_site_says_that_it_cannot(wired: Wired) -> None:
    site = wired.in_training()[0]
    told = site.call("POST", "/v1/rounds/1/failure", {"failure": "DATA_QUALITY"}, round=1)
    assert told.json == {"taken": True}
    status = wired.order("GET", F).json
    assert status["round"]["fallen"] == {"site-0": "data_quality"}


def test_members_score_the_candidate(tmp_path: Path) -> None:
    with wire(tmp_path, is_judged=True) as wired:
        sites = wired.in_training()
        for site in sites:
            data = site.update()
            site.upload(data)
            assert site.submit(data).status == 200
        for site in sites:
            until(lambda site=site: is_to_evaluate(site))
            duty = site.invitation()
            assert len(site.call("GET", f"/v1/blobs/{duty['model']}").body) > SIZE * 4
            note = {"model": duty["model"], "samples": 9, "candidate": [0.5], "base": [1.0]}
            assert site.call("POST", "/v1/rounds/1/score", note, round=1).json == {"taken": True}
        until(lambda: wired.order("GET", F).json["version"] == 1)
        assert wired.order("GET", f"{F}/rounds/1").json["samples"] == 27


def is_to_evaluate(site: Site) -> bool:
    told = site.ask().json["invitation"]
    return told is not None and json.loads(told["text"])["kind"] == "evaluate"


def test_site_leaves_and_is_out(wired: Wired) -> None:
    site = wired.enrol("site-0")
    line = site.line("POST", "/v1/leave")
    assert site.send(line, b"").json == {"taken": True}
    assert site.send(line, b"").json == {"taken": True}  # when the first answer got lost
    assert site.ask().status in (401, 403)
    assert site.ask().code in ("E0301", "E0814")


def test_operator_looks(wired: Wired) -> None:
    sites = wired.in_training()
    assert [one["federation"] for one in wired.order("GET", "/v1/federations").json] == [FEDERATION]
    status = wired.order("GET", F).json
    assert (status["round"]["number"], status["sites"]) == (1, len(sites))
    assert wired.order("GET", f"{F}/rounds").json[0]["number"] == 1
    assert wired.order("GET", f"{F}/rounds/1").json["events"]
    models = wired.order("GET", f"{F}/models").json
    assert [one["version"] for one in models] == [0]
    model = wired.order("GET", f"{F}/models/0").json
    assert model["tensors"] == [{"name": "counts", "dtype": "F32", "shape": [SIZE]}]
    file = wired.order("GET", f"{F}/models/0/file")
    assert sha256(file.body).hexdigest() == model["digest"]
    head = wired.order("HEAD", f"{F}/models/0/file")
    assert (head.body, head.headers["content-length"]) == (b"", str(len(file.body)))
    every = wired.order("GET", "/federated/server/status").json["federations"]
    assert every[0]["id"] == status["id"]


def test_viewer_hears_of_no_single_site(tmp_path: Path) -> None:
    with wire(tmp_path, is_judged=True) as wired:
        sites = wired.in_training()
        note = {"failure": "DATA_QUALITY"}
        assert sites[2].call("POST", "/v1/rounds/1/failure", note, round=1).status == 200
        sent = [site.update() for site in sites[:2]]
        for site, data in zip(sites, sent, strict=False):
            site.upload(data)
            assert site.submit(data).status == 200
        until(lambda: is_to_evaluate(sites[0]))
        during = viewed(wired, F)
        for site in sites[:2]:
            model = site.invitation()["model"]
            score = {"model": model, "samples": 9, "candidate": [0.5], "base": [1.0]}
            assert site.call("POST", "/v1/rounds/1/score", score, round=1).status == 200
        until(lambda: wired.order("GET", F).json["version"] == 1)
        told = (
            during,
            viewed(wired, F),
            viewed(wired, f"{F}/rounds"),
            viewed(wired, f"{F}/rounds/1"),
        )
        for text in map(json.dumps, told):
            assert "site-" not in text
            assert not any(sha256(data).hexdigest() in text for data in sent)
        assert during["round"]["received"] == during["round"]["waiting_for"] == ["a site"] * 2
        assert during["round"]["fallen"] == {"a site": "data_quality"}
        assert told[3]["lost"] == [["a site", "data quality"]]
        assert told[3]["samples"] == 18  # over all sites
        parts = [one for one in told[3]["events"] if "site" in one]
        assert {key for one in parts for key in one} == {
            *("position", "fact", "at_ms", "site", "failure")
        }
        kinds = [one["fact"] for one in wired.order("GET", f"{F}/rounds/1").json["events"]]
        assert [one["fact"] for one in told[3]["events"]] == kinds  # nothing is left out


def viewed(wired: Wired, path: str) -> Any:
    """What a viewer hears; that a lead hears of the sites there is checked."""
    registry, now_ms = wired.office.registry, wired.office.clock.now_ms()
    admin, label = wired.operator_token, f"viewer-{len(registry.operators())}"
    assert b"site-2" in wired.order("GET", path).body
    wired.operator_token = registry.new_operator("viewer", label, now_ms, 60_000)
    try:
        return wired.order("GET", path).json
    finally:
        wired.operator_token = admin


def test_several_that_fell_out_are_counted_for_a_viewer(wired: Wired) -> None:
    """With two of three the round would be over: the state says so for a moment only."""
    desk = wired.office.desk_of(wired.in_training()[0].row)
    teller = wired.office.teller_named(FEDERATION).seen_by(Who(Role.VIEWER))
    with desk.lock:
        opened = desk.state.round
        assert opened is not None
        kept, opened.fallen = opened.fallen, {Seat(1): Failure.TRAINING, Seat(2): Failure.MODEL}
        try:
            told = teller.status()
        finally:
            opened.fallen = kept
    assert told["round"]["fallen"] == {"2 sites": "model, training"}


def test_who_gives_orders_may_inspect_sites() -> None:
    """An order is answered with the status: nobody is to learn less by giving one."""
    for action in (Action.HOLD, Action.REVOKE, Action.INVITE, Action.RUN):
        assert RULES[action].roles <= RULES[Action.INSPECT].roles


def test_finished_federation_does_not_go_on(wired: Wired) -> None:
    assert wired.order("POST", f"{F}/models/0/rollback").json["is_last"] is False
    assert wired.order("POST", f"{F}/stop").status == 200
    for order in (f"{F}/rounds/open", f"{F}/resume"):
        refused = wired.order("POST", order)
        assert (refused.status, refused.code) == (409, "E0310")
    start = wired.order("POST", "/federated/server/start", {"federation": FEDERATION})
    assert start.code == "E0310"
    assert wired.order("POST", f"{F}/models/0/rollback").json["is_last"] is True


def test_unused_invitation_can_be_voided(wired: Wired) -> None:
    told = wired.order("POST", f"{F}/invites", {"name": "site-0"}).json["token"]
    for _ in range(2):
        revoked = wired.order("POST", f"{F}/sites/site-0/revoke")
        assert revoked.json == {"name": "site-0", "revoked": True, "had_joined": False}
    token = read_token(told)
    body = {
        "federation": token.federation,
        "name": token.name,
        "secret": token.secret,
        "certificate_request": request_certificate(SigningKey.generate()).decode(),
    }
    refused = wired.request("POST", "/v1/enrol", json.dumps(body).encode())
    assert (refused.status, refused.code) == (403, "E0813")
    assert wired.order("POST", f"{F}/sites/nobody/revoke").code == "E0301"
    assert wired.enrol("site-0").ask().status == 200  # it may be invited again
    gone = wired.order("POST", f"{F}/sites/site-0/revoke")
    assert gone.json == {"name": "site-0", "revoked": True}
    assert wired.order("POST", f"{F}/sites/site-0/revoke").code == "E0301"


def test_who_left_is_told_from_who_was_put_out(wired: Wired) -> None:
    wired.enrol("site-0").call("POST", "/v1/leave")
    wired.enrol("site-1")
    wired.order("POST", f"{F}/sites/site-1/revoke")
    wired.enrol("site-2")
    told = {one["name"]: one["departure"] for one in wired.order("GET", f"{F}/sites").json}
    assert told == {"site-0": "left", "site-1": "revoked", "site-2": None}


def test_operator_orders(wired: Wired) -> None:
    wired.in_training()
    assert wired.order("POST", f"{F}/hold").json["standing"] == "on hold"
    assert wired.order("POST", f"{F}/rounds/1/cancel").json["round"] is None
    assert wired.order("POST", f"{F}/models/0/rollback").json["version"] == 0
    assert wired.order("POST", f"{F}/resume").json["standing"] != "on hold"
    assert wired.order("POST", f"{F}/hold").status == 200
    started = wired.order("POST", "/federated/server/start", {})
    assert started.json["status"] == "started"
    assert started.json["config"]["federation"]["name"] == FEDERATION
    named = {"federation": FEDERATION}
    assert wired.order("POST", "/federated/server/start", named).status == 200
    other = wired.order("POST", "/federated/server/start", {"federation": "other"})
    assert (other.status, other.code) == (404, "E0819")
    until(lambda: wired.order("GET", F).json["round"] is not None)
    revoked = wired.order("POST", f"{F}/sites/site-0/revoke")
    assert revoked.json == {"name": "site-0", "revoked": True}
    assert wired.sites[0].ask().code == "E0814"
    number = wired.order("POST", f"{F}/hold").json["round"]["number"]
    assert wired.order("POST", f"{F}/rounds/{number}/cancel").status == 200
    assert wired.order("POST", f"{F}/stop").json["finished"] is not None


def test_operator_opens_a_round_when_it_likes(wired: Wired) -> None:
    told = wired.order("POST", f"{F}/rounds/open")
    assert (told.status, told.code) == (409, "E0306") or told.json["round"]["number"] == 1


def test_metrics_tell_what_was_asked(wired: Wired) -> None:
    site = wired.enrol("site-0")
    site.call("GET", "/v1/study")
    text = wired.order("GET", "/metrics").body.decode()
    assert 'consortium_requests_total{method="GET",route="/v1/study",status="200"} 1.0' in text
    assert f'consortium_sites{{federation="{FEDERATION}"}} 1.0' in text
    assert f'consortium_round_step{{federation="{FEDERATION}",step="training"}} 0.0' in text
    assert "process_resident_memory_bytes" in text
    assert "site-0" not in text and site.row.id not in text


def test_metrics_tell_how_rounds_ended(wired: Wired) -> None:
    wired.in_training()
    wired.order("POST", f"{F}/hold")
    assert f'consortium_round{{federation="{FEDERATION}"}} 1.0' in metrics(wired)
    wired.order("POST", f"{F}/rounds/1/cancel")
    failed = f'consortium_rounds_total{{federation="{FEDERATION}",outcome="failed"}} 1.0'
    assert failed in metrics(wired)
    assert f'consortium_round{{federation="{FEDERATION}"}} 0.0' in metrics(wired)


def metrics(wired: Wired) -> str:
    return wired.order("GET", "/metrics").body.decode()


def test_seed_routes_need_a_name_where_there_are_several(tmp_path: Path) -> None:
    office = Office(tmp_path, SystemClock())
    with pytest.raises(UnknownFederationError):
        office.only(office.tellers())
    office.close()


def test_every_route_of_the_specification_is_there(wired: Wired) -> None:
    spec = (Path(__file__).parents[2] / "docs/spec/wire.md").read_text()
    table = spec.split("## Routes")[1].split("## Asking")[0]
    named = {
        re.sub(r"\{[^}]*\}", "{}", path).split("?")[0]
        for path in re.findall(r"`(?:GET|POST|PATCH) (/[^`]*)`", table)
    }
    told = wired.request("GET", "/openapi.json").json["paths"]
    there = {re.sub(r"\{[^}]*\}", "{}", path) for path in told}
    assert named - there == set()

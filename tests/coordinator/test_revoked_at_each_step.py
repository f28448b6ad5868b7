"""A site that is revoked at any step of a round: nothing of it is in any model from then on, and
its next request is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from consortium.core.ids import Digest
from consortium.model import Update, load_model, save_update
from tests.coordinator.wired import FEDERATION, SIZE, Site, Wired, until, wire

PLACE = f"/v1/federations/{FEDERATION}"


def one_hot(site: Site, number: int) -> bytes:
    """Site number i adds one to number i: the sum shows who was counted."""
    step = np.zeros(SIZE, np.float32)
    step[number] = 1.0
    return save_update(Update(step, 1.0, Digest(bytes.fromhex(site.invitation()["base"]))))


def deliver(site: Site, data: bytes) -> None:
    site.upload(data)
    assert site.submit(data).status == 200


def nothing(site: Site, data: bytes) -> None:
    pass


def invited(site: Site, data: bytes) -> None:
    assert site.invitation()["round"] == 1


def half_sent(site: Site, data: bytes) -> None:
    path = f"/v1/uploads/{sha256(data).hexdigest()}?offset=0"
    assert site.call("PATCH", path, data[: len(data) // 2]).status == 200


def all_sent(site: Site, data: bytes) -> None:
    site.upload(data)


STEPS: dict[str, Callable[[Site, bytes], None]] = {
    "before it asks": nothing,
    "when it is invited": invited,
    "in the middle of its upload": half_sent,
    "before it submits": all_sent,
    "when it has submitted": deliver,
}


def revoke(wired: Wired, site: Site) -> None:
    assert wired.order("POST", f"{PLACE}/sites/{site.name}/revoke").status == 200


def check_is_out(site: Site, data: bytes) -> None:
    """Whatever it asks next, on the connection that it has and on a new one."""
    body = {"update": sha256(data).hexdigest(), "size_bytes": len(data)}
    for _ in range(2):
        told = [
            site.ask(),
            site.call("GET", "/v1/study"),
            site.call("PATCH", f"/v1/uploads/{sha256(data).hexdigest()}?offset=0", data[:10]),
            site.call("POST", "/v1/rounds/1/update", body, round=1),
            site.call("GET", "/v1/rounds/1/receipt"),
        ]
        assert {(one.status, one.code) for one in told} == {(401, "E0814")}
        site.hang_up()


def numbers(wired: Wired) -> list[float]:
    """The first three of the newest model."""
    view = wired.order("GET", PLACE).json
    desk = next(iter(wired.office.desks.values()))
    data = desk.blobs.get(Digest(bytes.fromhex(view["model"])))
    vector = load_model(desk.study_of_plan().layout, data)
    return [round(float(one), 3) for one in vector[:3]]


def is_over(wired: Wired, number: int) -> bool:
    found = wired.order("GET", f"{PLACE}/rounds").json
    return any(one["number"] == number and one["outcome"] for one in found)


@pytest.mark.parametrize("step", STEPS)
def test_revoked_site_is_in_no_model(step: str, tmp_path: Path) -> None:
    with wire(tmp_path) as wired:
        sites = wired.in_training()
        updates = [one_hot(site, number) for number, site in enumerate(sites)]
        STEPS[step](sites[0], updates[0])
        revoke(wired, sites[0])
        check_is_out(sites[0], updates[0])
        for site, data in list(zip(sites, updates, strict=True))[1:]:
            deliver(site, data)
        until(lambda: is_over(wired, 1))
        assert numbers(wired) == [0.0, 0.5, 0.5]
        check_is_out(sites[0], updates[0])


def test_site_that_is_revoked_during_evaluation_is_in_no_later_sum(tmp_path: Path) -> None:
    """The sum was made while it was a member; its score does not count, and nothing later."""
    with wire(tmp_path, is_judged=True) as wired:
        sites = wired.in_training()
        updates = [one_hot(site, number) for number, site in enumerate(sites)]
        for site, data in zip(sites, updates, strict=True):
            deliver(site, data)
        for site in sites:
            until(partial(_is_asked, site, "evaluate"))
        score(sites[0])
        revoke(wired, sites[0])
        check_is_out(sites[0], updates[0])
        for site in sites[1:]:
            score(site)
        until(lambda: is_over(wired, 1))
        events = wired.order("GET", f"{PLACE}/rounds/1").json["events"]
        assert [one["evaluations"] for one in events if one["fact"] == "EvaluationClosed"] == [2]
        before = numbers(wired)
        late = [*sites[1:], wired.enrol("late")]
        for number, site in enumerate(late, start=1):
            until(partial(_is_asked, site, "train"))
            data = one_hot(site, number)
            site.upload(data)
            assert site.submit(data, round=2).status == 200
        for site in late:
            until(partial(_is_asked, site, "evaluate"))
            score(site, 2)
        until(lambda: is_over(wired, 2))
        after = numbers(wired)
        assert after[0] == before[0] and after[1] > before[1]
        check_is_out(sites[0], updates[0])


def score(site: Site, number: int = 1) -> None:
    note = {"model": site.invitation()["model"], "samples": 1, "candidate": [0.5], "base": [1.0]}
    assert site.call("POST", f"/v1/rounds/{number}/score", note, round=number).status == 200


def _is_asked(site: Site, kind: str) -> bool:
    told = site.ask().json["invitation"]
    return told is not None and bool(json.loads(told["text"])["kind"] == kind)

"""A site's answers: sent until they are heard, with a receipt that holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core.codec import encode
from consortium.core.facts import Failure, UpdateReceived
from consortium.core.ids import Digest
from consortium.core.tables import Stage
from consortium.errors import (
    MissingBlobError,
    NoteError,
    OnHoldError,
    ProofError,
    UnreachableError,
    WireError,
    WitnessError,
)
from consortium.site.answers import Answers
from tests.site.homes import SEAT
from tests.site.scene import NOW_MS, Log, Scene, opened
from tests.site.small_coordinator import Heard

ROUTE = ("POST", "/v1/rounds/1/update")
RECEIPT = ("GET", "/v1/rounds/1/receipt")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with opened(tmp_path) as made:
        made.approve()
        made.listener.ask()
        yield made


def spooled(scene: Scene) -> p.SendUpdate:
    """Round 1 has been trained."""
    update = scene.lab.home.blobs.put(b"an update")
    scene.tools.machine.feed(p.Asked(scene.train(), NOW_MS))
    scene.tools.machine.feed(p.Trained(1, update, None, 9, NOW_MS))
    return p.SendUpdate(1, update)


def receipt(log: Log, update: Digest, number: int = 1) -> dict[str, Any]:
    """What a coordinator answers whose log has this update."""
    log.grow(encode(UpdateReceived(number, SEAT, update, None, NOW_MS)))
    proof = log.proof(log.size - 1)
    return {"update_id": update.hex(), "status": "received", "proof": proof}


def test_update_is_heard_when_its_receipt_holds(scene: Scene) -> None:
    work = spooled(scene)
    reply = receipt(scene.log, work.update)
    scene.small.routes[ROUTE] = lambda _: (200, reply)
    Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.SENT
    assert scene.lab.home.receipt(1) == reply["proof"]
    assert bytes(scene.small.uploads[work.update.hex()]) == b"an update"


def test_receipt_for_another_update_is_no_receipt(scene: Scene) -> None:
    work = spooled(scene)
    reply = receipt(scene.log, Digest(b"\2" * 32))
    scene.small.routes[ROUTE] = lambda _: (200, reply)
    with pytest.raises(ProofError, match="another update"):
        Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.SENDING
    assert scene.lab.home.receipt(1) is None


def test_receipt_of_a_log_that_forgot_is_no_receipt(scene: Scene) -> None:
    """An old backup of the coordinator takes the update before its log has been looked at."""
    work = spooled(scene)
    reply = receipt(Log(scene.log.signer), work.update)  # one record; three were seen
    scene.small.routes[ROUTE] = lambda _: (200, reply)
    with pytest.raises(WitnessError, match="shorter"):
        Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.SENDING


def test_receipt_of_another_key_is_no_receipt(scene: Scene) -> None:
    work = spooled(scene)
    reply = receipt(Log(), work.update)
    scene.small.routes[ROUTE] = lambda _: (200, reply)
    with pytest.raises(NoteError):
        Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.SENDING


def test_lost_answer_is_asked_for_with_the_same_request(scene: Scene) -> None:
    work = spooled(scene)
    reply = receipt(scene.log, work.update)
    said = iter([(503, {}), (400, {"code": "E0810", "detail": "odd"}), (200, reply)])
    scene.small.routes[ROUTE] = lambda _: next(said)
    answers = Answers(scene.tools, lambda: None)
    for error in (UnreachableError, WireError):
        with pytest.raises(error):
            answers.give(work)
    answers.give(work)
    nonces = [
        heard.headers["Consortium-Nonce"]
        for heard in scene.small.heard
        if heard.path == "/v1/rounds/1/update"
    ]
    # An answer that came is kept under its nonce: after one that does not help, ask anew.
    assert nonces[0] == nonces[1] != nonces[2]
    assert scene.state.stage is Stage.SENT


@pytest.mark.parametrize("code", ["E0301", "E0302", "E0304", "E0817", "E0402"])
def test_what_is_never_taken_is_let_go(scene: Scene, code: str) -> None:
    work = spooled(scene)
    scene.small.routes[ROUTE] = lambda _: (409, {"code": code, "detail": "no"})
    Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.IDLE
    assert scene.events[-1].code == code


def test_what_is_not_needed_any_more_is_no_error(scene: Scene) -> None:
    work = spooled(scene)
    scene.small.routes[ROUTE] = lambda _: (409, {"code": "E0317", "detail": "no"})
    Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.IDLE
    told = scene.events[-1]
    assert (told.kind, told.code, told.round) == ("not needed", "", 1)
    assert told.text == "round 1: not needed any more: enough others answered"


@pytest.mark.parametrize("refused", [("PATCH", ""), ROUTE], ids=["upload", "submission"])
def test_update_that_had_arrived_is_heard_though_it_is_refused_now(
    scene: Scene, refused: tuple[str, str]
) -> None:
    """The coordinator was killed after it took the update, and before it said so."""
    work = spooled(scene)
    reply = receipt(scene.log, work.update)
    method, path = refused
    place = path or f"/v1/uploads/{work.update.hex()}"
    scene.small.routes[method, place] = lambda _: (409, {"code": "E0303", "detail": "over"})
    scene.small.routes[RECEIPT] = lambda _: (200, reply)
    Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.SENT
    assert scene.lab.home.receipt(1) == reply["proof"]


def test_receipt_for_another_update_does_not_keep_a_refused_one(scene: Scene) -> None:
    work = spooled(scene)
    reply = receipt(scene.log, Digest(b"\2" * 32))
    scene.small.routes[ROUTE] = lambda _: (409, {"code": "E0304", "detail": "no"})
    scene.small.routes[RECEIPT] = lambda _: (200, reply)
    Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.IDLE
    assert scene.lab.home.receipt(1) is None


def test_refused_update_is_kept_until_it_is_known_whether_it_had_arrived(scene: Scene) -> None:
    work = spooled(scene)
    scene.small.routes[ROUTE] = lambda _: (409, {"code": "E0303", "detail": "over"})
    scene.small.routes[RECEIPT] = lambda _: (503, {})
    with pytest.raises(UnreachableError):
        Answers(scene.tools, lambda: None).give(work)
    assert scene.state.stage is Stage.SENDING


def test_update_that_is_gone_from_the_disk_is_told_as_a_failure(scene: Scene) -> None:
    work = spooled(scene)
    scene.lab.home.blobs.path(work.update).unlink()
    Answers(scene.tools, lambda: None).give(work)
    assert scene.tools.machine.owed() == p.TellFailure(1, Failure.RESOURCES)
    assert scene.events[-1].code == MissingBlobError.code


def test_seeds_of_a_round_go_when_its_failure_was_told(scene: Scene) -> None:
    ground = scene.train()
    about = (ground.base, ground.server_state, ground.plan, ground.task, ground.deadline_ms)
    scene.tools.machine.feed(p.Asked(d.JoinSum(1, SEAT, *about), NOW_MS))
    scene.tools.secrets.keys(1)
    scene.tools.machine.feed(p.Broke(1, Failure.POLICY, NOW_MS))
    seeds = scene.tools.home.path / "secrets" / "round-1.seeds"
    assert seeds.exists()
    scene.small.routes["POST", "/v1/rounds/1/failure"] = lambda _: (200, {})
    Answers(scene.tools, lambda: None).give(p.TellFailure(1, Failure.POLICY))
    assert scene.state.stage is Stage.IDLE and not seeds.exists()


def test_what_the_coordinator_misses_is_no_loss_here(scene: Scene) -> None:
    work = spooled(scene)
    problem = {"code": MissingBlobError.code, "detail": "no such upload"}
    scene.small.routes[ROUTE] = lambda _: (404, problem)
    with pytest.raises(MissingBlobError):
        Answers(scene.tools, lambda: None).give(work)
    assert scene.tools.machine.owed() == work


def test_hold_that_is_over_at_once_loses_no_update(scene: Scene) -> None:
    """Held when the chunk was taken, resumed before anybody looked again."""
    work = spooled(scene)
    answers = Answers(scene.tools, lambda: None)

    def held_and_resumed(done: int, total: int) -> None:
        raise OnHoldError("the update is not to be sent any more")

    answers._on_sent = lambda _: held_and_resumed  # type: ignore[method-assign]
    with pytest.raises(OnHoldError):
        answers.give(work)
    assert scene.tools.machine.owed() == work


def test_hold_stops_an_upload_between_two_chunks(scene: Scene) -> None:
    large = scene.lab.home.blobs.put(bytes(3 << 20))
    scene.tools.machine.feed(p.Asked(scene.train(), NOW_MS))
    scene.tools.machine.feed(p.Trained(1, large, None, 3 << 20, NOW_MS))
    place = f"/v1/uploads/{large.hex()}"

    def take(heard: Heard) -> tuple[int, dict[str, Any]]:
        scene.tools.machine.feed(p.HoldSite(NOW_MS))
        return 200, {"offset": 1 << 20}

    scene.small.routes["PATCH", place] = take
    Answers(scene.tools, lambda: None).give(p.SendUpdate(1, large))
    assert len(scene.small.paths("PATCH")) == 1
    assert scene.state.stage is Stage.SENDING  # it may go on after `resume`


def test_lost_receipt_is_fetched_before_the_round_is_over_here(scene: Scene) -> None:
    """Others were enough to end the round, while this site's disk was full: with the next
    invitation nothing would ask for it any more."""
    work = spooled(scene)
    reply = receipt(scene.log, work.update)
    scene.small.routes[RECEIPT] = lambda _: (200, reply)
    scene.says["settled"] = {"round": 1, "is_counted": True}
    scene.invite(scene.train(2))
    assert scene.listener.ask()
    assert scene.lab.home.receipt(1) == reply["proof"]
    assert (scene.state.round, scene.state.unsettled) == (2, 0)


def test_round_is_not_over_here_while_nobody_can_be_asked_for_the_receipt(scene: Scene) -> None:
    work = spooled(scene)
    reply = receipt(scene.log, work.update)
    scene.small.routes[RECEIPT] = lambda _: (503, {})
    scene.says["settled"] = {"round": 1, "is_counted": True}
    with pytest.raises(UnreachableError):
        scene.listener.ask()
    assert scene.state.unsettled == 1
    scene.small.routes[RECEIPT] = lambda _: (200, reply)
    assert scene.listener.ask()
    assert scene.lab.home.receipt(1) == reply["proof"]
    assert scene.state.unsettled == 0


def test_update_that_never_arrived_has_no_receipt_and_its_round_ends(scene: Scene) -> None:
    spooled(scene)
    scene.small.routes[RECEIPT] = lambda _: (409, {"code": "E0302", "detail": "nothing was sent"})
    scene.says["settled"] = {"round": 1, "is_counted": False}
    assert scene.listener.ask()
    assert scene.lab.home.receipt(1) is None
    assert scene.state.unsettled == 0


def test_receipt_that_is_here_is_not_asked_for(scene: Scene) -> None:
    work = spooled(scene)
    reply = receipt(scene.log, work.update)
    scene.small.routes[ROUTE] = lambda _: (200, reply)
    Answers(scene.tools, lambda: None).give(work)
    scene.says["settled"] = {"round": 1, "is_counted": True}
    assert scene.listener.ask()
    assert not [heard for heard in scene.small.heard if heard.path.endswith("/receipt")]


def test_lost_receipt_is_fetched_before_the_score_is_told(scene: Scene) -> None:
    work, model = spooled(scene), Digest(b"\3" * 32)
    reply = receipt(scene.log, work.update)
    feed = scene.tools.machine.feed
    feed(p.Asked(d.Evaluate(1, SEAT, model, model, 0, NOW_MS + 9), NOW_MS))
    feed(p.Scored(1, 4, (1.0,), (2.0,), NOW_MS))
    scene.small.routes[RECEIPT] = lambda _: (200, reply)
    scene.small.routes["POST", "/v1/rounds/1/score"] = lambda _: (200, {})
    owed = scene.tools.machine.owed()
    assert isinstance(owed, p.SendScore)
    Answers(scene.tools, lambda: None).give(owed)
    assert scene.lab.home.receipt(1) == reply["proof"]

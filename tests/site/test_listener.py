"""What a site believes of an answer: crafted ones over a real connection, most of them lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from consortium.core import duties as d
from consortium.core import participant as p
from consortium.core import site_facts as s
from consortium.core.facts import Failure
from consortium.core.tables import Stage
from consortium.crypto.recipes import SigningKey
from consortium.errors import (
    AlreadySubmittedError,
    PolicyError,
    RestoredBackupError,
    SignatureError,
    StoreFailedError,
    VerificationError,
    WireError,
)
from consortium.ledger.note import Verifier, cosignatures
from consortium.plan.values import Plan
from consortium.site.events import Kind
from consortium.site.policy import Policy
from consortium.site.report import add_to_report
from consortium.site.troubles import noted
from consortium.site.worker import Worker
from consortium.wire.messages import Signature
from tests.site.homes import SCORED, SEAT, TARGET, other_study
from tests.site.scene import LATER_MS, MODEL, NOW_MS, Log, Scene, opened
from tests.site.small_coordinator import SITE


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with opened(tmp_path) as made:
        yield made


# ---- what holds ---------------------------------------------------------------------


def test_invitation_that_holds_is_taken_by_the_coordinators_time(scene: Scene) -> None:
    scene.approve()
    scene.invite(scene.train())
    assert scene.listener.ask()
    assert (scene.state.stage, scene.state.round) == (Stage.TRAINING, 1)
    assert scene.situation.duty == scene.train()
    assert scene.situation.may_work
    assert NOW_MS <= scene.tools.clock.now_ms() < NOW_MS + 10_000


def test_deadline_that_moved_is_noted(scene: Scene) -> None:
    scene.approve()
    for deadline_ms in (LATER_MS, LATER_MS + 1000):
        scene.invite(scene.train(deadline_ms=deadline_ms))
        assert scene.listener.ask()
    assert scene.state.deadline_ms == LATER_MS + 1000


def test_checkpoint_is_cosigned_once_it_is_durable(scene: Scene) -> None:
    scene.listener.ask()
    assert scene.asked()["cosignature"] == ""
    assert (scene.state.seen_size, scene.asked()["seen_size"]) == (3, 0)
    scene.listener.ask()
    witness = Verifier(SITE, scene.lab.home.key.public)
    assert [sign.witness for sign in cosignatures(scene.asked()["cosignature"], [witness])] == [
        SITE
    ]
    scene.listener.ask()
    assert scene.asked()["cosignature"] == ""  # nothing new to sign


def test_log_that_grows_is_followed(scene: Scene) -> None:
    scene.listener.ask()
    scene.log.grow(b"four", b"five")
    scene.listener.ask()
    assert scene.state.seen_size == 5


def test_round_is_settled_before_the_next_is_taken(scene: Scene) -> None:
    scene.approve()
    _sent(scene)
    scene.invite(scene.train(2))
    assert not scene.listener.ask()  # not yet: how round 1 ended was not told
    assert scene.state.round == 1
    assert scene.asked()["unsettled"] == 1
    scene.says["settled"] = {"round": 1, "is_counted": True}
    assert scene.listener.ask()
    assert (scene.state.round, scene.state.unsettled) == (2, 0)
    assert scene.state.private_state == MODEL
    assert scene.asked()["have"] == ""


def test_end_of_the_round_is_asked_for_while_it_is_trained(scene: Scene) -> None:
    """So that it comes with the next invitation."""
    scene.approve()
    scene.invite(scene.train())
    scene.says["mark"] = "first"
    assert scene.listener.ask()
    scene.listener.ask()
    assert (scene.asked()["unsettled"], scene.asked()["have"]) == (1, "first")
    scene.says["settled"] = {"round": 1, "is_counted": False}
    assert scene.listener.ask()  # it was too slow, and is training still
    assert scene.state.unsettled == 0
    scene.tools.machine.feed(p.Trained(1, MODEL, MODEL, 10, NOW_MS))
    scene.listener.ask()  # what was told before the update was made is asked for at once
    asked = scene.asked()
    assert (asked["unsettled"], asked["have"], asked["wait_ms"]) == (1, "", 0)
    assert (scene.state.unsettled, scene.state.private_state) == (0, None)
    scene.listener.ask()
    assert scene.asked()["have"] == "first"


@pytest.mark.parametrize("is_keyed", [True, False])
def test_seeds_of_a_round_that_failed_early_go_when_its_end_is_told(
    scene: Scene, is_keyed: bool
) -> None:
    """Also of a last one, after which nobody begins another."""
    ground = scene.train()
    about = (ground.base, ground.server_state, ground.plan, ground.task, ground.deadline_ms)
    scene.approve()
    scene.tools.clock.observe(NOW_MS)
    scene.tools.machine.feed(p.Asked(d.JoinSum(1, SEAT, *about), NOW_MS))
    scene.tools.secrets.keys(1)
    if is_keyed:
        scene.tools.machine.feed(p.Heard(p.SendKeys(1), NOW_MS))
    seeds = scene.tools.home.path / "secrets" / "round-1.seeds"
    assert scene.listener.ask() and seeds.exists()
    assert scene.asked()["unsettled"] == 1
    scene.says["settled"] = {"round": 1, "is_counted": False}
    assert scene.listener.ask() and not seeds.exists()
    del scene.says["settled"]
    assert scene.listener.ask()
    assert scene.asked()["unsettled"] == 0, "it was told"


def test_state_that_could_not_be_moved_is_moved_before_the_next_question(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.approve()
    _sent(scene)
    moved: list[int] = []

    def settle(number: int, is_counted: bool) -> None:
        moved.append(number)
        if len(moved) == 1:
            raise StoreFailedError("the disk is full")

    monkeypatch.setattr(scene.tools.home, "settle", settle)
    scene.says["settled"] = {"round": 1, "is_counted": True}
    scene.invite(scene.train(2))
    with pytest.raises(StoreFailedError):
        scene.listener.ask()
    assert (scene.state.unsettled, scene.state.round) == (0, 1)  # the log will not say it again
    del scene.says["settled"]
    assert scene.listener.ask()
    assert (moved, scene.state.round) == ([1, 1], 2)


def _sent(scene: Scene) -> None:
    """Round 1 is trained and sent; its end is not known."""
    scene.tools.clock.observe(NOW_MS)
    feed = scene.tools.machine.feed
    feed(p.Asked(scene.train(), NOW_MS))
    feed(p.Trained(1, MODEL, MODEL, 10, NOW_MS))
    feed(p.Heard(p.SendUpdate(1, MODEL), NOW_MS))


def test_round_that_is_over_is_over_for_its_evaluation(scene: Scene) -> None:
    scene.approve()
    _sent(scene)
    scene.invite(d.Evaluate(1, SEAT, MODEL, MODEL, 0, LATER_MS))
    assert scene.listener.ask()
    assert scene.state.stage is Stage.EVALUATING
    scene.says = {"settled": {"round": 1, "is_counted": False}}
    assert scene.listener.ask()
    assert scene.situation.duty is None  # so the worker ends it
    assert (scene.state.unsettled, scene.state.private_state) == (0, None)


def test_what_waits_for_approval_is_taken_when_somebody_approves(scene: Scene) -> None:
    scene.invite(scene.train())
    assert scene.listener.ask()
    assert scene.state.stage is Stage.IDLE
    assert scene.events[-1].kind is Kind.APPROVAL
    scene.listener.ask()
    assert scene.asked()["objection"] == "E0312"
    scene.approve()
    assert scene.situation.waiting is not None
    assert scene.listener.consider(scene.situation.waiting)
    assert scene.state.stage is Stage.TRAINING


def test_listed_task_needs_no_asking(scene: Scene) -> None:
    task = scene.lab.reviewed.task_hash.hex()
    Policy(approve="listed", tasks=(task,)).write(scene.lab.home.policy_file)
    scene.invite(scene.train())
    assert scene.listener.ask()
    assert scene.state.stage is Stage.TRAINING


def test_study_is_fetched_and_kept(scene: Scene) -> None:
    scene.approve()
    scene.invite(scene.train())
    scene.listener.ask()
    assert scene.small.paths("GET") == ["/v1/study"]  # its blobs are here
    assert (scene.lab.home.path / "study.json").exists()


# ---- what the site's own people forbid ----------------------------------------------


def test_policy_declines(scene: Scene) -> None:
    scene.approve()
    Policy(min_sites=100).write(scene.lab.home.policy_file)
    scene.invite(scene.train())
    assert scene.listener.ask()
    assert (scene.state.stage, scene.state.failure) == (Stage.REPORTING, Failure.POLICY)
    assert scene.situation.duty is None


def test_what_the_policy_forbids_is_a_trouble_until_it_allows_it(scene: Scene) -> None:
    """`consortium site status` tells it: a site that declines every round looks idle else."""
    scene.approve()
    Policy(min_sites=100).write(scene.lab.home.policy_file)
    scene.invite(scene.train())
    assert scene.listener.ask()
    (trouble,) = noted(scene.lab.home)
    assert (trouble.code, trouble.round) == (PolicyError.code, 1)
    assert "min_sites" in trouble.text or "100" in trouble.text
    Policy().write(scene.lab.home.policy_file)
    scene.invite(scene.train(2))
    assert scene.listener.ask()
    assert noted(scene.lab.home) == []


def test_policy_that_became_stricter_ends_the_round_and_says_so(scene: Scene) -> None:
    scene.approve()
    scene.invite(scene.train())
    assert scene.listener.ask()
    assert scene.state.stage is Stage.TRAINING
    Policy(min_sites=100).write(scene.lab.home.policy_file)
    assert scene.listener.ask()
    assert scene.tools.machine.owed() == p.TellFailure(1, Failure.POLICY)
    assert scene.situation.duty is None
    assert scene.events[-1].kind is Kind.DECLINED


def test_requirements_are_for_who_begins_a_round(tmp_path: Path) -> None:
    rule = ("[selection]", '[selection]\nrequire = ["ready == true"]')
    with opened(tmp_path, change=rule) as scene:
        scene.approve()
        add_to_report(scene.lab.home, ["ready=true"])
        scene.invite(scene.train())
        assert scene.listener.ask()
        add_to_report(scene.lab.home, ["ready=false"])
        assert scene.listener.ask()
        assert scene.state.stage is Stage.TRAINING
        assert scene.situation.duty == scene.train()
        scene.invite(scene.train(2))
        assert scene.listener.ask()
        assert scene.tools.machine.owed() == p.TellFailure(2, Failure.REQUIREMENTS)


def test_plan_is_approved_for_as_many_rounds_as_it_has(scene: Scene) -> None:
    scene.approve()
    last = scene.lab.reviewed.plan.federation.rounds
    scene.invite(scene.train(last))
    assert scene.listener.ask()
    assert scene.state.stage is Stage.TRAINING
    scene.invite(scene.train(last + 1))
    assert scene.listener.ask()
    assert scene.tools.machine.owed() == p.TellFailure(last + 1, Failure.POLICY)
    assert f"a plan for {last} rounds" in scene.events[-1].text


def test_scores_that_the_policy_keeps_here_do_not_leave(scene: Scene) -> None:
    scene.approve()
    _sent(scene)
    Policy(may_leave=("update", "weight")).write(scene.lab.home.policy_file)
    _refuses_to_score(scene)


def test_scores_that_are_not_in_the_plan_do_not_leave(tmp_path: Path) -> None:
    with opened(tmp_path, change=("[evaluation]", "[evaluation]\nenabled = false")) as scene:
        assert not scene.lab.reviewed.plan.evaluation.enabled
        scene.approve()
        _sent(scene)
        _refuses_to_score(scene)


def test_scores_of_a_masked_plan_leave_inside_its_updates_and_not_by_themselves(
    tmp_path: Path,
) -> None:
    """A coordinator that asks for them one by one would read what masks hide."""
    with opened(tmp_path, change=TARGET, plan=SCORED) as scene:
        assert scene.lab.reviewed.plan.has_scored_sums
        scene.approve()
        _sent(scene)
        _refuses_to_score(scene)
        assert "of one site" in scene.events[-1].text


def _refuses_to_score(scene: Scene) -> None:
    scene.invite(d.Evaluate(1, SEAT, MODEL, MODEL, 0, LATER_MS))
    assert scene.listener.ask()
    assert scene.situation.duty is None
    assert scene.tools.machine.owed() == p.TellFailure(1, Failure.POLICY)
    assert "scores" in scene.events[-1].text
    assert scene.listener.ask()  # it was told once
    assert scene.tools.machine.owed() == p.TellFailure(1, Failure.POLICY)


def test_site_on_hold_says_so(scene: Scene) -> None:
    scene.approve()
    scene.tools.machine.feed(p.HoldSite(NOW_MS))
    scene.invite(scene.train())
    scene.listener.ask()
    assert scene.asked()["objection"] == "E0313"
    assert scene.state.failure is Failure.POLICY


# ---- lies ---------------------------------------------------------------------------


def test_invitation_of_another_key_is_refused(scene: Scene) -> None:
    scene.approve()
    scene.invite(scene.train(), key=SigningKey.generate())
    with pytest.raises(SignatureError):
        scene.listener.ask()
    assert scene.state.stage is Stage.IDLE


@pytest.mark.parametrize("changes", [{"site": "0" * 32}, {"federation": "0" * 32}])
def test_invitation_of_another_site_is_refused(scene: Scene, changes: dict[str, str]) -> None:
    scene.approve()
    scene.invite(scene.train(), **changes)
    with pytest.raises(WireError, match="another site"):
        scene.listener.ask()
    assert scene.state.stage is Stage.IDLE


def test_invitation_that_contradicts_the_plan_is_refused(scene: Scene) -> None:
    scene.approve()
    plan = scene.lab.reviewed.plan
    training = plan.training.model_copy(update={"epochs": plan.training.epochs + 1})
    other: Plan = plan.model_copy(update={"training": training})
    scene.invite(scene.train(), plan=other)
    with pytest.raises(VerificationError, match="otherwise"):
        scene.listener.ask()
    assert scene.state.stage is Stage.IDLE


def test_invitation_to_another_study_is_refused(scene: Scene) -> None:
    scene.approve()
    scene.invite(replace(scene.train(), task=MODEL))
    with pytest.raises(VerificationError, match="another study"):
        scene.listener.ask()


def test_begun_round_cannot_be_given_another_task(scene: Scene, tmp_path: Path) -> None:
    """Signed and with a true study, but nobody has approved it: it must not run."""
    scene.approve()
    good = replace(scene.train(), base=scene.lab.first)
    scene.invite(good)
    assert scene.listener.ask()
    ran = tmp_path / "ran"
    trap = f"\nimport pathlib; pathlib.Path({str(ran)!r}).touch()\n"
    task = (tmp_path / "study" / "task.py").read_text()
    other = other_study(scene.lab.home, tmp_path / "other", task + trap)
    ran.unlink()  # the lead has locked it
    scene.small.routes["GET", "/v1/study"] = lambda _: (200, other.sheet.model_dump())
    bad = replace(good, task=other.task_hash, plan=other.plan_digest)
    scene.invite(bad, plan=other.plan)
    with pytest.raises(AlreadySubmittedError):
        scene.listener.ask()
    assert scene.situation.duty == good
    scene.situation.duty = bad  # whatever the listener lets through
    worker = Worker(scene.tools, scene.situation)
    try:
        assert not worker._is_wanted(p.TrainHere(1, scene.lab.first, None))
        with pytest.raises(VerificationError):
            worker._train(p.TrainHere(1, scene.lab.first, None))
    finally:
        worker.close()
    assert not ran.exists()


def test_invitation_that_is_over_is_not_taken(scene: Scene) -> None:
    scene.approve()
    scene.invite(scene.train(deadline_ms=NOW_MS - 1))
    assert scene.listener.ask()
    assert scene.state.stage is Stage.IDLE
    assert scene.situation.duty is None


def test_text_of_an_invitation_cannot_be_changed(scene: Scene) -> None:
    scene.approve()
    scene.invite(scene.train())
    told = Signature.model_validate(scene.says["invitation"])
    changed = told.text.replace('"is_urgent":false', '"is_urgent":true')
    assert changed != told.text
    scene.says["invitation"] = {"text": changed, "signature": told.signature}
    with pytest.raises(SignatureError):
        scene.listener.ask()


def test_log_that_forked_stops_the_work_until_it_is_mended(scene: Scene) -> None:
    scene.approve()
    scene.listener.ask()
    good, scene.log = scene.log, Log(scene.log.signer)
    scene.log.grow(b"one", b"two", b"other")
    scene.invite(scene.train())
    assert not scene.listener.ask()
    assert not scene.situation.may_work
    assert scene.state.stage is Stage.IDLE
    assert (scene.events[-1].kind, scene.events[-1].code) == (Kind.REFUSED, "E0903")
    assert not scene.listener.ask()
    assert scene.asked()["objection"] == "E0903"
    scene.log = good
    assert scene.listener.ask()
    assert scene.situation.may_work
    assert scene.state.stage is Stage.TRAINING


def test_log_that_shrank_is_refused(scene: Scene) -> None:
    scene.listener.ask()
    scene.log = Log(scene.log.signer)
    scene.log.grow(b"one")
    assert not scene.listener.ask()
    assert scene.events[-1].code == "E0903"


def test_checkpoint_of_an_unknown_key_is_refused(scene: Scene) -> None:
    scene.log = Log()
    scene.log.grow(b"one")
    assert not scene.listener.ask()
    assert scene.events[-1].code == "E0902"
    assert scene.state.seen_size == 0
    assert not scene.situation.may_work


def test_own_log_that_is_too_short_ends_the_agent(scene: Scene) -> None:
    scene.approve()
    scene.says["own_size"] = 2
    scene.invite(scene.train())
    with pytest.raises(RestoredBackupError, match="1 facts"):
        scene.listener.ask()
    assert scene.asked()["objection"] == "E0905"
    assert scene.state.stage is Stage.IDLE
    assert scene.state.seen_size == 0  # nothing of the answer was taken


def test_settling_what_is_not_ours_changes_nothing(scene: Scene) -> None:
    scene.says["settled"] = {"round": 9, "is_counted": True}
    assert scene.listener.ask()
    assert not any(isinstance(fact, s.RoundSettled) for _, fact in scene.tools.machine.facts())

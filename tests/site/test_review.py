"""The screen before anything runs, and the proof that its parts belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.bundle import Bundle
from consortium.core.account import Account, Spending, Standing
from consortium.core.ids import Digest
from consortium.core.site_facts import ScoreSpooled
from consortium.drive.lock import make_lock
from consortium.drive.study import load_study
from consortium.errors import UsageError, VerificationError
from consortium.model import digest_of
from consortium.plan.noise import epsilon_of_rounds, resolved
from consortium.plan.values import Plan
from consortium.privacy.accountant import epsilon
from consortium.site.costs import Purse
from consortium.site.outbox import score_body
from consortium.site.policy import Policy, update_bytes
from consortium.site.review import (
    ReviewedStudy,
    file_text,
    printable,
    review_text,
    score_bytes,
    verify_study,
)
from consortium.tasks import Inventory
from consortium.tensors import TensorSpec
from consortium.wire.messages import StudySheet
from tests.site.homes import SEED, WHO, written

Parts = dict[str, bytes]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("study") / "study"
    study = load_study(written(folder))
    lock, _ = make_lock(study, SEED)
    bundle = Bundle((("task.py", (folder / "task.py").read_bytes()),))
    return {
        "plan": study.plan.canonical(),
        "layout": lock.layout.canonical(),
        "bundle": bundle.pack(),
        "lock": lock.text().encode(),
        "task": lock.task,
    }


def _verified(parts: Parts) -> ReviewedStudy:
    given = {name: digest_of(data).hex() for name, data in parts.items() if name != "task"}
    sheet = StudySheet(task=parts["task"].hex(), **given)
    return verify_study(sheet, parts["plan"], parts["layout"], parts["bundle"], parts["lock"])


def test_bytes_that_leave_are_bounded_with_their_scores(parts: Parts) -> None:
    study = _verified(parts)
    rounds, metrics = study.plan.federation.rounds, len(study.lock.metrics)
    update = update_bytes(study.plan, study.layout)
    sums = (-1.2345678901234567e-300,) * metrics
    fact = ScoreSpooled(1, Digest(b"m" * 32), (1 << 62) - 1, sums, sums, 0)
    score = len(score_body(fact))
    text = review_text(study)
    assert f"at most {update:,} bytes of update and {score:,} bytes of scores a round" in text
    assert f"{(update + score) * rounds:,} bytes in {rounds} rounds" in text
    assert "not in these bytes" in text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_score_has_more_bytes_than_the_screen_says(number: float) -> None:
    fact = ScoreSpooled(1, Digest(b"m" * 32), (1 << 62) - 1, (number,) * 2, (number,) * 2, 0)
    assert len(score_body(fact)) <= score_bytes(2)


def test_a_study_whose_parts_fit_is_taken(parts: Parts) -> None:
    study = _verified(parts)
    assert study.task_hash == parts["task"]
    assert study.plan_digest == study.plan.digest == digest_of(parts["plan"])


def test_bytes_with_another_digest_than_the_sheet_says_are_refused(parts: Parts) -> None:
    sheet = _verified(parts).sheet
    for name in ("plan", "layout", "bundle", "lock"):
        changed = parts | {name: parts[name] + b"\n"}
        with pytest.raises(VerificationError, match=f"the {name} is not"):
            verify_study(
                sheet, changed["plan"], changed["layout"], changed["bundle"], changed["lock"]
            )


def _other_file(parts: Parts) -> Parts:
    return parts | {"bundle": Bundle((("task.py", b"import os\n"),)).pack()}


def _other_task(parts: Parts) -> Parts:
    return parts | {"task": b"\0" * 32}


def _other_plan(parts: Parts) -> Parts:
    plan = Plan.from_canonical(parts["plan"])
    training = plan.training.model_copy(update={"epochs": 99})
    return parts | {"plan": plan.model_copy(update={"training": training}).canonical()}


def _other_layout(parts: Parts) -> Parts:
    return parts | {"layout": parts["layout"].replace(b" 6 ", b" 7 ")}


def _other_entry(parts: Parts) -> Parts:
    return parts | {"lock": parts["lock"].replace(b"task.py:study", b"task.py:other")}


def _other_metric(parts: Parts) -> Parts:
    return parts | {"lock": parts["lock"].replace(b"accuracy", b"precision")}


def _no_lock(parts: Parts) -> Parts:
    return parts | {"lock": b"version = 1\n"}


def _no_plan(parts: Parts) -> Parts:
    return parts | {"plan": b"{}"}


def _no_bundle(parts: Parts) -> Parts:
    return parts | {"bundle": b"#!/bin/sh\n"}


@pytest.mark.parametrize(
    "harm",
    [
        _other_file,
        _other_task,
        _other_plan,
        _other_layout,
        _other_entry,
        _other_metric,
        _no_lock,
        _no_plan,
        _no_bundle,
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    parts: Parts, harm: Callable[[Parts], Parts]
) -> None:
    changed = harm(parts)
    assert changed != parts
    with pytest.raises(VerificationError) as caught:
        _verified(changed)
    assert caught.value.exit_code == 7


# ---- the screen ---------------------------------------------------------------------


def test_the_screen_says_who_asks_for_what_and_what_it_costs(parts: Parts) -> None:
    study = _verified(parts)
    text = review_text(study, who=WHO, policy=Policy())
    heads = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    order = ["WHO", "TASK", "PLAN", "LEAVES", "STAYS", "COST", "POLICY"]
    assert list(dict.fromkeys(sorted(heads, key=order.index))) == order
    ((_, source),) = study.bundle.files
    for part in (
        WHO.url,
        "amber lynx seven",
        study.task_hash.hex(),
        study.plan_digest.hex(),
        sha256(source).hexdigest(),
        "task.py:study",
        "weights",
        "masked: no; noised: no",
        "there is no differential privacy in this plan",
        "an update can reveal records",
        "nothing against it; somebody must approve",
        *study.plan.guarantees(),
    ):
        assert part in text, part


RECORD = {
    "unit": "record",
    "noise_multiplier": 2.0,
    "side_noise": 20.0,
    "sampling_rate": 1.0,
    "steps": 1,
}


def _private(study: ReviewedStudy, section: dict[str, Any], **more: Any) -> ReviewedStudy:
    values = {**study.plan.model_dump(exclude_unset=True), "privacy": section, **more}
    return replace(study, plan=resolved(Plan.model_validate(values)))


def _cost_of(text: str) -> list[str]:
    lines = text.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("COST"))
    end = next((n for n in range(at + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    return [line.strip() for line in lines[at:end]]


def test_the_screen_says_what_a_private_plan_costs(parts: Parts) -> None:
    section = {"unit": "local", "epsilon": 4.0, "test_records": "public"}
    study = _private(_verified(parts), section)
    text = review_text(study)
    rounds = study.plan.federation.rounds
    one = epsilon_of_rounds(study.plan, 1)
    each = f"epsilon {one:.4g} at delta 1e-05 for one round"
    assert _cost_of(text) == [f"COST    {each}, 4 for all {rounds} rounds together"]
    assert "noised: yes, before it leaves" in text
    assert "there is no differential privacy" not in text


def test_the_screen_says_what_this_sites_account_would_have_spent(parts: Parts) -> None:
    section = {"unit": "local", "epsilon": 4.0, "test_records": "public"}
    study = _private(_verified(parts), section)
    assert study.plan.budget is not None
    limits = Policy(epsilon_weekly=0.5, epsilon_lifetime=9.0).limits
    empty = Purse("records-local", Account(limits=limits), 0, epsilon)
    cost = _cost_of(review_text(study, purse=empty))
    one = f"{epsilon_of_rounds(study.plan, 1):.4g}"
    assert cost[1:] == [
        "this site's own account records-local counts at delta 1e-05",
        f"in 7 days: 0 spent, {one} with one round, 4 with all; at most 0.5",
        f"in 30 days: 0 spent, {one} with one round, 4 with all; no limit",
        f"ever: 0 spent, {one} with one round, 4 with all; at most 9",
        "it does not pay for a round now: it never frees",
    ]
    spent = {("f", 1): Spending(study.plan.budget.costs, Standing.CHARGED, 0)}
    used = replace(empty, account=Account(limits=Policy().limits, spent=spent))
    assert f"ever: {one} spent," in review_text(study, purse=used)
    assert "does not pay" not in review_text(study, purse=used)


def test_the_screen_says_who_noises_what(parts: Parts) -> None:
    section = {"unit": "site", "epsilon": 4.0, "test_records": "public"}
    study = _private(_verified(parts), section, selection={"target": 3})
    assert "noised: no: the coordinator sees it" in review_text(study)


def test_only_the_scores_that_leave_are_on_the_screen(parts: Parts) -> None:
    study = _private(_verified(parts), RECORD)
    assert len(study.lock.metrics) > 1
    text = review_text(study)
    assert "metrics that are summed: accuracy; with noise" in text
    assert f"{score_bytes(1):,} bytes of scores" in text
    assert "noised: yes, in training" in text
    assert "1 steps, each on a record with chance 1, with noise" in text
    assert "accuracy, told with noise" in text


def test_scores_that_are_masked_with_the_update_are_on_the_screen(parts: Parts) -> None:
    study = _private(
        _verified(parts),
        {},
        selection={"target": 3},
        strategy={"clip": 1.0, "weight": "uniform"},
        evaluation={"gate": False, "bound": 10.0},
        security={"secure_aggregation": True},
    )
    metrics = [metric.name for metric in study.reported]
    update = update_bytes(study.plan, study.layout, study.reported)
    text = review_text(study)
    assert "weight and scores among them" in text
    assert "LEAVES  every round, masked with the update: how many test records" in text
    assert f"metrics that are summed: {', '.join(metrics)}" in text
    assert f"LEAVES  at most {update:,} bytes of update a round" in text, "no scores besides"
    assert "members try the model that a round begins from on their test records" in text
    assert "every new model" not in text and "loss, masked" not in text
    refusing = review_text(study, policy=Policy(may_leave=("update", "weight")))
    assert "POLICY  refuses: the plan asks for scores, which may not leave this site" in refusing


def test_objections_of_the_policy_are_on_the_screen(parts: Parts) -> None:
    text = review_text(_verified(parts), policy=Policy(min_sites=9))
    assert "POLICY  refuses: the plan publishes what 3 sites made" in text


def test_what_is_private_is_named_once_the_task_may_run(parts: Parts) -> None:
    study = _verified(parts)
    hidden = TensorSpec("adapter.weight", (4, 3))
    assert "adapter" not in review_text(study)
    text = review_text(study, inventory=Inventory(study.layout.specs, (hidden,)))
    assert "adapter.weight" in text and "shown once the task may run" not in text


def test_a_file_can_be_read_before_it_runs(parts: Parts) -> None:
    study = _verified(parts)
    assert file_text(study, "task.py").encode() == study.bundle.files[0][1]
    with pytest.raises(UsageError):
        file_text(study, "../task.py")


def test_no_file_can_hide_a_line_of_itself(parts: Parts) -> None:
    study = _verified(parts)
    sly = b"ok()\x1b[2K\rsteal()  # \xe2\x80\xae fine \xff\n\tdone\n"
    shown = file_text(replace(study, bundle=Bundle((("task.py", sly),))), "task.py")
    assert shown == "ok()\\x1b[2K\\rsteal()  # \\u202e fine \\xff\n\tdone\n"
    assert printable("plain ü\n") == "plain ü\n"


def test_what_the_coordinator_says_cannot_paint_the_screen(parts: Parts) -> None:
    who = WHO.model_copy(update={"federation_name": "x\x1b[2J"})
    assert "\x1b" not in review_text(_verified(parts), who=who)


def test_frozen_layers_are_shown_by_their_digest(parts: Parts) -> None:
    study = _verified(parts)
    lock = replace(study.lock, pinned=Digest(b"\3" * 32))
    assert "03" * 32 in review_text(replace(study, lock=lock))

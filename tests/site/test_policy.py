"""What a site's people allow, and what their policy has against a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.core.account_facts import Limits
from consortium.core.ids import Digest
from consortium.core.terms import Metric
from consortium.errors import (
    PlanSyntaxError,
    PolicyError,
    UnknownKeyError,
    WrongTypeError,
)
from consortium.model import Layout, Update, save_update
from consortium.plan import Plan
from consortium.site.policy import Policy, parse_policy, read_policy, update_bytes

TASK = Digest(b"\7" * 32)
LAYOUT = Layout.of({"w": np.zeros((4, 5), np.float32)})


METRICS = (Metric("loss", False), Metric("accuracy", True))


def _plan(**sections: Any) -> Plan:
    return Plan(**{"federation": {"quorum": 3, "rounds": 10}, **sections})


# Scores go inside the masked update.
SCORED = _plan(
    selection={"target": 3},
    strategy={"clip": 1.0, "weight": "uniform"},
    evaluation={"gate": False, "bound": 10.0},
    security={"secure_aggregation": True},
)


def test_without_a_file_somebody_must_be_asked(tmp_path: Path) -> None:
    policy = read_policy(tmp_path / "policy.toml")
    assert policy == Policy() and policy.approve == "ask"
    assert not policy.approves(TASK)
    assert policy.objections(_plan(), LAYOUT) == []


def test_a_listed_task_needs_no_asking_and_others_do() -> None:
    policy = Policy(approve="listed", tasks=(TASK.hex(),))
    assert policy.approves(TASK)
    assert not policy.approves(Digest(b"\6" * 32))
    assert not Policy(approve="ask", tasks=(TASK.hex(),)).approves(TASK)


def test_a_policy_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    policy = Policy(
        approve="listed",
        tasks=(TASK.hex(),),
        may_leave=("update",),
        max_bytes_per_round=10_000,
        min_sites=4,
        max_rounds=20,
        epsilon_weekly=3.5,
        epsilon_monthly=15,
        epsilon_lifetime=40.25,
        delta=1e-6,
        dataset="heart",
        ledger="/srv/ledger",
    )
    policy.write(tmp_path / "policy.toml")
    assert read_policy(tmp_path / "policy.toml") == policy
    Policy().write(tmp_path / "policy.toml")
    assert read_policy(tmp_path / "policy.toml") == Policy()


@pytest.mark.parametrize(
    ("policy", "plan", "word"),
    [
        (Policy(may_leave=("weight", "scores")), _plan(), "updates"),
        (Policy(may_leave=("update", "scores")), _plan(), "weighs"),
        (Policy(may_leave=("update", "scores")), _plan(strategy={"name": "fednova"}), "steps"),
        (
            Policy(may_leave=("update", "scores")),
            _plan(strategy={"weight": "capped", "weight_cap": 10.0}),
            "weighs",
        ),
        (Policy(may_leave=("update", "weight")), _plan(), "scores"),
        (Policy(may_leave=("update", "weight")), SCORED, "scores"),
        (Policy(max_bytes_per_round=80), _plan(), "bytes"),
        (Policy(), _plan(federation={"quorum": 1}), "fewest"),
        (Policy(min_sites=4), _plan(), "fewest"),
        (Policy(max_rounds=9), _plan(), "rounds"),
    ],
)
def test_an_objection_says_what_is_wrong(policy: Policy, plan: Plan, word: str) -> None:
    assert any(word in objection for objection in policy.objections(plan, LAYOUT, METRICS))
    with pytest.raises(PolicyError) as caught:
        policy.check(plan, LAYOUT, METRICS)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("policy", "plan"),
    [
        (Policy(may_leave=("update", "scores")), _plan(strategy={"weight": "uniform"})),
        (Policy(may_leave=("update", "weight")), _plan(evaluation={"enabled": False})),
        (Policy(min_sites=3, max_rounds=10), _plan()),
        (Policy(min_sites=1), _plan(federation={"quorum": 1})),
        (Policy(max_bytes_per_round=update_bytes(_plan(), LAYOUT)), _plan()),
        (Policy(may_leave=("update", "scores"), masks="required"), SCORED),
        (Policy(max_bytes_per_round=update_bytes(SCORED, LAYOUT, METRICS)), SCORED),
    ],
)
def test_what_keeps_to_the_policy_passes(policy: Policy, plan: Plan) -> None:
    policy.check(plan, LAYOUT, METRICS)


@pytest.mark.parametrize(
    ("policy", "hint"),
    [
        (Policy(may_leave=("weight", "update")), "--set may_leave=update,weight,scores"),
        (Policy(may_leave=("scores", "weight")), "--set may_leave=update,weight,scores"),
        (Policy(min_sites=9, may_leave=("update", "weight")), "--set may_leave="),
        (Policy(min_sites=9), "consortium site policy    # shows"),
    ],
)
def test_the_remedy_for_a_missing_word_is_the_command_that_allows_it(
    policy: Policy, hint: str
) -> None:
    plan = _plan()
    with pytest.raises(PolicyError) as caught:
        policy.check(plan, LAYOUT, METRICS)
    assert hint in caught.value.hint
    objections = policy.objections(plan, LAYOUT, METRICS)
    assert hint in policy.remedy(objections, plan, LAYOUT, METRICS)


def test_scores_inside_a_masked_update_count_as_its_bytes() -> None:
    """One number a metric, and how many test records."""
    quiet = SCORED.model_copy(
        update={"evaluation": SCORED.evaluation.model_copy(update={"enabled": False})}
    )
    more = update_bytes(SCORED, LAYOUT, METRICS) - update_bytes(quiet, LAYOUT, METRICS)
    assert more == 4 * (len(METRICS) + 1)
    policy = Policy(max_bytes_per_round=update_bytes(quiet, LAYOUT))
    assert any("bytes" in one for one in policy.objections(SCORED, LAYOUT, METRICS))


@pytest.mark.parametrize("name", ["fedavg", "fednova", "scaffold"])
@pytest.mark.parametrize("weight", [1.0, 1 / 3, 1.2345678901234567e-300])
def test_no_update_is_larger_than_what_the_policy_compares(name: str, weight: float) -> None:
    plan = _plan(strategy={"name": name})
    form = plan.strategy.form(LAYOUT)
    update = Update(np.zeros(form.size, np.float32), weight, Digest(b"\1" * 32))
    size = len(save_update(update, form))
    assert size <= update_bytes(plan, LAYOUT) <= size + 40


def test_limits_of_the_budget_are_at_the_sites_own_delta() -> None:
    assert Policy().limits == Limits(1e-5, None, None, None)
    assert Policy(epsilon_monthly=15.0, delta=1e-6).limits == Limits(1e-6, None, 15.0, None)


# ---- the file -----------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('aprove = "listed"\n')
    with pytest.raises(UnknownKeyError) as caught:
        read_policy(tmp_path / "policy.toml")
    assert caught.value.hint == "did you mean approve?"
    assert caught.value.where == "policy.toml" and caught.value.exit_code == 3


@pytest.mark.parametrize(
    "values",
    [
        {"approve": "always"},
        {"tasks": ["abc"]},
        {"tasks": TASK.hex()},
        {"may_leave": ["records"]},
        {"min_sites": 0},
        {"min_sites": "3"},
        {"max_bytes_per_round": -1},
        {"max_rounds": 1.5},
        {"epsilon_weekly": 0.0},
        {"epsilon_monthly": float("inf")},
        {"epsilon_lifetime": float("nan")},
        {"epsilon_lifetime": "3.5"},
        {"delta": 1.0},
        {"delta": 0.0},
        {"dataset": ""},
        {"dataset": "a" * 49},
        {"dataset": "heart\n"},
        {"dataset": "../heart"},
        {"ledger": "ledger"},
    ],
)
def test_a_value_that_cannot_be_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(WrongTypeError) as caught:
        parse_policy(values)
    assert next(iter(values)) in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["approve = listed\n", "min_sites = " + "9" * 5000, "tasks = " + "[" * 5000],
    ids=["word", "digits", "depth"],
)
def test_what_is_not_toml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(PlanSyntaxError):
        read_policy(tmp_path / "policy.toml")

"""Scores inside masked sums: how large each can be, which follows from the plan, and what does not
go together with them.

A site adds, for every metric, its mean times the number of its test records, and that number. All
are cut to bounds that everybody knows, so that no sum can wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from consortium.core.terms import Metric
from consortium.errors import (
    ImpossiblePlanError,
    InternalError,
    PlanError,
    UnsupportedPlanError,
)
from consortium.plan.problem import Problem
from consortium.update.ring import bits_for

if TYPE_CHECKING:
    from consortium.plan.values import Plan

# Of a record, or of all of a site's, they are at least 0 and at most 1, by whatever task.
FRACTIONS = frozenset({"accuracy", "auroc", "f1"})
_SET_A_BOUND = "bound = 10.0 in [evaluation]    # larger values are cut"


def range_of(plan: Plan, metric: Metric) -> tuple[float, float]:
    """Where a site's mean of this metric is cut. Refuses one that nothing bounds."""
    if metric.name in FRACTIONS:
        return 0.0, 1.0
    bound = plan.evaluation.bound
    if bound is None:
        raise ImpossiblePlanError(_unbounded(metric.name), hint=_SET_A_BOUND)
    return -bound, bound


def score_bounds(plan: Plan, metrics: Sequence[Metric]) -> tuple[float, ...]:
    """The largest numbers that a site of a masked plan adds for its scores: a sum of each metric,
    and how many test records; none where the plan asks for no scores."""
    if not plan.has_scored_sums:
        return ()
    if not metrics:
        raise InternalError("which scores are in a sum follows from the task's metrics")
    cap = float(plan.evaluation.records_cap)
    return (*(range_of(plan, metric)[1] * cap for metric in metrics), cap)


def scores_problems(plan: Plan, most_sites: int | None) -> list[Problem]:
    """What keeps scores out of the sums of a masked plan that asks for them."""
    evaluation, found = plan.evaluation, []
    if not evaluation.enabled:
        return []
    if plan.has_noised_scores and plan.privacy.hides == "record":
        message = "scores that hide records have noise of each site, and masked sums have none yet"
        remedy = 'enabled = false, or test_records = "public" in [privacy]'
        found.append(_problem("enabled", message, remedy, UnsupportedPlanError))
    if evaluation.gate:
        message = (
            "under masks the score of a model is known one round after its publication, too late "
            "for a gate"
        )
        found.append(_problem("gate", message, "gate = false"))
    if evaluation.metric not in FRACTIONS and evaluation.bound is None:
        found.append(_problem("metric", _unbounded(evaluation.metric), _SET_A_BOUND))
    for key in sorted({"quorum", "deadline"} & evaluation.model_fields_set):
        message = f"{key} has no effect: under masks scores come with the updates"
        found.append(_problem(key, message, f"leave {key} out"))
    return found + _room(plan, most_sites)


def _room(plan: Plan, most_sites: int | None) -> list[Problem]:
    """Test records are counted exactly: their number is a level of the ring or less."""
    cap = plan.evaluation.records_cap
    most = cap if most_sites is None else (1 << (bits_for(most_sites) - 1)) - 1
    if cap <= most:
        return []
    message = f"the sum of {most_sites} sites has no room for {cap:,} test records of each"
    return [_problem("records_cap", message, f"records_cap = {most} or less")]


def _unbounded(name: str) -> str:
    return f"`{name}` is summed under masks, and nothing bounds it"


def _problem(
    key: str, message: str, remedy: str, kind: type[PlanError] = ImpossiblePlanError
) -> Problem:
    return Problem(("evaluation", key), message, remedy, kind)

"""Scores inside a masked sum, at both ends: what a site adds to its row of how the model does that
the round began from, and what a sum of rows says of it."""

from __future__ import annotations

from collections.abc import Sequence

from consortium.aggregate.columns import Source
from consortium.aggregate.weighed import sum_of
from consortium.core.terms import Metric
from consortium.plan.scores import range_of
from consortium.plan.values import Plan
from consortium.update.ring import Ring

Scores = tuple[list[float], int]  # (sum of each metric over the test records, how many)


def bounded_scores(plan: Plan, metrics: Sequence[Metric], scores: Scores) -> tuple[float, ...]:
    """What a site adds: of each metric the mean times the number of test records, and that number.
    A site with more records than the plan's cap counts as one with so many, and a mean beyond the
    plan's bounds as the bound. A site without test records adds zeros."""
    sums, records = scores
    count = min(records, plan.evaluation.records_cap)
    if not count:
        return (0.0,) * (len(metrics) + 1)
    told = []
    for metric, total in zip(metrics, sums, strict=True):
        low, high = range_of(plan, metric)
        told.append(min(max(total / records, low), high) * count)
    return (*told, float(count))


def scores_in(ring: Ring, rows: Sequence[Source], count: int) -> tuple[int, tuple[float, ...]]:
    """Over how many test records `count` members tried the model, and the sum of each metric. Both
    are exact sums of what was added; a number of records is a whole one, because the plan's cap
    leaves it room.

    A hostile member may have added anything. A sum that honest ones cannot have is no score, so
    that nobody can keep a round from its end.
    """
    if not ring.metrics:
        return 0, ()
    size = len(rows[0].values)
    found = sum_of(rows)(size - len(ring.metrics), size).tolist()
    *sums, records = found
    *bounds, cap = ring.metrics
    # A site's sum is at most its bound for each of its records; rounding adds less than a step.
    is_possible = 1 <= records <= count * cap and all(
        abs(total) <= bound / cap * records + count * step
        for total, bound, step in zip(sums, bounds, ring.metric_steps, strict=False)
    )
    if not is_possible:
        return 0, (0.0,) * len(sums)
    return round(records), tuple(sums)

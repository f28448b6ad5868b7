"""Federated feature statistics: a study of one round, like any other.

Each site sends three numbers a column, weighted by its records; their mean is the pooled
mean and spread. Nothing new travels and nothing new must be trusted: the study has a task
that sites approve, a quorum below which nothing comes out, and whatever protections its
plan asks for. What comes out is a small file that the real study's task reads.

Under masks the coordinator sees the pooled figures alone. What is masked has a fixed range, so
there the columns have public bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from consortium.core.codec import decode
from consortium.core.facts import CohortTrained, RoundClosed, UpdateAccepted
from consortium.crypto.secure_sum.graph import threshold_for
from consortium.data.bounds import ColumnBounds
from consortium.data.statistics import MOMENTS, Statistics, local_moments
from consortium.data.table import Doubles
from consortium.drive.engine import SimulatedSite
from consortium.drive.simulate import Run, simulate
from consortium.errors import (
    ImpossiblePlanError,
    InsufficientParticipantsError,
    QualityError,
)
from consortium.plan.security import SecuritySection
from consortium.plan.strategy import StrategySection
from consortium.plan.values import EvaluationSection, FederationSection, Plan, SelectionSection
from consortium.tasks import NumpyTask, Site, numpy_task

_NO_CLIP = 1e30
MIN_COHORT = 3  # of two sites, each could subtract its own and read the other's
Features = Callable[[Site], Any]  # a site's training features, (records, columns)


def statistics_task(
    features: Features,
    columns: Sequence[str],
    centre: Doubles | None = None,
    bounds: ColumnBounds | None = None,
) -> NumpyTask:
    """The task of the study. `features(site)` gives the training records' columns, NaN where
    a value is missing; `centre` a public typical value for each, for precision. With `bounds`, for
    a masked plan, no `centre` is needed."""
    shape = (len(columns),)

    def start(_: np.random.Generator) -> dict[str, Any]:
        if bounds is not None:
            return dict(bounds.start())
        return {name: np.zeros(shape, np.float64) for name in MOMENTS}

    def evaluate(_: Site, __: Mapping[str, Any]) -> tuple[dict[str, float], int]:
        return {"loss": 0.0}, 1  # there is nothing to judge: the plan evaluates nothing

    @numpy_task(start=start, evaluate=evaluate)
    def statistics(site: Site, _: dict[str, Any]) -> tuple[dict[str, Any], int]:
        values = np.asarray(features(site))
        if np.isnan(values).all(axis=0).any():
            # The figures of a column that one site alone has would be that site's own.
            raise QualityError(
                "a column has no value at all at this site, so it cannot hide among the others",
                hint="leave the column out of the statistics",
            )
        if bounds is not None:
            return dict(bounds.scaled_moments(values)), len(values)
        return dict(local_moments(values, centre)), len(values)

    return statistics


def statistics_plan(quorum: int = MIN_COHORT, name: str = "statistics") -> Plan:
    """One round with everybody, nothing evaluated; at least three sites."""
    _check_quorum(quorum)
    return Plan(
        federation=FederationSection(name=name, rounds=1, quorum=quorum),
        selection=SelectionSection(fraction=1.0),
        evaluation=EvaluationSection(enabled=False, gate=False),
        # A clip that nothing reaches: else a site whose columns have other units would count
        # as an outlier among the norms.
        strategy=StrategySection(clip=_NO_CLIP),
    )


def masked_statistics_plan(
    bounds: ColumnBounds, sites: int, quorum: int | None = None, name: str = "statistics"
) -> Plan:
    """The same with masked sums, of so many sites. They count alike: how many records each has is
    among what they add."""
    quorum = max(MIN_COHORT, threshold_for(sites)) if quorum is None else quorum
    _check_quorum(quorum)
    return Plan(
        federation=FederationSection(name=name, rounds=1, quorum=quorum),
        selection=SelectionSection(target=sites),
        evaluation=EvaluationSection(enabled=False, gate=False),
        strategy=StrategySection(clip=bounds.longest, weight="uniform"),
        security=SecuritySection(secure_aggregation=True),
    )


def _check_quorum(quorum: int) -> None:
    if quorum < MIN_COHORT:
        raise ImpossiblePlanError(
            f"statistics of fewer than {MIN_COHORT} sites would show each site's own",
            hint=f"quorum={MIN_COHORT}",
        )


def masked_statistics_of(run: Run, columns: Sequence[str], bounds: ColumnBounds) -> Statistics:
    """What a finished masked study found."""
    facts = [decode(record) for record in run.records]
    members = next(len(fact.members) for fact in facts if isinstance(fact, RoundClosed))
    return bounds.statistics(columns, run.tensors, members)


def statistics_of(run: Run, columns: Sequence[str], centre: Doubles | None = None) -> Statistics:
    """What a finished statistics study found."""
    facts = [decode(record) for record in run.records]
    trained = [fact for fact in facts if isinstance(fact, CohortTrained | UpdateAccepted)]
    records = sum(fact.weight for fact in trained if fact.weight is not None)
    return Statistics.of(columns, run.tensors, max(1, round(records)), centre)


def federated_statistics(
    sites: Sequence[SimulatedSite],
    features: Features,
    columns: Sequence[str],
    *,
    quorum: int = MIN_COHORT,
    centre: Doubles | None = None,
    bounds: ColumnBounds | None = None,
) -> Statistics:
    """Simulate the study here: the pooled mean and spread of each column. With `bounds`, as masked
    sums give them."""
    task = statistics_task(features, columns, centre, bounds)
    plan = statistics_plan(quorum)
    if bounds is not None:
        quorum = max(quorum, threshold_for(len(sites)))
        plan = masked_statistics_plan(bounds, len(sites), quorum)
    run = simulate(task, plan, sites, seed=0)
    if run.state.current == 0:
        lost = ", ".join(f"{name} ({why})" for name, why in run.history.rounds[-1].lost)
        raise InsufficientParticipantsError(
            f"fewer than {quorum} sites have a value in every column; lost: {lost}",
            hint="leave out the columns that a site does not have",
        )
    if bounds is not None:
        return masked_statistics_of(run, columns, bounds)
    return statistics_of(run, columns, centre)

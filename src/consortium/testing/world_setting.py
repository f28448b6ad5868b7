"""What a seed decides before anything happens: the plan, the crowd, and how bad the day is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from consortium.core.terms import (
    MINUTE_MS,
    PPM,
    SECOND_MS,
    Close,
    Comparison,
    Condition,
    Metric,
    Selection,
    Terms,
)

READY, REGION = "ready", "region"
_INTENSITIES = (0.4, 1.0, 1.0, 1.8)  # multiplies every rate of faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A federation and its weather."""

    terms: Terms
    sites: int
    has_hostile: bool  # the site on the last seat
    intensity: float
    steps: int  # events before the faults stop
    orders: int  # what the lead does besides watching
    backup: str  # an old backup of the log: "" never, "kept" for good, "undone" after a while


def draw_setting(rng: Random, terms: Terms | None, sites: int | None) -> Setting:
    """The setting of one seed. `terms` and `sites` are taken as given when they are."""
    count = sites or rng.choice((4, 5, 5, 6))
    return Setting(
        terms=terms or draw_terms(rng, count),
        sites=count,
        has_hostile=rng.random() < 0.5,
        intensity=rng.choice(_INTENSITIES),
        steps=rng.randrange(350, 700),
        orders=rng.choice((0, 1, 2, 3, 5)),
        backup=rng.choice(("", "", "", "", "", "", "undone", "undone", "kept")),
    )


def without_a_barrier(setting: Setting, rng: Random) -> Setting:
    """The same day for a federation whose sites do not wait for each other."""
    terms, sites = setting.terms, setting.sites
    quorum = rng.choice((1, 1, 2))
    buffered = replace(
        terms,
        rounds=rng.choice((3, 5, 8)),
        quorum=quorum,
        wait_for=rng.randrange(quorum, sites),
        overselect_ppm=PPM,
        close=Close.ALL_OR_DEADLINE,
        buffer=rng.choice((quorum, 2, 3)),
        max_staleness=rng.choice((0, 1, 2, 20)),
        discount_ppm=rng.choice((0, PPM // 2, PPM)),
        duration_ms=rng.choice((6, 10, 20)) * MINUTE_MS,
    )
    return replace(setting, terms=replace(buffered, target=rng.choice((0, sites - 1, sites))))


def draw_terms(rng: Random, sites: int) -> Terms:
    """Both closing rules, with and without evaluation, small and large quorums."""
    quorum = rng.choice((2, 2, max(2, sites - 2)))
    conditions = (Condition(READY, Comparison.EQUAL, True),) if rng.random() < 0.25 else ()
    has_evaluation = rng.random() < 0.5
    return Terms(
        rounds=rng.choice((1, 2, 3, 3)),
        quorum=quorum,
        wait_for=rng.randrange(quorum, sites),
        target=rng.choice((0, rng.randrange(quorum, sites + 1), sites)),
        fraction_ppm=rng.choice((PPM // 2, PPM)),
        overselect_ppm=rng.choice((PPM, PPM * 5 // 4, PPM * 3 // 2)),
        selection=rng.choice(list(Selection)),
        spread=(REGION,),
        conditions=conditions,
        duration_ms=rng.choice((4, 6, 10)) * MINUTE_MS,
        extension_ms=3 * MINUTE_MS,
        max_extensions=rng.choice((0, 1, 1, 2)),
        grace_ms=rng.choice((20 * SECOND_MS, MINUTE_MS)),
        retry_ms=MINUTE_MS,
        every_ms=rng.choice((0, 0, 10 * MINUTE_MS)),
        close=rng.choice(list(Close)),
        norm_factor=rng.choice((0, 10)),
        metrics=(Metric("loss", False), Metric("accuracy", True)) if has_evaluation else (),
        judged_by=rng.choice(("loss", "accuracy")) if has_evaluation else "",
        evaluation_quorum=rng.choice((1, 2)) if has_evaluation else 0,
        evaluation_ms=5 * MINUTE_MS,
        is_gated=rng.random() < 0.8,
    )

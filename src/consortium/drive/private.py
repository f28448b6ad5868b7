"""What a private plan does at a site beside training: noise on scores, and a look at delta."""

from __future__ import annotations

import math

from consortium.errors import ImpossiblePlanError, InternalError
from consortium.plan.privacy import SCORE_SENSITIVITY
from consortium.plan.values import Plan
from consortium.tasks import Inventory, Site
from consortium.update.noise import SMOOTH

Scores = tuple[list[float], int]


def noised_scores(plan: Plan, site: Site, scores: Scores) -> Scores:
    """How many test records there are and how many of them are right, with noise on both. Whole
    numbers with discrete noise: no low bit tells anything."""
    (right,), records = scores
    side = plan.privacy.side_noise
    if side is None or site.noise is None:
        raise InternalError("scores must not leave without their noise")
    # Whole noise with a little more of it is as good as continuous noise: see `update.noise`.
    deviation = math.hypot(side * SCORE_SENSITIVITY, SMOOTH)
    first, second = site.noise.discrete(2, deviation).tolist()
    told = max(1, records + first)
    within = min(max(round(right), 0), records)
    return [float(min(max(within + second, 0), told))], told


def refuse_open_scores(plan: Plan, inventory: Inventory) -> None:
    """Scores of a model with layers that stay at the site tell of the records that these were
    trained on. Only where records are hidden in training are they hidden there too."""
    is_open = plan.privacy.hides in ("site", "local") and plan.evaluation.enabled
    if is_open and inventory.private:
        raise ImpossiblePlanError(
            "scores would tell of the records that layers of the site's own were trained on, and "
            "noise on updates does not hide that",
            hint="enabled = false in [evaluation]",
        )


def check_delta(plan: Plan, site: Site, records: int) -> None:
    """Delta bounds how likely it is that a record is told as it is: it must be below one in as
    many records as there are."""
    section = plan.privacy
    if section.hides == "record" and section.delta * records >= 1:
        raise ImpossiblePlanError(
            f"site {site.name}: delta {section.delta:g} is not below one in its records",
            hint="a smaller delta in [privacy], such as 1e-6",
        )

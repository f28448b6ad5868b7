"""One thing in a plan that cannot be kept."""

from __future__ import annotations

from dataclasses import dataclass

from consortium.errors import ImpossiblePlanError, PlanError


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the plan that cannot be kept: the key it is about, a sentence, a remedy."""

    key: tuple[str, ...]
    message: str
    remedy: str
    kind: type[PlanError] = ImpossiblePlanError

"""One thing in a plan that cannot be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consortium.errors import ImpossiblePlanError, PlanError


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the plan that cannot be kept: the key it is about, a sentence, a remedy."""

    key: tuple[str, ...]
    message: str
    remedy: str
    kind: type[PlanError] = ImpossiblePlanError


def remedies(found: Sequence[Problem]) -> str:
    """That of the first, and a line for each of the others: to mend a plan once is enough."""
    first, *others = found
    also = [f"also, {'.'.join(one.key)}: {one.remedy}" for one in others]
    return "\n".join([first.remedy, *also])

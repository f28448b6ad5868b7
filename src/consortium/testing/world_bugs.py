"""Bugs that a `World` must find, each planted into the running code and taken out again.

They are the mistakes that distributed systems are made with: a reply before its commit, a
race without a fence, memory in place of a disk, a clock or a signature taken on trust. Bugs
of single rules, which need no faults to show, are the explorer's.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.testing import (
    world_bugs_budget,
    world_bugs_buffer,
    world_bugs_masks,
    world_bugs_protocol,
    world_bugs_stores,
)
from consortium.testing.patches import Plant


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug."""

    name: str
    plant: Plant
    is_buffered: bool | None = None  # True: only federations without a barrier have it
    has_budgets: bool = False  # only where rounds cost something
    is_masked: bool = False  # only where sums are secret


BUGS = (
    *(Bug(name, plant) for name, plant in world_bugs_stores.PLANTS),
    *(Bug(name, plant) for name, plant in world_bugs_protocol.PLANTS),
    *(Bug(name, plant, is_buffered=True) for name, plant in world_bugs_buffer.PLANTS),
    *(Bug(name, plant, has_budgets=True) for name, plant in world_bugs_budget.PLANTS),
    *(Bug(name, plant, is_masked=True) for name, plant in world_bugs_masks.PLANTS),
)

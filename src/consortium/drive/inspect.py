"""What of a task leaves a site and what stays, for people to read before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consortium.core.terms import Metric
from consortium.drive.engine import SimulatedSite, simulated_site
from consortium.drive.local import LocalWork
from consortium.model import Layout
from consortium.plan.noise import resolved
from consortium.plan.values import Plan
from consortium.tasks import Inventory, Task
from consortium.tensors import TensorSpec
from consortium.update.weigh import Weighting


def inspect(task: Task, data: Any = None, *, plan: Plan | None = None) -> None:
    """Print LEAVES and STAYS with their bytes. `data` is a site's, where the model's form
    depends on it; `plan` where the plan keeps layers private too."""
    plan = resolved(plan or Plan())
    print(inventory_text(inventory_of(task, data, plan), plan, plan.reported(task.metrics)))


def inventory_of(task: Task, data: Any, plan: Plan, name: str = "here") -> Inventory:
    """What leaves and what stays with this data under this plan."""
    site = simulated_site(SimulatedSite(name, data), 0, plan, 0, 0, "start")
    return LocalWork(task, Layout(()), plan).inventory(site)


def inventory_text(inventory: Inventory, plan: Plan, metrics: tuple[Metric, ...] = ()) -> str:
    """The inventory as a table, for a task that reports these metrics."""
    strategy, compression = plan.strategy, plan.compression
    lines = [f"LEAVES  every round, {_bytes(inventory.leaves)}", *_rows(inventory.leaves)]
    if plan.is_masked:
        masked = plan.form(Layout(inventory.leaves), 0, metrics).size_bytes
        among = "weight and scores" if plan.has_scored_sums else "the weight"
        lines.append(f"LEAVES  as {masked:,} bytes that are masked, {among} among them")
    if compression.is_on:
        packed = plan.form(Layout(inventory.leaves), 0).size_bytes
        lines.append(f"LEAVES  of these, {packed:,} bytes: {compression.in_words()}")
    if strategy.has_variates:
        lines.append("LEAVES  every round, as many bytes again: the change of the control variate")
    if strategy.is_normalised:
        lines.append("LEAVES  every round: how many steps local training took")
    if strategy.weighing().by is not Weighting.UNIFORM and not plan.is_masked:
        lines.append("LEAVES  every round: a weight made of how many records there are")
    if plan.has_noised_scores:
        lines.append("LEAVES  every round, with noise: how many test records, how many are right")
    elif plan.evaluation.enabled:
        where = ", masked with the update" if plan.has_scored_sums else ""
        lines.append(f"LEAVES  every round{where}: how many test records, the sums of the metrics")
    lines.append("STAYS   the records")
    if compression.has_feedback:
        left = _bytes(inventory.leaves)
        lines.append(f"STAYS   {left}: what compression left of an update, until it is sent")
    if inventory.private:
        lines += [f"STAYS   {_bytes(inventory.private)} that the site keeps for itself"]
        lines += _rows(inventory.private)
    if inventory.frozen:
        lines += [f"STAYS   {_bytes(inventory.frozen)} that nobody changes"]
        lines += _rows(inventory.frozen)
    return "\n".join(lines)


def _rows(specs: Sequence[TensorSpec]) -> list[str]:
    width = max((len(spec.name) for spec in specs), default=0)
    return [
        f"        {spec.name:<{width}}  {spec.dtype:<4} "
        f"{'x'.join(map(str, spec.shape)) or '1':>12}  {_bytes([spec]):>12}"
        for spec in specs
    ]


def _bytes(specs: Sequence[TensorSpec]) -> str:
    return f"{sum(spec.size_bytes for spec in specs):,} bytes"

"""The outbox of a site as its people see it."""

from __future__ import annotations

from consortium.cli.words import moment, short
from consortium.site.outbox import OutboxEntry, total_bytes


def table(made: list[OutboxEntry]) -> list[str]:
    """A line each, and what they are together."""
    has_costs = any(entry.cost is not None for entry in made)
    head = f"{'epsilon':<18}  " if has_costs else ""
    lines = [f"{'round':>5}  {'what':<8} {'bytes':>13}  {'made':<16}  {'heard':<5}  {head}digest"]
    lines += [
        f"{entry.round or '–':>5}  {entry.kind.value:<8} {entry.size_bytes:>13,}  "
        f"{moment(entry.at_ms):<16}  {_heard(entry):<5}  "
        f"{f'{_cost(entry):<18}  ' if has_costs else ''}{short(entry.digest.hex())}"
        for entry in made
    ]
    if has_costs:
        lines.append("epsilon is of each round by itself: consortium site status has the total")
    if any(entry.has_scores for entry in made):
        lines.append("updates have the scores of their round in them, under the same masks")
    if any(entry.is_late for entry in made):
        lines.append("late: not needed any more, enough others answered; or the round was over")
    return [*lines, f"{len(made)} entries, {total_bytes(made):,} bytes"]


def _heard(entry: OutboxEntry) -> str:
    return "late" if entry.is_late else "yes" if entry.told else "no"


def _cost(entry: OutboxEntry) -> str:
    if entry.cost is None:
        return "–"
    return f"{entry.cost:.4g} (delta {entry.delta:g})" if entry.cost else "with the update"


def as_json(entry: OutboxEntry) -> dict[str, object]:
    return {
        "round": entry.round,
        "what": entry.kind.value,
        "digest": entry.digest.hex(),
        "bytes": entry.size_bytes,
        "at_ms": entry.at_ms,
        "heard": entry.told,
        "is_late": entry.is_late,
        "cost": entry.cost,
        "delta": entry.delta,
        "has_scores": entry.has_scores,
    }

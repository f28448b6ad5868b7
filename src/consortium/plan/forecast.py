"""What the rounds of a private plan will cost, and how many of them its limits pay for.

Nothing here looks at an account: it is what would be if nobody else spent from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from consortium.plan.noise import resolved, total_costs
from consortium.plan.text import parse_duration_ms
from consortium.plan.values import Plan
from consortium.privacy.budget import windows_of


@dataclass(frozen=True, slots=True)
class Price:
    """ε of so many rounds, by the accountant that counts and, beside it, by RDP."""

    rounds: int
    epsilon: float
    rdp: float


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one limit pays for. `length_ms`: how far it looks back; None: for ever."""

    window: str
    limit: float
    length_ms: int | None
    rounds: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How many of the plan's rounds can be paid at all, and how long they take at least."""

    rounds: int
    lasts_ms: int


def prices(plan: Plan, counts: Iterable[int]) -> list[Price]:
    """Of so many rounds of a plan whose noise is known, the fewest first."""
    from consortium.privacy.accountant import epsilon, rdp_epsilon

    found, delta = [], plan.privacy.delta
    for count in sorted(set(counts)):
        costs = total_costs(plan, count)
        found.append(Price(count, epsilon(costs, delta), rdp_epsilon(costs, delta)))
    return found


def allowances(plan: Plan) -> list[Allowance]:
    """How many rounds each limit of the plan pays for, with an empty account."""
    from consortium.privacy.calibrate import rounds_for

    section = plan.privacy
    costs = total_costs(plan, 1)
    return [
        Allowance(one.name, one.limit, one.length_ms, rounds_for(costs, one.limit, section.delta))
        for one in windows_of(section.limits)
    ]


def pace(plan: Plan, given: Sequence[Allowance]) -> Pace:
    """When the last of the plan's rounds can be opened at the earliest, seen from the first. A
    round waits until as many as its window pays for are not in it any more."""
    sliding = [one for one in given if one.length_ms is not None]
    if any(not one.rounds for one in given):
        return Pace(0, 0)
    most = [plan.federation.rounds, *(one.rounds for one in given if one.length_ms is None)]
    every_ms, opened = parse_duration_ms(plan.federation.every), list[int]()
    for number in range(min(most)):
        earliest = [opened[-1] + every_ms if opened else 0]
        earliest += [
            opened[number - one.rounds] + (one.length_ms or 0)
            for one in sliding
            if number >= one.rounds
        ]
        opened.append(max(earliest))
    return Pace(len(opened), opened[-1] if opened else 0)


def with_target(plan: Plan, epsilon: float) -> Plan:
    """The plan as it would be with another ε, counted as the plan counts: of all rounds, or of
    one; and with the noise that this takes."""
    target = plan.privacy.target
    is_total = target is not None and target[1]
    changes = dict.fromkeys(("epsilon", "epsilon_per_round", "level"), None) | {
        "epsilon" if is_total else "epsilon_per_round": epsilon,
        "noise_multiplier": None,
        "side_noise": None,
    }
    section = plan.privacy.model_copy(update=changes)
    return resolved(plan.model_copy(update={"privacy": section}))

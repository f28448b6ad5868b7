"""Sites that do not wait for each other: the section, and what does not go together with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from consortium.plan.problem import Problem
from consortium.plan.section import Section

if TYPE_CHECKING:
    from consortium.plan.values import Plan


class AsynchronousSection(Section):
    """Rounds without a barrier: slow sites hold up nobody."""

    buffer: int = Field(
        default=0, ge=0, le=1_000_000, description="updates that move the model; 0: wait for sites"
    )
    max_staleness: int = Field(
        default=20, ge=0, le=1_000_000, description="versions that an update's model may be behind"
    )
    discount: float = Field(
        default=0.5,
        ge=0,
        le=10,
        description="a: an update s versions behind is scaled by (1 + s)^-a",
    )


def asynchronous_problems(plan: Plan) -> list[Problem]:
    """What cannot be kept where sites do not wait for each other."""
    section = plan.asynchronous
    if section.buffer == 0:
        idle = sorted(section.model_fields_set - {"buffer"})
        return [
            _problem(key, f"{key} has no effect without a buffer", "buffer = 4") for key in idle
        ]
    return [*_sizes(plan), *_closing(plan), *_strategy(plan)]


def _problem(key: str, message: str, remedy: str) -> Problem:
    return Problem(("asynchronous", key), message, remedy)


def _sizes(plan: Plan) -> list[Problem]:
    buffer, quorum, target = plan.asynchronous.buffer, plan.federation.quorum, plan.selection.target
    found = []
    if buffer < quorum:
        found.append(
            _problem(
                "buffer",
                f"a buffer of {buffer} is below quorum {quorum}: no model could be published",
                f"set buffer to {quorum} or more, or quorum to {buffer}",
            )
        )
    if target is not None and buffer > target:
        found.append(
            _problem(
                "buffer",
                f"{target} sites train at a time, and cannot fill a buffer of {buffer}",
                f"set buffer to {target} or less, or target to {buffer} or more",
            )
        )
    return found


def _closing(plan: Plan) -> list[Problem]:
    """What says otherwise when a round is full."""
    found = []
    if plan.round.close != "all_or_deadline":
        found.append(
            Problem(
                ("round", "close"),
                f'close = "{plan.round.close}" and buffer both say when a round is full',
                "take close out",
            )
        )
    if plan.selection.overselect != 1.0:
        found.append(
            Problem(
                ("selection", "overselect"),
                "overselect asks more sites than are waited for, and with a buffer nobody is "
                "waited for",
                "take overselect out, and set target to the sites that train at a time",
            )
        )
    return found


def _strategy(plan: Plan) -> list[Problem]:
    """What compares or corrects updates of one model: a buffer holds those of several."""
    strategy, found = plan.strategy, []
    for key, is_set, why in (
        ("variates", strategy.has_variates, "correct towards the state of one round's model"),
        ("normalise", strategy.is_normalised, "evens out the steps from one round's model"),
        ("anomalies", strategy.anomalies == "exclude", "compares updates of one round's model"),
    ):
        if is_set:
            named = key if key in strategy.model_fields_set else "name"
            what = key if named == key else f'name = "{strategy.name}"'
            found.append(
                Problem(
                    ("strategy", named),
                    f"{what} {why}, and a buffer holds updates of several",
                    'name = "fedavg"' if named == "name" else f"take {key} out, or buffer",
                )
            )
    return found

"""The cell of a site's task: what of this home it may reach, under the site's own policy."""

from __future__ import annotations

from pathlib import Path

from consortium.errors import IsolationError
from consortium.plan.text import parse_duration_ms
from consortium.plan.values import Plan
from consortium.site.home import SiteHome
from consortium.site.isolation.cell import Cell
from consortium.site.isolation.findings import Finding, findings, missing
from consortium.site.isolation.limits import machine_memory_bytes
from consortium.site.isolation.probe import probe
from consortium.site.policy import Policy, parse_size, read_policy
from consortium.site.scratch import Scratch

_SHARE = 0.8  # of the machine's memory: the agent and the system need some, too


def cell_of(
    home: SiteHome,
    policy: Policy,
    folder: Path,
    scratch: Scratch,
    also: tuple[Path, ...] = (),
) -> Cell:
    """It reads the task's folder, the site's records and its blobs, and what the policy or this
    job (`also`) adds; it writes what it makes, and what stays here."""
    records = [home.enrolment.data] if home.enrolment.data else []
    readable = [folder, home.blobs_folder, *records, *policy.readable, *also]
    return Cell(
        folder=str(folder),
        scratch=str(scratch.path),
        readable=tuple(str(path) for path in readable),
        writable=(str(scratch.made), str(home.states_folder)),
        secret=str(home.path),
        memory_bytes=memory_bytes(policy),
        is_closed=policy.isolation != "off",
    )


def memory_bytes(policy: Policy) -> int:
    """The most that a task may use."""
    if policy.memory is not None:
        return parse_size(policy.memory)
    return int(_SHARE * machine_memory_bytes())


def longest_s(policy: Policy, plan: Plan) -> float:
    """The longest that one piece of work in a round may take. Whoever still works when the
    longest round is over works for nobody."""
    timing = plan.round
    extensions = timing.max_extensions * parse_duration_ms(timing.extension)
    round_ms = parse_duration_ms(timing.duration) + extensions + parse_duration_ms(timing.grace)
    most_ms = max(round_ms, parse_duration_ms(plan.evaluation.deadline))
    if policy.time is not None:
        most_ms = min(most_ms, parse_duration_ms(policy.time))
    return most_ms / 1000


def refuse_if_open(policy: Policy, has: list[str], why: dict[str, str]) -> None:
    """Raise where the site demands what is not enforced. To be called with what the task's
    process says before it has loaded anything of the task."""
    if policy.isolation != "required":
        return
    for one in missing(findings(has, why)):
        raise IsolationError(f"{one.measure}: {one.found}", hint=one.todo)


def examine(home: SiteHome) -> list[Finding]:
    """Try every measure with a cell such as a task of this home would have."""
    policy, scratch = read_policy(home.policy_file), Scratch.new(home.path)
    try:
        cell = cell_of(home, policy, scratch.made, scratch)
        return probe(cell, home.key_file)
    finally:
        scratch.remove()

"""All planted bugs, and whether the explorer finds them: a checker that misses one is broken."""

from __future__ import annotations

from dataclasses import dataclass

from consortium.testing import (
    bugs_after_closing,
    bugs_before_closing,
    bugs_of_paying,
    bugs_of_scoring,
    bugs_secagg,
    bugs_without_barrier,
)
from consortium.testing.bugs_of_site import SiteBug
from consortium.testing.patches import Bug, planted
from consortium.testing.walk import Exploration, explore
from consortium.testing.walk_of_site import walk_of_site

BUGS: tuple[Bug, ...] = (
    *bugs_before_closing.BUGS,
    *bugs_after_closing.BUGS,
    *bugs_without_barrier.BUGS,
    *bugs_of_paying.BUGS,
    *bugs_secagg.BUGS,
    *bugs_of_scoring.BUGS,
)


@dataclass(frozen=True, slots=True)
class Catch:
    """What became of one planted bug; `rule` is None when no rule noticed it."""

    bug: str
    rule: str | None
    states: int
    trace: int  # inputs from the founding of the federation to the broken rule
    seconds: float


def hunt(bug: Bug) -> Catch:
    """Walk through the bug's federation with the bug in the core, to the first broken rule."""
    with planted(bug):
        seen = explore(bug.where.terms, bug.where.alphabet)
    return _caught(bug.name, seen)


def hunt_at_site(bug: SiteBug) -> Catch:
    """The same with a bug in a site's machine."""
    with planted(bug):
        seen = walk_of_site()
    return _caught(bug.name, seen)


def _caught(name: str, seen: Exploration) -> Catch:
    found = seen.violation
    rule, length = (found.rule, len(found.trace)) if found else (None, 0)
    return Catch(name, rule, seen.states, length, seen.seconds)

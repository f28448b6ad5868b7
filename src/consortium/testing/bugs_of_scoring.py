"""Planted bugs of scores that come inside sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consortium.core import ending, verdict
from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.state import Federation
from consortium.core.terms import Terms
from consortium.testing.federations import SCORED
from consortium.testing.patches import Bug, Facts, Patches, Wrapper, nothing


def _changed(patches: Patches, **changes: Any) -> None:
    """What a sum says is written down otherwise."""

    def summed(real: Wrapper, *args: Any) -> Any:
        facts: Facts = real(*args)
        return tuple(
            replace(fact, **changes) if isinstance(fact, f.BaseScored) else fact for fact in facts
        )

    patches.rule(i.Summed, summed)


def _score_the_next(patches: Patches) -> None:
    def summed(real: Wrapper, state: Federation, terms: Terms, item: i.Summed) -> Any:
        facts: Facts = real(state, terms, item)
        return tuple(
            replace(fact, version=fact.version + 1) if isinstance(fact, f.BaseScored) else fact
            for fact in facts
        )

    patches.rule(i.Summed, summed)


def _forget_scores(patches: Patches) -> None:
    def summed(real: Wrapper, *args: Any) -> Any:
        facts: Facts = real(*args)
        return tuple(fact for fact in facts if not isinstance(fact, f.BaseScored))

    patches.rule(i.Summed, summed)


def _stop_at_once(patches: Patches) -> None:
    """The first sum with a low loss ends the federation, before its model is published."""

    def summed(real: Wrapper, state: Federation, terms: Terms, item: i.Summed) -> Any:
        facts: Facts = real(state, terms, item)
        means = [fact.means for fact in facts if isinstance(fact, f.BaseScored)]
        ended = ending.finish(terms, 0, item.now_ms, 0, means[0]) if means else ()
        return (*facts, *ended)

    patches.rule(i.Summed, summed)


def _take_any_scores(patches: Patches) -> None:
    patches.attribute(verdict, "_check_scores", nothing)


def _never_converge(patches: Patches) -> None:
    patches.attribute(verdict, "_newest_means", lambda real, *args: ())


def _count_verdicts(patches: Patches) -> None:
    """A verdict without evidence counts as an improvement, and patience never ends."""

    def record(real: Wrapper, state: Federation, fact: f.Judged) -> None:
        real(state, fact)
        state.stale_rounds = 0

    patches.record(f.Judged, record)


BUGS = (
    Bug("a sum's score is taken for the candidate's", SCORED, _score_the_next),
    Bug("a sum's scores are not written down", SCORED, _forget_scores),
    Bug(
        "a sum's samples are lost",
        SCORED,
        lambda patches: _changed(patches, samples=0, is_improvement=False),
    ),
    Bug(
        "every version is an improvement",
        SCORED,
        lambda patches: _changed(patches, is_improvement=True),
    ),
    Bug("a low loss ends the federation in the middle of a round", SCORED, _stop_at_once),
    Bug("scores of other metrics are taken", SCORED, _take_any_scores),
    Bug("a low loss of the base ends nothing", SCORED, _never_converge),
    Bug("a verdict wears no patience out", SCORED, _count_verdicts),
)

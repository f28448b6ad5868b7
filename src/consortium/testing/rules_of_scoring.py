"""What must hold of scores that come inside sums: they are of the model that a round begins from,
they are written once and as they came, and what follows from them follows one round later.

As in `rules` and `causes`, all is worked out again from the requirements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from consortium.core import facts as f
from consortium.core import inputs as i
from consortium.core.state import Federation
from consortium.core.tables import Step
from consortium.core.terms import LOSS, Terms
from consortium.errors import InvalidInputError
from consortium.testing.transitions import Change


def _score(terms: Terms, fact: f.BaseScored, name: str) -> float:
    at = [metric.name for metric in terms.metrics].index(name)
    return fact.sums[at] / fact.samples


def _is_better(terms: Terms, new: float, old: float) -> bool:
    metric = next(one for one in terms.metrics if one.name == terms.judged_by)
    gain = new - old if metric.higher_is_better else old - new
    return gain > terms.min_delta


# ---- facts --------------------------------------------------------------------------


def a_score_is_of_the_base(change: Change, fact: f.BaseScored) -> bool:
    """A sum's scores are written down as they came, once, of the version that the round began
    from, and only where the plan asks for them."""
    item, was = change.item, change.was
    if not isinstance(item, i.Summed) or was.step is not Step.SUMMING or was.scored is not None:
        return False
    is_told = (item.samples, item.scores) == (fact.samples, fact.sums)
    is_of_base = fact.version == change.before.current == was.version
    return is_told and is_of_base and change.terms.has_scored_sums


def an_improvement_is_one(change: Change, fact: f.BaseScored) -> bool:
    """A version improves if it is better than the best before it; the first one does. Then
    patience begins anew. A version without a score changes nothing."""
    before, after, terms = change.before, change.after, change.terms
    if not fact.samples:
        is_same = (before.best_score, before.stale_rounds) == (after.best_score, after.stale_rounds)
        return is_same and not fact.is_improvement
    new, best = _score(terms, fact, terms.judged_by), before.best_score
    is_better = best is None or _is_better(terms, new, best)
    expected = (new, 0) if is_better else (best, before.stale_rounds + 1)
    is_noted = (after.best_score, after.stale_rounds) == expected
    return is_noted and fact.is_improvement is is_better


def a_sum_tells_its_scores(change: Change, fact: f.Aggregated) -> bool:
    """No sum is taken without the scores that are in it, and none asks members for others."""
    if not change.terms.has_scored_sums:
        return True
    has_told = any(isinstance(other, f.BaseScored) for other in change.facts)
    return has_told and fact.evaluate_by_ms == 0


SCORING_FACT_RULES: dict[type[Any], tuple[Callable[[Change, Any], bool], ...]] = {
    f.BaseScored: (a_score_is_of_the_base, an_improvement_is_one),
    f.Aggregated: (a_sum_tells_its_scores,),
}


# ---- changes ------------------------------------------------------------------------


def scores_end_a_federation_one_round_later(change: Change) -> bool:
    """When a model is published: the federation is done if its base had a loss below the
    threshold, or if as many bases as patience allows were no better; and for no other score."""
    terms = change.before.terms
    is_published = any(isinstance(fact, f.ModelPublished) for fact in change.facts)
    if terms is None or not terms.has_scored_sums or not is_published:
        return True
    scored = change.was.scored
    assert scored is not None
    is_low = (
        terms.stop_below is not None
        and scored.samples > 0
        and _score(terms, scored, LOSS) < terms.stop_below
    )
    is_stale = 0 < terms.patience <= change.before.stale_rounds
    ends = [fact.reason for fact in change.facts if isinstance(fact, f.FederationFinished)]
    if is_low:
        return ends == [f.Finish.CONVERGED]
    if is_stale:
        return ends == [f.Finish.NO_IMPROVEMENT]
    return ends in ([], [f.Finish.ROUNDS_DONE])


def patience_goes_by_scores(change: Change) -> bool:
    """Nothing but a score wears patience out; what begins anew starts the count afresh."""
    before, after = change.before, change.after
    if before.terms is None or not before.terms.has_scored_sums:
        return True
    afresh = (f.PlanAdopted, f.ModelInstalled, f.RolledBack)
    is_moved = any(isinstance(fact, (f.BaseScored, *afresh)) for fact in change.facts)
    return is_moved or before.stale_rounds == after.stale_rounds


def what_a_sum_said_stays(change: Change) -> bool:
    """Once a sum's scores are on record nothing changes them."""
    if change.before.round is None or change.was.scored is None:
        return True
    return change.became.scored == change.was.scored


SCORING_CHANGE_RULES: tuple[Callable[[Change], bool], ...] = (
    scores_end_a_federation_one_round_later,
    patience_goes_by_scores,
    what_a_sum_said_stays,
)


# ---- replies ------------------------------------------------------------------------


def sums_are_heard(state: Federation, item: i.Summed, reply: Exception | None) -> bool:
    """The result of a sum over the present members is never ignored, unless its scores are not
    those that the plan asks for."""
    present, terms = state.round, state.terms
    is_here = present is not None and present.number == item.round
    if present is None or terms is None or not is_here or present.step is not Step.SUMMING:
        return reply is None
    if item.count != len(present.members):
        return reply is None
    has_sense = item.samples == 0 and not item.scores
    if terms.has_scored_sums:
        is_finite = all(math.isfinite(total) for total in item.scores)
        has_sense = item.samples >= 0 and len(item.scores) == len(terms.metrics) and is_finite
    return not has_sense and isinstance(reply, InvalidInputError)


SCORING_REPLY_RULES: dict[type[Any], tuple[Callable[[Federation, Any, Any], bool], ...]] = {
    i.Summed: (sums_are_heard,),
}

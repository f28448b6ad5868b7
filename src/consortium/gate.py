"""The gate: whether a candidate replaces the model.

The coordinator has no data, so it weighs what the members measured. A candidate must
come within 5 % of the base it was trained from, and within 10 % of the best of the last
five versions: the first rule alone would let the model slide down a little every round.
"""

from __future__ import annotations

from dataclasses import dataclass

from consortium.core.duties import Judge
from consortium.core.facts import Outcome
from consortium.core.terms import PPM


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome and the sentence that explains it."""

    outcome: Outcome
    reason: str


def judge(duty: Judge) -> Judgement:
    """The outcome for a candidate that has its layout and is finite."""
    terms = duty.terms
    if not terms.is_gated:
        return Judgement(Outcome.ACCEPTED, "the plan has no gate")
    if duty.evaluations < terms.evaluation_quorum:
        needed = terms.evaluation_quorum
        return Judgement(
            Outcome.UNJUDGED, f"{duty.evaluations} members evaluated it; {needed} are needed"
        )
    if not duty.candidate:
        return Judgement(Outcome.ACCEPTED, "the plan evaluates nothing")
    index = terms.metric_index(terms.judged_by)
    metric = terms.metrics[index]
    sign = 1.0 if metric.higher_is_better else -1.0
    score, base = sign * duty.candidate[index], sign * duty.base[index]
    if score < _floor(base, terms.gate_base_ppm):
        return Judgement(Outcome.KEPT, f"{metric.name} is worse than the base model's")
    best = max((sign * value for value in duty.recent), default=base)
    if score < _floor(best, terms.gate_best_ppm):
        return Judgement(Outcome.KEPT, f"{metric.name} is worse than the best lately")
    return Judgement(Outcome.ACCEPTED, f"{metric.name} holds")


def _floor(score: float, ratio_ppm: int) -> float:
    """`ratio` × score for scores above zero; as far below it for losses and scores below."""
    return score - abs(score) * (PPM - ratio_ppm) / PPM

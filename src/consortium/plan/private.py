"""What a private plan does with the rest of its sections: settles what it leaves open, refuses what
would undo it, and says in words what it promises.

What is left open is settled so that nothing leaves which no mechanism covers: sites count alike,
because how many records they have is private, and nobody tells scores unless they are noised or
about records that are said to be public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from consortium.plan.privacy import BOUNDED_METRIC, PRESETS, PrivacySection
from consortium.plan.problem import Problem
from consortium.plan.section import Section
from consortium.update.weigh import Weighting

if TYPE_CHECKING:
    from consortium.plan.strategy import StrategySection
    from consortium.plan.values import EvaluationSection, Plan

Settled = TypeVar("Settled", bound=Section)


def settled_strategy(strategy: StrategySection, privacy: PrivacySection) -> StrategySection:
    """With weights and a clip where the plan says nothing of them. Local noise clips by itself:
    what leaves is far longer, and the coordinator must not refuse it for that."""
    changes: dict[str, object] = {}
    if strategy.weight is None:
        changes["weight"] = "uniform"
    if strategy.clip is None and privacy.hides == "site":
        changes["clip"] = privacy.clip
    return _changed(strategy, changes)


def settled_evaluation(evaluation: EvaluationSection, privacy: PrivacySection) -> EvaluationSection:
    """Off, where scores would leave as they are and nobody has asked for them. Scores with noise
    on them are for people to look at: one lucky draw would keep every later model out."""
    is_asked = {"enabled", "metric"} & evaluation.model_fields_set
    if privacy.test_records == "public" or not evaluation.enabled:
        return evaluation
    if is_asked:
        return _changed(evaluation, {"gate": False})
    return _changed(evaluation, {"enabled": False, "gate": False})


def _changed(section: Settled, changes: dict[str, object]) -> Settled:
    """With these values, but not as if somebody had set them: the same plan with other keys of
    [privacy] is settled anew."""
    if not changes:
        return section
    made = section.model_copy(update=changes)
    object.__setattr__(made, "__pydantic_fields_set__", set(section.model_fields_set))
    return made


# ---- what does not go together ------------------------------------------------------


def privacy_problems(plan: Plan) -> list[Problem]:
    """Everything that would break the promise, or leave it open."""
    section = plan.privacy
    if not section.is_on:
        return _idle(section)
    found = [*_promise(section), *_delta(plan), *_sampling(section)]
    found += _scores(plan)
    found += _central(plan) if section.hides == "site" else _at_sites(plan)
    return found


def _problem(key: str, message: str, remedy: str, section: str = "privacy") -> Problem:
    return Problem((section, key), message, remedy)


def _idle(section: PrivacySection) -> list[Problem]:
    """Whoever writes the section wants to be protected."""
    keys = sorted(section.model_fields_set - {"unit", "preset"})
    if not keys or section.unit == "none":
        return []
    return [_problem(keys[0], "[privacy] does not say what is hidden", 'unit = "record"')]


def _promise(section: PrivacySection) -> list[Problem]:
    found, given = [], PRESETS[section.preset]
    if section.target is None and section.noise_multiplier is None:
        message = "[privacy] does not say how much may be learnt"
        found.append(_problem("unit", message, "epsilon = 4.0, the total of all rounds"))
    told = ("epsilon", "epsilon_per_round", "level")
    ways = [key for key in told if getattr(section, key) is not None]
    if len(ways) > 1:
        message = f"{ways[0]} and {ways[1]} say the same thing in two ways"
        found.append(_problem(ways[1], message, "keep one of the two"))
    if given.unit not in ("none", section.hides):
        message = f'preset = "{section.preset}" hides one {given.unit}'
        found.append(_problem("unit", message, "take unit or preset out"))
    limits = section.limits
    given_limits = ("weekly", limits.weekly), ("monthly", limits.monthly)
    for name, limit in (*given_limits, ("lifetime", section.lifetime)):
        if section.target is not None and not section.target[1] and limit is not None:
            if section.target[0] > limit:
                message = f"one round costs {section.target[0]:g}, and {name} is {limit:g}"
                found.append(_problem(name, message, f"{name} = {section.target[0]:g} or more"))
    return found


def _delta(plan: Plan) -> list[Problem]:
    """Delta bounds how likely it is that somebody is told as they are: below one in all of them."""
    section = plan.privacy
    count = section.records if section.hides == "record" else plan.selection.target
    if count is None or section.delta * count < 1:
        return []
    what = "records" if section.hides == "record" else "sites"
    message = f"delta {section.delta:g} is not below one in {count:,} {what}"
    return [_problem("delta", message, f"delta = {0.1 / count:.0e}")]


def _sampling(section: PrivacySection) -> list[Problem]:
    if section.hides == "record":
        return []
    for_records = ("sampling_rate", "steps", "records", "side_noise")
    return [
        _problem(key, f'{key} has no effect with unit = "{section.hides}"', 'unit = "record"')
        for key in for_records
        if getattr(section, key) is not None
    ]


def _scores(plan: Plan) -> list[Problem]:
    """Scores are made of test records, which are as private as the others."""
    section, evaluation = plan.privacy, plan.evaluation
    if not evaluation.enabled:
        return []
    if section.hides != "record" and plan.personal.name != "none":
        return [
            _problem(
                "name",
                "scores of personal models would tell of the records that they were fitted to, and "
                "noise on updates does not hide that",
                "enabled = false in [evaluation], or take [personal] out",
                "personal",
            )
        ]
    if section.test_records == "public":
        return []
    if section.hides != "record":
        return [
            _problem(
                "enabled",
                _bare_scores(plan),
                'enabled = false, or test_records = "public" in [privacy]',
                "evaluation",
            )
        ]
    if plan.stop.patience:
        message = "patience would look at scores with noise on them, and stop by chance"
        return [_problem("patience", message, "leave patience out", "stop")]
    if evaluation.metric != BOUNDED_METRIC:
        return [
            _problem(
                "metric",
                f"`{evaluation.metric}` has no bound on what one record does to it, so no noise "
                "can hide a record in it",
                f'metric = "{BOUNDED_METRIC}", or test_records = "public" in [privacy]',
                "evaluation",
            )
        ]
    return []


def _bare_scores(plan: Plan) -> str:
    """Masks hide a site's own scores, but no noise comes on their sum."""
    if plan.is_masked:
        return (
            "the sum of all sites' scores would be seen as it is: the noise is on updates alone, "
            "and does not hide what one site adds to it"
        )
    return "scores would leave as they are, and one site can move them without bound"


def _central(plan: Plan) -> list[Problem]:
    strategy, found = plan.strategy, []
    if strategy.weighing().by not in (Weighting.UNIFORM, Weighting.CAPPED):
        message = "one site could move the sum without bound by how many records it claims"
        found.append(_problem("weight", message, 'weight = "uniform" or "capped"', "strategy"))
    if strategy.is_robust or strategy.anomalies == "exclude":
        what = strategy.rule if strategy.is_robust else "the screen"
        message = f"one site can move what `{what}` gives by more than noise on a sum can hide"
        found.append(_problem("rule", message, 'rule = "mean", anomalies = "keep"', "strategy"))
    found += _one_vector(plan)
    if plan.selection.target is None:
        message = "the sum is divided by a fixed number of sites, which the plan must say"
        found.append(_problem("target", message, "target = 10", "selection"))
    return found


def _at_sites(plan: Plan) -> list[Problem]:
    strategy, found = plan.strategy, []
    if strategy.weighing().by is not Weighting.UNIFORM:
        message = "a weight tells how many records a site has"
        remedy = 'weight = "uniform"' + (", no weight_cap" if strategy.weight_cap else "")
        found.append(_problem("weight", message, remedy, "strategy"))
    if plan.asynchronous.buffer:
        message = "who trains without a barrier spends at other times than rounds are paid for"
        found.append(_problem("buffer", message, 'unit = "site" in [privacy]', "asynchronous"))
    if plan.privacy.hides == "local":
        found += _one_vector(plan)
    return [*found, *_training(plan)]


def _training(plan: Plan) -> list[Problem]:
    if plan.privacy.hides != "record":
        return []
    found, training = [], plan.training
    if plan.strategy.is_normalised:
        message = "normalise sends how many steps a site took, and here all take as many"
        found.append(_problem("name", message, 'name = "fedavg"', "strategy"))
    for key in ("max_seconds", "grad_clip"):
        if getattr(training, key) is not None:
            message = f"{key} depends on single records or on time, which may tell of them"
            found.append(_problem(key, message, f"leave {key} out", "training"))
    return found


def _one_vector(plan: Plan) -> list[Problem]:
    """What is clipped and noised is one step, of the length that the noise is made for."""
    strategy, section, found = plan.strategy, plan.privacy, []
    if strategy.has_variates or strategy.is_normalised:
        message = f"`{strategy.name}` sends more than a step, and the clip bounds one step"
        found.append(_problem("name", message, 'name = "fedavg"', "strategy"))
    if strategy.clip is not None and section.hides == "local":
        message = "noise comes after the clip, and makes an update longer than that"
        found.append(_problem("clip", message, "leave it out here: [privacy] has one", "strategy"))
    elif strategy.clip not in (None, section.clip):
        message = f"clip is {strategy.clip:g} here and {section.clip:g} in [privacy]"
        found.append(_problem("clip", message, "leave it out here", "strategy"))
    if plan.compression.has_feedback:
        message = "what was held back would be sent later, beyond the clip"
        remedy = "error_feedback = false"
        found.append(_problem("error_feedback", message, remedy, "compression"))
    return found

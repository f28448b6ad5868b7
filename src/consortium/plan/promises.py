"""What a plan promises about privacy, in sentences for people: never ε alone, but ε, δ, the unit,
what is compared with what, against whom it holds, and who computed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consortium.plan.privacy import PRESETS, SCORE_SENSITIVITY, PrivacySection

if TYPE_CHECKING:
    from consortium.plan.values import Plan

HIDDEN = {
    "record": "one record of a site (present or not)",
    "site": "one site (taking part or not)",
    "local": "one update of a site (this one or any other that it could have sent)",
}
ADJACENCY = {
    "record": "add or remove one record",
    "site": "add or remove one site",
    "local": "replace one update",
}
AGAINST = {
    "record": "everybody who sees updates or models, the coordinator included",
    "site": "everybody who sees models; not against the coordinator, who sees the updates",
    "local": "everybody who sees updates or models, the coordinator included",
}


def promises(plan: Plan) -> list[str]:
    """What this plan hides, and what it does not."""
    section = plan.privacy
    if not section.is_on:
        return [
            "NOT PROTECTED: there is no differential privacy and no secure aggregation in "
            "this plan."
        ]
    return [_promise(plan), *_how(plan), *_limits(plan), *_not(plan)]


SIMULATED = "simulated noise: protects nobody"


def simulated_promises(plan: Plan) -> list[str]:
    """What a simulation must say besides: its noise follows from the seed, and whoever has the
    seed can take it away again."""
    if not plan.privacy.is_on:
        return []
    return [f"SIMULATED: {SIMULATED}. It comes from the seed; a real run draws it in secret."]


def _promise(plan: Plan) -> str:
    section = plan.privacy
    if section.target is None:
        much = f"noise multiplier {section.noise_multiplier:g}"
    else:
        epsilon, is_total = section.target
        over = f"all {plan.federation.rounds} rounds together" if is_total else "one round"
        much = f"epsilon {epsilon:g} at delta {section.delta:g} for {over}"
    return (
        f"PROTECTED: {HIDDEN[section.hides]}, by differential privacy: {much}; "
        f"against {AGAINST[section.hides]}; accountant: {_accountant(section)}."
    )


def _accountant(section: PrivacySection) -> str:
    """Who computes ε, as `privacy.accountant` does it."""
    is_closed = section.hides != "record" or section.rate == 1
    return "closed form" if is_closed else "PLD (dp-accounting), or RDP where that is lower"


def _how(plan: Plan) -> list[str]:
    section, noise = plan.privacy, plan.privacy.noise_multiplier
    twice = "twice " if section.hides == "local" else ""
    much = f"noise of {noise:g} times {twice}that" if noise else "as much noise as that takes"
    if section.hides != "record":
        where = "at the site" if section.hides == "local" else "to the sum, at the coordinator"
        return [f"HOW: every update is clipped to norm {section.clip:g}; {much} is added {where}."]
    steps = section.steps_of(plan.training.epochs)
    divisor = "its own number of records, noised" if section.records is None else section.records
    return [
        f"HOW: DP-SGD at the site, {steps:,} steps a round: a record is looked at with chance "
        f"{section.rate:g} a step, its gradient is clipped to norm {section.clip:g}, {much}; "
        f"steps are divided by {section.rate:g} of {divisor}."
    ]


def _limits(plan: Plan) -> list[str]:
    limits = plan.privacy.limits
    told = [
        f"{limit:g} {name}"
        for name, limit in (
            ("in any 7 days", limits.weekly),
            ("in any 30 days", limits.monthly),
            ("ever", limits.lifetime),
        )
        if limit is not None
    ]
    if not told:
        return ["BUDGET: nothing limits how much rounds may spend together."]
    return [
        f"BUDGET: at most epsilon {', '.join(told)}. What is spent in 7 or 30 days limits the "
        "pace; what was learnt is learnt for ever."
    ]


def _scores(section: PrivacySection) -> str:
    noise = section.side_noise
    much = "noise" if noise is None else f"noise of {noise * SCORE_SENSITIVITY:.3g} on each"
    return (
        f"SCORES: they leave as two counts, of test records and of right answers, with {much}, "
        "which is part of the promise. Where a site has few test records they say little, so no "
        "gate goes by them."
    )


def _not(plan: Plan) -> list[str]:
    section, found = plan.privacy, list[str]()
    if section.hides == "record":
        found.append(
            "NOT PROTECTED: whether a site takes part; a person with records at several sites, or "
            "with several records, is protected that many times less."
        )
    if section.hides == "site":
        found.append(
            "NOT PROTECTED: a site from the coordinator; there is no secure aggregation in this "
            "plan."
        )
    if plan.evaluation.enabled:
        if section.test_records == "public":
            found.append("NOT PROTECTED: test records, which the plan says are public.")
        else:
            found.append(_scores(section))
    elif PRESETS[section.preset].unit == "none" or not plan.evaluation.gate:
        found.append("SCORES: none leave, so a model is judged by its form alone.")
    return found

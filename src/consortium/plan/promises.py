"""What a plan promises about privacy, in sentences for people: never ε alone, but ε, δ, the unit,
what is compared with what, against whom it holds, and who computed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consortium.plan.privacy import PRESETS, SCORE_SENSITIVITY, PrivacySection
from consortium.plan.security import honest_sites, is_full

if TYPE_CHECKING:
    from consortium.plan.values import Plan

HIDDEN = {
    "record": "one record of a site (present or not)",
    "site": "one site (taking part or not)",
    "local": "one update of a site (this one or any other that it could have sent)",
    "contribution": "what one site adds to a sum (its update, or nothing in its place)",
}
ADJACENCY = {
    "record": "add or remove one record",
    "site": "add or remove one site",
    "local": "replace one update",
    "contribution": "replace one site's update by zeros",
}
AGAINST = {
    "record": "everybody who sees updates or models, the coordinator included",
    "site": "everybody who sees models; not against the coordinator, who sees the updates",
    "local": "everybody who sees updates or models, the coordinator included",
    "contribution": "everybody who sees sums or models, the coordinator included, together with as "
    "many sites as the plan says may collude",
}


def promises(plan: Plan) -> list[str]:
    """What this plan hides, and what it does not."""
    section = plan.privacy
    if not section.is_on and plan.is_masked:
        return [
            "NOT PROTECTED: there is no differential privacy in this plan: nothing bounds what "
            "sums and models tell of a site or a record."
        ]
    if not section.is_on:
        return [
            "NOT PROTECTED: there is no differential privacy and no secure aggregation in "
            "this plan."
        ]
    return [_promise(plan), *_how(plan), *_limits(plan), *_not(plan)]


SIMULATED = "simulated noise: protects nobody"


def simulated_promises(plan: Plan) -> list[str]:
    """What a simulation must say besides: nothing is masked, and its noise follows from the seed,
    so that whoever has the seed can take it away again."""
    found = []
    if plan.is_masked:
        found.append(
            "SIMULATED: there are no masks here, because they cancel exactly in the sum. How "
            "numbers are rounded, summed and divided is what real sites and a coordinator do, bit "
            "for bit."
        )
    if plan.privacy.is_on:
        found.append(
            f"SIMULATED: {SIMULATED}. It comes from the seed; a real run draws it in secret."
        )
    return found


def _promise(plan: Plan) -> str:
    section = plan.privacy
    if section.target is None:
        much = f"noise multiplier {section.noise_multiplier:g}"
    else:
        epsilon, is_total = section.target
        over = f"all {plan.federation.rounds} rounds together" if is_total else "one round"
        much = f"epsilon {epsilon:g} at delta {section.delta:g} for {over}"
    return (
        f"PROTECTED: {HIDDEN[plan.unit]}, by differential privacy: {much}; "
        f"against {_against(plan)}; accountant: {_accountant(section)}."
    )


def _against(plan: Plan) -> str:
    if plan.is_masked and plan.unit == "site":
        return "everybody who sees models; not against the coordinator, who sees the exact sum"
    if plan.has_noise_shares and not is_full(plan):
        # One that lies may see sums of fewer sites, with less noise.
        return f"{AGAINST[plan.unit]}, while the coordinator keeps to the protocol"
    return AGAINST[plan.unit]


def _accountant(section: PrivacySection) -> str:
    """Who computes ε, as `privacy.accountant` does it."""
    is_closed = section.hides != "record" or section.rate == 1
    return "closed form" if is_closed else "PLD (dp-accounting), or RDP where that is lower"


def _how(plan: Plan) -> list[str]:
    section, noise = plan.privacy, plan.privacy.noise_multiplier
    twice = "twice " if section.hides == "local" else ""
    much = f"noise of {noise:g} times {twice}that" if noise else "as much noise as that takes"
    if plan.has_noise_shares:
        return [_shares(plan, much)]
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


def _shares(plan: Plan, much: str) -> str:
    """Who makes the noise, and what is taken on trust."""
    quorum, honest = plan.federation.quorum, honest_sites(plan)
    return (
        f"HOW: every site clips its update to norm {plan.privacy.clip:g} and adds a share of the "
        f"noise before it masks it. The shares of {honest} sites make {much}: of the "
        f"{quorum} that are summed at least, {quorum - honest} may tell theirs to the coordinator. "
        "Of more sites there is more noise. That the others clip and add theirs is taken on trust."
    )


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


def _trusted(plan: Plan) -> str:
    if plan.is_masked:
        return (
            "NOT PROTECTED: a site from a coordinator that leaves the noise away: it sees the "
            'exact sum of every round. With noise_at = "sites" it does not.'
        )
    return (
        "NOT PROTECTED: a site from the coordinator; there is no secure aggregation in this plan."
    )


def _not(plan: Plan) -> list[str]:
    section, found = plan.privacy, list[str]()
    if section.hides == "record":
        found.append(
            "NOT PROTECTED: whether a site takes part; a person with records at several sites, or "
            "with several records, is protected that many times less."
        )
    if plan.has_noise_shares:
        found.append("NOT PROTECTED: whether a site takes part.")
    elif section.hides == "site":
        found.append(_trusted(plan))
    if plan.evaluation.enabled:
        if section.test_records == "public":
            found.append("NOT PROTECTED: test records, which the plan says are public.")
        else:
            found.append(_scores(section))
    elif PRESETS[section.preset].unit == "none" or not plan.evaluation.gate:
        found.append("SCORES: none leave, so a model is judged by its form alone.")
    return found

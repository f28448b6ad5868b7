"""What does not fit together in a plan, and what a plan does and does not protect.

Each finding is a sentence and a remedy. `guarantees` is shown to people before a study
starts: it must never promise what the plan does not do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from consortium.plan.asynchronous import asynchronous_problems
from consortium.plan.check_security import security_problems
from consortium.plan.check_strategy import strategy_problems
from consortium.plan.compression import compression_problems
from consortium.plan.private import privacy_problems
from consortium.plan.problem import Problem
from consortium.plan.promises import promises
from consortium.plan.security import masked_sentences
from consortium.plan.text import parse_duration_ms
from consortium.update.weigh import Weighting

if TYPE_CHECKING:
    from consortium.plan.values import Plan


def problems(plan: Plan) -> list[Problem]:
    """Impossible combinations in the plan, of the first kind that there is: with those gone, others
    may be gone, too, or have other remedies. An empty list when it can be kept."""
    kinds: tuple[Callable[[Plan], list[Problem]], ...] = (
        _sizes,
        _times,
        _choices,
        _stopping,
        security_problems,  # first: under masks the remedies of others would not help
        privacy_problems,  # then: it settles keys that nobody has written
        strategy_problems,
        asynchronous_problems,
        compression_problems,
    )
    return next((found for kind in kinds if (found := kind(plan))), [])


def _sizes(plan: Plan) -> list[Problem]:
    quorum, selection, evaluation = plan.federation.quorum, plan.selection, plan.evaluation
    found = []
    if selection.target is not None and quorum > selection.target:
        found.append(
            Problem(
                ("federation", "quorum"),
                f"quorum {quorum} is above target {selection.target}: no round could end well",
                f"set quorum to {selection.target} or less, or target to {quorum} or more",
            )
        )
    if selection.wait_for is not None and selection.wait_for < quorum:
        found.append(
            Problem(
                ("selection", "wait_for"),
                f"wait_for {selection.wait_for} is below quorum {quorum}",
                f"set wait_for to {quorum} or more",
            )
        )
    if evaluation.enabled and evaluation.quorum is not None:
        most = plan.asynchronous.buffer or selection.target or evaluation.quorum
        if evaluation.quorum > most:
            found.append(
                Problem(
                    ("evaluation", "quorum"),
                    f"{evaluation.quorum} evaluations are asked for, but only members of the "
                    f"round evaluate and there are {most} at most",
                    f"set it to {most} or less",
                )
            )
    return found


def _times(plan: Plan) -> list[Problem]:
    found = [
        Problem(("round", key), f"{key} is zero", f'{key} = "30m"')
        for key in ("duration", "extension")
        if parse_duration_ms(getattr(plan.round, key)) == 0
    ]
    if plan.evaluation.enabled and parse_duration_ms(plan.evaluation.deadline) == 0:
        found.append(
            Problem(("evaluation", "deadline"), "the evaluation deadline is zero", '"10m"')
        )
    return found


def _cap_remedy(plan: Plan) -> str:
    """Noise of the sites themselves takes uniform weights: there a cap can only go."""
    is_uniform = plan.privacy.hides in ("record", "local")
    return "leave weight_cap out" if is_uniform else 'weight = "capped", or leave weight_cap out'


def _choices(plan: Plan) -> list[Problem]:
    found = []
    strategy, selection, federation = plan.strategy, plan.selection, plan.federation
    if strategy.weight == "capped" and strategy.weight_cap is None:
        found.append(
            Problem(
                ("strategy", "weight"),
                'weight = "capped" needs weight_cap, in samples',
                "weight_cap = 1000",
            )
        )
    if strategy.weight not in ("capped", "sqrt") and strategy.weight_cap is not None:
        found.append(
            Problem(
                ("strategy", "weight_cap"),
                f'weight_cap has no effect with weight = "{strategy.weighing().by.value}"',
                _cap_remedy(plan),
            )
        )
    if selection.strategy == "diverse" and not selection.spread:
        found.append(
            Problem(
                ("selection", "strategy"),
                'strategy = "diverse" needs the attributes to spread over',
                'spread = ["region", "size"]',
            )
        )
    if federation.sites is not None and federation.server is not None:
        found.append(
            Problem(
                ("federation", "server"),
                "the plan has both sites (simulate here) and server (deploy)",
                "keep one of the two lines",
            )
        )
    if federation.sites is not None and plan.simulation.clients is not None:
        found.append(
            Problem(
                ("simulation", "clients"),
                "the plan has both sites (files) and clients (made from their numbers)",
                "keep one of the two lines",
            )
        )
    return found


def _stopping(plan: Plan) -> list[Problem]:
    if plan.evaluation.enabled:
        return []
    found = []
    for key, is_set in (
        ("loss_below", plan.stop.loss_below is not None),
        ("patience", plan.stop.patience > 0),
    ):
        if is_set:
            found.append(
                Problem(
                    ("stop", key),
                    f"{key} looks at evaluations, and the plan has none",
                    "set enabled = true in [evaluation]",
                )
            )
    return found


def guarantees(plan: Plan) -> list[str]:
    """What this plan protects, and what it does not, in sentences for people."""
    quorum = plan.federation.quorum
    sentences = [
        f"STAYS: records never leave a site; a site sends {_sent(plan)}.",
        *_seen(plan),
        *promises(plan),
        f"QUORUM: a model is published only when {_sites(quorum)} contributed to it.",
    ]
    by_records = plan.strategy.weighing().by in (Weighting.SAMPLES, Weighting.SQRT)
    if by_records and not plan.is_masked:
        sentences.append("SEEN: the coordinator learns how many records each site trained on.")
    if quorum == 1:
        sentences.append("WARNING: with quorum 1 a model can be one site's update and no more.")
    if quorum == 2:
        sentences.append(
            "WARNING: with quorum 2 a site can subtract its own update from the mean and see "
            "the other's."
        )
    if plan.strategy.clip is not None and plan.privacy.hides != "site":
        bounds = "an honest site does" if plan.is_masked else "one site can do"
        sentences.append(
            f"An update is scaled down to norm {plan.strategy.clip:g}. This bounds what {bounds} "
            "to the model; without noise it is not privacy."
        )
    sentences += _strategy_sentences(plan)
    if plan.asynchronous.buffer:
        sentences.append(
            f"ASYNCHRONOUS: the model moves by every {plan.asynchronous.buffer} updates that come "
            f"in, of models up to {plan.asynchronous.max_staleness} versions old. Fast sites "
            "shape it oftener than slow ones."
        )
    is_private = plan.privacy.is_on and plan.privacy.test_records == "private"
    if not is_private and not (plan.evaluation.enabled and plan.evaluation.gate):
        sentences.append("WARNING: no gate: a worse model replaces a better one.")
    return sentences


def _sent(plan: Plan) -> str:
    """What leaves a site; a private plan has no weights, and scores only where it says so."""
    if plan.is_masked:
        scored = " with scores in them" if plan.has_scored_sums else ""
        return f"masked updates{scored}, and keys and sealed shares for taking the masks away"
    if not plan.privacy.is_on:
        return "model updates, a weight and metric sums"
    return "model updates and metric sums" if plan.evaluation.enabled else "model updates"


def _seen(plan: Plan) -> list[str]:
    """What the coordinator gets to see. Updates that were noised at the site tell it no more
    than `promises` says."""
    if plan.is_masked:
        return masked_sentences(plan)
    if plan.privacy.hides in ("record", "local"):
        return ["SEEN: the coordinator sees every site's update, which is noised before it leaves."]
    return [
        "SEEN: the coordinator sees every site's update in the clear. An update can reveal "
        "records of its site to whoever reads it."
    ]


def _strategy_sentences(plan: Plan) -> list[str]:
    strategy, found = plan.strategy, []
    if strategy.is_normalised:
        found.append("SEEN: the coordinator learns how many local steps each site took.")
    if strategy.has_variates:
        found.append(
            "SEEN: a site sends its control variate's change beside its update: a mean gradient "
            "of its records, in the clear."
        )
    if strategy.is_robust:
        share = f"up to {strategy.hostile:.0%}" if strategy.uses_share else "a minority of"
        found.append(
            f"HOSTILE SITES: `{strategy.rule}` is made for {share} hostile sites. It is no "
            "privacy, and a patient attacker can stay within its limits."
        )
    if strategy.anomalies == "exclude":
        found.append(
            "An update that stands out is excluded, and the log says by what, in rounds of five "
            "members or more. A site with unusual but honest records can be excluded too."
        )
    return found


def _sites(count: int) -> str:
    return "one site at least has" if count == 1 else f"at least {count} sites have"

"""What does not go together with masked sums, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from consortium.core.terms import LEAST_MASKED
from consortium.crypto.secure_sum.graph import threshold_for
from consortium.errors import ImpossiblePlanError
from consortium.plan.problem import Problem
from consortium.plan.scores import scores_problems
from consortium.plan.security import most_sites, ring_of, tolerated
from consortium.plan.text import parse_duration_ms
from consortium.update.ring import bits_for

if TYPE_CHECKING:
    from consortium.plan.values import Plan


def security_problems(plan: Plan) -> list[Problem]:
    """Everything that would lay single updates bare, or that needs to see them."""
    if not plan.is_masked:
        return _idle(plan)
    checks: tuple[Callable[[Plan], list[Problem]], ...] = (
        _looking,
        _cohort,
        _closing,
        _rows,
        _strategy,
        _scores,
        _noise,
    )
    return [problem for check in checks for problem in check(plan)]


def _idle(plan: Plan) -> list[Problem]:
    """Whoever writes these keys expects masks."""
    remedy = "secure_aggregation = true in [security]"
    keys = sorted(plan.security.model_fields_set - {"secure_aggregation"})
    found = [
        Problem(("security", key), f"{key} has no effect without masks", remedy) for key in keys
    ]
    privacy = plan.privacy
    if privacy.noise_at == "sites":
        message = "without masks the coordinator would see each update with a small share of noise"
        found.append(Problem(("privacy", "noise_at"), message, f'{remedy}, or unit = "local"'))
    if privacy.colluding is not None:
        message = "colluding has no effect without masks"
        found.append(Problem(("privacy", "colluding"), message, remedy))
    return found


def _looking(plan: Plan) -> list[Problem]:
    """What looks at single updates: under masks there are none to be seen."""
    strategy, found = plan.strategy, []
    if strategy.is_robust:
        message = (
            f'rule = "{strategy.rule}" compares single updates, and under masks nobody sees one: '
            "hostile sites cannot be told from others"
        )
        remedy = 'rule = "mean", or take [security] out'
        found.append(Problem(("strategy", "rule"), message, remedy))
    if strategy.anomalies == "exclude":
        message = (
            "an anomaly filter looks at single updates, and under masks nobody sees one: what "
            "stands out cannot be found"
        )
        remedy = 'anomalies = "keep", or take [security] out'
        found.append(Problem(("strategy", "anomalies"), message, remedy))
    if plan.compression.is_on:
        key = "bits" if plan.compression.bits else "keep"
        message = "masks make all numbers look alike, so that every site sends all of them whole"
        remedy = "take [compression] out; bits in [security] says how finely numbers are rounded"
        found.append(Problem(("compression", key), message, remedy))
    return found


def _cohort(plan: Plan) -> list[Problem]:
    """How many are summed. A secret is given back by two thirds of those who share it; with
    fewer, two groups could be told two stories, and what is between them is one site's."""
    quorum, most = plan.federation.quorum, most_sites(plan)
    if quorum < LEAST_MASKED:
        message = f"of a sum of {quorum}, a site that takes its own away has what the other sent"
        remedy = f"quorum = {LEAST_MASKED} or more"
        return [Problem(("federation", "quorum"), message, remedy)]
    if most is None or plan.selection.target is None:
        message = "masked sums need to know the most sites that are ever summed"
        return [
            Problem(
                ("selection", "target"),
                message,
                f"target = {max(quorum, 3)}    # or as many sites as take part",
            )
        ]
    least = threshold_for(most)
    if least > plan.selection.target:
        message = (
            f"overselect asks {most} sites, of which two thirds, {least}, must stay to the end; "
            f"the round would close at {plan.selection.target}"
        )
        return [Problem(("selection", "overselect"), message, "overselect = 1.2 or less")]
    if quorum < least:
        message = (
            f"up to {most} sites share their secrets, and it takes two thirds of them, {least}, to "
            f"take the masks away; quorum is {quorum}"
        )
        return [
            Problem(("federation", "quorum"), message, f"quorum = {least}, or a smaller target")
        ]
    return []


def _closing(plan: Plan) -> list[Problem]:
    found = []
    if plan.asynchronous.buffer:
        message = "sites mask with each other, in one round; without a barrier there is none"
        found.append(Problem(("asynchronous", "buffer"), message, "take [asynchronous] out"))
    if plan.round.close == "quorum":
        message = "a masked update that is left out must be taken back by the others, one by one"
        found.append(Problem(("round", "close"), message, 'close = "all_or_deadline"'))
    if parse_duration_ms(plan.security.phase) == 0:
        found.append(Problem(("security", "phase"), "phase is zero", 'phase = "60s"'))
    return found


def _rows(plan: Plan) -> list[Problem]:
    """What a row on the ring must be: bounded, and narrow enough not to wrap."""
    strategy, found, most = plan.strategy, [], most_sites(plan)
    if strategy.clip is None:
        message = "masked numbers are of a fixed range, which follows from a clip"
        found.append(Problem(("strategy", "clip"), message, "clip = 1.0 in [strategy]"))
    if strategy.weighing().most is None:
        message = "a weight is masked beside the update, and nothing bounds this one"
        remedy = 'weight = "uniform"    # or "capped", with weight_cap = 1000'
        found.append(Problem(("strategy", "weight"), message, remedy))
    bits = plan.security.bits
    if bits is not None and most is not None and bits > bits_for(most):
        message = f"the sum of {most} sites can wrap with {bits} bits a number"
        found.append(Problem(("security", "bits"), message, f"bits = {bits_for(most)} or less"))
    return found


def _strategy(plan: Plan) -> list[Problem]:
    """The clip bounds one step. What a strategy sends beside it has other units, and no bound."""
    strategy = plan.strategy
    if not (strategy.has_variates or strategy.is_normalised):
        return []
    what = "control variates" if strategy.has_variates else "numbers of local steps"
    message = (
        f"`{strategy.name}` sends {what} beside the step: they have other units and no bound, and "
        "what is masked has one clip"
    )
    return [Problem(("strategy", "name"), message, 'name = "fedavg", "fedprox" or "fedadam"')]


def _scores(plan: Plan) -> list[Problem]:
    return scores_problems(plan, most_sites(plan))


def _noise(plan: Plan) -> list[Problem]:
    privacy, found = plan.privacy, []
    if privacy.hides == "local":
        message = (
            "masks hide a site's update already, and its own noise would be longer than a clip"
        )
        found.append(Problem(("privacy", "unit"), message, 'unit = "site": the noise is shared'))
    if privacy.noise_at is not None and privacy.hides != "site":
        message = f'noise_at has no effect with unit = "{privacy.hides}"'
        found.append(Problem(("privacy", "noise_at"), message, 'unit = "site"'))
    if privacy.colluding is not None and not plan.has_noise_shares:
        message = "colluding is about noise that sites share, and here they do not"
        found.append(
            Problem(("privacy", "colluding"), message, 'unit = "site", noise_at = "sites"')
        )
    most = tolerated(plan)
    if plan.has_noise_shares and privacy.colluding is not None and privacy.colluding > most:
        message = f"masks do not stand more than {most} colluding of {plan.federation.quorum} sites"
        remedy = f"colluding = {most} or less, or a larger quorum"
        found.append(Problem(("privacy", "colluding"), message, remedy))
    return found or _room(plan)


def _room(plan: Plan) -> list[Problem]:
    """Whether the ring has room for the noise. How many numbers there are matters little, and is
    looked at again with the layout."""
    is_known = plan.strategy.clip is not None and most_sites(plan) is not None
    if not is_known or (plan.has_noise_shares and plan.privacy.noise_multiplier is None):
        return []
    try:
        ring_of(plan, 1)
    except ImpossiblePlanError as error:
        return [Problem(("security", "bits"), error.message, error.hint)]
    return []

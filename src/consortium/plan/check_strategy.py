"""Which parts of a strategy do not fit together, and what to do instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consortium.plan.problem import Problem

if TYPE_CHECKING:
    from consortium.plan.strategy import StrategySection
    from consortium.plan.values import Plan


def strategy_problems(plan: Plan) -> list[Problem]:
    """Everything in [strategy] and [personal] that cannot be kept."""
    return [
        *_contradictions(plan.strategy),
        *_idle(plan.strategy),
        *_rows(plan.strategy),
        *_robust(plan.strategy, plan.federation.quorum),
        *_local(plan),
        *_personal(plan),
    ]


def _problem(key: str, message: str, remedy: str) -> Problem:
    return Problem(("strategy", key), message, remedy)


def _contradictions(strategy: StrategySection) -> list[Problem]:
    """A name and a part that say two different things."""
    preset, found = strategy.preset, []
    if preset.server != "sgd" and strategy.server not in (None, preset.server):
        found.append(
            _problem(
                "server",
                f'name = "{strategy.name}" is server = "{preset.server}", and the plan says '
                f'"{strategy.server}"',
                f'name = "fedavg", server = "{strategy.server}"',
            )
        )
    for key, is_set in (("variates", preset.variates), ("normalise", preset.normalise)):
        if is_set and getattr(strategy, key) is False:
            message = f'name = "{strategy.name}" without {key} is fedavg'
            found.append(_problem(key, message, 'name = "fedavg"'))
    if preset.mu and strategy.mu == 0:
        found.append(_problem("mu", "fedprox with mu = 0 is fedavg", "mu = 0.01"))
    return found


def _idle(strategy: StrategySection) -> list[Problem]:
    """Keys that the rest of the plan leaves without effect: somebody expects one."""
    found, server = [], strategy.optimiser().name
    needs = {
        "beta1": server != "sgd",
        "beta2": server in ("adam", "yogi"),
        "adaptivity": server in ("adam", "yogi", "adagrad"),
        "hostile": strategy.is_robust and strategy.rule not in ("median", "geometric_median"),
        "radius": strategy.rule == "centred_clipping",
    }
    remedies = {"hostile": 'rule = "trimmed_mean"', "radius": 'rule = "centred_clipping"'}
    for key, is_used in needs.items():
        if key in strategy.model_fields_set and not is_used:
            what = f'rule = "{strategy.rule}"' if key in remedies else f'server = "{server}"'
            remedy = remedies.get(key, 'server = "adam"')
            found.append(_problem(key, f"{key} has no effect with {what}", remedy))
    return found


def _rows(strategy: StrategySection) -> list[Problem]:
    """What looks at single updates, and what makes them more than one step."""
    found = []
    more = "variates" if strategy.has_variates else "normalise" if strategy.is_normalised else ""
    if strategy.is_robust and more:
        found.append(
            _problem(
                "rule",
                f'rule = "{strategy.rule}" combines steps, and {more} makes sites send more',
                f'rule = "mean", or a strategy without {more}',
            )
        )
    if strategy.clip is not None and more:
        found.append(
            _problem(
                "clip",
                f"clip bounds one step, and {more} makes sites send more than that",
                f"take clip out, or take a strategy without {more}",
            )
        )
    if strategy.has_variates and strategy.is_normalised:
        found.append(
            _problem(
                "normalise",
                "variates and normalise both correct for uneven local work",
                "keep one of the two",
            )
        )
    return found


def _robust(strategy: StrategySection, quorum: int) -> list[Problem]:
    if not strategy.is_robust:
        return []
    found = []
    if strategy.weight not in (None, "uniform"):
        found.append(
            _problem(
                "weight",
                f'rule = "{strategy.rule}" counts every site alike: a hostile one may claim '
                "any weight",
                'weight = "uniform", or leave it out',
            )
        )
    hostile = math.ceil(strategy.hostile * quorum - 1e-9)
    needed = {"krum": 2 * hostile + 3, "multi_krum": 2 * hostile + 3}.get(
        strategy.rule, 2 * hostile + 1
    )
    if quorum < needed:
        found.append(
            _problem(
                "rule",
                f'rule = "{strategy.rule}" against {hostile} hostile of {quorum} needs '
                f"{needed} updates",
                f"quorum = {_enough(strategy)}, or a smaller share of hostile sites",
            )
        )
    return found


def _enough(strategy: StrategySection) -> int:
    """The least quorum with which the rule can work."""
    more = 3 if strategy.rule in ("krum", "multi_krum") else 1
    quorum = 1
    while quorum < 2 * math.ceil(strategy.hostile * quorum - 1e-9) + more and quorum < 10_000:
        quorum += 1
    return quorum


def _local(plan: Plan) -> list[Problem]:
    """What needs local SGD, and what local SGD needs."""
    strategy, training = plan.strategy, plan.training
    found = []
    if strategy.has_variates and training.optimizer != "sgd":
        found.append(
            Problem(
                ("training", "optimizer"),
                f'variates correct gradients, which "{training.optimizer}" rescales',
                'optimizer = "sgd"',
            )
        )
    if training.optimizer != "sgd" and "momentum" in training.model_fields_set:
        found.append(
            Problem(
                ("training", "momentum"),
                f'momentum has no effect with optimizer = "{training.optimizer}"',
                'optimizer = "sgd"',
            )
        )
    return found


def _personal(plan: Plan) -> list[Problem]:
    personal = plan.personal
    if personal.layers and personal.name in ("none", "finetune", "fedbn"):
        return [
            Problem(
                ("personal", "layers"),
                f'layers has no effect with name = "{personal.name}"',
                'name = "fedper"',
            )
        ]
    return []

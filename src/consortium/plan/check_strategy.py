"""Which parts of a strategy do not fit together, and what to do instead."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from consortium.aggregate.robust import hostile_count
from consortium.plan.problem import Problem

if TYPE_CHECKING:
    from consortium.plan.strategy import StrategySection
    from consortium.plan.values import Plan

_MOST_UPDATES = 10_000  # that are looked at, when a share of nearly one half is hostile


def strategy_problems(plan: Plan) -> list[Problem]:
    """Everything in [strategy] and [personal] that cannot be kept."""
    return [
        *_contradictions(plan.strategy),
        *_idle(plan.strategy),
        *_rows(plan.strategy),
        *_robust(plan.strategy, plan.federation.quorum, _most_updates(plan)),
        *_local(plan),
        *_personal(plan),
    ]


def _most_updates(plan: Plan) -> int | None:
    return plan.asynchronous.buffer or plan.selection.target


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
        "hostile": strategy.uses_share,
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


def _robust(strategy: StrategySection, quorum: int, target: int | None) -> list[Problem]:
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
    most = _MOST_UPDATES if target is None else max(quorum, target)
    short = [number for number in _too_few(strategy) if quorum <= number <= most]
    if short:
        updates = short[0]
        found.append(
            _problem(
                "rule",
                f'rule = "{strategy.rule}" against {_hostile(strategy, updates)} hostile of '
                f"{updates} needs {_needed(strategy, updates)} updates",
                f"quorum = {short[-1] + 1}, or a smaller share of hostile sites",
            )
        )
    return found


def _too_few(strategy: StrategySection) -> list[int]:
    """The numbers of updates that the rule cannot work with. The number of hostile ones is
    rounded up, so a few more updates than enough can be too few again."""
    spare = 1 - 2 * strategy.hostile
    most = min(math.ceil((_more(strategy) + 2) / spare), _MOST_UPDATES)
    return [number for number in range(1, most + 1) if number < _needed(strategy, number)]


def _needed(strategy: StrategySection, updates: int) -> int:
    return 2 * _hostile(strategy, updates) + _more(strategy)


def _hostile(strategy: StrategySection, updates: int) -> int:
    if not strategy.uses_share:
        return 0
    return hostile_count(updates, strategy.hostile)


def _more(strategy: StrategySection) -> int:
    return 3 if strategy.rule in ("krum", "multi_krum") else 1


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

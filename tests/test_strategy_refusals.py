"""Which parts of a strategy do not fit together, and what the refusal says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from consortium.drive.simulate import simulate
from consortium.errors import ImpossiblePlanError, TaskResultError
from consortium.plan import parse_plan
from consortium.plan.check import problems
from consortium.tasks import Site, Trained
from tests.test_strategies import ROUNDS, TASK, make_plan, make_sites

REFUSALS = [
    (
        "strategy.name = 'fedadam'\nstrategy.server = 'yogi'",
        ("strategy", "server"),
        'name = "fedadam" is server = "adam", and the plan says "yogi"',
        'name = "fedavg", server = "yogi"',
    ),
    (
        "strategy.name = 'fedavgm'\nstrategy.server = 'sgd'",
        ("strategy", "server"),
        'name = "fedavgm" is server = "momentum", and the plan says "sgd"',
        'name = "fedavg", server = "sgd"',
    ),
    (
        "strategy.name = 'scaffold'\nstrategy.variates = false",
        ("strategy", "variates"),
        'name = "scaffold" without variates is fedavg',
        'name = "fedavg"',
    ),
    (
        "strategy.name = 'fednova'\nstrategy.normalise = false",
        ("strategy", "normalise"),
        'name = "fednova" without normalise is fedavg',
        'name = "fedavg"',
    ),
    (
        "strategy.name = 'fedprox'\nstrategy.mu = 0",
        ("strategy", "mu"),
        "fedprox with mu = 0 is fedavg",
        "mu = 0.01",
    ),
    (
        "strategy.beta1 = 0.5",
        ("strategy", "beta1"),
        'beta1 has no effect with server = "sgd"',
        'server = "adam"',
    ),
    (
        "strategy.name = 'fedavgm'\nstrategy.beta2 = 0.5",
        ("strategy", "beta2"),
        'beta2 has no effect with server = "momentum"',
        'server = "adam"',
    ),
    (
        "strategy.name = 'fedadagrad'\nstrategy.beta2 = 0.5",
        ("strategy", "beta2"),
        'beta2 has no effect with server = "adagrad"',
        'server = "adam"',
    ),
    (
        "strategy.name = 'fedavgm'\nstrategy.adaptivity = 0.5",
        ("strategy", "adaptivity"),
        'adaptivity has no effect with server = "momentum"',
        'server = "adam"',
    ),
    (
        "strategy.hostile = 0.1",
        ("strategy", "hostile"),
        'hostile has no effect with rule = "mean"',
        'rule = "trimmed_mean"',
    ),
    (
        "strategy.rule = 'median'\nstrategy.hostile = 0.1",
        ("strategy", "hostile"),
        'hostile has no effect with rule = "median"',
        'rule = "trimmed_mean"',
    ),
    (
        "strategy.rule = 'geometric_median'\nstrategy.hostile = 0.1",
        ("strategy", "hostile"),
        'hostile has no effect with rule = "geometric_median"',
        'rule = "trimmed_mean"',
    ),
    (
        "strategy.rule = 'median'\nstrategy.radius = 1",
        ("strategy", "radius"),
        'radius has no effect with rule = "median"',
        'rule = "centred_clipping"',
    ),
    (
        "strategy.name = 'scaffold'\nstrategy.rule = 'median'",
        ("strategy", "rule"),
        'rule = "median" combines steps, and variates makes sites send more',
        'rule = "mean", or a strategy without variates',
    ),
    (
        "strategy.name = 'fednova'\nstrategy.rule = 'median'",
        ("strategy", "rule"),
        'rule = "median" combines steps, and normalise makes sites send more',
        'rule = "mean", or a strategy without normalise',
    ),
    (
        "strategy.name = 'scaffold'\nstrategy.clip = 1",
        ("strategy", "clip"),
        "clip bounds one step, and variates makes sites send more than that",
        "take clip out, or take a strategy without variates",
    ),
    (
        "strategy.normalise = true\nstrategy.clip = 1",
        ("strategy", "clip"),
        "clip bounds one step, and normalise makes sites send more than that",
        "take clip out, or take a strategy without normalise",
    ),
    (
        "strategy.name = 'scaffold'\nstrategy.normalise = true",
        ("strategy", "normalise"),
        "variates and normalise both correct for uneven local work",
        "keep one of the two",
    ),
    (
        "strategy.rule = 'median'\nstrategy.weight = 'samples'",
        ("strategy", "weight"),
        'rule = "median" counts every site alike: a hostile one may claim any weight',
        'weight = "uniform", or leave it out',
    ),
    (
        "strategy.rule = 'trimmed_mean'\nfederation.quorum = 2",
        ("strategy", "rule"),
        'rule = "trimmed_mean" against 1 hostile of 2 needs 3 updates',
        "quorum = 3, or a smaller share of hostile sites",
    ),
    (
        "strategy.rule = 'krum'\nfederation.quorum = 4",
        ("strategy", "rule"),
        'rule = "krum" against 1 hostile of 4 needs 5 updates',
        "quorum = 7, or a smaller share of hostile sites",
    ),
    (
        "strategy.rule = 'multi_krum'\nfederation.quorum = 5",
        ("strategy", "rule"),
        'rule = "multi_krum" against 2 hostile of 6 needs 7 updates',
        "quorum = 7, or a smaller share of hostile sites",
    ),
    (
        "strategy.rule = 'trimmed_mean'\nstrategy.hostile = 0.4\nfederation.quorum = 5",
        ("strategy", "rule"),
        'rule = "trimmed_mean" against 3 hostile of 6 needs 7 updates',
        "quorum = 9, or a smaller share of hostile sites",
    ),
    (
        "strategy.name = 'scaffold'\ntraining.optimizer = 'adam'",
        ("training", "optimizer"),
        'variates correct gradients, which "adam" rescales',
        'optimizer = "sgd"',
    ),
    (
        "training.optimizer = 'adamw'\ntraining.momentum = 0.5",
        ("training", "momentum"),
        'momentum has no effect with optimizer = "adamw"',
        'optimizer = "sgd"',
    ),
    (
        "personal.name = 'fedbn'\npersonal.layers = ['head']",
        ("personal", "layers"),
        'layers has no effect with name = "fedbn"',
        'name = "fedper"',
    ),
    (
        "personal.layers = ['head']",
        ("personal", "layers"),
        'layers has no effect with name = "none"',
        'name = "fedper"',
    ),
]


@pytest.mark.parametrize(("text", "key", "message", "remedy"), REFUSALS)
def test_parts_that_do_not_fit_are_refused_with_a_remedy(
    text: str, key: tuple[str, str], message: str, remedy: str
) -> None:
    with pytest.raises(ImpossiblePlanError) as caught:
        parse_plan(text)
    assert (caught.value.code, caught.value.message, caught.value.hint) == (
        "E0114",
        message,
        remedy,
    )
    line = next(at for at, known in enumerate(text.splitlines(), 1) if ".".join(key) in known)
    assert caught.value.where == f"plan:{line}"


@pytest.mark.parametrize(
    "text",
    [
        "name = 'fedadam'\nserver = 'adam'",
        "name = 'scaffold'\nvariates = true",
        "variates = true",
        "normalise = true\nweight = 'uniform'",
        "rule = 'median'\nweight = 'uniform'",
        "rule = 'krum'\nhostile = 0.0",
        "rule = 'centred_clipping'\nradius = 0.1",
        "rule = 'median'\nclip = 1.0",
        "server = 'yogi'\nbeta1 = 0.5\nbeta2 = 0.5\nadaptivity = 0.1",
        "name = 'fedprox'\nanomalies = 'exclude'",
    ],
)
def test_parts_that_fit_are_not_refused(text: str) -> None:
    plan = parse_plan(f"[federation]\nquorum = 9\n[strategy]\n{text}\n")
    assert problems(plan) == []


def test_a_target_keeps_the_numbers_that_a_rule_cannot_use_away() -> None:
    text = "selection.target = 5\nfederation.quorum = 5\nstrategy.rule = 'krum'"
    assert problems(parse_plan(text)) == []
    with pytest.raises(ImpossiblePlanError, match="2 hostile of 6"):
        parse_plan(text.replace("target = 5", "target = 6"))


@pytest.mark.parametrize("strategy", ["name = 'fedprox'", "name = 'scaffold'", "mu = 0.1"])
def test_a_task_that_does_not_follow_rules_is_refused(strategy: str) -> None:
    deaf = replace(TASK, follows_rules=False)
    with pytest.raises(ImpossiblePlanError, match="changes the gradients") as caught:
        simulate(deaf, make_plan(strategy), make_sites(), seed=1)
    assert caught.value.code == "E0114"
    assert "site.rules.adjusted" in caught.value.hint
    assert "follows_rules=True" in caught.value.hint


def test_a_task_that_need_not_follow_rules_is_not_refused() -> None:
    deaf = replace(TASK, follows_rules=False)
    for strategy in ("", "name = 'fedadam'", "name = 'fednova'"):
        assert simulate(deaf, make_plan(strategy), make_sites(), seed=1).state.current == ROUNDS


@pytest.mark.parametrize("strategy", ["name = 'fednova'", "name = 'scaffold'"])
@pytest.mark.parametrize("steps", [None, 0, -1.0, math.inf, math.nan])
def test_a_strategy_that_counts_steps_needs_them(strategy: str, steps: float | None) -> None:
    def uncounted(site: Site, shared: dict[str, Any]) -> Trained:
        return Trained(shared, 5, steps=steps)

    with pytest.raises(TaskResultError, match="how many steps") as caught:
        simulate(replace(TASK, train=uncounted), make_plan(strategy), make_sites(), seed=1)
    assert caught.value.code == "E0204"
    assert caught.value.hint == "return consortium.Trained(shared, records, steps=...)"
    assert caught.value.message.startswith("site site-")

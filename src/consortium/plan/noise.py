"""How much noise a plan's promise takes: computed once, and from then on part of the plan.

Counts and scores get noise that takes a tenth of what may be learnt, each; the rest is for the
model. Computing it needs dp-accounting, so it happens where a plan is locked or simulated, never
at a coordinator.
"""

from __future__ import annotations

import math

from consortium.core.account_facts import Cost, Costs
from consortium.errors import ImpossiblePlanError
from consortium.plan.privacy import PrivacySection
from consortium.plan.values import Plan
from consortium.privacy.budget import Price
from consortium.privacy.gaussian import mu_for

_SIDE = 0.1  # of the whole, as deviations add up
_WITHOUT_TARGET = 20.0  # times the model's noise, where no ε was asked for


def resolved(plan: Plan) -> Plan:
    """The plan with the noise that it takes; a plan that says so already stays as it is. Refuses
    noise that does not keep the ε that is asked for."""
    section = plan.privacy
    if not section.is_on:
        return plan
    if section.is_resolved:
        _check(plan)
        return plan
    changes: dict[str, float] = {}
    if section.hides == "record" and section.side_noise is None:
        changes["side_noise"] = _side_noise(plan)
    section = section.model_copy(update=changes)
    if section.noise_multiplier is None:
        section = section.model_copy(update={"noise_multiplier": _noise(plan, section)})
    made = plan.model_copy(update={"privacy": section})
    _check(made)
    return made


def total_costs(plan: Plan, rounds: int) -> Costs:
    """Of so many rounds of a plan whose noise is known."""
    budget = plan.budget
    assert budget is not None, "a plan without privacy costs nothing"
    return tuple(Cost(one.sigma, one.releases * rounds, one.rate) for one in budget.costs)


def epsilon_of_rounds(plan: Plan, rounds: int) -> float:
    """What so many rounds cost together, at the plan's δ."""
    from consortium.privacy.accountant import epsilon

    return epsilon(total_costs(plan, rounds), plan.privacy.delta)


def _asked(plan: Plan) -> tuple[float, int]:
    """The ε that is asked for, and of how many rounds."""
    assert plan.privacy.target is not None
    epsilon, is_total = plan.privacy.target
    return epsilon, plan.federation.rounds if is_total else 1


def _side_noise(plan: Plan) -> float:
    section = plan.privacy
    if section.target is None:
        assert section.noise_multiplier is not None
        return section.noise_multiplier * _WITHOUT_TARGET
    epsilon, rounds = _asked(plan)
    return _six_digits(math.sqrt(rounds) / (_SIDE * mu_for(epsilon, section.delta)))


def _noise(plan: Plan, section: PrivacySection) -> float:
    from consortium.privacy.calibrate import sigma_for

    epsilon, rounds = _asked(plan)
    if section.hides != "record":
        return sigma_for(epsilon, section.delta, rounds, 1.0)
    with_any = section.model_copy(update={"noise_multiplier": 1.0})
    costs = with_any.costs(plan.training.epochs, has_scores=plan.evaluation.enabled)
    beside = tuple(Cost(one.sigma, one.releases * rounds, one.rate) for one in costs[1:])
    steps = section.steps_of(plan.training.epochs) * rounds
    return sigma_for(epsilon, section.delta, steps, section.rate, beside)


def check_noise(plan: Plan, price: Price) -> None:
    """Refuse a plan whose noise does not keep the ε that it promises, whoever made it. Nothing to
    refuse where it promises none."""
    if not plan.privacy.is_on or plan.privacy.target is None:
        return
    asked, rounds = _asked(plan)
    spent = price(total_costs(plan, rounds), plan.privacy.delta)
    if not spent <= asked * (1 + 1e-9):  # what is no number is too much
        raise ImpossiblePlanError(
            f"with this noise {'all rounds' if rounds > 1 else 'a round'} cost epsilon "
            f"{spent:.4g}, and the plan promises {asked:g}",
            hint="take noise_multiplier out: it is computed",
        )


def _check(plan: Plan) -> None:
    from consortium.privacy.accountant import epsilon

    check_noise(plan, epsilon)


def _six_digits(number: float) -> float:
    """Upwards: more noise than asked for is fine."""
    return float(f"{number * (1 + 1e-6):.6g}")

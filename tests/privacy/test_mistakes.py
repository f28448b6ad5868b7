"""Mistakes that others make with differential privacy, one line each or more, with the check that
catches it. Every check is run on code with the mistake, which it must catch, and on the real
code, which must pass.

Audits draw from fixed seeds, at a confidence of 1 - 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from consortium.core import account as acc
from consortium.core.account_facts import Cost
from consortium.plan import parse_plan
from consortium.plan.promises import AGAINST
from consortium.privacy.accountant import epsilon
from consortium.privacy.budget import quote
from consortium.privacy.calibrate import sigma_for
from consortium.privacy.noise import SecretNoise
from consortium.testing.canaries import added, replaced
from consortium.testing.mechanism_audit import Claim, Mechanism, audit
from consortium.update.noise import LocalNoise
from consortium.update.stage import Rows
from tests.privacy import mechanisms as m
from tests.privacy import planted_accounts as p
from tests.privacy import random_sources

Picks = Callable[[int, float], Any]  # which of so many records, at this rate

# ---- checks: whether it holds -------------------------------------------------------


def hides_a_site(mechanism: Mechanism, claim: Claim = m.CLAIM) -> bool:
    return not audit(mechanism, added(m.CLIP), claim, 40_000, m.SURE).is_refuted


def hides_an_update(mechanism: Mechanism) -> bool:
    return not audit(mechanism, replaced(m.CLIP), m.ROW_CLAIM, 3_000, m.SURE).is_refuted


def is_what_a_release_costs(cost: Cost) -> bool:
    """Against a coordinator, who picks the cohort and knows who is in it."""
    claim = Claim(epsilon([cost], m.DELTA), m.DELTA)
    return hides_a_site(m.central(m.seeded()), claim)


def is_enough_for_half(sigma: float) -> bool:
    return epsilon([Cost(sigma, 1, 1.0)], m.DELTA) <= 0.5


def is_poisson(picks: Picks) -> bool:
    """How many are picked has the variance that coins have. It would not once in 50 million."""
    count, rate, times = 100, 0.1, 2000
    sizes = np.array([int(np.sum(picks(count, rate))) for _ in range(times)])
    spread = ((sizes - count * rate) ** 2).sum() / (count * rate * (1 - rate))
    return abs(spread - times) < 6 * np.sqrt(2 * times * 1.03)


def has_no_low_bits(release: Callable[[Rows], Any]) -> bool:
    """Whatever was summed, what is released are steps of one and the same grid."""
    step = m.central(m.seeded()).release.grid.step
    secrets = (0.1, 1 / 3, 0.7)
    released = [release(Rows(np.full((1, 8), x, np.float32), *np.ones((2, 1)))) for x in secrets]
    steps = np.concatenate([np.ravel(one) for one in released]) * m.SITES / step
    return bool((np.trunc(steps) == steps).all())


def has_no_statistical_noise(texts: Mapping[str, str]) -> bool:
    return not random_sources.complaints(texts)


def has_as_much_noise_as_local_needs(stage: LocalNoise) -> bool:
    """14.064 C at ε = 0.5, whatever the update is."""
    found = stage.apply(Rows(np.zeros((1, 50_000), np.float32), np.ones(1), np.ones(1)))
    return bool(abs(found.values.std() / (14.064 * m.CLIP) - 1) < 0.02)  # six deviations


def says_from_whom_it_does_not_protect(against: Mapping[str, str]) -> bool:
    is_told = "not against the coordinator" in against["site"]
    return is_told and "the coordinator included" in against["contribution"]


def hides_from_the_coordinator(mechanism: Mechanism) -> bool:
    """Under masks, in rounds of the fewest survivors, some of whom tell what they sent. The other
    canaries are in `test_masked_audit`."""
    return not audit(mechanism, added(m.CLIP)[:1], m.MASKED_CLAIM, 40_000, m.SURE).is_refuted


def has_noise_under_its_masks(text: str) -> bool:
    """A plan that hides sites by masked sums: by noise that its sites add, unless it says that
    the coordinator, who then sees exact sums, is trusted."""
    plan = parse_plan(text)
    return plan.has_noise_shares and any(AGAINST["contribution"] in x for x in plan.guarantees())


# ---- planted ------------------------------------------------------------------------


def fixed_size(count: int, rate: float) -> Any:
    return np.random.default_rng(0).permutation(count) < count * rate


def float_noise(rows: Rows) -> Any:
    total = rows.values.astype(np.float64).sum(0)
    return (total + np.random.default_rng(0).normal(0, m.SIGMA, total.shape)) / m.SITES


def with_more(path: str, text: str) -> dict[str, str]:
    """The package with a line more."""
    texts = random_sources.sources()
    return {**texts, path: f"{texts[path]}\n{text}\n"}


# ---- the table ----------------------------------------------------------------------

AUDIT, ACCOUNTANT, ACCOUNT = "mechanism audit", "accountant test", "account machine"
STATIC, SAMPLES = "static check", "distribution of samples"


@dataclass(frozen=True)
class Line:
    mistake: str  # as the ground truth has it
    by: str  # which kind of check catches it
    holds: Callable[[Any], bool]
    planted: Any
    real: Any

    def __str__(self) -> str:
        return f"{self.mistake}: {self.holds.__name__}"


MASKED_SITES = """
[federation]
quorum = 7
[selection]
target = 10
[security]
secure_aggregation = true
[privacy]
unit = "site"
epsilon = 4.0
"""
SUM = m.central(m.seeded())
MASKED_SUM = m.under_masks(m.seeded())
ROW = m.local(m.seeded())

TABLE = (
    Line("clip and noise per tensor", AUDIT, hides_a_site, m.per_tensor(), SUM),
    Line("C/n with data-size weights", AUDIT, hides_a_site, m.by_samples, SUM),
    Line(
        "C/n where replace-one is meant",
        AUDIT,
        hides_an_update,
        m.local(m.seeded(), m.ROW_SIGMA / 2),
        ROW,
    ),
    Line("divide by the planned n when fewer came", AUDIT, hides_a_site, m.by_those_who_came, SUM),
    Line("sum ε over rounds", ACCOUNTANT, p.pays_for_33_rounds, p.summed, epsilon),
    Line(
        "fixed noise multiplier 1.1",
        ACCOUNTANT,
        is_enough_for_half,
        1.1,
        sigma_for(0.5, m.DELTA, 1, 1.0),
    ),
    Line('"budget reset" weekly', ACCOUNT, p.holds_in_any_week, p.of_this_week, quote),
    Line('"budget reset" weekly', ACCOUNT, p.holds_for_life, p.of_this_month, quote),
    Line(
        '"budget reset" weekly',
        ACCOUNT,
        p.counts_what_a_crash_left,
        p.ForgetsReserved,
        acc.Account,
    ),
    Line(
        '"budget reset" weekly',
        ACCOUNT,
        p.lets_one_of_two_have_the_last,
        p.at_any_position,
        acc.decide,
    ),
    Line(
        "amplification by sampling the server sees",
        AUDIT,
        is_what_a_release_costs,
        replace(SUM.release.cost(), rate=0.1),
        SUM.release.cost(),
    ),
    Line(
        "fixed-size cohort accounted as Poisson",
        SAMPLES,
        is_poisson,
        fixed_size,
        SecretNoise().coins,
    ),
    Line(
        "float noise from a statistics RNG",
        SAMPLES,
        has_no_low_bits,
        float_noise,
        partial(SUM, draws=100),
    ),
    *(
        Line(
            "float noise from a statistics RNG",
            STATIC,
            has_no_statistical_noise,
            with_more(path, text),
            random_sources.sources(),
        )
        for path, text in (
            ("update/noise.py", "extra = np.random.default_rng(7).normal(0, 1, 3)"),
            ("update/ring_noise.py", "share = np.random.default_rng(7).integers(-9, 9, 3)"),
            ("privacy/normal.py", "import random"),
            ("privacy/normal.py", "from numpy.random import Generator"),
            ("torch/private_descent.py", "noise = torch.normal(0.0, 1.0, (3,))"),
            ("torch/private_sampling.py", "picked = torch.randperm(10)[:3]"),
            ("torch/private_clipping.py", "gradient.normal_()"),
            ("site/bench.py", "from consortium.privacy.noise import SimulatedNoise"),
            ("coordinator/app.py", "noise = SimulatedNoise(rng)"),
        )
    ),
    Line("min(1, C/norm)", AUDIT, hides_a_site, m.clipped_by_least, SUM),
    Line("only weights noised", AUDIT, hides_an_update, m.only_the_values(), ROW),
    Line(
        "central noise with SecAgg",
        AUDIT,
        hides_an_update,
        m.as_it_comes_to_the_coordinator(),
        ROW,
    ),
    Line(
        "central noise with SecAgg",
        STATIC,
        says_from_whom_it_does_not_protect,
        {**AGAINST, "site": "everybody who sees models"},
        AGAINST,
    ),
    Line(
        "central noise with SecAgg",
        AUDIT,
        hides_from_the_coordinator,
        m.under_masks(m.seeded(), honest=m.COHORT),
        MASKED_SUM,
    ),
    Line(
        "central noise with SecAgg",
        STATIC,
        has_noise_under_its_masks,
        f'{MASKED_SITES}noise_at = "coordinator"',
        MASKED_SITES,
    ),
    Line("one ε for all", ACCOUNT, p.keeps_units_apart, p.of_any_unit, acc.decide),
    Line(
        "one ε for all",
        SAMPLES,
        has_as_much_noise_as_local_needs,
        LocalNoise(m.SIGMA / 2, m.CLIP, m.seeded()),
        LocalNoise(m.SIGMA, m.CLIP, m.seeded()),
    ),
)

# Section 2 of the ground truth, all of it.
MISTAKES = {
    "clip and noise per tensor",
    "C/n with data-size weights",
    "C/n where replace-one is meant",
    "divide by the planned n when fewer came",
    "sum ε over rounds",
    "fixed noise multiplier 1.1",
    '"budget reset" weekly',
    "amplification by sampling the server sees",
    "fixed-size cohort accounted as Poisson",
    "float noise from a statistics RNG",
    "min(1, C/norm)",
    "only weights noised",
    "central noise with SecAgg",
    "one ε for all",
}


@pytest.mark.parametrize("line", TABLE, ids=str)
def test_the_check_catches_what_is_planted(line: Line) -> None:
    assert not line.holds(line.planted)


# Once each: several mistakes are caught by the same check of the same code.
REAL = {(line.holds, id(line.real)): line for line in TABLE if line.by != STATIC}
REAL.update({(line.holds, 0): line for line in TABLE if line.by == STATIC})


@pytest.mark.parametrize("line", REAL.values(), ids=str)
def test_the_real_code_passes(line: Line) -> None:
    assert line.holds(line.real)


def test_no_mistake_is_left_out() -> None:
    assert {line.mistake for line in TABLE} == MISTAKES


def test_every_path_that_a_fault_is_planted_in_protects_somebody() -> None:
    texts = random_sources.sources()
    for start in (*random_sources.PROTECTS, *random_sources.SIMULATES):
        assert any(path.startswith(start) for path in texts), start


def test_a_fixed_size_cohort_costs_more_than_poisson() -> None:
    """Half of all sites, one of which is replaced: exactly, by the divergence of the two sums.
    Adding or removing one, which Poisson is accounted for, is not even possible."""
    sigma, rate = 4.0, 0.5
    claimed = epsilon([Cost(sigma, 1, rate)], m.DELTA)
    x = np.linspace(-60, 62, 400_001)
    without = stats.norm.pdf(x, 0, sigma)
    having = (1 - rate) * without + rate * stats.norm.pdf(x, 2, sigma)
    truly = np.maximum(having - np.exp(claimed) * without, 0).sum() * (x[1] - x[0])
    assert truly > 10 * m.DELTA

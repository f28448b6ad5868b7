"""The checks of one update, and the gate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from consortium.checks import Expected, Findings, check_update
from consortium.core.duties import Judge
from consortium.core.facts import Fault, Outcome
from consortium.core.ids import Digest
from consortium.core.terms import Metric, Terms
from consortium.gate import judge
from consortium.model import Layout, Update, plain_form, save_update
from consortium.plan.strategy import TAU, VARIATE, StrategySection
from consortium.store.memory import MemoryBlobs
from consortium.tensors import TensorSpec
from consortium.update.weigh import Weigh, Weighting

BASE, OTHER = Digest(b"b" * 32), Digest(b"o" * 32)
EXPECTED = Expected(plain_form(2, np.dtype(np.float32)), BASE, clip=None, weights=(1.0, 1e12))
CLIPPED = replace(EXPECTED, clip=5.0)
UPDATE = Update(np.float32([3, 4]), 10.0, BASE)


def checked(data: bytes, expected: Expected = EXPECTED) -> Findings:
    blobs = MemoryBlobs()
    return check_update(blobs, blobs.put(data), expected)


def found(update: Update, expected: Expected = EXPECTED) -> Fault | None:
    return checked(save_update(update), expected).fault


def test_a_good_update_passes_with_its_weight_and_norm() -> None:
    findings = checked(save_update(UPDATE))
    assert (findings.fault, findings.weight, findings.norm) == (None, 10.0, 5.0)


def test_each_check_has_its_own_code() -> None:
    assert checked(b"junk").fault is Fault.FORMAT
    assert found(replace(UPDATE, row=np.float32([np.nan, 0]))) is Fault.FORMAT
    assert found(replace(UPDATE, row=np.float32([1, 2, 3]))) is Fault.DIMENSIONS
    assert found(replace(UPDATE, base=OTHER)) is Fault.STALENESS
    assert found(replace(UPDATE, row=np.float32([3, 4.1])), CLIPPED) is Fault.MAGNITUDE


def test_an_update_is_not_larger_than_any_number() -> None:
    wide = replace(EXPECTED, form=plain_form(2, np.dtype(np.float64)))
    assert found(replace(UPDATE, row=np.array([1e200, 1e200])), wide) is Fault.MAGNITUDE


@pytest.mark.parametrize("weight", [0.5, 1e13])
def test_a_site_weighs_what_the_plan_allows(weight: float) -> None:
    assert found(replace(UPDATE, weight=weight)) is Fault.MAGNITUDE


@pytest.mark.parametrize(
    ("by", "good", "bad"),
    [
        (Weighting.UNIFORM, 1.0, 1e9),
        (Weighting.CAPPED, 0.5, 1.1),
        (Weighting.SAMPLES, 1000.0, 1e13),
        (Weighting.SQRT, 10.0, 1e7),
    ],
)
def test_every_weighting_has_its_limits(by: Weighting, good: float, bad: float) -> None:
    least, most = Weigh(by, 100.0).limits()
    assert least <= good <= most
    assert not least <= bad <= most


def test_where_a_clip_bounds_it_the_norm_is_not_told() -> None:
    assert checked(save_update(UPDATE), CLIPPED).norm is None


def test_without_a_clip_any_size_passes_here() -> None:
    assert found(replace(UPDATE, row=np.float32([3e8, 4e8]))) is None


def of_strategy(name: str, part: str, value: float) -> Findings:
    """What is found of an update whose step is small and whose other part is `value`."""
    strategy = StrategySection(name=name)  # type: ignore[arg-type]  # one of its names
    form = strategy.form(Layout((TensorSpec("w", (4,), "F32"),)))
    row = np.ones(form.size, form.dtype)
    form.part(row, part)[:] = value
    expected = Expected(form, BASE, None, strategy.weighing().limits())
    return checked(save_update(Update(row, 1.0, BASE), form), expected)


@pytest.mark.parametrize("steps", [-1e9, -1.0, 0.0, 2e6, 1e30])
def test_a_number_of_local_steps_that_cannot_be_is_refused(steps: float) -> None:
    assert of_strategy("fednova", TAU, steps).fault is Fault.MAGNITUDE


def test_the_number_of_local_steps_is_not_part_of_the_norm() -> None:
    found = of_strategy("fednova", TAU, 1e5)
    assert (found.fault, found.norm) == (None, 2.0)


def test_a_huge_variate_shows_in_the_norm() -> None:
    """So that it stands out among the round's norms, whatever the step."""
    usual, huge = (of_strategy("scaffold", VARIATE, value).norm for value in (1.0, 1e9))
    assert usual is not None and huge is not None
    assert huge == pytest.approx(2e9) and huge > 10 * usual


TERMS = Terms(
    rounds=1,
    quorum=2,
    wait_for=2,
    metrics=(Metric("loss", False), Metric("accuracy", True)),
    judged_by="accuracy",
    evaluation_quorum=2,
)


def verdict(
    candidate: float,
    base: float,
    *,
    recent: tuple[float, ...] = (),
    terms: Terms = TERMS,
    evaluations: int = 2,
) -> Outcome:
    both = (candidate, candidate), (base, base)
    return judge(Judge(1, BASE, evaluations, *both, recent, terms)).outcome


LOSS = replace(TERMS, judged_by="loss")


@pytest.mark.parametrize(
    ("terms", "candidate", "base", "recent", "expected"),
    [
        (TERMS, 0.95, 1.0, (), Outcome.ACCEPTED),
        (TERMS, 0.949, 1.0, (), Outcome.KEPT),
        (TERMS, 0.90, 0.94, (1.0,), Outcome.ACCEPTED),
        (TERMS, 0.899, 0.94, (1.0,), Outcome.KEPT),  # 0.95 alone would slide down for ever
        (TERMS, 0.899, 0.94, (0.5, 0.6), Outcome.ACCEPTED),
        (LOSS, 1.05, 1.0, (), Outcome.ACCEPTED),
        (LOSS, 1.06, 1.0, (), Outcome.KEPT),
        (LOSS, 0.5, 1.0, (), Outcome.ACCEPTED),
        (LOSS, 1.04, 1.0, (0.9,), Outcome.KEPT),
        (TERMS, -2.05, -2.0, (), Outcome.ACCEPTED),  # scores below zero: 5 % of their size
        (TERMS, -2.2, -2.0, (), Outcome.KEPT),
    ],
)
def test_the_gate(
    terms: Terms, candidate: float, base: float, recent: tuple[float, ...], expected: Outcome
) -> None:
    assert verdict(candidate, base, recent=recent, terms=terms) is expected


def test_too_few_evaluations_judge_nothing() -> None:
    assert verdict(1.0, 0.5, evaluations=1) is Outcome.UNJUDGED


def test_without_a_gate_or_an_evaluation_everything_passes() -> None:
    assert verdict(0.1, 1.0, terms=replace(TERMS, is_gated=False)) is Outcome.ACCEPTED
    silent = replace(TERMS, judged_by="", evaluation_quorum=0)
    assert judge(Judge(1, BASE, 0, (), (), (), silent)).outcome is Outcome.ACCEPTED

"""What noise leaves of a signal: the formulas, against noise that was drawn, and the warnings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from consortium.errors import ImpossiblePlanError
from consortium.plan import Plan, parse_plan
from consortium.plan.noise import resolved
from consortium.plan.signal import Signal, signal_of, sites_of_round, warnings

SEED_MODEL = 75_074  # parameters of the first design's encoder and head
SIGMA = 7.03183  # of epsilon 0.5 at delta 1e-5, one round


def test_the_first_designs_model_needs_two_thousand_sites_centrally() -> None:
    signal = Signal("site", SIGMA, SEED_MODEL, 10)
    assert signal.sites_needed == 1927
    assert signal.ratio == pytest.approx(10 / 1926.7, rel=1e-3)


def test_locally_it_needs_fifteen_million() -> None:
    needed = Signal("local", SIGMA, SEED_MODEL, 10).sites_needed
    assert needed == pytest.approx(1.485e7, rel=1e-3)


@pytest.mark.parametrize("unit", ["site", "local", "record"])
def test_with_what_it_needs_the_ratio_is_one(unit: str) -> None:
    signal = Signal(unit, 3.0, 100_000, 4, steps=50, rate=0.01, records=100)
    assert signal.sites_needed is not None
    enough = Signal(unit, 3.0, 100_000, signal.sites_needed, steps=50, rate=0.01, records=100)
    assert enough.ratio == pytest.approx(1, rel=0.01)
    assert enough.ratio is not None and enough.ratio >= 1


def test_records_that_are_needed_give_a_ratio_of_one() -> None:
    signal = Signal("record", 2.0, 10_000, 4, steps=100, rate=0.05)
    assert signal.ratio is None and signal.sites_needed is None and signal.batch is None
    assert signal.records_needed == 200  # 2 * 100 / (sqrt(400) * 0.05)
    enough = Signal("record", 2.0, 10_000, 4, steps=100, rate=0.05, records=200)
    assert enough.ratio == pytest.approx(1)
    assert Signal("site", 2.0, 10_000, 4).records_needed is None


@pytest.mark.parametrize("unit", ["site", "local", "record"])
def test_the_ratio_is_that_of_drawn_noise(unit: str) -> None:
    """Everybody pulls one way with the whole clip. The length of d = 20,000 numbers varies by
    0.5 %: a tolerance of 3 % fails wrongly less than once in a million times."""
    rng, size, sites, steps, batch, sigma = np.random.default_rng(1), 20_000, 3, 4, 5, 1.5
    noise = np.zeros(size)
    if unit == "site":
        signal, noise = float(sites), rng.normal(0, sigma, size)
    elif unit == "local":
        signal = float(sites)
        noise = rng.normal(0, 2 * sigma, (sites, size)).sum(axis=0)
    else:
        signal = float(sites * steps * batch)
        noise = rng.normal(0, sigma, (sites * steps, size)).sum(axis=0)
    made = Signal(unit, sigma, size, sites, steps=steps, rate=0.05, records=100)
    assert made.ratio == pytest.approx(signal / np.linalg.norm(noise), rel=0.03)


def _plan(text: str) -> Plan:
    return resolved(parse_plan(text))


def test_the_signal_of_a_plan_has_the_plans_figures() -> None:
    text = '[privacy]\nunit = "site"\nepsilon_per_round = 0.5\n[selection]\ntarget = 20\n'
    assert signal_of(_plan(text), 500) == Signal("site", SIGMA, 500, 20)
    text = (
        '[privacy]\nunit = "record"\nnoise_multiplier = 2.0\nrecords = 400\nsampling_rate = 0.1\n'
        "[training]\nepochs = 3\n"
    )
    expected = Signal("record", 2.0, 500, 6, steps=30, rate=0.1, records=400)
    assert signal_of(_plan(text), 500, sites=12) == expected
    assert expected.batch == 40


def test_records_that_the_plan_does_not_say_can_be_told() -> None:
    plan = _plan('[privacy]\nunit = "record"\nnoise_multiplier = 2.0\n')
    assert signal_of(plan, 500).records is None
    assert signal_of(plan, 500, records=300).records == 300


def test_a_round_has_the_target_or_the_fraction_and_never_less_than_the_quorum() -> None:
    assert sites_of_round(parse_plan("[selection]\ntarget = 7\n"), 1000) == 7
    assert sites_of_round(parse_plan("[selection]\nfraction = 0.3\n"), 11) == 4
    assert sites_of_round(Plan(), 2) == 3
    assert sites_of_round(Plan(), None) == 3


@pytest.mark.parametrize("size", [0, 10])
def test_without_noise_there_is_nothing_to_compare(size: int) -> None:
    with pytest.raises(ImpossiblePlanError):
        signal_of(Plan(), size)
    unresolved = parse_plan('[privacy]\npreset = "healthcare"\n')
    with pytest.raises(ImpossiblePlanError):
        signal_of(unresolved, size)


def test_a_hopeless_plan_is_told_what_would_help() -> None:
    (told,) = warnings(Signal("site", SIGMA, SEED_MODEL, 10))
    assert "193 times the signal" in told and "1,927 sites a round" in told
    assert 'unit = "record"' in told
    few = Signal("record", 2.0, 10_000, 4, steps=100, rate=0.1, records=60)
    (told, batch) = warnings(few)
    assert "100 records at each site" in told and "12 sites a round" in told
    assert "6 records on average" in batch and "sampling_rate = 0.267" in batch
    (_, batch) = warnings(Signal("record", 2.0, 10_000, 4, steps=100, rate=0.1, records=10))
    assert "more records at each site" in batch


def test_a_good_plan_is_not_warned_of() -> None:
    assert warnings(Signal("site", 1.0, 100, 10)) == []
    assert warnings(Signal("record", 1.0, 100, 10, steps=10, rate=0.1)) == []  # nobody knows
    assert math.isclose(Signal("site", 1.0, 100, 10).ratio or 0, 1.0)

"""Whole federations in one process."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.federation import evolve, is_legal, replay
from consortium.core.state import Federation
from consortium.drive.engine import SimulatedSite
from consortium.drive.rng import stream
from consortium.drive.simulate import Options, Run, _Simulation, simulate
from consortium.errors import (
    ImpossiblePlanError,
    InsufficientParticipantsError,
    LayoutError,
    TaskResultError,
    UsageError,
)
from consortium.plan import Plan, parse_plan
from consortium.tasks import NumpyTask, Site
from tests.studies import TASK, sites

PLAN = parse_plan("[federation]\nrounds = 4\n[selection]\nfraction = 0.8\n")


def facts_of(run: Run) -> list[f.Fact]:
    return [decode(record) for record in run.records]


def changed(**functions: Any) -> NumpyTask:
    return replace(TASK, **functions)


def test_the_same_seed_gives_the_same_model_and_log() -> None:
    first = simulate(TASK, PLAN, sites(6), seed=1)
    again = simulate(TASK, PLAN, sites(6), seed=1)
    other = simulate(TASK, PLAN, sites(6), seed=2)
    assert first.model_digest == again.model_digest != other.model_digest
    assert first.records == again.records


@pytest.mark.parametrize("count", [3, 70, 150])
def test_blocks_and_one_fact_a_site_give_the_same_model(count: int) -> None:
    def drops(number: int, site: str) -> bool:
        return number == 2 and site in ("site-1", "site-66")

    plan = parse_plan("[federation]\nrounds = 2\nquorum = 2\n[selection]\nfraction = 1.0\n")
    blocks = simulate(TASK, plan, sites(count), seed=3, options=Options(drops=drops))
    single = simulate(TASK, plan, sites(count), seed=3, options=Options(drops=drops, record=True))
    assert blocks.model_digest == single.model_digest
    assert [record.metrics for record in blocks.history.rounds] == [
        record.metrics for record in single.history.rounds
    ]
    assert any(isinstance(fact, f.UpdateReceived) for fact in facts_of(single))
    assert not any(isinstance(fact, f.UpdateReceived) for fact in facts_of(blocks))


@pytest.mark.parametrize("record", [False, True])
def test_the_log_is_legal_and_folds_into_the_state(record: bool) -> None:
    run = simulate(TASK, PLAN, sites(6), seed=1, options=Options(record=record))
    state = Federation()
    for fact in facts_of(run):
        assert is_legal(state, fact), fact
        evolve(state, fact)
    assert state == run.state == replay(facts_of(run))


def test_it_learns_what_a_pooled_fit_would() -> None:
    plan = parse_plan("[federation]\nrounds = 40\n[training]\nbatch_size = 1000\n")
    run = simulate(TASK, plan, sites(5), seed=1)
    np.testing.assert_allclose(run.tensors["w"], [1.0, -2.0, 0.5], atol=1e-2)
    losses = [record.metrics["loss"] for record in run.history.rounds]
    assert losses[-1] < losses[0] / 100


def test_one_round_is_the_weighted_mean_of_the_sites_own_models() -> None:
    plan = parse_plan("[federation]\nrounds = 1\n[selection]\nfraction = 1.0\n")
    run = simulate(TASK, plan, sites(3), seed=4)
    total, weights = np.zeros(3), 0
    for number, site in enumerate(sites(3), start=1):
        rng = stream(4, "train", 1, number)
        local = Site(site.name, site.data, 1, rng, plan.training)
        trained, records = TASK.train(local, TASK.start(rng))  # type: ignore[arg-type]
        total += records * np.asarray(trained["w"], np.float64)
        weights += records
    np.testing.assert_allclose(run.tensors["w"], total / weights, rtol=1e-6)


def test_a_site_drops_out_and_comes_back() -> None:
    options = Options(drops=lambda number, site: number == 2 and site == "site-1")
    plan = parse_plan("[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n")
    run = simulate(TASK, plan, sites(4), seed=1, options=options)
    counted = [(record.counted, record.dropped) for record in run.history.rounds]
    assert counted == [(4, 0), (3, 1), (4, 0)]


def test_backups_are_called_and_the_round_fails_below_the_quorum() -> None:
    plan = parse_plan("[federation]\nrounds = 2\n[selection]\ntarget = 3\n")
    options = Options(drops=lambda number, site: number == 1 and site != "site-0")
    run = simulate(TASK, plan, sites(5), seed=1, options=options)
    first, second = run.history.rounds
    assert (first.outcome, first.reason, first.backups) == ("failed", "no_quorum", 2)
    assert second.outcome == "accepted"


def test_diverging_sites_fall_out_instead_of_spoiling_the_model() -> None:
    def explode(site: Site, shared: dict[str, Any]) -> tuple[Any, int]:
        if site.name == "site-2":
            shared["w"] += np.float32(np.inf)
        return shared, 10

    for record in (False, True):
        options = Options(record=record)
        run = simulate(changed(train=explode), PLAN, sites(5), seed=1, options=options)
        assert np.isfinite(run.model).all()
        assert sum(round_.dropped for round_ in run.history.rounds) > 0


def test_a_sum_that_overflows_fails_the_round() -> None:
    def huge(site: Site, shared: dict[str, Any]) -> tuple[Any, int]:
        shared["w"] += np.float32(3e38)
        return shared, 10

    plan = parse_plan(
        "[federation]\nrounds = 3\n[evaluation]\nenabled = false\n[strategy]\nserver_lr = 2.0\n"
    )
    run = simulate(changed(train=huge), plan, sites(3), seed=1)
    assert [record.reason for record in run.history.rounds] == ["not_finite"] * 3
    assert run.state.current == 0


def test_a_worse_candidate_is_kept_out() -> None:
    def spoil(site: Site, shared: dict[str, Any]) -> tuple[Any, int]:
        if site.round == 3:
            return {"w": shared["w"] + np.float32(9), "b": shared["b"]}, 10
        return TASK.train(site, shared)

    run = simulate(changed(train=spoil), PLAN, sites(5), seed=1)
    outcomes = [record.outcome for record in run.history.rounds]
    assert outcomes == ["accepted", "accepted", "kept", "accepted"]
    assert run.state.current == 3


def test_it_stops_when_the_loss_is_low_or_stands_still() -> None:
    low = parse_plan("[federation]\nrounds = 99\n[stop]\nloss_below = 0.5\n")
    run = simulate(TASK, low, sites(4), seed=1)
    assert run.history.finished == "converged"
    assert run.history.rounds[-1].metrics["loss"] < 0.5
    still = parse_plan("[federation]\nrounds = 99\n[stop]\npatience = 3\nmin_delta = 1e9\n")
    assert simulate(TASK, still, sites(4), seed=1).history.finished == "no_improvement"


def test_without_evaluation_every_candidate_is_published() -> None:
    plan = parse_plan("[federation]\nrounds = 3\n[evaluation]\nenabled = false\n")
    run = simulate(TASK, plan, sites(4), seed=1)
    assert run.state.current == 3
    assert run.history.rounds[0].metrics == {}


def test_conditions_and_attributes_come_from_what_sites_report() -> None:
    made = [
        SimulatedSite(site.name, site.data, (("memory_gb", 8 + 8 * (number % 2)),))
        for number, site in enumerate(sites(8))
    ]
    plan = parse_plan(
        "[federation]\nrounds = 2\n[selection]\nfraction = 1.0\nrequire = ['memory_gb >= 16']\n"
    )
    run = simulate(TASK, plan, made, seed=1)
    assert [record.counted for record in run.history.rounds] == [4, 4]


def test_a_daily_cadence_takes_a_day_a_round() -> None:
    plan = parse_plan("[federation]\nrounds = 3\nevery = '1d'\n")
    for record in (False, True):
        run = simulate(TASK, plan, sites(4), seed=1, options=Options(record=record))
        opened = [record_.opened_ms for record_ in run.history.rounds]
        assert opened == [0, 86_400_000, 172_800_000]


def test_nobody_eligible_ends_with_an_error_not_a_hang() -> None:
    plan = parse_plan("[federation]\nrounds = 2\n[selection]\nrequire = ['gpu == true']\n")
    with pytest.raises(ImpossiblePlanError, match="report nothing"):
        simulate(TASK, plan, sites(4), seed=1)
    weak = [SimulatedSite(site.name, site.data, (("gpu", False),)) for site in sites(4)]
    with pytest.raises(InsufficientParticipantsError, match="no round can open"):
        simulate(TASK, plan, weak, seed=1)


@pytest.mark.parametrize(
    "rules",
    [
        "[selection]\ntarget = 10\noverselect = 1.5\n",
        "[selection]\nfraction = 1.0\n[round]\nclose = 'quorum'\n",
        "[selection]\nfraction = 1.0\n[strategy]\nclip = 0.5\nweight = 'sqrt'\n",
        "[selection]\ntarget = 80\noverselect = 1.2\n",
    ],
)
def test_every_closing_rule_gives_the_same_model_in_blocks(rules: str) -> None:
    plan = parse_plan(f"[federation]\nrounds = 3\nquorum = 3\n{rules}")

    def train(site: Site, shared: dict[str, Any]) -> tuple[Any, int]:
        if (site.name, site.round) == ("site-4", 1):  # it falls out, and is itself again later
            return {**shared, "w": shared["w"] + np.float32(np.nan)}, 10
        return TASK.train(site, shared)

    runs = [
        simulate(changed(train=train), plan, sites(100), seed=2, options=Options(record=record))
        for record in (False, True)
    ]
    assert runs[0].model_digest == runs[1].model_digest
    counted = [[record.counted for record in run.history.rounds] for run in runs]
    assert counted[0] == counted[1]


def test_a_sum_too_large_for_half_precision_fails_the_round() -> None:
    def start(rng: np.random.Generator) -> dict[str, Any]:
        return {"w": np.zeros(3, np.float16)}

    def huge(site: Site, shared: dict[str, Any]) -> tuple[Any, int]:
        return {"w": shared["w"] + np.float16(60000)}, 10

    plan = parse_plan(
        "[federation]\nrounds = 2\n[evaluation]\nenabled = false\n[strategy]\nserver_lr = 2.0\n"
    )
    run = simulate(changed(start=start, train=huge), plan, sites(3), seed=1)
    assert [record.reason for record in run.history.rounds] == ["not_finite"] * 2


def test_the_log_says_who_was_lost_and_why() -> None:
    options = Options(drops=lambda number, site: site == "site-1")
    plan = parse_plan("[federation]\nrounds = 1\n[selection]\nfraction = 1.0\n")
    (record,) = simulate(TASK, plan, sites(4), seed=1, options=options).history.rounds
    assert (record.lost, record.silent) == ([("site-1", "resources")], 0)


def test_memory_does_not_grow_with_the_rounds() -> None:
    kept = []
    for rounds in (2, 9):
        plan = parse_plan(f"[federation]\nrounds = {rounds}\n")
        simulation = _Simulation(TASK, plan, sites(4), 1, Options())
        simulation.run()
        kept.append(len(simulation._blobs._blobs))  # type: ignore[attr-defined]
    assert kept[0] == kept[1]


def test_too_few_sites_are_refused_at_once() -> None:
    with pytest.raises(InsufficientParticipantsError, match="2 sites"):
        simulate(TASK, PLAN, sites(2), seed=1)


def test_an_impossible_plan_is_refused_at_once() -> None:
    plan = Plan.model_validate({"federation": {"quorum": 4}, "selection": {"target": 3}})
    with pytest.raises(ImpossiblePlanError):
        simulate(TASK, plan, sites(5), seed=1)


def boom(*_: object) -> Any:
    raise ValueError("patient 4711 has a bad value")


@pytest.mark.parametrize(
    ("functions", "error", "says"),
    [
        (
            {"train": boom},
            TaskResultError,
            r"site-\d: train failed: ValueError in test_simulate.py:",
        ),
        ({"evaluate": boom}, TaskResultError, "evaluate failed: ValueError"),
        ({"start": boom}, TaskResultError, "start failed: ValueError"),
        ({"train": lambda site, shared: shared}, TaskResultError, "train returned dict"),
        ({"train": lambda site, shared: None}, TaskResultError, "train returned NoneType"),
        ({"train": lambda site, shared: (shared, 0)}, TaskResultError, "at least one"),
        ({"train": lambda site, shared: (shared, True)}, TaskResultError, "at least one"),
        ({"train": lambda site, shared: ({"w": shared["w"]}, 1)}, LayoutError, "`b` is missing"),
        ({"evaluate": lambda site, shared: ({"loss": 1.0}, 1)}, TaskResultError, "left out 'mae'"),
        ({"evaluate": lambda site, shared: 1.0}, TaskResultError, "evaluate returned float"),
        ({"start": lambda rng: {}}, LayoutError, "shares no tensor"),
        ({"start": lambda rng: {"w": np.float32([np.nan])}}, TaskResultError, "not finite"),
    ],
)
def test_a_task_that_breaks_its_contract_is_told_so(
    functions: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        simulate(changed(**functions), PLAN, sites(4), seed=1)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("record", [False, True])
def test_a_candidate_that_gives_no_number_at_one_member_is_kept_out(record: bool) -> None:
    """The others must not vote a model in that one of them cannot use."""

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        is_wild = site.name == "site-1" and bool(np.any(shared["w"]))
        return {"loss": np.nan if is_wild else 1.0, "mae": 0.0}, 5

    plan = parse_plan("[federation]\nrounds = 2\nquorum = 2\n[selection]\nfraction = 1.0\n")
    run = simulate(
        replace(TASK, evaluate=evaluate), plan, sites(3), seed=1, options=Options(record=record)
    )
    assert [record.outcome for record in run.history.rounds] == ["kept", "kept"]
    assert run.history.rounds[-1].worst["loss"] == ("site-1", 1e30)


def test_two_sites_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="the same name"):
        simulate(TASK, Plan(), [sites(1)[0]] * 3, seed=1)


def test_a_stream_is_that_of_its_key() -> None:
    """In fewer microseconds than by the usual way."""
    key = hashlib.sha256(b"consortium/rng/v1\0" + b"7/train/3/5").digest()[:16]
    usual = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))
    mine = stream(7, "train", 3, 5)
    assert mine.integers(2**63, size=9).tolist() == usual.integers(2**63, size=9).tolist()
    assert mine.permutation(20).tolist() == usual.permutation(20).tolist()

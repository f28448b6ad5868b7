"""Scores inside masked sums: by hand, by properties, and in whole studies."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consortium.aggregate.columns import Source
from consortium.core import facts as f
from consortium.core.codec import decode, encode
from consortium.core.ids import Seat
from consortium.core.terms import Metric
from consortium.drive.base_scores import bounded_scores, scores_in
from consortium.drive.directory import DataDirectory
from consortium.drive.engine import SimulatedSite, simulated_site
from consortium.drive.inspect import inventory_text
from consortium.drive.leaving import Made, leaving
from consortium.drive.local import LocalWork
from consortium.drive.run_folder import RunFolder, final_metrics, scored_version
from consortium.drive.runs import metrics_of, read_run
from consortium.drive.simulate import Options, Run, simulate
from consortium.drive.unmasked import sum_source
from consortium.drive.verify import verify_directory
from consortium.errors import TaskResultError
from consortium.model import Layout
from consortium.plan import Plan, parse_plan
from consortium.tasks import NumpyTask, Site, Trained, numpy_task
from consortium.testing.masked_rounds import secure_sum, site_ids
from consortium.update.ring import Ring
from tests.studies import TASK, sites
from tests.test_verify import rows, write_row

METRICS = (Metric("loss", False), Metric("accuracy", True))
LAYOUT = Layout.of({"w": np.zeros(2, np.float32)})


def plan_of(
    more: str = "", *, count: int = 10, rounds: int = 3, masks: bool = True, keys: str = ""
) -> Plan:
    quorum = max(3, -(-2 * count // 3))
    head = f"[federation]\nrounds = {rounds}\nquorum = {quorum}\n[selection]\ntarget = {count}\n"
    strategy = '[strategy]\nclip = 1.0\nweight = "capped"\nweight_cap = 25.0\n'
    scores = f"[evaluation]\ngate = false\nbound = 50.0\n{keys}"
    security = "[security]\nsecure_aggregation = true\n" if masks else ""
    return parse_plan(head + strategy + scores + security + more)


def scored_in(run: Run) -> list[f.BaseScored]:
    facts = [decode(record) for record in run.records]
    return [fact for fact in facts if isinstance(fact, f.BaseScored)]


# ---- three sites, by hand -----------------------------------------------------------


def test_three_sites_by_hand() -> None:
    """Of a loss of 2 on 10 records, 1 on 20 and 60, which is cut to 50, on 5: with a cap of 16
    records, 10 · 2 + 16 · 1 + 5 · 50 = 286 of 31. Right are 5 of 10, 20 of 20 and none."""
    plan = plan_of(count=3, keys="records_cap = 16\n")
    told = [([20.0, 5.0], 10), ([20.0, 20.0], 20), ([300.0, 0.0], 5)]
    scores = [bounded_scores(plan, METRICS, one) for one in told]
    assert scores == [(20.0, 5.0, 10.0), (16.0, 16.0, 16.0), (250.0, 0.0, 5.0)]
    levels = [_levels(plan, at, one) for at, one in enumerate(scores)]
    ring = plan.ring(LAYOUT, METRICS)
    total = secure_sum(dict(zip(site_ids(3), levels, strict=True)), frozenset(site_ids(3)))
    assert scores_in(ring, [sum_source(ring, total, 3)], 3) == (31, (286.0, 21.0))


def _levels(plan: Plan, at: int, scores: tuple[float, ...]) -> Any:
    site = simulated_site(SimulatedSite(f"s{at}", None), at + 1, plan, 7, 1, "train")
    made = Made(site, None, 10, {}, None, scores)
    rows = np.full((1, 2), 0.1, np.float32)
    packed = leaving(plan, LAYOUT, rows, [made], METRICS).packed[0]
    assert packed is not None
    return np.frombuffer(packed, np.uint32)


# ---- properties ---------------------------------------------------------------------

PAIRS = st.tuples(st.floats(-80, 80), st.floats(0, 1), st.integers(0, 3_000))


@settings(max_examples=60)
@given(st.lists(PAIRS, min_size=3, max_size=12), st.sampled_from([None, 8, 20]))
def test_a_masked_sum_is_the_plain_sum_but_for_rounding(
    found: list[tuple[float, float, int]], bits: int | None
) -> None:
    """Counts are exact; a metric is off by a step of its own grid a site at most, however few bits
    the values have."""
    more = "" if bits is None else f"bits = {bits}\n"
    plan = plan_of(more, count=len(found), keys="records_cap = 1000\n")
    told = [([loss * n, right * n], n) for loss, right, n in found]
    scores = [bounded_scores(plan, METRICS, one) for one in told]
    ring = plan.ring(LAYOUT, METRICS)
    levels = [_levels(plan, at, one) for at, one in enumerate(scores)]
    total = np.add.reduce(levels, dtype=np.uint32)
    samples, sums = scores_in(ring, [sum_source(ring, total, len(found))], len(found))
    assert samples == sum(min(n, 1000) for _, _, n in found)
    assert len(sums) == 2
    if samples:
        for at, bound in ((0, 50_000.0), (1, 1_000.0)):
            step = 2.0 ** math.ceil(math.log2(bound / ring.finest))
            exact = math.fsum(one[at] for one in scores)
            assert abs(sums[at] - exact) <= len(found) * step


@given(st.integers(1, 3000), st.floats(1e-3, 1e6), st.integers(1, 10**6))
def test_no_sum_of_scores_can_wrap(cohort: int, bound: float, cap: int) -> None:
    """Everybody claims the most: so many levels still fit, and the sum comes back."""
    ring = Ring(1.0, cohort, 8, (bound * cap, float(min(cap, 2**9))))
    row = ring.encode(np.zeros(1), 1.0, ring.metrics, lambda n: np.zeros(n, np.uint64))
    total = (row.astype(np.uint64) * cohort).astype(np.uint32)
    levels = row[-2:].view(np.int32).astype(np.int64) * cohort
    assert (np.abs(levels) < 2**31).all()
    found = ring.decode(total).metrics
    assert found[0] == pytest.approx(cohort * bound * cap, rel=2e-3 if cohort < 2000 else 1e-2)


def test_a_number_that_is_none_counts_as_the_worst_within_the_bounds() -> None:
    plan = plan_of()
    worst = [1e30 * 4, -1e30 * 4]  # as `evaluate` gives it, of four records
    assert bounded_scores(plan, METRICS, (worst, 4)) == (200.0, 0.0, 4.0)


@pytest.mark.parametrize(
    "row",
    [
        [0.0, 0.0, -5.0],  # fewer than no records
        [0.0, 0.0, 1e6],  # more than all sites can have
        [1e9, 0.0, 100.0],
        [0.0, -1e6, 100.0],
        [0.0, 0.0, 0.25],
    ],
)
def test_what_no_honest_sites_can_have_said_is_no_score(row: list[float]) -> None:
    ring = plan_of().ring(LAYOUT, METRICS)
    rows = [Source(0, np.array([0.0, 0.0, 1.0, *row]), 10.0, is_sum=True)]
    assert scores_in(ring, rows, 10) == (0, (0.0, 0.0))
    assert scores_in(Ring(1.0, 3, 20), rows, 10) == (0, ())


def test_no_mean_is_beyond_its_bound() -> None:
    """Each number by itself could be honest ones'; together they cannot."""
    ring = plan_of().ring(LAYOUT, METRICS)

    def scored(*row: float) -> int:
        rows = [Source(0, np.array([0.0, 0.0, 1.0, *row]), 10.0, is_sum=True)]
        return scores_in(ring, rows, 10)[0]

    assert scored(50.0, 1.0, 1.0) == 1
    assert scored(51.0, 1.0, 1.0) == scored(50.0, 2.0, 1.0) == scored(-51.0, 1.0, 1.0) == 0
    assert scored(100.0, 1.0, 2.0) == 2


# ---- whole studies ------------------------------------------------------------------


@pytest.mark.parametrize("masks", [True, False])
def test_noise_on_updates_keeps_what_a_task_keeps_out_of_scores(masks: bool) -> None:
    """Else a score would tell, without noise, of the records that it was made of."""
    seen = list[Any]()

    def train(site: Site, shared: dict[str, Any]) -> Trained:
        return Trained(shared, 10, state={"secret": np.ones(1)})

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        seen.append(site.state)
        return {"loss": 1.0, "mae": 1.0}, 10

    plan = parse_plan(
        "[federation]\nrounds = 3\nquorum = 7\n[selection]\ntarget = 10\n"
        f"[security]\nsecure_aggregation = {str(masks).lower()}\n"
        "[evaluation]\ngate = false\nbound = 50.0\n"
        '[privacy]\nunit = "site"\nepsilon = 50.0\nclip = 1.0\ntest_records = "public"\n'
    )
    task: NumpyTask = replace(TASK, train=train, evaluate=evaluate)
    run = simulate(task, plan, sites(10), seed=1)
    assert len(seen) >= 30 and not any(seen)
    assert [run.states.current(Seat(seat)) is not None for seat in (1, 10)] == [True, True]


def test_scores_are_those_of_the_open_study_one_round_later() -> None:
    masked, plain = (
        simulate(TASK, plan_of(masks=masks), sites(10), seed=1) for masks in (True, False)
    )
    scored = scored_in(masked)
    assert [(one.round, one.version) for one in scored] == [(1, 0), (2, 1), (3, 2)]
    for one, record in zip(scored, plain.history.rounds, strict=True):
        assert one.samples == record.samples == sum(20 + number for number in range(10))
        assert one.means == pytest.approx(list(record.base_metrics.values()), abs=1e-4)
    first, second, last = masked.history.rounds
    assert first.metrics == second.base_metrics and first.told == (first.base_metrics, 0)
    assert second.metrics == last.base_metrics != {} and last.metrics == {}
    assert last.told == (last.base_metrics, 2), "the last model has no score"
    assert (final_metrics(masked), scored_version(masked)) == (last.base_metrics, 2)
    assert scored_version(plain) is None


def test_training_goes_as_it_would_without_scores() -> None:
    quiet = plan_of(keys="enabled = false\n")
    runs = [simulate(TASK, plan, sites(10), seed=3) for plan in (plan_of(), quiet)]
    assert runs[0].model_digest == runs[1].model_digest and scored_in(runs[1]) == []


def test_blocks_single_sites_and_workers_give_the_same_scores() -> None:
    def drops(number: int, site: str) -> bool:
        return number == 2 and site in ("site-1", "site-6")

    ways: list[dict[str, Any]] = [{}, {"record": True}, {"workers": 2}]
    runs = [
        simulate(TASK, plan_of(), sites(10), seed=3, options=Options(drops=drops, **way))
        for way in ways
    ]
    told = [[(one.samples, one.sums) for one in scored_in(run)] for run in runs]
    assert told[0] == told[1] == told[2]
    assert told[0][1][0] == told[0][0][0] - 21 - 26, "who dropped out is in no sum"
    assert len({run.model_digest for run in runs}) == 1


def test_more_sites_than_a_block() -> None:
    plan = plan_of(count=150, rounds=2)
    blocks, single = (
        scored_in(simulate(TASK, plan, sites(150), seed=3, options=Options(record=record)))
        for record in (False, True)
    )
    assert [(one.samples, one.sums) for one in blocks] == [
        (one.samples, one.sums) for one in single
    ]


def test_nothing_is_said_of_single_sites() -> None:
    run = simulate(TASK, plan_of(), sites(10), seed=1, options=Options(record=True))
    facts = [decode(record) for record in run.records]
    assert not any(isinstance(fact, f.Evaluated | f.CohortEvaluated) for fact in facts)
    assert all(not record.sites and not record.worst for record in run.history.rounds)


def test_a_low_loss_ends_the_study_one_round_late() -> None:
    run = simulate(TASK, plan_of("[stop]\nloss_below = 1.5\n", rounds=50), sites(10), seed=1)
    losses = [one.means[0] for one in scored_in(run)]
    assert run.history.finished == "converged"
    assert losses[-1] < 1.5 <= min(losses[:-1])
    assert run.state.current == scored_in(run)[-1].version + 1


def test_patience_goes_by_the_scores_of_sums() -> None:
    more = "[stop]\npatience = 2\nmin_delta = 1.0\n"
    run = simulate(TASK, plan_of(more, rounds=50), sites(10), seed=1)
    assert run.history.finished == "no_improvement"
    assert [one.is_improvement for one in scored_in(run)][-2:] == [False, False]


# ---- sites that cannot say anything -------------------------------------------------


def _task(evaluate: Any) -> NumpyTask:
    @numpy_task(start=TASK.start, evaluate=evaluate, metrics=["loss"])
    def train(site: Site, shared: dict[str, Any]) -> Any:
        return TASK.train(site, shared)

    return train


def test_a_site_without_test_records_takes_part_and_says_nothing() -> None:
    def evaluate(site: Site, shared: dict[str, Any]) -> Any:
        means, records = TASK.evaluate(site, shared)
        return ({"loss": math.nan}, 0) if site.name in ("site-2", "site-3") else (means, records)

    run = simulate(_task(evaluate), plan_of(), sites(10), seed=1)
    assert [record.counted for record in run.history.rounds] == [10, 10, 10]
    assert {one.samples for one in scored_in(run)} == {245 - 22 - 23}


def test_a_study_without_test_records_has_no_scores_and_goes_on() -> None:
    def evaluate(site: Site, shared: dict[str, Any]) -> Any:
        return {}, 0

    more = "[stop]\nloss_below = 1.0\npatience = 1\n"
    run = simulate(_task(evaluate), plan_of(more), sites(10), seed=1)
    assert [(one.samples, one.sums, one.means) for one in scored_in(run)] == [(0, (0.0,), ())] * 3
    assert run.history.finished == "rounds_done" and final_metrics(run) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_the_worst(value: float) -> None:
    def evaluate(site: Site, shared: dict[str, Any]) -> Any:
        return {"loss": value if site.name == "site-0" else 0.0}, 10

    run = simulate(_task(evaluate), plan_of(), sites(10), seed=1)
    assert scored_in(run)[0].means == (5.0,), "one of ten at the bound of 50"


def test_an_evaluation_that_fails_is_not_taken_for_one_without_records() -> None:
    def evaluate(site: Site, shared: dict[str, Any]) -> Any:
        raise ValueError("a bug")

    with pytest.raises(TaskResultError, match="evaluate failed: ValueError"):
        simulate(_task(evaluate), plan_of(), sites(10), seed=1)
    with pytest.raises(TaskResultError, match="evaluate returned"):
        simulate(_task(lambda site, shared: 7), plan_of(), sites(10), seed=1)


def test_a_model_is_tried_with_what_the_site_kept_beside_it() -> None:
    """The base goes with what the last round made: here, the number of that round."""

    def evaluate(site: Site, shared: dict[str, Any]) -> Any:
        return {"loss": float(site.state["round"][0]) if site.state else 0.0}, 1

    @numpy_task(start=TASK.start, evaluate=evaluate)
    def train(site: Site, shared: dict[str, Any]) -> Any:
        made, records = TASK.train(site, shared)
        return Trained(made, records, state={"round": np.array([float(site.round)])})

    run = simulate(train, plan_of(), sites(10), seed=1)
    assert [one.means for one in scored_in(run)] == [(0.0,), (1.0,), (2.0,)]


# ---- what is left behind ------------------------------------------------------------


def test_what_leaves_says_that_scores_are_masked_with_the_update() -> None:
    plan = plan_of()
    layout = Layout.of(TASK.start(np.random.default_rng(0)))
    inventory = LocalWork(TASK, layout, plan).inventory(
        simulated_site(sites(1)[0], 1, plan, 1, 0, "start")
    )
    text = inventory_text(inventory, plan, TASK.metrics)
    assert "LEAVES  as 32 bytes that are masked, weight and scores among them" in text
    assert "LEAVES  every round, masked with the update: how many test records" in text


def test_a_run_folder_says_of_which_version_its_scores_are(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    plan = plan_of()
    folder.begin(plan, 1)
    options = Options(on_round=folder.add_round)
    told = folder.finish(simulate(TASK, plan, sites(10), seed=1, options=options))
    assert (told["metrics_version"], told["model_version"]) == (2, 3)
    found = read_run(tmp_path / "run")
    assert [at for at, _ in found.curve("loss")] == [1, 2], "the model of the last round has none"
    assert metrics_of([found]) == ["loss", "mae"] and found.late_version("loss") == 2
    lines = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line)["published"] for line in lines] == [1, 2, 3]


# ---- the audit ----------------------------------------------------------------------


def _kept(tmp_path: Path, *, record: bool) -> Path:
    directory = DataDirectory(tmp_path / "data")
    options = Options(record=record, directory=directory)
    simulate(TASK, plan_of(), sites(10), seed=1, options=options)
    directory.close()
    return tmp_path / "data"


@pytest.mark.parametrize("record", [True, False])
def test_an_audit_finds_the_scores_in_the_sums(tmp_path: Path, record: bool) -> None:
    assert verify_directory(_kept(tmp_path, record=record)).findings == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"samples": 246}, "the members' updates give other scores"),
        ({"sums": (1.0, 1.0)}, "the members' updates give other scores"),
        ({"samples": 0, "sums": (0.0, 0.0), "is_improvement": False}, "give other scores"),
        ({"version": 1}, "it does not fit the round"),
    ],
)
def test_an_audit_finds_a_changed_score(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    """Before it looks at the signed checkpoint, which would tell it too."""
    folder = _kept(tmp_path, record=False)
    stream, position, record = next(
        row for row in rows(folder) if "/" not in row[0] and row[2][0] == f.BaseScored.KIND
    )
    write_row(folder, stream, position, encode(replace(decode(record), **change)))
    first = verify_directory(folder).findings[0]
    assert first.what.startswith("BaseScored: ") and found in first.what
    assert first.where == f"{stream}, fact {position}"


def test_an_audit_of_noised_models_redoes_their_scores(tmp_path: Path) -> None:
    """Where the coordinator noises the sum the model cannot be redone; its scores can."""
    more = 'clip = 1.0\ntest_records = "public"\nnoise_at = "coordinator"\n'
    plan = plan_of(f'[privacy]\nunit = "site"\nepsilon = 400.0\n{more}')
    directory = DataDirectory(tmp_path / "data")
    simulate(TASK, plan, sites(10), seed=1, options=Options(directory=directory))
    directory.close()
    assert verify_directory(tmp_path / "data").findings == []
    stream, position, record = next(
        row for row in rows(tmp_path / "data") if row[2][0] == f.BaseScored.KIND
    )
    write_row(tmp_path / "data", stream, position, encode(replace(decode(record), samples=1)))
    assert "give other scores" in verify_directory(tmp_path / "data").findings[0].what


def test_shares_of_noise_come_on_values_and_not_on_scores() -> None:
    more = 'clip = 1.0\ntest_records = "public"\n'
    plan = plan_of(f'[privacy]\nunit = "site"\nepsilon = 400.0\n{more}')
    assert plan.has_noise_shares
    noised = scored_in(simulate(TASK, plan, sites(10), seed=1))
    assert noised[0].samples == 245
    open_ = scored_in(simulate(TASK, plan_of(), sites(10), seed=1))
    assert noised[0].means == pytest.approx(open_[0].means, abs=1e-4)

"""Masked plans in simulation, and the pieces that real sites and coordinators share with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from consortium.aggregate.columns import Source
from consortium.aggregate.rules import combined
from consortium.aggregate.weighed import WeighedMean
from consortium.checks import Expected, check_update
from consortium.cli.noise_told import warn_of_studies
from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.ids import Digest
from consortium.drive.alone import cross_site
from consortium.drive.contribution import Contributions
from consortium.drive.directory import DataDirectory
from consortium.drive.engine import SimulatedSite, simulated_site
from consortium.drive.inspect import inventory_text
from consortium.drive.leaving import Made, leaving
from consortium.drive.release import MaskedRelease, release_of, secret_noise
from consortium.drive.simulate import Options, Run, check_study, simulate
from consortium.drive.unmasked import sum_source
from consortium.drive.verify import verify_directory
from consortium.errors import (
    DimensionError,
    ImpossiblePlanError,
    InsufficientParticipantsError,
    InternalError,
)
from consortium.model import Layout, Update, load_update, save_update
from consortium.plan import Plan, parse_plan
from consortium.plan.noise import resolved
from consortium.store.memory import MemoryBlobs
from consortium.stored import open_update
from consortium.tasks import Inventory
from consortium.testing.masked_rounds import secure_sum, site_ids
from consortium.update.ring import Ring
from tests.studies import TASK, sites

MASKS = "[security]\nsecure_aggregation = true\n"
QUIET = "[evaluation]\nenabled = false\ngate = false\n"
LAYOUT = Layout.of({"w": np.zeros(6, np.float32), "b": np.zeros(2, np.float32)})
BASE = Digest(bytes(range(32)))


def plan_of(more: str = "", *, masks: bool = True, count: int = 10, strategy: str = "") -> Plan:
    quorum = max(3, -(-2 * count // 3))
    sizes = f"[federation]\nrounds = 3\nquorum = {quorum}\n[selection]\ntarget = {count}\n"
    parts = f'[strategy]\nclip = 1.0\nweight = "capped"\nweight_cap = 25.0\n{strategy}\n'
    return parse_plan(sizes + parts + QUIET + (MASKS if masks else "") + more)


def private(more: str = "", count: int = 10) -> Plan:
    quorum = max(3, -(-2 * count // 3))
    sizes = f"[federation]\nrounds = 3\nquorum = {quorum}\n[selection]\ntarget = {count}\n"
    return parse_plan(f'{sizes}{MASKS}[privacy]\nunit = "site"\nepsilon = 400.0\n{more}')


def facts_of(run: Run) -> list[f.Fact]:
    return [decode(record) for record in run.records]


# ---- whole studies ------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(),
        plan_of(strategy='name = "fedadam"'),
        plan_of(strategy='name = "fedavgm"'),
        private(),
    ],
    ids=["mean", "adam", "momentum", "noise"],
)
def test_blocks_single_sites_and_workers_give_the_same_model(plan: Plan) -> None:
    def drops(number: int, site: str) -> bool:
        return number == 2 and site in ("site-1", "site-6")

    ways = [{}, {"record": True}, {"workers": 2}]
    runs = [
        simulate(TASK, plan, sites(10), seed=3, options=Options(drops=drops, **way))  # type: ignore[arg-type]
        for way in ways
    ]
    assert len({run.model_digest for run in runs}) == 1
    assert [record.bytes_sent for record in runs[0].history.rounds] == [
        record.bytes_sent for record in runs[1].history.rounds
    ]


def test_masks_cost_no_more_than_a_step_of_the_grid() -> None:
    masked, plain = (
        simulate(TASK, plan_of(masks=masks), sites(10), seed=1) for masks in (True, False)
    )
    off = np.abs(masked.model.astype(np.float64) - plain.model)
    assert 0 < off.max() < 1e-5


def test_more_sites_than_a_block() -> None:
    plan = plan_of(count=150)
    blocks = simulate(TASK, plan, sites(150), seed=3)
    single = simulate(TASK, plan, sites(150), seed=3, options=Options(record=True))
    assert blocks.model_digest == single.model_digest


def test_nothing_is_said_of_single_updates() -> None:
    run = simulate(TASK, plan_of(), sites(10), seed=1, options=Options(record=True))
    accepted = [fact for fact in facts_of(run) if isinstance(fact, f.UpdateAccepted)]
    assert len(accepted) == 30
    assert {(fact.weight, fact.norm) for fact in accepted} == {(None, None)}


@pytest.mark.parametrize(
    "plan",
    [plan_of(), private(), private('noise_at = "coordinator"\n')],
    ids=["masks", "shares", "coordinator"],
)
def test_an_audit_does_the_sums_again(plan: Plan, tmp_path: Path) -> None:
    for name, record in (("one", True), ("many", False)):
        directory = DataDirectory(tmp_path / name)
        options = Options(record=record, directory=directory)
        simulate(TASK, plan, sites(10), seed=1, options=options)
        directory.close()
        assert verify_directory(tmp_path / name).findings == []


def test_sites_alone_train_without_masks() -> None:
    run = simulate(TASK, plan_of(), sites(10), seed=1)
    assert len(cross_site(run, "mae").own) == 10


def test_what_leaves_says_that_it_is_masked() -> None:
    text = inventory_text(Inventory(LAYOUT.specs), plan_of())
    assert "LEAVES  as 36 bytes that are masked, the weight among them" in text
    assert "made of how many records" not in text


# ---- what a site masks --------------------------------------------------------------


def made_of(plan: Plan, rows: Any, records: list[int]) -> Contributions:
    """What leaves sites that made these rows."""
    made = []
    for at, count in enumerate(records):
        site = simulated_site(SimulatedSite(f"s{at}", None), at + 1, plan, 7, 1, "train")
        made.append(Made(site, None, count, {}))
    return leaving(plan, LAYOUT, np.array(rows, np.float32), made)


def example(plan: Plan, count: int = 10) -> Contributions:
    rng = np.random.default_rng(5)
    rows = rng.normal(0, 0.5, (count, LAYOUT.size))
    return made_of(plan, rows, [3 * at + 1 for at in range(count)])


def levels_of(made: Contributions) -> list[np.ndarray]:
    return [np.frombuffer(one or b"", np.uint32) for one in made.packed]


@pytest.mark.parametrize("plan", [plan_of(), private()], ids=["masks", "noise"])
@pytest.mark.parametrize("stay", [10, 7])
def test_a_simulated_sum_has_the_bits_of_the_unmasked_one(plan: Plan, stay: int) -> None:
    plan = resolved(plan)
    made, ring = example(plan), plan.ring(LAYOUT)
    rows = dict(zip(site_ids(10), levels_of(made), strict=True))
    total = secure_sum(rows, frozenset(list(rows)[:stay]))
    unmasked = sum_source(ring, total, stay)
    simulated = [Source(at, row, 1.0) for at, row in enumerate(made.rows[:stay])]
    rule = WeighedMean(ring.extra, 10.0 if plan.has_noise_shares else None)
    assert unmasked.is_sum and unmasked.weight == stay
    assert combined(rule, [unmasked]).tobytes() == combined(rule, simulated).tobytes()


def test_the_mean_is_that_of_clipped_and_weighed_rows() -> None:
    made = example(plan_of())
    ring = plan_of().ring(LAYOUT)
    total = np.add.reduce(levels_of(made), dtype=np.uint32)
    mean = combined(WeighedMean(), [sum_source(ring, total, 10)])[:-1]
    rng = np.random.default_rng(5)
    rows = rng.normal(0, 0.5, (10, LAYOUT.size)).astype(np.float32)
    clipped = rows / np.maximum(np.linalg.norm(rows, axis=1), 1.0)[:, None]
    weights = np.minimum((3 * np.arange(10) + 1) / 25, 1.0)
    assert mean == pytest.approx(weights @ clipped / weights.sum(), abs=2e-6)
    assert made.weights == [1.0] * 10, "a weight is told under the mask only"


def test_a_square_root_is_scaled_by_the_most_that_it_can_be() -> None:
    strategy = '[strategy]\nclip = 1.0\nweight = "sqrt"\nweight_cap = 16.0\n'
    sizes = "[federation]\nquorum = 3\n[selection]\ntarget = 3\n"
    plan = parse_plan(sizes + strategy + QUIET + MASKS)
    made = made_of(plan, np.zeros((3, LAYOUT.size)), [1, 4, 100])
    assert made.rows[:, -1] == pytest.approx([0.25, 0.5, 1.0], abs=1e-6)


def test_a_row_does_not_depend_on_its_neighbours_and_is_the_same_again() -> None:
    plan, rows = plan_of(), np.full((2, LAYOUT.size), 0.1)
    both, again = (made_of(plan, rows, [5, 9]) for _ in range(2))
    assert both.packed == again.packed
    alone = made_of(plan, rows[:1], [5])
    assert alone.packed[0] == both.packed[0]


def test_a_site_that_failed_sends_nothing_and_the_others_do() -> None:
    rows = np.full((3, LAYOUT.size), 0.1)
    rows[1, 2] = np.nan
    made = made_of(plan_of(), rows, [5, 5, 5])
    assert [failure is None for failure in made.failures] == [True, False, True]


def test_no_row_leaves_without_its_share_of_the_noise() -> None:
    plan = resolved(private())
    site = simulated_site(SimulatedSite("s", None), 1, plan, 7, 1, "train")
    rows = np.zeros((1, LAYOUT.size), np.float32)
    with pytest.raises(InternalError, match="without its noise"):
        leaving(plan, LAYOUT, rows, [Made(replace(site, noise=None), None, 5, {})])


def test_shares_hide_what_a_site_weighs() -> None:
    plan = resolved(private())
    made = example(plan)
    assert (made.rows[:, -1] == 0).all() and made.weights == [1.0] * 10


# ---- its file -----------------------------------------------------------------------


def file_of(plan: Plan, **changes: Any) -> bytes:
    one = example(plan).each()[0]
    update = Update(one.row, one.weight, BASE, one.packed)
    return save_update(replace(update, **changes), plan.form(LAYOUT, 1))


def test_a_file_holds_whole_numbers_and_says_nothing_else() -> None:
    plan = plan_of()
    data, form = file_of(plan), plan.form(LAYOUT, 1)
    update = load_update(data, form)
    assert update.row.dtype == np.uint32 and len(update.row) == LAYOUT.size + 1
    assert (update.weight, update.base) == (1.0, BASE)
    assert update.row[:].tobytes() == example(plan).packed[0]
    blobs = MemoryBlobs()
    stored = open_update(blobs, form, blobs.put(data))
    assert (stored.row[2:5] == update.row[2:5]).all()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (file_of(plan_of()), None),
        (file_of(plan_of())[:-1], f.Fault.FORMAT),
        (b"", f.Fault.FORMAT),
        (save_update(Update(np.zeros(9, np.float32), 1.0, BASE)), f.Fault.DIMENSIONS),
        (file_of(plan_of(), base=Digest(bytes(32))), f.Fault.STALENESS),
        (file_of(plan_of(), weight=0.5), f.Fault.MAGNITUDE),
    ],
)
def test_form_and_base_are_all_that_can_be_checked(data: bytes, fault: f.Fault | None) -> None:
    blobs = MemoryBlobs()
    expected = Expected(plan_of().form(LAYOUT, 1), BASE, 1.0, (1.0, 1.0))
    found = check_update(blobs, blobs.put(data), expected)
    assert (found.fault, found.weight, found.norm) == (fault, None, None)


# ---- sums ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "total", [np.zeros(0, np.uint32), np.zeros(3), np.zeros((1, 3), np.uint32)]
)
def test_a_sum_of_other_numbers_is_refused(total: Any) -> None:
    with pytest.raises(DimensionError):
        sum_source(Ring(1.0, 3, 20), total, 3)


def test_columns_are_decoded_where_they_are_asked_for() -> None:
    ring = Ring(8.0, 3, 20, (100.0,))
    total = np.arange(7, dtype=np.uint32) - np.uint32(3)
    whole = sum_source(ring, total, 3).values
    assert len(whole) == 7 and whole.dtype == np.float64
    sums = ring.decode(total)
    expected = [*sums.values, sums.weight, *sums.metrics]
    for lo in range(7):
        for hi in range(lo, 8):
            assert whole[lo:hi].tolist() == expected[lo:hi]


def test_a_sum_without_weight_and_a_row_that_is_weighed_again_are_refused() -> None:
    zero = sum_source(Ring(1.0, 3, 20), np.zeros(4, np.uint32), 3)
    with pytest.raises(InsufficientParticipantsError):
        WeighedMean().columns([zero])
    with pytest.raises(InternalError):
        WeighedMean().columns([Source(0, np.ones(4), 0.5)])


def test_a_coordinators_noise_on_a_masked_sum_is_as_large_as_promised() -> None:
    plan = resolved(private('noise_at = "coordinator"\n'))
    wide = Layout.of({"w": np.zeros(5000, np.float32)})
    release = release_of(plan, wide, 1)
    assert isinstance(release, MaskedRelease) and release.denominator == 10.0
    rows = [sum_source(release.ring, np.full(5001, 77, np.uint32), 10)]
    exact = release.exact(rows, 0, 5000)
    assert exact == pytest.approx(7.7 * release.ring.step)
    noised = release.columns(rows)(0, 5000)
    spread = float(np.std(noised - exact))
    assert spread == pytest.approx(release.deviation, rel=0.06)  # six standard errors
    sigma = plan.privacy.noise_multiplier
    assert sigma is not None
    assert release.deviation >= sigma * release.ring.sensitivity(5000) / 10
    steps = noised * 10 / release.ring.step
    assert np.abs(steps - np.round(steps)).max() < 1e-6, "whole steps: no low bit tells anything"
    assert release_of(resolved(private()), wide, 1, secret_noise) is None


def test_a_layout_that_leaves_no_room_for_noise_is_told_before_anything_runs() -> None:
    """Eight bits, and so many numbers that rounding alone makes a row eight times as long."""
    sizes = "[federation]\nquorum = 7\n[selection]\ntarget = 10\n"
    noise = '[privacy]\nunit = "site"\nnoise_multiplier = 1e5\n'
    plan = parse_plan(f"{sizes}{MASKS}bits = 8\n{noise}")

    def start(_: np.random.Generator) -> dict[str, Any]:
        return {"w": np.zeros(1_000_000, np.float32)}

    with pytest.raises(ImpossiblePlanError, match="can wrap"):
        check_study(replace(TASK, start=start), plan, sites(10))


def test_commands_say_that_a_simulation_leaves_masks_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    studies: list[Any] = [SimpleNamespace(plan=plan_of()), SimpleNamespace(plan=plan_of())]
    warn_of_studies(studies)
    told = "".join(capsys.readouterr())
    assert told.count("cancel exactly") == 1 and "protects nobody" not in told
    studies = [SimpleNamespace(plan=plan_of(masks=False))]
    warn_of_studies(studies)
    assert "".join(capsys.readouterr()) == ""

"""Federations whose sites do not wait for each other: simulated, summed, audited, told."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from consortium.aggregate.columns import Source
from consortium.aggregate.rules import combined, make_rule
from consortium.aggregate.staleness import Scaled, discount
from consortium.core import facts as f
from consortium.core.codec import decode
from consortium.core.federation import evolve, is_legal
from consortium.core.ids import Seat
from consortium.core.state import Federation
from consortium.drive import hands
from consortium.drive.directory import DataDirectory
from consortium.drive.rounds import RoundIndex
from consortium.drive.rows import discounted
from consortium.drive.simulate import Options, Run, simulate
from consortium.drive.verify import verify_directory
from consortium.errors import ImpossiblePlanError, PlanError
from consortium.plan import Plan, parse_plan
from consortium.store.memory import MemoryLog
from consortium.tasks import Site, Trained
from tests.studies import TASK, sites

MINUTE_MS = 60_000
TEXT = """
[federation]
rounds = 9
quorum = 2
[selection]
fraction = 1.0
wait_for = 4
[asynchronous]
buffer = 2
[simulation]
pace = {"site-0" = 3.5}
"""
PLAN = parse_plan(TEXT)
WAITING = parse_plan(TEXT.replace("[asynchronous]\nbuffer = 2\n", ""))


def facts_of(run: Run) -> list[Any]:
    return [decode(record) for record in run.records]


# ---- simulation -----------------------------------------------------------------------


def test_the_same_seed_gives_the_same_model_and_log() -> None:
    first, again = (simulate(TASK, PLAN, sites(4), seed=1) for _ in range(2))
    assert first.records == again.records and first.model_digest == again.model_digest


def test_a_round_with_a_barrier_lasts_as_long_as_its_slowest_site() -> None:
    run = simulate(TASK, WAITING, sites(4), seed=1)
    lasted = [one.ended_ms - one.opened_ms for one in run.history.rounds]
    assert lasted == [round(3.5 * MINUTE_MS)] * 9


def test_a_slow_site_holds_up_nobody() -> None:
    run = simulate(TASK, PLAN, sites(4), seed=1)
    ended = [one.ended_ms for one in run.history.rounds]
    assert ended[:3] == [MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS]
    slow = [fact for fact in facts_of(run) if isinstance(fact, f.UpdateReceived)]
    first = next(fact for fact in slow if fact.seat == 1)
    assert (first.round, first.at_ms) == (1, round(3.5 * MINUTE_MS))
    assert run.history.rounds[-1].metrics["loss"] < run.history.rounds[0].metrics["loss"]


def test_the_log_is_legal_and_every_update_counts_once() -> None:
    run = simulate(TASK, PLAN, sites(4), seed=1)
    state, log = Federation(), facts_of(run)
    counted: set[tuple[int, Seat]] = set()
    for fact in log:
        assert is_legal(state, fact), fact
        if isinstance(fact, f.RoundClosed):
            assert state.round is not None
            keys = {(state.round.number_of(seat), seat) for seat in fact.members}
            assert not keys & counted
            counted |= keys
        evolve(state, fact)
    assert state == run.state
    ages = [fact.version for fact in log if isinstance(fact, f.RoundOpened)]
    assert ages == list(range(9))


def test_sites_without_a_pace_take_one_unit() -> None:
    plan = parse_plan(TEXT.replace('pace = {"site-0" = 3.5}', 'unit = "2m"'))
    run = simulate(TASK, plan, sites(4), seed=1)
    assert run.history.rounds[0].ended_ms == 2 * MINUTE_MS


def test_a_site_that_needs_longer_than_the_deadline_is_never_counted() -> None:
    plan = parse_plan(TEXT.replace("3.5", "100.0"))
    run = simulate(TASK, plan, sites(4), seed=1)
    members = [fact.members for fact in facts_of(run) if isinstance(fact, f.RoundClosed)]
    assert len(members) == 9 and all(1 not in one for one in members)


def test_an_update_too_old_is_dropped_and_its_site_asked_again() -> None:
    plan = parse_plan(TEXT.replace("buffer = 2", "buffer = 2\nmax_staleness = 1"))
    run = simulate(TASK, plan, sites(4), seed=1)
    asked = [fact.round for fact in facts_of(run) if _invites(fact, 1)]
    assert len(asked) > 1
    received = [fact for fact in facts_of(run) if isinstance(fact, f.UpdateReceived)]
    assert all((fact.seat, fact.round) != (1, 1) for fact in received)


def _invites(fact: f.Fact, seat: int) -> bool:
    return isinstance(fact, f.SitesInvited) and seat in fact.seats


def test_sites_that_fall_out_are_asked_again() -> None:
    options = Options(drops=lambda number, site: (number, site) == (1, "site-1"))
    run = simulate(TASK, PLAN, sites(4), seed=1, options=options)
    assert run.history.rounds[0].dropped == 1
    assert run.history.finished == "rounds_done"


def test_history_tells_who_was_kept_and_who_passed_on() -> None:
    first, second, *_ = simulate(TASK, PLAN, sites(4), seed=1).history.rounds
    assert (first.invited, first.kept, first.counted, first.passed_on) == (4, 0, 2, 2)
    assert (second.invited, second.kept) == (2, 2)
    assert first.silent == second.silent == 0


def test_the_pace_of_an_unknown_site_is_refused() -> None:
    with pytest.raises(ImpossiblePlanError, match="no such site"):
        simulate(TASK, parse_plan(TEXT.replace("site-0", "nobody")), sites(4), seed=1)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    whole = simulate(TASK, PLAN, sites(4), seed=1)
    directory = DataDirectory(tmp_path / "data")

    def stop(record: Any) -> None:
        if record.number == 3:
            raise KeyboardInterrupt

    options = Options(directory=directory, on_round=stop)
    with pytest.raises(KeyboardInterrupt):
        simulate(TASK, PLAN, sites(4), seed=1, options=options)
    run = simulate(TASK, PLAN, sites(4), seed=1, options=Options(directory=directory))
    directory.close()
    assert len(run.history.rounds) == len(whole.history.rounds) == 9


def test_what_a_site_keeps_goes_with_what_was_counted() -> None:
    """A site counts its own trainings; only those stay whose update is in a published model."""

    def train(site: Site, shared: dict[str, Any]) -> Trained:
        done = 0 if site.state is None else int(site.state["done"][0])
        return Trained(*TASK.train(site, shared), state={"done": np.array([done + 1.0])})

    plan = parse_plan(TEXT.replace("buffer = 2", "buffer = 2\nmax_staleness = 1"))
    run = simulate(replace(TASK, train=train), plan, sites(4), seed=1)
    members = [fact.members for fact in facts_of(run) if isinstance(fact, f.RoundClosed)]
    counted = Counter(seat for seats in members for seat in seats)
    assert len(counted) >= 3
    for seat, count in counted.items():
        kept = run.states.current(seat)
        assert kept is not None and load(kept)["task/done"].tolist() == [float(count)]


# ---- the sum --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("staleness", "ppm", "expected"),
    [(0, 500_000, 1.0), (3, 500_000, 0.5), (1, 1_000_000, 0.5), (7, 0, 1.0), (8, 500_000, 1 / 3)],
)
def test_discount(staleness: int, ppm: int, expected: float) -> None:
    assert discount(staleness, ppm) == expected


def test_a_discount_does_not_cancel_in_a_buffer_of_one() -> None:
    row = np.array([2.0, -4.0], np.float32)
    (scaled,) = discounted([Source(0, row, 7.0)], [0.5])
    assert combined(make_rule("mean"), [scaled]).tolist() == [1.0, -2.0]


def test_fresh_rows_stay_as_they_are_and_old_ones_are_scaled() -> None:
    rows = [Source(rank, np.array([1.0, 3.0], np.float32), 1.0) for rank in range(2)]
    fresh, old = discounted(rows, [1.0, 0.5])
    assert fresh is rows[0]
    assert (
        isinstance(old.values, Scaled) and old.values.dtype == np.float64 and len(old.values) == 2
    )
    assert combined(make_rule("mean"), [fresh, old]).tolist() == [0.75, 2.25]


def test_robust_rules_see_scaled_rows() -> None:
    rows = [Source(rank, np.array([4.0], np.float32), 1.0) for rank in range(3)]
    scaled = discounted(rows, [1.0, 0.5, 0.25])
    assert combined(make_rule("median"), scaled).tolist() == [2.0]


# ---- the audit ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("async") / "data"
    held = DataDirectory(folder)
    simulate(TASK, PLAN, sites(4), seed=1, options=Options(directory=held))
    held.close()
    return folder


def test_the_audit_does_every_sum_again(directory: Path) -> None:
    audit = verify_directory(directory)
    assert audit.findings == [] and audit.facts > 100


@pytest.mark.parametrize("bug", ["no discount", "in the weight", "half"])
def test_the_audit_finds_another_discount(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    shutil.copytree(directory, tmp_path / "data")
    with monkeypatch.context() as patch:
        if bug == "half":
            patch.setattr(hands, "discount", lambda age, ppm: 0.5 if age else 1.0)
        elif bug == "no discount":
            patch.setattr(hands, "discounted", lambda rows, factors: rows)
        else:
            patch.setattr(
                hands,
                "discounted",
                lambda rows, factors: [
                    Source(row.rank, row.values, row.weight * factor)
                    for row, factor in zip(rows, factors, strict=True)
                ],
            )
        audit = verify_directory(tmp_path / "data")
    assert any("another model" in finding.what for finding in audit.findings)


def test_the_log_tells_what_became_of_every_invitation() -> None:
    run = simulate(TASK, PLAN, sites(4), seed=1)
    log = MemoryLog()
    log.append("f", 0, list(run.records))
    index, truth = RoundIndex(log, "f"), {}
    state = Federation()
    for at, fact in enumerate(facts_of(run)):
        if isinstance(fact, f.UpdateReceived):
            truth[fact.round, fact.seat] = at, False
        if isinstance(fact, f.RoundClosed):
            assert state.round is not None
            for seat in fact.members:
                key = state.round.number_of(seat), seat
                truth[key] = truth[key][0], True
        evolve(state, fact)
    for (number, seat), (at, is_counted) in truth.items():
        assert index.received_at(number, seat) == at
        assert index.is_counted(number, seat) is is_counted
        assert index.was_summed(number, seat) is is_counted
    assert index.is_counted(99, Seat(1)) is None and index.received_at(99, Seat(1)) is None
    assert index.received_at(1, Seat(99)) is None


# ---- the plan -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line", "message"),
    [
        ("[asynchronous]\nbuffer = 1\n", "buffer", "below quorum 3"),
        ("[selection]\ntarget = 4\n[asynchronous]\nbuffer = 5\n", "buffer", "4 sites train"),
        ("[asynchronous]\ndiscount = 0.5\n", "discount", "no effect without a buffer"),
        (
            '[round]\nclose = "quorum"\n[asynchronous]\nbuffer = 3\n',
            "close",
            "when a round is full",
        ),
        ("[selection]\noverselect = 1.5\n[asynchronous]\nbuffer = 3\n", "overselect", "nobody"),
        ('[strategy]\nname = "scaffold"\n[asynchronous]\nbuffer = 3\n', "name", "of several"),
        ("[strategy]\nvariates = true\n[asynchronous]\nbuffer = 3\n", "variates", "of several"),
        ('[strategy]\nname = "fednova"\n[asynchronous]\nbuffer = 3\n', "name", "of several"),
        ('[strategy]\nanomalies = "exclude"\n[asynchronous]\nbuffer = 3\n', "anomalies", "several"),
        ("[evaluation]\nquorum = 4\n[asynchronous]\nbuffer = 3\n", "quorum", "3 at most"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_line(
    changes: str, line: str, message: str
) -> None:
    with pytest.raises(PlanError, match=message) as refused:
        parse_plan(changes)
    assert refused.value.hint
    number = next(at for at, text in enumerate(changes.splitlines(), 1) if text.startswith(line))
    assert refused.value.where == f"plan:{number}"


def test_sound_plans_have_sound_terms() -> None:
    assert PLAN.terms(TASK.metrics).are_sound() and WAITING.terms(TASK.metrics).are_sound()
    assert PLAN.terms(TASK.metrics).buffer == 2
    assert any("ASYNCHRONOUS" in sentence for sentence in PLAN.guarantees())


def test_how_fast_a_simulation_goes_is_not_in_the_digest() -> None:
    without = parse_plan(TEXT.partition("[simulation]")[0])
    assert without.digest == PLAN.digest and without.takes_time
    assert Plan.from_canonical(PLAN.canonical()) == without
    assert not Plan().takes_time
    assert WAITING.digest != PLAN.digest

"""Sites side by side in worker processes: the loop's bits, its errors, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consortium.core.ids import Seat
from consortium.drive import simulate as simulate_module
from consortium.drive.engine import LocalEngine, Training, Trial, begin, jobs_of
from consortium.drive.simulate import Options, Run, simulate
from consortium.drive.workers import (
    _LOOKED_FOR_S,
    _MOST_SLOTS,
    WorkerEngine,
    _look_for,
    default_workers,
)
from consortium.errors import (
    ConsortiumError,
    InternalError,
    LayoutError,
    MissingValuesError,
    QualityError,
    TaskResultError,
)
from consortium.plan import parse_plan
from consortium.tasks import NumpyTask, Site, Trained
from tests.studies import TASK, sites

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

PLAN = parse_plan("[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n")
EVER = 1 << 62
HANG_S = 30  # far above what any of these takes


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A test that hangs fails, instead of keeping everybody waiting."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"still not done after {HANG_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANG_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def children() -> set[int]:
    """Processes that this one started and that are running, or dead and not reaped."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(after_name[1]) == os.getpid():
            found.add(int(stat.parent.name))
    return found


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    before = children()
    handles = len(list(Path("/proc/self/fd").iterdir()))
    try:
        yield
    finally:
        assert children() == before
        assert len(list(Path("/proc/self/fd").iterdir())) <= handles


# ---- the same bits -------------------------------------------------------------------------


def keep_something(site: Site, shared: dict[str, Any]) -> Trained:
    """A site's own offset, which training changes and evaluation uses."""
    held = (
        {"own": np.zeros(2), "times": np.zeros((), np.int64)} if site.state is None else site.state
    )
    shared, records = TASK.train(site, shared)  # type: ignore[misc]
    own = {"own": held["own"] + site.rng.normal(size=2), "times": held["times"] + 1}
    return Trained(shared, records, state=own)


def try_with_own(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
    means, records = TASK.evaluate(site, shared)
    own = 0.0 if site.state is None else float(site.state["own"].sum())
    return {"loss": means["loss"] + 1e-3 * own, "mae": means["mae"]}, records


STATEFUL: NumpyTask = replace(TASK, train=keep_something, evaluate=try_with_own)


def told(run: Run) -> Any:
    """All that a run leaves behind."""
    seats = range(1, len(run.sites) + 1)
    return (
        run.model_digest,
        run.records,
        run.history.rounds,
        [run.states.current(Seat(seat)) for seat in seats],
    )


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("count", [3, 5, 70])
def test_workers_give_what_the_loop_gives(count: int, record: bool) -> None:
    def drops(number: int, site: str) -> bool:
        return number == 2 and site == "site-1"

    plan = parse_plan("[federation]\nrounds = 3\nquorum = 2\n[selection]\nfraction = 0.9\n")
    options = Options(record=record, drops=drops, workers=0)
    loop = simulate(STATEFUL, plan, sites(count), seed=3, options=options)
    side_by_side = simulate(
        STATEFUL, plan, sites(count), seed=3, options=replace(options, workers=2)
    )
    assert told(loop) == told(side_by_side)
    assert loop.states.current(Seat(1)) is not None


def test_a_site_whose_data_is_not_good_enough_sits_out_alike() -> None:
    def train(site: Site, shared: dict[str, Any]) -> Any:
        if site.name == "site-2":
            raise QualityError("3 % of the labels are missing")
        return keep_something(site, shared)

    loop, side_by_side = (
        simulate(
            replace(STATEFUL, train=train), PLAN, sites(5), seed=1, options=Options(workers=workers)
        )
        for workers in (0, 2)
    )
    assert told(loop) == told(side_by_side)
    assert [record.lost for record in loop.history.rounds] == [[("site-2", "data quality")]] * 3
    assert loop.states.current(Seat(3)) is None


def test_the_number_of_workers_changes_nothing() -> None:
    runs = [
        simulate(STATEFUL, PLAN, sites(5), seed=3, options=Options(workers=workers))
        for workers in (0, 1, 3, 9)  # nine: more than there are sites
    ]
    assert all(told(run) == told(runs[0]) for run in runs)


def test_only_tasks_that_ask_for_workers_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        simulate_module, "WorkerEngine", lambda loop, workers, _: made.append(workers) or loop
    )
    simulate(TASK, PLAN, sites(3), seed=1)
    assert made == []
    simulate(replace(TASK, prefers_workers=True), PLAN, sites(3), seed=1)
    assert made == [min(3, default_workers())]
    monkeypatch.setattr(simulate_module, "can_fork", lambda: False)
    simulate(TASK, PLAN, sites(3), seed=1, options=Options(workers=2))
    assert len(made) == 1


# ---- errors --------------------------------------------------------------------------------


def boom(site: Site, shared: dict[str, Any]) -> Any:
    raise ValueError("patient 4711 has a bad value")


def incomplete(site: Site, shared: dict[str, Any]) -> Any:
    raise MissingValuesError("column age has 3 missing values", hint="say what to do")


def other_layout(site: Site, shared: dict[str, Any]) -> Any:
    return {"w": shared["w"]}, 5


def no_means(site: Site, shared: dict[str, Any]) -> Any:
    return None


@pytest.mark.parametrize(
    ("functions", "kind"),
    [
        ({"train": boom}, TaskResultError),
        ({"train": incomplete}, MissingValuesError),
        ({"train": other_layout}, LayoutError),
        ({"train": no_means}, TaskResultError),
        ({"evaluate": boom}, TaskResultError),
        ({"evaluate": incomplete}, MissingValuesError),
        ({"evaluate": no_means}, TaskResultError),
    ],
)
def test_an_error_comes_out_as_from_the_loop(
    functions: dict[str, Any], kind: type[ConsortiumError]
) -> None:
    """Every site fails: it is the first one in the order of the seats that is told."""
    task, caught = replace(TASK, **functions), []
    for workers in (0, 3):
        with nothing_left_behind(), pytest.raises(ConsortiumError) as error:
            simulate(task, PLAN, sites(6), seed=1, options=Options(workers=workers))
        caught.append(error.value)
    loop, side_by_side = caught
    assert type(side_by_side) is type(loop) is kind
    assert (side_by_side.message, side_by_side.code) == (loop.message, loop.code)
    assert side_by_side.hint.startswith(loop.hint) and loop.hint
    assert "4711" not in str(side_by_side) + side_by_side.hint


def test_the_hint_to_see_more_says_where_it_can_be_seen() -> None:
    with pytest.raises(TaskResultError) as caught:
        simulate(replace(TASK, train=boom), PLAN, sites(3), seed=1, options=Options(workers=2))
    assert "--workers 0" in caught.value.hint


def test_a_failing_site_that_nobody_waits_for_does_not_matter() -> None:
    """The loop does not get to the last sites of a round that closes at the quorum. Workers
    do, ahead of time: what happens there must not come out."""
    plan = parse_plan(
        "[federation]\nrounds = 1\n[selection]\nfraction = 1.0\n[round]\nclose = 'quorum'\n"
    )
    run = simulate(TASK, plan, sites(5), seed=1)
    members = set(run.history.rounds[0].sites)
    assert len(members) == 3

    def train(site: Site, shared: dict[str, Any]) -> Any:
        if site.name not in members:
            raise ValueError
        time.sleep(0.02)  # so that the others fail first
        return TASK.train(site, shared)

    for record in (False, True):
        options = Options(workers=3, record=record)
        again = simulate(replace(TASK, train=train), plan, sites(5), seed=1, options=options)
        assert again.model_digest == run.model_digest


# ---- death ---------------------------------------------------------------------------------


def leave(site: Site, shared: dict[str, Any]) -> Any:
    os._exit(3)


def die(site: Site, shared: dict[str, Any]) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def leave_once_trained(site: Site, shared: dict[str, Any]) -> Any:
    if site.name == "site-2":
        os._exit(0)
    return TASK.train(site, shared)


@pytest.mark.parametrize(
    "functions",
    [{"train": leave}, {"train": die}, {"evaluate": leave}, {"train": leave_once_trained}],
)
def test_a_worker_that_dies_is_an_error_and_no_hang(functions: dict[str, Any]) -> None:
    task = replace(TASK, **functions)
    for _ in range(5):  # whether it dies before or after it is sent its next job
        with nothing_left_behind(), pytest.raises(InternalError, match="worker process died") as e:
            simulate(task, PLAN, sites(8), seed=1, options=Options(workers=2))
        assert e.value.code == "E0001"
        assert "--workers 0" in e.value.hint


def test_a_worker_that_was_killed_between_rounds_is_an_error_too() -> None:
    def kill_all(_: object) -> None:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)

    before = children()
    options = Options(workers=2, on_round=kill_all)
    with nothing_left_behind(), pytest.raises(InternalError, match="worker process died"):
        simulate(TASK, PLAN, sites(4), seed=1, options=options)


def test_an_error_does_not_wait_for_the_other_workers() -> None:
    def train(site: Site, shared: dict[str, Any]) -> Any:
        if site.name == first:
            raise ValueError
        time.sleep(HANG_S)
        return TASK.train(site, shared)

    first = next(iter(order_of_training(4)))
    begun = time.monotonic()
    with nothing_left_behind(), pytest.raises(TaskResultError):
        simulate(replace(TASK, train=train), PLAN, sites(4), seed=1, options=Options(workers=2))
    assert time.monotonic() - begun < HANG_S / 3


def order_of_training(count: int) -> list[str]:
    seen = []

    def train(site: Site, shared: dict[str, Any]) -> Any:
        seen.append(site.name)
        return TASK.train(site, shared)

    plan = PLAN.model_copy(update={"federation": PLAN.federation.model_copy(update={"rounds": 1})})
    simulate(replace(TASK, train=train), plan, sites(count), seed=1)
    return seen


def test_an_interrupt_does_not_wait_for_the_workers() -> None:
    def train(site: Site, shared: dict[str, Any]) -> Any:
        time.sleep(HANG_S)
        return TASK.train(site, shared)

    begun = time.monotonic()
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.start()
    try:
        with nothing_left_behind(), pytest.raises(KeyboardInterrupt):
            simulate(replace(TASK, train=train), PLAN, sites(4), seed=1, options=Options(workers=2))
    finally:
        interrupt.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begun < HANG_S / 3


# ---- nothing left behind -------------------------------------------------------------------


def test_workers_end_with_the_simulation() -> None:
    with nothing_left_behind():
        simulate(STATEFUL, PLAN, sites(5), seed=1, options=Options(workers=3))


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("where", ["on_round", "on_work"])
def test_workers_end_when_the_caller_raises(where: str, record: bool) -> None:
    def stop(*_: object) -> None:
        raise LookupError

    options = Options(workers=2, record=record, **{where: stop})  # type: ignore[arg-type]
    with nothing_left_behind(), pytest.raises(LookupError):
        simulate(STATEFUL, PLAN, sites(5), seed=1, options=options)


@pytest.mark.parametrize("record", [False, True])
def test_rounds_that_close_early_leave_no_stale_result(record: bool) -> None:
    """Workers train ahead of a round that closes at its quorum; the evaluation that follows
    and the next round must not meet those results."""
    plan = parse_plan(
        "[federation]\nrounds = 6\n[selection]\nfraction = 1.0\n[round]\nclose = 'quorum'\n"
    )
    loop = simulate(STATEFUL, plan, sites(9), seed=2, options=Options(record=record, workers=0))
    with nothing_left_behind():
        early = simulate(
            STATEFUL, plan, sites(9), seed=2, options=Options(record=record, workers=3)
        )
    assert told(early) == told(loop)
    assert [round_.counted for round_ in early.history.rounds] == [3] * 6


# ---- the engine by itself ------------------------------------------------------------------


@contextmanager
def engines(
    task: NumpyTask, count: int, workers: int
) -> Iterator[tuple[LocalEngine, WorkerEngine]]:
    local, _ = begin(task, PLAN, sites(count), 1)
    loop = LocalEngine(local, sites(count), 1)
    engine = WorkerEngine(loop, workers)
    try:
        yield loop, engine
    finally:
        engine.close()


def training(number: int = 1) -> Training:
    return Training(number, np.zeros(4, np.float32), None, lambda seat: None)


def seats(count: int) -> list[Seat]:
    return [Seat(number) for number in range(1, count + 1)]


def test_results_come_in_the_order_of_the_seats() -> None:
    def train(site: Site, shared: dict[str, Any]) -> Any:
        time.sleep(0.05 if site.name == "site-0" else 0.0)  # the first is the last to be done
        return TASK.train(site, shared)

    with engines(replace(TASK, train=train), 9, 3) as (loop, engine):
        for asked in (seats(9), seats(9)[::-1], seats(9)[4:5]):
            found = list(engine.train(asked, training()))
            expected = list(loop.train(asked, training()))
            assert [result.records for result in found] == [[20 + seat - 1] for seat in asked]
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(mine.rows, theirs.rows)


@pytest.mark.parametrize("taken", [0, 1, 3, 8])
def test_a_question_that_is_given_up_leaves_the_engine_ready_for_the_next(taken: int) -> None:
    with engines(TASK, 9, 2) as (loop, engine):
        for number in (1, 2):
            results = engine.train(seats(9), training(number))
            for _ in range(taken):
                next(results)
            results.close()
            assert sorted(engine._free) == list(range(_MOST_SLOTS))
        model = np.ones(4, np.float32)
        trial = Trial(3, model, lambda seat: None)
        assert list(engine.evaluate(seats(9), trial)) == list(loop.evaluate(seats(9), trial))


def test_no_more_rows_are_made_than_there_is_room_for(tmp_path: Path) -> None:
    """A site trains only when its row has a place: memory does not grow with the cohort."""

    def train(site: Site, shared: dict[str, Any]) -> Any:
        (tmp_path / site.name).touch()
        return TASK.train(site, shared)

    with engines(replace(TASK, train=train), 90, 2) as (_, engine):
        room = _MOST_SLOTS
        assert engine._rows.shape == (room, 4)
        results = engine.train(seats(90), training())
        for taken in range(1, 91):
            next(results)
            if taken in (1, 10):
                time.sleep(0.1)  # time in which workers without a limit would run ahead
                assert len(list(tmp_path.iterdir())) <= taken - 1 + room
        assert len(list(tmp_path.iterdir())) == 90


def test_rows_stay_as_they_are_until_the_next_are_asked_for() -> None:
    with engines(TASK, 90, 2) as (loop, engine):
        expected = [one.rows for one in loop.train(seats(90), training())]
        for at, result in enumerate(engine.train(seats(90), training())):
            time.sleep(0.01 if at < 5 else 0.0)  # time for a worker to write into the wrong place
            np.testing.assert_array_equal(result.rows, expected[at])


def test_the_longest_job_is_begun_first(tmp_path: Path) -> None:
    """Once it is known how many records each site has: else the last one is waited for."""

    def train(site: Site, shared: dict[str, Any]) -> Any:
        with (tmp_path / "order").open("a") as order:
            order.write(f"{site.name}\n")
        return TASK.train(site, shared)

    with engines(replace(TASK, train=train), 12, 1) as (_, engine):
        list(engine.train(seats(12), training()))
        known = list(engine.train(seats(12), training(2)))
        names = (tmp_path / "order").read_text().split()
        assert names[:12] == [f"site-{at}" for at in range(12)]
        assert names[12:] == [f"site-{at}" for at in reversed(range(12))]
        assert [one.records for one in known] == [[20 + at] for at in range(12)]


@pytest.mark.parametrize("size", [0, 1000, 100_000, 1_000_000])
def test_states_of_any_size_pass_both_ways(size: int) -> None:
    """A state that is larger than a socket's buffer, to a worker that is sending one back."""

    def train(site: Site, shared: dict[str, Any]) -> Trained:
        held = np.zeros(size, np.float32) if site.state is None else site.state["own"] + 1
        shared, records = TASK.train(site, shared)  # type: ignore[misc]
        return Trained(shared, records, state={"own": held})

    run = simulate(replace(TASK, train=train), PLAN, sites(5), seed=1, options=Options(workers=2))
    loop = simulate(replace(TASK, train=train), PLAN, sites(5), seed=1)
    assert [run.states.current(seat) for seat in seats(5)] == [
        loop.states.current(seat) for seat in seats(5)
    ]


def test_a_block_is_added_up_by_who_trains_its_first_site() -> None:
    """Groups of 40 among ranks 0 to 149; blocks are of 50."""
    ranks = {seat: seat - 1 for seat in seats(150)}
    groups = [seats(150)[at : at + 40] for at in (0, 40, 80, 120)]
    work = replace(training(), groups=groups, ranks=ranks)
    assert [job.first_of_block for job in jobs_of(seats(150), work, 40)] == [0, 10, 20, None]
    assert [job.first_of_block for job in jobs_of(seats(150)[20:50], work, 40)] == [0, None]
    assert jobs_of(seats(150), replace(work, ranks={}), 40)[0].first_of_block is None


def test_a_message_is_looked_for_and_not_for_long() -> None:
    ours, theirs = Pipe()
    begun = time.perf_counter()
    _look_for(ours)  # nobody writes
    assert _LOOKED_FOR_S <= time.perf_counter() - begun < HANG_S
    theirs.send_bytes(b"here")
    _look_for(ours)
    assert ours.recv_bytes() == b"here"
    theirs.close()
    _look_for(ours)  # nobody will write any more
    with pytest.raises(EOFError):
        ours.recv_bytes()


def test_what_a_task_does_to_its_input_stays_in_its_process() -> None:
    def spoil(site: Site, shared: dict[str, Any]) -> Any:
        shared["w"][:] = np.nan
        site.data[0][:] = 0.0
        return {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}, 5

    made, base = sites(3), np.ones(4, np.float32)
    local, _ = begin(TASK, PLAN, made, 1)
    engine = WorkerEngine(LocalEngine(replace(local, task=replace(TASK, train=spoil)), made, 1), 2)
    try:
        work = Training(1, base, None, lambda seat: None)
        for _ in range(2):
            rows = [result.rows[0].copy() for result in engine.train(seats(3), work)]
            np.testing.assert_array_equal(rows, [[-1.0] * 4] * 3)
    finally:
        engine.close()
    assert np.isfinite(base).all()
    assert (made[0].data[0] != 0).any()

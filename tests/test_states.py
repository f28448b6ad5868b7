"""What sites keep between rounds: one suite for every store, and what training makes of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consortium.core.ids import Seat
from consortium.drive.directory import DataDirectory
from consortium.drive.simulate import Options, Run, simulate
from consortium.drive.states import FileStates, MemoryStates, SiteStates
from consortium.errors import StoreFailedError
from consortium.plan import parse_plan
from consortium.tasks import NumpyTask, Site, Trained
from consortium.tensors import load_tensors, save_tensors
from tests.studies import TASK, sites

ONE, TWO = Seat(1), Seat(2)


@pytest.fixture(params=["memory", "files"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SiteStates]:
    """A new, empty store each time."""
    made = 0

    def new() -> SiteStates:
        nonlocal made
        made += 1
        return MemoryStates() if request.param == "memory" else FileStates(tmp_path / str(made))

    return new


@pytest.fixture
def states(make: Callable[[], SiteStates]) -> SiteStates:
    return make()


# ---- conformance ---------------------------------------------------------------------------


def test_before_the_first_round_there_is_nothing(states: SiteStates) -> None:
    assert states.current(ONE) is None
    assert states.pending(ONE, 1) is None
    states.settle(0, ())


def test_a_state_counts_once_its_round_has_published_a_model(states: SiteStates) -> None:
    states.keep(ONE, 3, b"three")
    assert (states.current(ONE), states.pending(ONE, 3)) == (None, b"three")
    states.settle(3, (ONE,))
    assert (states.current(ONE), states.pending(ONE, 3)) == (b"three", None)


def test_training_again_in_the_same_round_starts_from_the_same_state(states: SiteStates) -> None:
    states.keep(ONE, 1, b"one")
    states.settle(1, (ONE,))
    states.keep(ONE, 4, b"four")
    assert states.current(ONE) == b"one"
    states.keep(ONE, 4, b"four again")
    assert (states.current(ONE), states.pending(ONE, 4)) == (b"one", b"four again")


def test_what_was_not_counted_is_forgotten(states: SiteStates) -> None:
    for seat in (ONE, TWO):
        states.keep(seat, 1, b"one")
    states.settle(1, (ONE, TWO))
    for seat in (ONE, TWO):
        states.keep(seat, 2, b"two")
    states.settle(2, (TWO,))
    assert (states.current(ONE), states.current(TWO)) == (b"one", b"two")
    states.keep(ONE, 3, b"three")
    states.settle(3, ())
    assert (states.current(ONE), states.pending(ONE, 3)) == (b"one", None)


def test_settling_twice_changes_nothing(states: SiteStates) -> None:
    states.keep(ONE, 2, b"two")
    states.settle(2, (ONE,))
    states.settle(2, (ONE,))
    states.settle(1, (ONE,))
    assert states.current(ONE) == b"two"


def test_an_older_round_does_not_settle_a_newer_one(states: SiteStates) -> None:
    states.keep(ONE, 10, b"ten")
    states.settle(9, (ONE,))
    assert (states.current(ONE), states.pending(ONE, 10)) == (None, b"ten")


@pytest.mark.parametrize("state", [b"", b"\0", os.urandom(100_000)])
def test_any_bytes_come_back(states: SiteStates, state: bytes) -> None:
    states.keep(ONE, 1, state)
    assert states.pending(ONE, 1) == state
    states.settle(1, {ONE})
    assert states.current(ONE) == state


Step = tuple[int, bytes, bool]  # seat, state, whether the round after it ends is published


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=4), st.booleans()), max_size=20))
def test_all_stores_answer_alike(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    """Against a dictionary of what counts: one site trains in each round."""
    stores: list[SiteStates] = [MemoryStates(), FileStates(tmp_path_factory.mktemp("states"))]
    counts: dict[int, bytes] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)  # no power is cut here, and it takes time
        for number, (seat, state, is_published) in enumerate(steps, start=1):
            for store in stores:
                assert store.current(Seat(seat)) == counts.get(seat)
                store.keep(Seat(seat), number, state)
                store.settle(number, (Seat(seat),) if is_published else ())
            if is_published:
                counts[seat] = state


# ---- files ---------------------------------------------------------------------------------


def test_files_outlive_the_process(tmp_path: Path) -> None:
    FileStates(tmp_path).keep(ONE, 1, b"one")
    FileStates(tmp_path).settle(1, (ONE,))
    FileStates(tmp_path).keep(ONE, 2, b"two")
    again = FileStates(tmp_path)
    assert (again.current(ONE), again.pending(ONE, 2)) == (b"one", b"two")


def test_there_is_one_file_a_site_and_no_more(tmp_path: Path) -> None:
    states = FileStates(tmp_path / "deep" / "sites")
    for number in range(1, 6):
        states.keep(ONE, number, b"x")
        states.keep(TWO, number, b"y")
        states.settle(number, (ONE, TWO) if number % 2 else (ONE,))
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {f"deep/sites/{seat}/current.safetensors" for seat in (1, 2)}


def test_what_a_crash_left_is_not_taken_for_a_state(tmp_path: Path) -> None:
    states = FileStates(tmp_path)
    states.keep(ONE, 1, b"one")
    (tmp_path / "1" / "1.safetensors.4711.new").write_bytes(b"half a st")
    (tmp_path / "1" / "notes.safetensors").write_bytes(b"not ours")
    states.settle(1, (ONE,))
    assert states.current(ONE) == b"one"


def test_a_crash_while_writing_leaves_the_old_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = FileStates(tmp_path)
    states.keep(ONE, 1, b"one")
    states.settle(1, (ONE,))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreFailedError, match="No space left"):
            states.keep(ONE, 2, b"two")
    assert (states.current(ONE), states.pending(ONE, 2)) == (b"one", None)


# ---- what training makes of it -------------------------------------------------------------


def count_rounds(site: Site, shared: dict[str, Any]) -> Trained:
    held = {} if site.state is None else dict(site.state)
    shared, records = TASK.train(site, shared)  # type: ignore[misc]
    rounds = np.append(held.get("rounds", np.zeros(0, np.int64)), site.round)
    return Trained(shared, records, state={"rounds": rounds})


COUNTING: NumpyTask = replace(TASK, train=count_rounds)


def rounds_of(run: Run, seat: int) -> list[int]:
    held = run.states.current(Seat(seat))
    return [] if held is None else [int(n) for n in load_tensors(held)["task/rounds"]]


def test_a_site_keeps_what_it_kept_when_it_last_took_part() -> None:
    plan = parse_plan("[federation]\nrounds = 5\nquorum = 2\n[selection]\nfraction = 1.0\n")
    away = {(2, "site-0"), (3, "site-0"), (5, "site-1")}
    options = Options(drops=lambda number, site: (number, site) in away)
    for record in (False, True):
        run = simulate(COUNTING, plan, sites(3), seed=1, options=replace(options, record=record))
        assert [rounds_of(run, seat) for seat in (1, 2, 3)] == [
            [1, 4, 5],
            [1, 2, 3, 4],
            [1, 2, 3, 4, 5],
        ]


def test_a_site_that_falls_out_keeps_nothing_new() -> None:
    def diverge(site: Site, shared: dict[str, Any]) -> Trained:
        trained = count_rounds(site, shared)
        if (site.round, site.name) == (2, "site-1"):
            trained.shared["w"][:] = np.nan  # type: ignore[index]
        return trained

    plan = parse_plan("[federation]\nrounds = 3\nquorum = 2\n[selection]\nfraction = 1.0\n")
    run = simulate(replace(COUNTING, train=diverge), plan, sites(3), seed=1)
    assert rounds_of(run, 2) == [1, 3]


def test_a_round_that_is_done_again_does_not_count_twice(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(number: int, what: str, done: int, of: int) -> None:
        seen.append(number)
        if seen.count(2) == 3:
            raise Stop

    plan = parse_plan(
        "[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n[evaluation]\nenabled = false\n"
    )
    for record in (False, True):
        seen: list[int] = []
        folder = tmp_path / str(record)
        for on_work in (stop, None):
            directory = DataDirectory(folder)
            options = Options(record=record, directory=directory, on_work=on_work)
            if on_work is not None:
                with pytest.raises(Stop):
                    simulate(COUNTING, plan, sites(3), seed=1, options=options)
                assert any((folder / "sites").rglob("2.safetensors"))
            else:
                run = simulate(COUNTING, plan, sites(3), seed=1, options=options)
                assert [rounds_of(run, seat) for seat in (1, 2, 3)] == [[1, 2, 3]] * 3
            directory.close()


def test_a_candidate_is_tried_with_what_was_made_with_it() -> None:
    """And a base with what went with it, which was measured when it was the candidate."""

    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        rounds = [] if site.state is None else [int(n) for n in site.state["rounds"]]
        told.append((site.round, rounds))
        return {"loss": 1.0 / (1 + site.round), "mae": 0.0}, 5

    told: list[tuple[int, list[int]]] = []
    plan = parse_plan("[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n")
    simulate(replace(COUNTING, evaluate=evaluate), plan, sites(3), seed=1)
    assert told == [
        *[(1, [1])] * 3,
        *[(0, [1])] * 3,  # nothing went with the first model: then what was just made
        *[(2, [1, 2])] * 3,
        *[(3, [1, 2, 3])] * 3,
    ]


def test_what_sites_made_in_a_round_that_was_kept_out_is_forgotten() -> None:
    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        rounds = [] if site.state is None else [int(n) for n in site.state["rounds"]]
        return {"loss": 9.0 if 2 in rounds else 1.0, "mae": 0.0}, 5  # round 2 is a bad one

    plan = parse_plan("[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n")
    run = simulate(replace(COUNTING, evaluate=evaluate), plan, sites(3), seed=1)
    assert [record.outcome for record in run.history.rounds] == ["accepted", "kept", "accepted"]
    assert rounds_of(run, 1) == [1, 3]


def test_a_base_is_not_tried_twice_where_nothing_is_kept() -> None:
    def evaluate(site: Site, shared: dict[str, Any]) -> tuple[dict[str, float], int]:
        told.append(site.round)
        return {"loss": 1.0 / (1 + site.round), "mae": 0.0}, 5

    told: list[int] = []
    plan = parse_plan("[federation]\nrounds = 3\n[selection]\nfraction = 1.0\n")
    simulate(replace(TASK, evaluate=evaluate), plan, sites(3), seed=1)
    assert told == [1] * 3 + [0] * 3 + [2] * 3 + [3] * 3  # a model is tried as in its own round


def test_a_task_that_keeps_nothing_new_keeps_what_it_had() -> None:
    def train(site: Site, shared: dict[str, Any]) -> Trained:
        seen.append((site.round, site.state is not None))
        shared, records = TASK.train(site, shared)  # type: ignore[misc]
        return Trained(shared, records, state={"own": np.ones(1)} if site.round == 2 else None)

    plan = parse_plan("[federation]\nrounds = 4\n[selection]\nfraction = 1.0\n")
    for record in (False, True):
        seen: list[tuple[int, bool]] = []
        simulate(replace(TASK, train=train), plan, sites(3), seed=1, options=Options(record=record))
        assert set(seen) == {(1, False), (2, False), (3, True), (4, True)}


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "i8", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_a_state_may_hold_what_a_tensor_file_can(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    back = load_tensors(save_tensors({"b": array, "a": array.T}))
    assert list(back) == ["a", "b"]
    assert (back["b"].dtype, back["b"].shape) == (array.dtype, shape)
    np.testing.assert_array_equal(back["a"], array.T)
    back["b"][...] = 0  # a copy: the site may change it

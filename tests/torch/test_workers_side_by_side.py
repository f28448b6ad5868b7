"""Jobs of many sites side by side, of which the process that asks does some itself."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from consortium.core.ids import Seat
from consortium.drive.engine import LocalEngine, SimulatedSite, Training, Trial, begin
from consortium.drive.workers import WorkerEngine, default_workers
from consortium.errors import InternalError, LabelError
from consortium.plan import Plan
from tests.test_workers import children, nothing_left_behind
from tests.torch.test_side_by_side import made, odd, plan_of, records, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

COUNT, AT_ONCE = 30, 5  # sites, and how many are one job


def crowd(count: int = COUNT) -> list[SimulatedSite]:
    return [SimulatedSite(f"site-{at}", records(at, 5)) for at in range(count)]


@contextmanager
def engines(workers: int) -> Iterator[tuple[LocalEngine, WorkerEngine]]:
    """The same sites in this process alone, and with others."""
    sites = crowd()
    local, _ = begin(made(odd, double=False), plan_of(), sites, 1)
    loop = LocalEngine(replace(local, engine="batched"), sites, 1, AT_ONCE)
    engine = WorkerEngine(loop, workers)
    try:
        yield loop, engine
    finally:
        engine.close()


SEATS = [Seat(number) for number in range(1, COUNT + 1)]
GROUPS = [SEATS[at : at + AT_ONCE] for at in range(0, COUNT, AT_ONCE)]


def training(loop: LocalEngine, number: int = 1) -> Training:
    base = np.full(loop.local.layout.size, 0.01, np.float32)
    return Training(number, base, None, lambda seat: None, GROUPS)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_one_less_is_forked_and_results_are_those_of_one_process(workers: int) -> None:
    with nothing_left_behind():
        before = children()
        with engines(workers) as (loop, engine):
            assert len(children() - before) == workers - 1
            for number in (1, 2):
                found = engine.train(SEATS, training(loop, number))
                expected = loop.train(SEATS, training(loop, number))
                for mine, theirs in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(mine.rows, theirs.rows)
                    assert list(mine.records) == list(theirs.records)
            trial = Trial(3, training(loop).base, lambda seat: None)
            assert list(engine.evaluate(SEATS, trial)) == list(loop.evaluate(SEATS, trial))


def test_nobody_looks_for_messages_where_processes_share_a_core() -> None:
    """Who looks would keep the one from working that is looked for."""
    cores = default_workers()
    for workers, looks in ((cores, True), (cores + 1, False)):
        with engines(workers) as (_, engine):
            assert engine._looks is looks


@pytest.mark.parametrize("taken", [0, 1, 2, 5])
def test_what_is_given_up_leaves_all_slots_free(taken: int) -> None:
    with engines(2) as (loop, engine):
        slots = sorted(engine._free)
        results = engine.train(SEATS, training(loop))
        for _ in range(taken):
            next(results)
        results.close()
        assert sorted(engine._free) == slots
        assert sum(len(made) for made in engine.train(SEATS, training(loop, 2))) == COUNT


def test_both_processes_have_something_to_do_if_there_are_two_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine: list[int] = []
    work = WorkerEngine._work

    def noted(self: WorkerEngine, job: dict[str, Any], states: list[bytes | None]) -> Any:
        mine.extend(job["seats"])  # of a child only the child knows
        return work(self, job, states)

    monkeypatch.setattr(WorkerEngine, "_work", noted)
    with engines(2) as (loop, engine):
        two = SEATS[: 2 * AT_ONCE]
        assert sum(len(made) for made in engine.train(two, training(loop))) == len(two)
    assert len(mine) == AT_ONCE


@pytest.mark.parametrize("wrong", [0, 7, 29])
def test_an_error_is_the_same_whoever_meets_it(wrong: int) -> None:
    sites = crowd()
    sites[wrong].data[1][0] = 99  # no such class
    errors = []
    for workers in (0, 1, 2, 3):
        with nothing_left_behind(), pytest.raises(LabelError) as caught:
            run(made(odd, double=False), _plan(), sites, workers=workers)
        errors.append(caught.value.message)
    assert len(set(errors)) == 1
    assert f"site-{wrong}:" in errors[0]


def test_a_child_that_was_killed_is_an_error_and_no_hang() -> None:
    before = children()
    with engines(2) as (loop, engine):
        (child,) = children() - before
        os.kill(child, signal.SIGKILL)
        with pytest.raises(InternalError, match="worker process died"):
            list(engine.train(SEATS, training(loop)))


def _plan() -> Plan:
    return plan_of(federation={"rounds": 1, "quorum": 2}, training={"epochs": 1})

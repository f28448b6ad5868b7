"""Time that bytes buy: a deadline on the loop's monotonic clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from consortium.coordinator.patience import PATIENCE_S, RATE_BYTES, Patience


class Loop:
    """A clock that is turned by hand; what is asked of a loop, and no more."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, act: Callable[[], None]) -> Timer:
        self.timers.append(Timer(when, act))
        return self.timers[-1]

    def run_to(self, now: float) -> None:
        while due := sorted(
            (one for one in self.timers if one.due <= now), key=lambda one: one.due
        ):
            self.timers.remove(due[0])
            self.now = max(self.now, due[0].due)
            if not due[0].is_cancelled:
                due[0].act()
        self.now = now


class Timer:
    def __init__(self, due: float, act: Callable[[], None]) -> None:
        self.due, self.act, self.is_cancelled = due, act, False

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        self.is_cancelled = True


@pytest.fixture
def loop() -> Loop:
    return Loop()


def watched(loop: Loop) -> tuple[Patience, list[float]]:
    ended: list[float] = []
    as_loop: asyncio.AbstractEventLoop = loop  # type: ignore[assignment]  # as much as is used
    return Patience(as_loop, lambda: ended.append(loop.now - 1000.0)), ended


def end_of(loop: Loop, bytes_a_second: int, first: int = 0) -> float | None:
    """When a peer that sends so much is hung up on, within an hour."""
    patience, ended = watched(loop)
    patience.wait()
    patience.credit(first)
    for second in range(3600):
        loop.run_to(1000.0 + second)
        if ended:
            return ended[0]
        patience.credit(bytes_a_second)
    return None


def test_silence_lasts_as_long_as_patience(loop: Loop) -> None:
    assert end_of(loop, 0) == PATIENCE_S


@pytest.mark.parametrize("first", [0, 1 << 30])
def test_drip_ends_whatever_came_before_it(loop: Loop, first: int) -> None:
    end_s = end_of(loop, 1, first)
    assert end_s is not None and end_s <= PATIENCE_S + 1


@pytest.mark.parametrize("rate", [RATE_BYTES, 8 * RATE_BYTES])
def test_slow_line_is_fast_enough(loop: Loop, rate: int) -> None:
    assert end_of(loop, rate) is None


def test_half_of_the_rate_is_too_slow(loop: Loop) -> None:
    end_s = end_of(loop, RATE_BYTES // 2)
    assert end_s is not None and PATIENCE_S < end_s <= 2 * PATIENCE_S + 1


def test_pause_that_comes_late_is_as_long_as_one_that_comes_early(loop: Loop) -> None:
    patience, ended = watched(loop)
    patience.wait()
    for second in range(60):
        loop.run_to(1000.0 + second)
        patience.credit(100 * RATE_BYTES)
    loop.run_to(2000.0)
    assert ended == [59.0 + PATIENCE_S]


def test_stopped_patience_does_not_end_and_may_begin_again(loop: Loop) -> None:
    patience, ended = watched(loop)
    patience.wait(5.0)
    patience.stop()
    patience.credit(1)
    loop.run_to(1100.0)
    assert not ended and not patience.is_waiting
    patience.wait(120.0)
    patience.wait(5.0)  # sooner than the timer
    loop.run_to(1300.0)
    assert ended == [105.0]


def test_ended_patience_tells_nobody(loop: Loop) -> None:
    patience, ended = watched(loop)
    patience.wait(5.0)
    patience.end()
    loop.run_to(1100.0)
    assert not ended

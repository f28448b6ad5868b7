"""Prices of a child process: the same numbers, a small parent, no child that stays."""

from __future__ import annotations

import io
import json
import math
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from consortium.core.account_facts import Cost
from consortium.errors import InternalError, InvalidInputError
from consortium.privacy import pricing
from consortium.privacy.accountant import MAX_KINDS, epsilon
from consortium.privacy.pricing import Pricer, serve

DELTA = 1e-5
PLAIN, SAMPLED = Cost(7.0, 3, 1.0), Cost(1.1, 100, 0.01)

# Children that need no dp-accounting: what they do with a line is the test's business.
COUNTS = """
import os, sys
for at, line in enumerate(sys.stdin, 1):
    print('{"epsilon": %d.0}' % at, flush=True)
"""
SLEEPS = "import time; time.sleep(600)"
DIES = "import sys; sys.stdin.readline()"


def child(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def says(text: str) -> tuple[str, ...]:
    return child(f"import sys; sys.stdin.readline(); print({text!r}, flush=True); input()")


def is_there(pid: int) -> bool:
    """Also as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def soon(holds: Callable[[], bool], within_s: float = 30.0) -> bool:
    until = time.monotonic() + within_s
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


@pytest.fixture
def make() -> Iterator[Callable[..., Pricer]]:
    made: list[Pricer] = []

    def make(**options: object) -> Pricer:
        made.append(Pricer(**options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.close()


def question(rate: float) -> list[Cost]:
    """One that was not asked before."""
    return [Cost(2.0, 1, rate)]


def test_prices_are_those_of_the_accountant_and_one_child_answers_all(
    make: Callable[..., Pricer],
) -> None:
    pricer = make()
    assert pricer([PLAIN], DELTA) == epsilon([PLAIN], DELTA)
    assert pricer([], DELTA) == 0.0
    assert pricer.child is None  # the closed form needs none
    assert pricer([SAMPLED, PLAIN], DELTA) == epsilon([SAMPLED, PLAIN], DELTA)
    first = pricer.child
    assert first is not None
    assert pricer([SAMPLED], DELTA) == epsilon([SAMPLED], DELTA)
    assert pricer([Cost(1e-4, 1, 0.5)], DELTA) == math.inf
    assert pricer.child == first
    os.kill(first, 9)  # somebody else did that
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert pricer([SAMPLED], 1e-6) == epsilon([SAMPLED], 1e-6)
    assert pricer.child not in (None, first)
    assert not is_there(first)


SMALL = """
import sys
from consortium.core.account_facts import Cost
from consortium.privacy.pricing import Pricer
pricer = Pricer()
pricer([Cost(7.0, 3, 1.0)], 1e-5)
pricer([Cost(1.1, 100, 0.01)], 1e-5)
print(pricer.child)
print([name for name in ("scipy", "dp_accounting", "numpy", "torch") if name in sys.modules])
"""


def test_the_parent_imports_no_accountant_and_its_child_ends_with_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SMALL], capture_output=True, text=True, timeout=120, check=True
    )
    pid, names = run.stdout.splitlines()
    assert names == "[]"
    assert soon(lambda: not is_there(int(pid)))


def test_costs_that_cannot_be_are_refused_here() -> None:
    with pytest.raises(InvalidInputError):
        Pricer()([Cost(0.0, 1, 0.5)], DELTA)


def test_what_was_asked_is_kept_whatever_its_order(make: Callable[..., Pricer]) -> None:
    pricer = make(command=child(COUNTS))
    costs = [Cost(2.0, 1, 0.1), Cost(3.0, 1, 0.1)]
    assert pricer(costs, DELTA) == pricer(costs[::-1], DELTA) == 1.0
    assert pricer(costs, 1e-6) == 2.0
    assert pricer(costs, DELTA) == 1.0


def test_only_so_many_answers_are_kept_and_the_oldest_go(
    make: Callable[..., Pricer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "_MOST_KEPT", 2)
    pricer = make(command=child(COUNTS))
    assert [pricer(question(rate), DELTA) for rate in (0.1, 0.2, 0.1, 0.3)] == [1, 2, 1, 3]
    assert pricer(question(0.1), DELTA) == 1  # it was asked for later than 0.2
    assert pricer(question(0.2), DELTA) == 4


def test_threads_take_turns_and_ask_nothing_twice(make: Callable[..., Pricer]) -> None:
    pricer = make(command=child(COUNTS))
    rates = [0.1, 0.2, 0.3, 0.4] * 8
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda rate: pricer(question(rate), DELTA), rates))
    assert sorted(set(found)) == [1, 2, 3, 4]
    assert found[:4] * 8 == found


def test_an_idle_child_is_ended_and_started_again(make: Callable[..., Pricer]) -> None:
    pricer = make(command=child(COUNTS), idle_s=0.1)
    assert pricer(question(0.1), DELTA) == 1
    first = pricer.child
    assert first is not None
    assert soon(lambda: pricer.child is None)
    assert soon(lambda: not is_there(first))
    assert pricer(question(0.2), DELTA) == 1


def test_one_that_died_while_idle_does_not_stay_as_a_zombie(make: Callable[..., Pricer]) -> None:
    pricer = make(command=says('{"epsilon": 1.5}'), idle_s=0.2)
    assert pricer(question(0.1), DELTA) == 1.5
    pid = pricer.child
    assert pid is not None
    os.kill(pid, 9)
    assert soon(lambda: not is_there(pid))


def test_only_the_last_timer_ends_a_child_and_never_a_busy_one(
    make: Callable[..., Pricer],
) -> None:
    pricer = make(command=child(COUNTS))
    pricer(question(0.1), DELTA)
    pricer._end_if_idle()  # a timer that was replaced meanwhile
    assert pricer.child is not None
    with pricer._turn:
        busy = threading.Thread(target=pricer._end_if_idle)
        busy.start()
        busy.join()
    assert pricer.child is not None


def test_a_child_that_takes_too_long_is_ended(make: Callable[..., Pricer]) -> None:
    pricer = make(command=child(SLEEPS), timeout_s=0.2)
    with pytest.raises(InternalError, match="too long"):
        pricer(question(0.1), DELTA)
    assert pricer.child is None


def test_a_child_that_always_dies_is_started_twice(make: Callable[..., Pricer]) -> None:
    pricer = make(command=child(DIES))
    with pytest.raises(InternalError, match="died"):
        pricer(question(0.1), DELTA)
    gone = make(command=child(""))
    with pytest.raises(InternalError, match="died"):
        gone(question(0.1), DELTA)


def test_a_child_that_cannot_be_started_is_our_fault(make: Callable[..., Pricer]) -> None:
    with pytest.raises(InternalError):
        make(command=("/no/such/program",))(question(0.1), DELTA)


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"epsilon": NaN}',
        '{"epsilon": Infinity}',
        '{"epsilon": -1.0}',
        '{"epsilon": "1"}',
        '{"epsilon": true}',
        '{"epsilon": 1.0, "more": 1}',
        '{"epsilon": null, "more": 1}',
        '{"error": 5}',
        '{"error": "ImportError: none"}',
        '{"epsilon": 1' + "0" * 9000 + "}",
    ],
)
def test_an_answer_that_is_none_is_no_price(make: Callable[..., Pricer], line: str) -> None:
    pricer = make(command=says(line))
    with pytest.raises(InternalError):
        pricer(question(0.1), DELTA)
    assert pricer.child is None


# ---- the child's side ----------------------------------------------------------------


def served(*lines: str) -> list[dict[str, object]]:
    answers = io.BytesIO()
    serve(io.BytesIO("".join(line + "\n" for line in lines).encode()), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_the_child_answers_line_by_line() -> None:
    found = served(
        '{"costs": [[7.0, 3, 1.0]], "delta": 1e-5}',
        '{"costs": [[1.1, 100, 0.01]], "delta": 1e-5}',
        '{"costs": [[1e-4, 1, 1.0]], "delta": 1e-5}',
    )
    assert found == [
        {"epsilon": epsilon([PLAIN], DELTA)},
        {"epsilon": epsilon([SAMPLED], DELTA)},
        {"epsilon": None},
    ]


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        '{"costs": [], "delta": 1}',
        '{"costs": [], "delta": NaN}',
        '{"costs": [], "delta": 1e-5, "more": 1}',
        '{"costs": [[1.0, 1]], "delta": 1e-5}',
        '{"costs": [["1", 1, 1.0]], "delta": 1e-5}',
        '{"costs": [[1.0, 1.5, 1.0]], "delta": 1e-5}',
        '{"costs": [[1.0, true, 1.0]], "delta": 1e-5}',
        '{"costs": [[0.0, 1, 1.0]], "delta": 1e-5}',
        '{"costs": [[1.0, 1, 1.0]], "delta": 1.5}',
        json.dumps({"costs": [[1.0, 1, 1.0]] * (MAX_KINDS + 1), "delta": DELTA}),
    ],
)
def test_the_child_says_what_is_wrong_and_goes_on(line: str) -> None:
    wrong, right = served(line, '{"costs": [], "delta": 1e-5}')
    assert list(wrong) == ["error"]
    assert right == {"epsilon": 0.0}


def test_the_child_leaves_when_a_line_has_no_end() -> None:
    assert served("x" * 9000) == []


def test_the_child_is_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = io.BytesIO()
    asked = io.BytesIO(b'{"costs": [], "delta": 1e-5}\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(asked))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(answers))
    monkeypatch.delitem(sys.modules, "consortium.privacy.pricing")
    runpy.run_module("consortium.privacy.pricing", run_name="__main__")
    assert answers.getvalue() == b'{"epsilon": 0.0}\n'

"""Prices for a process that must stay small.

The closed form is answered here. Everything else is asked of a child process, because
dp-accounting takes 80 MB and some seconds to import: it is started for the first such question,
kept for further ones, and ended when nobody has asked for a while. Questions and answers are one
line of JSON each. Neither this module nor `accountant` imports dp-accounting or scipy by itself.

Simulations and commands, which end soon, take `accountant.epsilon` itself as their price.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import IO

from consortium.core.account_facts import Cost, Costs
from consortium.errors import ConsortiumError, InternalError
from consortium.privacy.accountant import MAX_KINDS, epsilon, is_closed, merged

IDLE_S, TIMEOUT_S = 60.0, 120.0
_MOST_BYTES = 8192  # of a line: a question has at most `MAX_KINDS` costs, of 60 bytes or so
_MOST_TEXT = 200  # characters of what went wrong
_MOST_KEPT = 1024  # answers
_COMMAND = (sys.executable, "-P", "-m", "consortium.privacy.pricing")


class Pricer:
    """A `budget.Price`, for any number of threads. After `close` it still answers, and may start
    a child again."""

    def __init__(
        self,
        *,
        idle_s: float = IDLE_S,
        timeout_s: float = TIMEOUT_S,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self._idle_s, self._timeout_s, self._command = idle_s, timeout_s, tuple(command)
        self._turn = threading.Lock()  # whose it is speaks with the child
        self._child: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._kept = _Kept()

    def __call__(self, costs: Sequence[Cost], delta: float) -> float:
        """ε of all these together, as `accountant.epsilon` has it."""
        kinds = merged(costs, delta)
        if is_closed(kinds):
            return epsilon(kinds, delta)
        known = self._kept.get(kinds, delta)
        if known is not None:
            return known
        with self._turn:
            known = self._kept.get(kinds, delta)  # somebody else asked it meanwhile
            if known is None:
                known = self._ask(_question(kinds, delta))
                self._kept.put(kinds, delta, known)
            return known

    def close(self) -> None:
        """End the child."""
        with self._turn:
            self._end()

    @property
    def child(self) -> int | None:
        """The child's process id, while there is one."""
        child = self._child
        return None if child is None else child.pid

    def _ask(self, question: bytes) -> float:
        """The child's answer. One that died is started anew, once: it may have been killed for
        its memory while it was idle."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            for _ in range(2):
                line = self._said(question)
                if line is not None:
                    return _answer(line)
                self._end()
            raise InternalError("the process that computes prices died")
        except BaseException:
            self._end()
            raise
        finally:
            self._wait_for_more()

    def _said(self, question: bytes) -> bytes | None:
        """One line of the child; None if it has gone."""
        if self._child is None:
            self._child = _started(self._command)
        pipes = self._child
        assert pipes.stdin is not None and pipes.stdout is not None
        try:
            pipes.stdin.write(question)
            pipes.stdin.flush()
        except OSError:
            return None
        return _line_of(pipes.stdout, time.monotonic() + self._timeout_s)

    def _wait_for_more(self) -> None:
        if self._child is not None:
            self._timer = threading.Timer(self._idle_s, self._end_if_idle)
            self._timer.daemon = True
            self._timer.start()

    def _end_if_idle(self) -> None:
        # Whose turn it is has the child busy, and sets a timer of its own.
        if self._turn.acquire(blocking=False):
            try:
                if self._timer is threading.current_thread():
                    self._end()
            finally:
                self._turn.release()

    def _end(self) -> None:
        """End the child, and have it gone: nobody else waits for it."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Kept:
    """The last answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[Costs, float], float] = OrderedDict()

    def get(self, kinds: Costs, delta: float) -> float | None:
        with self._lock:
            if (kinds, delta) in self._answers:
                self._answers.move_to_end((kinds, delta))
            return self._answers.get((kinds, delta))

    def put(self, kinds: Costs, delta: float, answer: float) -> None:
        with self._lock:
            self._answers[kinds, delta] = answer
            while len(self._answers) > _MOST_KEPT:
                self._answers.popitem(last=False)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """One thread is enough: the transforms are small. It ends when its input does, which the
    operating system closes when this process dies."""
    alone = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **alone},
            start_new_session=True,  # Ctrl-C is for us
        )
    except OSError as error:
        raise InternalError("no process could be started that computes prices") from error


def _line_of(pipe: IO[bytes], until_s: float) -> bytes | None:
    """The next line, without its end; None if there is none any more. Nothing is read ahead: the
    child says one line for each of ours."""
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not said.endswith(b"\n"):
            if not selector.select(max(0.0, until_s - time.monotonic())):
                raise InternalError("the process that computes prices took too long")
            more = os.read(pipe.fileno(), _MOST_BYTES)
            said += more
            if not more or len(said) > _MOST_BYTES:
                return None
    return said[:-1]


def _question(kinds: Costs, delta: float) -> bytes:
    costs = [[float(cost.sigma), cost.releases, float(cost.rate)] for cost in kinds]
    return json.dumps({"costs": costs, "delta": delta}, allow_nan=False).encode() + b"\n"


def _answer(line: bytes) -> float:
    """ε; null is infinite, which JSON has no number for."""
    try:
        said = _parsed(line)
    except ValueError:
        raise InternalError("the process that computes prices spoke no JSON") from None
    match said:
        case {"epsilon": None, **more} if not more:
            return math.inf
        case {"epsilon": float() as found, **more} if not more and found >= 0:
            return found
        case {"error": str() as why, **more} if not more:
            raise InternalError(f"the process that computes prices failed: {why}")
    raise InternalError("the process that computes prices said something else")


def _parsed(line: bytes) -> object:
    """JSON as the standard has it."""
    return json.loads(line, parse_constant=_refused)


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


# ---- the child's side ----------------------------------------------------------------


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """Answer line by line, until there are no more or one is too long."""
    while line := questions.readline(_MOST_BYTES):
        if not line.endswith(b"\n"):
            return
        answers.write(json.dumps(_reply(line), allow_nan=False).encode() + b"\n")
        answers.flush()


def _reply(line: bytes) -> dict[str, float | str | None]:
    try:
        found = epsilon(*_asked(line))
    except (ConsortiumError, ArithmeticError, ImportError, MemoryError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:_MOST_TEXT]}
    return {"epsilon": found if found < math.inf else None}


def _asked(line: bytes) -> tuple[list[Cost], float]:
    match _parsed(line):
        case {"costs": [*costs], "delta": float() as delta, **more} if not more:
            if len(costs) <= MAX_KINDS:
                return [_cost(one) for one in costs], delta
    raise ValueError("a question has costs and a delta")


def _cost(said: object) -> Cost:
    match said:
        case [float() as sigma, int() as releases, float() as rate] if releases is not True:
            return Cost(sigma, releases, rate)
    raise ValueError("a cost has a sigma, releases and a rate")


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)

"""The same faults in whole processes, with TLS, threads, and a task in a process of its own: a
few of them, to show that taking turns from outside hides nothing.

    python -m consortium.testing.crash_network.whole --points 8 --seed 1

Here threads decide what comes when, so a point is the nth call of its kind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from consortium.testing.kill_loop import Campaign
from consortium.testing.processes import Network, ProcessesError, Shape
from consortium.testing.warm import attach

SHAPE = Shape(sites=2, rounds=2, size=1000, quorum=2, duration="30s")
_CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "write")
_FAULTS = ("signal=SIGKILL", "error=ENOSPC", "error=EIO")
_MOST = {"coordinator": 30, "site-0": 8}  # of each kind of call, in so small a study
_END_S = 120.0
_AGAIN = 3  # starts, at most


class Broken(Network):
    """A network of which one process runs under strace when it is first started."""

    who, injection = "", ""

    def _start(self, name: str, arguments: list[str], folder: Path) -> None:
        super()._start(name, arguments, folder)
        if name == self.who and self.injection:
            tracing = ["-e", f"inject={self.injection}"]
            attach(self.processes[name].pid, tracing, self.folder)  # before it has opened anything
            self.injection = ""

    def mend(self) -> bool:
        """Start the broken one again, if it has ended; whether it had."""
        process = self.processes.get(self.who)
        if process is None or process.poll() is None:
            return False
        if self.who == "coordinator":
            self.start_coordinator()
        else:
            self.start_site(self.who)
        return True


def _begin(network: Broken) -> None:
    for _ in range(_AGAIN):
        with suppress(ProcessesError):  # it was broken before it listened
            network.start_coordinator()
            break
    for name in network.site_names():
        for attempt in range(_AGAIN):
            try:
                network.join(name)
                break
            except ProcessesError:
                if not network.mend() and attempt == _AGAIN - 1:
                    raise


def _go_on(network: Broken) -> None:
    ends = time.monotonic() + _END_S
    while time.monotonic() < ends:
        network.mend()
        with suppress(ProcessesError):
            if network.is_finished():
                return
        time.sleep(0.2)
    raise ProcessesError(f"the federation does not end: {network.tail(network.who)[-300:]}")


def break_at(who: str, injection: str) -> list[str]:
    """One federation, broken once; what was violated."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        network = Broken(Path(scratch) / "n", SHAPE)
        stack.enter_context(network)
        network.who, network.injection = who, injection
        looked = Campaign(network, random.Random(0))
        try:
            _begin(network)
            _go_on(network)
            time.sleep(1.0)  # sites fetch their last receipts
            network.mend()
            looked._check()
        except ProcessesError as error:
            looked.violations.append(str(error))
        return looked.violations


def main() -> None:
    parser = argparse.ArgumentParser(prog="consortium.testing.crash_network.whole")
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, is_wrong = random.Random(options.seed), False
    for number in range(options.points):
        who = list(_MOST)[number % 2]
        call, fault = rng.choice(_CALLS), _FAULTS[number // 2 % len(_FAULTS)]
        injection = f"{call}:{fault}:when={rng.randrange(1, _MOST[who])}"
        found = break_at(who, injection)
        is_wrong = is_wrong or bool(found)
        print(json.dumps({"who": who, "fault": injection, "violations": found}), flush=True)
    sys.exit(1 if is_wrong else 0)


if __name__ == "__main__":
    main()

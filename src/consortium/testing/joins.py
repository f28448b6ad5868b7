"""Many join with one token at the same moment: exactly one gets the place.

    python -m consortium.testing.joins --runs 20 --joiners 50

Each has a key, a connection and an address of its own; all send when all are ready. Then the
winner comes again, as one does that has lost the answer, and gets the same place; and in a run
of its own, one site sends the same request on all connections, and is there once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consortium.crypto.recipes import SigningKey
from consortium.testing.by_hand import Door, Line, Told, enrolment, spelt
from consortium.testing.processes import Network, Shape

_LOST = (403, "E0813")


@dataclass
class Joiners:
    """Everybody who tries, on connections that are open."""

    door: Door
    lines: Sequence[Line]
    pool: ThreadPoolExecutor
    winners: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def together(self, requests: Sequence[bytes]) -> list[Told]:
        """Send each on its own connection, all at once."""
        ready = threading.Barrier(len(requests))

        def one(line: Line, request: bytes) -> Told:
            ready.wait()
            return line.send(request)

        return list(self.pool.map(one, self.lines, requests))

    def race(self, number: int) -> None:
        """One token, and a key each."""
        name, before = f"place-{number}", len(self.door.look("/sites"))
        token = self.door.invite(name)
        keys = [SigningKey.generate() for _ in self.lines]
        requests = [enrolment(token, key) for key in keys]
        told = self.together(requests)
        heard = Counter((one.status, one.code) for one in told)
        if heard != {(200, ""): 1, _LOST: len(told) - 1}:
            self.violations.append(f"run {number}: {dict(heard)}")
            return
        winner = next(at for at, one in enumerate(told) if one.status == 200)
        self.winners.append(winner)
        again = self.lines[winner].send(requests[winner])
        if again.status != 200 or again.json["site"] != told[winner].json["site"]:
            self.violations.append(f"run {number}: the winner came again, and was told {again}")
        self._check_roster(number, name, before)

    def repeat(self, number: int) -> None:
        """One site, as often as there are connections."""
        name, before = f"place-{number}", len(self.door.look("/sites"))
        request = enrolment(self.door.invite(name), SigningKey.generate())
        told = self.together([request] * len(self.lines))
        places = {one.json.get("site") for one in told if one.status == 200}
        if len(places) != 1 or any(one.status != 200 for one in told):
            self.violations.append(f"run {number}: one site has {len(places)} places")
        self._check_roster(number, name, before)

    def _check_roster(self, number: int, name: str, before: int) -> None:
        sites = self.door.look("/sites")
        if len(sites) != before + 1 or [one["name"] for one in sites].count(name) != 1:
            self.violations.append(f"run {number}: {len(sites) - before} sites more")
        if self.door.look()["sites"] != len(sites):
            self.violations.append(f"run {number}: the log has another number of sites")


def campaign(runs: int, joiners: int) -> dict[str, Any]:
    """Run it; what was done and what was found."""
    shape, begun = Shape(sites=1000, rounds=1), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", shape) as network:
        network.start_coordinator()
        door = Door.of(network)
        lines = [door.line(f"127.3.0.{at + 1}") for at in range(joiners)]
        with ThreadPoolExecutor(joiners) as pool:
            seen = Joiners(door, lines, pool)
            seen.together([spelt("GET", "/health", {})] * joiners)  # all are connected
            for number in range(runs):
                seen.race(number)
            seen.repeat(runs)
        for line in lines:
            line.close()
    return {
        "runs": runs,
        "joiners": joiners,
        "different_winners": len(set(seen.winners)),  # one only: it was no race
        "seconds": round(time.monotonic() - begun, 1),
        "violations": seen.violations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--joiners", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="as always: one object")
    options = parser.parse_args()
    told = campaign(options.runs, options.joiners)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

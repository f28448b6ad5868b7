"""Kill coordinator and sites at random moments of a run, again and again, and look from outside.

    python -m consortium.testing.kill_loop --cycles 60

The model is large enough that uploads and downloads are under way most of the time. Each
cycle kills one process with SIGKILL and starts it again. Then it must hold: every member of
every round was counted exactly once; a round has one model for ever; no site trained twice
for a round; every receipt that a site keeps is in the log; the audit finds nothing; nobody
is left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consortium.testing.processes import Network, ProcessesError, Shape, run, wait_until

SHAPE = Shape(sites=3, rounds=100_000, size=1_000_000, pace_s=0.15, quorum=2, duration="15s")
_BETWEEN_S = (0.05, 1.2)  # from one kill to the next
_AWAY_S = (0.0, 0.4)  # how long the killed one stays away


@dataclass
class Campaign:
    """What was seen so far."""

    network: Network
    rng: random.Random
    digests: dict[int, str] = field(default_factory=dict)  # round → its model, when first seen
    kills: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def run(self, cycles: int) -> None:
        self.network.start_coordinator()
        for name in self.network.site_names():
            self.network.join(name)
        for cycle in range(cycles):
            self._cycle(is_coordinator=cycle % 3 == 0)
        self._come_to_rest()
        self._check()

    def _cycle(self, *, is_coordinator: bool) -> None:
        time.sleep(self.rng.uniform(*_BETWEEN_S))
        name = "coordinator" if is_coordinator else self.rng.choice(self.network.site_names())
        self.network.kill(name)
        self.kills["coordinator" if is_coordinator else "site"] += 1
        time.sleep(self.rng.uniform(*_AWAY_S))
        if is_coordinator:
            self.network.start_coordinator()
            self._observe()
        else:
            self.network.start_site(name)

    def _observe(self) -> None:
        for record in self.network.rounds():
            model = record["model"]
            if model and self.digests.setdefault(record["number"], model) != model:
                self.violations.append(f"round {record['number']} has two models")

    def _come_to_rest(self) -> None:
        """No new round opens; the open one ends by itself."""
        before = len(self.digests)
        wait_until(lambda: self._grew(before), 60.0, "rounds go on after the last kill")
        run(["round", "hold"], self.network.study)
        wait_until(lambda: self.network.status()["round"] is None, 60.0, "the round ends")
        time.sleep(1.0)  # sites fetch their last receipts

    def _grew(self, before: int) -> bool:
        self._observe()
        return len(self.digests) > before + 1

    # ---- looking --------------------------------------------------------------------

    def _check(self) -> None:
        self._observe()
        self._check_sums()
        self._check_sites()
        self._check_audit()
        for name in [*self.network.site_names(), "coordinator"]:
            self.network.kill(name)
        self._check_nobody_left()

    def _check_sums(self) -> None:
        """What each round added to the model is one for every member, over their number."""
        before = self._numbers(0)
        for version, number in self._versions():
            after, members = self._numbers(version), self._members(number)
            added = [(new - old) * len(members) for new, old in zip(after, before, strict=True)]
            wanted = [1.0 if name in members else 0.0 for name in self.network.site_names()]
            if any(abs(got - want) > 0.01 for got, want in zip(added, wanted, strict=True)):
                self.violations.append(f"round {number}: added {added}, members {members}")
            before = after

    def _versions(self) -> list[tuple[int, int]]:
        told = json.loads(self.network.ask("model", "list"))["data"]["models"]
        return [(one["version"], one["round"]) for one in told if one["round"]]

    def _members(self, number: int) -> list[str]:
        told = json.loads(self.network.ask("round", "show", str(number)))["data"]
        closed = [one for one in told["events"] if one["fact"] == "RoundClosed"]
        if len(closed) != 1:
            self.violations.append(f"round {number} was closed {len(closed)} times")
        return list(closed[-1]["members"])

    def _numbers(self, version: int) -> tuple[float, ...]:
        """The first numbers of a model, from its file in the coordinator's blobs."""
        told = json.loads(self.network.ask("model", "show", str(version)))["data"]
        digest = told["digest"]
        data = (self.network.data / "blobs" / digest[:2] / digest[2:]).read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        count = self.network.shape.sites
        return struct.unpack(f"<{count}f", data[start : start + 4 * count])

    def _check_sites(self) -> None:
        for name in self.network.site_names():
            told = run(["--json", "site", "outbox", "--home", name], self.network.folder)
            sent = [one for one in json.loads(told)["data"]["entries"] if one["what"] == "update"]
            for number, count in Counter(one["round"] for one in sent).items():
                if count > 1:
                    self.violations.append(f"{name} made {count} updates for round {number}")

    def _check_audit(self) -> None:
        receipts = [
            path
            for name in self.network.site_names()
            for path in sorted((self.network.home(name) / "receipts").glob("*.proof"))
        ]
        if not receipts:
            self.violations.append("no site has kept a receipt")
        options = [part for path in receipts for part in ("--receipt", str(path))]
        try:
            run(["audit", "verify", str(self.network.data), *options], self.network.folder, 300.0)
        except ProcessesError as error:
            self.violations.append(f"the audit: {error}")

    def _check_nobody_left(self) -> None:
        time.sleep(0.5)
        left = processes_of(self.network.folder)
        if left:
            self.violations.append(f"left behind: {left}")


def processes_of(folder: Path) -> list[str]:
    """Processes whose folder or arguments lie in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            place = (entry / "cwd").readlink()
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words or place == folder or folder in place.parents:
            found.append(f"{entry.name} {words[:80]}")
    return found


def campaign(cycles: int, seed: int) -> dict[str, Any]:
    """Run it; what was done and what was found."""
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", SHAPE) as network:
        seen = Campaign(network, random.Random(seed))
        seen.run(cycles)
    return {
        "cycles": cycles,
        "seed": seed,
        "kills": dict(seen.kills),
        "rounds": len(seen.digests),
        "violations": seen.violations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    told = campaign(options.cycles, options.seed)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

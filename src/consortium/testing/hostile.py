"""Hostile files and requests at a real coordinator while an honest federation goes on.

    python -m consortium.testing.hostile              # every file, every request
    python -m consortium.testing.hostile --size 17000000   # and a header of 63 MiB

In every round each hostile site sends requests of `hostile_requests` and then, as its update,
a file of `hostile_files`. Then it must hold: every answer is the one in the tables, and none is
5xx; the coordinator takes at most 64 MiB more memory than before; every round completes, and
adds one for every honest site, over the number of those that were counted; nothing was written
outside of the coordinator's folder.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consortium.model import digest_of
from consortium.testing.by_hand import Door, Played, Told
from consortium.testing.hostile_files import COUNTED, FILES, MAGNITUDE, HostileFile, Round
from consortium.testing.hostile_keys import is_plain_site
from consortium.testing.hostile_requests import REQUESTS
from consortium.testing.hostile_ways import HostileRequest, Scene
from consortium.testing.processes import Network, ProcessesError, Shape, run, wait_until

HONEST = 3
MOST_MEMORY = 64 << 20
_FATES = ("UpdateRejected", "UpdateExcluded")
_BODY_KEPT = 1000  # bytes that the other site has begun to upload


def memory_of(pid: int) -> int:
    """The most memory that a process has had, in bytes, since `forget_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise ProcessesError("the system does not say how much memory a process has had")


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@dataclass
class Campaign:
    """What was sent so far, and what was wrong."""

    network: Network
    files: Sequence[HostileFile]
    requests: Sequence[HostileRequest]
    sites: int  # hostile ones
    violations: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""
    peak: int = 0
    rounds: int = 0

    def run(self) -> None:
        network = self.network
        network.start_coordinator()
        self.door = Door.of(network)
        self._outside = _listing(network.folder)
        hostile = [self.door.join(f"hostile-{at}", f"127.2.0.{at + 1}") for at in range(self.sites)]
        for at in range(HONEST):
            network.join(f"site-{at}")
        hostile[0].invited()
        pid = network.processes["coordinator"].pid
        forget_peak(pid)
        before = memory_of(pid)
        turns = _turns(self.files, self.sites)
        for number, files in enumerate(turns, start=1):
            share = -(-len(self.requests) // len(turns))
            self._turn(number, hostile, files, self.requests[(number - 1) * share :][:share])
        wait_until(lambda: len(self._ended()) >= len(turns), 120.0, "the last round ends")
        self.peak = memory_of(pid) - before
        self.rounds = len(turns)
        self._check(turns)
        for site in hostile:
            site.line.close()

    # ---- one round ------------------------------------------------------------------

    def _turn(
        self,
        number: int,
        hostile: list[Played],
        files: Sequence[HostileFile],
        requests: Sequence[HostileRequest],
    ) -> None:
        asked = hostile[0].invited(number - 1)
        other = hostile[1].invited(number - 1)
        begun = b"\0" * _BODY_KEPT + str(number).encode()
        hostile[1].call(
            "PATCH", f"/v1/uploads/{digest_of(begun).hex()}?offset=0", begun[:_BODY_KEPT]
        )
        for at, request in enumerate(requests):
            source = f"127.{100 + number}.{at // 250}.{at % 250 + 1}"
            about = digest_of(begun).hex(), asked["round"], asked["base"], source
            self._send(request, hostile[0], hostile[1], about)
        if other["round"] != number or asked["round"] != number:
            self.violations.append(f"round {number} is over before its sites have answered")
        for site, file in zip(hostile, files, strict=False):
            self._deliver(site, file, Round(self.network.shape.size, asked["base"]), number)
        for site in hostile[len(files) :]:
            told = site.call(
                "POST", f"/v1/rounds/{number}/failure", b'{"failure":"TRAINING"}', number
            )
            self._expect(f"{site.name} gives up", told, 200, "")

    def _send(
        self,
        request: HostileRequest,
        site: Played,
        other: Played,
        about: tuple[str, int, str, str],
    ) -> None:
        digest, number, base, source = about
        moved = site.from_address(source)
        scene = Scene(self.door, moved, other, digest, number, base, source, self.network.data)
        try:
            with self._timed(request.name):
                told = request.send(scene)
        finally:
            moved.line.close()
        self._expect(request.name, told, request.status, request.code)
        if request.says not in told.body.decode(errors="replace"):
            self.violations.append(f"{request.name}: {told}, not {request.says}")
        if request.name.startswith("join:"):
            self._put_out(scene, told)

    def _put_out(self, scene: Scene, told: Told) -> None:
        """Who has joined by the way would be waited for in the next round."""
        if told.status == 200 and not is_plain_site(told.json["certificate"]):
            self.violations.append("a site was made an authority")
        path = f"/v1/federations/{self.door.federation}/sites/{scene.name()}/revoke"
        self.door.order("POST", path)

    def _deliver(self, site: Played, file: HostileFile, about: Round, number: int) -> None:
        data = file.make(about)
        with self._timed(file.name):
            told = site.deliver(data, number)
        is_file = not file.fate.startswith("E")
        self._expect(file.name, told, 200 if is_file else 413, "" if is_file else file.fate)
        if told.status != 200:  # the others wait for this site
            site.call("POST", f"/v1/rounds/{number}/failure", b'{"failure":"TRAINING"}', number)

    def _expect(self, what: str, told: Told, status: int, code: str) -> None:
        if (told.status, told.code) != (status, code):
            self.violations.append(f"{what}: {told}, not {status} {code}")
        if told.status >= 500:
            self.violations.append(f"{what}: {told}: our own trouble")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        took_s = time.monotonic() - begun
        if took_s > self.slowest_s:
            self.slowest_s, self.slowest = took_s, name

    # ---- looking --------------------------------------------------------------------

    def _ended(self) -> list[Any]:
        return [one for one in self.door.look("/rounds") if one["outcome"]]

    def _check(self, turns: list[list[HostileFile]]) -> None:
        if self.peak > MOST_MEMORY:
            self.violations.append(f"{self.peak >> 20} MiB more memory")
        before = self._numbers(0)
        for number, files in enumerate(turns, start=1):
            view = self.door.look(f"/rounds/{number}")
            members = _members(view)
            self._check_fates(number, files, view["events"], members)
            after = self._numbers(number)
            added = [(new - old) * len(members) for new, old in zip(after, before, strict=True)]
            if any(abs(one - 1.0) > 0.01 for one in added):
                self.violations.append(f"round {number} added {added}; members {members}")
            before = after
        self._check_folders()
        run(["audit", "verify", str(self.network.data)], self.network.folder, 120.0)

    def _check_fates(
        self, number: int, files: Sequence[HostileFile], events: list[Any], members: list[str]
    ) -> None:
        fates = {one["site"]: one["fault"] for one in events if one["fact"] in _FATES}
        for at, file in enumerate(files):
            site = f"hostile-{at}"
            fate = COUNTED if site in members else fates.get(site, "")
            if not file.fate.startswith("E") and fate != file.fate:
                self.violations.append(f"round {number}: {file.name}: {fate}, not {file.fate}")
        if not {f"site-{at}" for at in range(HONEST)} <= set(members):
            self.violations.append(f"round {number}: counted were {members}")

    def _numbers(self, version: int) -> tuple[float, ...]:
        """The first numbers of a model, from its file in the coordinator's blobs."""
        digest = self.door.look(f"/models/{version}")["digest"]
        data = (self.network.data / "blobs" / digest[:2] / digest[2:]).read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        return struct.unpack(f"<{HONEST}f", data[start : start + 4 * HONEST])

    def _check_folders(self) -> None:
        """Nothing is written outside of the folders that are for it."""
        for path in sorted(_listing(self.network.folder) - self._outside):
            first = path.split("/")[0]
            is_ours = first in ("keys", "study") or first.startswith("site-")
            if not is_ours:
                self.violations.append(f"{path} was written")
        if Path("/tmp/owned").exists():
            self.violations.append("something that was sent has run")


def _members(view: Any) -> list[str]:
    closed = [one for one in view["events"] if one["fact"] == "RoundClosed"]
    return list(closed[-1]["members"]) if closed else []


def _listing(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def _turns(files: Sequence[HostileFile], sites: int) -> list[list[HostileFile]]:
    """Which files are sent in which round, a file a site. Those that pass the first checks have
    a say in the median norm: not more than one of a kind in a round."""
    special = [one for one in files if one.fate in (COUNTED, MAGNITUDE)]
    others = [one for one in files if one not in special]
    count = -(-len(files) // sites)
    turns: list[list[HostileFile]] = [special[at::count] for at in range(count)]
    for turn in turns:
        room = sites - len(turn)
        turn += others[:room]
        del others[:room]
    return turns


def campaign(
    *, size: int = 300_000, sites: int = 12, every: int = 1, seed: int = 0
) -> dict[str, Any]:
    """Run it; what was done and what was found. `every` takes each n-th case, from `seed` on."""
    files = [one for one in FILES if size >= one.least_size][seed % every :: every]
    requests = REQUESTS[seed % every :: every]
    shape = Shape(sites=HONEST + sites, rounds=10_000, size=size, quorum=2, duration="120s")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", shape) as network:
        seen = Campaign(network, files, requests, sites)
        seen.run()
    return {
        "files": len(files),
        "requests": len(requests),
        "rounds": seen.rounds,
        "seconds": round(time.monotonic() - begun, 1),
        "peak_mib": round(seen.peak / (1 << 20), 1),
        "slowest": f"{seen.slowest}: {seen.slowest_s:.2f} s",
        "violations": seen.violations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=300_000, help="numbers of the model")
    parser.add_argument("--every", type=int, default=1, help="take each n-th case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="as always: one object")
    options = parser.parse_args()
    told = campaign(size=options.size, every=options.every, seed=options.seed)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

"""A recorded federation, sent again: every request thrice, and all of them in any order.

    python -m consortium.testing.replay --shuffles 200 --fresh 10

Three sites go through three rounds, and all that they say is recorded as bytes. Then the same
bytes come again: in their order, each three times; shuffled; and shuffled at a coordinator that
was set back to where it was before the first of them (`--fresh`), after which the sites go on
honestly. It must hold: no 5xx; what had effects is answered with the very bytes of the first
time; the log does not grow by a replay; every run ends with the same model and as many facts,
and the model says that every site was counted in every round, once.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from consortium.core.ids import Digest
from consortium.model import Update, digest_of, save_update
from consortium.testing.by_hand import Door, Played, Told
from consortium.testing.processes import Network, ProcessesError, Shape, run, wait_until
from consortium.wire.messages import ClientRegister, Report

SITES, ROUNDS, SIZE = 3, 3, 20_000
_TRAIN_S = 60.0  # for a round to open, or to end


@dataclass(frozen=True, slots=True)
class Said:
    """One request of the trace, by whom, and what it was told."""

    site: int
    request: bytes
    told: Told

    @property
    def is_kept(self) -> bool:
        """Whether the answer to it is kept: it had effects."""
        return self.request.startswith(b"POST") and not self.request.startswith(b"POST /v1/ask")


@dataclass
class Site:
    """One site of the federation, played by hand."""

    number: int
    played: Played
    trace: list[Said] | None = None

    def say(self, request: bytes) -> Told:
        told = self.played.line.send(request)
        if self.trace is not None:
            self.trace.append(Said(self.number, request, told))
        if told.status not in (200, 206):
            raise ProcessesError(f"{self.played.name}: {told} to {request[:200]!r}")
        return told

    def begin(self) -> None:
        """What a site says before its first round."""
        played = self.played
        told = self.say(played.signed("GET", "/v1/study")).json
        for name in ("plan", "layout", "bundle", "lock"):
            self.say(played.signed("GET", f"/v1/blobs/{told[name]}"))
        report = Report(report={"records": self.number + 1}).model_dump_json().encode()
        self.say(played.signed("POST", "/v1/report", report))
        here = ClientRegister(location_id=played.name, model_type="task.py:study")
        request = here.model_dump_json().encode()
        self.say(played.signed("POST", "/federated/client/register", request))

    def invited(self, number: int) -> dict[str, Any]:
        """Wait for the round; only the last question is recorded."""
        ends = time.monotonic() + _TRAIN_S
        ask = b'{"seen_size":0,"own_size":0}'
        while time.monotonic() < ends:
            request = self.played.signed("POST", "/v1/ask", ask)
            told = self.played.line.send(request)
            found = told.json["invitation"] and json.loads(told.json["invitation"]["text"])
            if found and found["round"] == number:
                if self.trace is not None:
                    self.trace.append(Said(self.number, request, told))
                return dict(found)
            time.sleep(0.01)
        raise ProcessesError(f"{self.played.name} was not invited to round {number}")

    def train(self, number: int) -> None:
        """One round: fetch the model, send what belongs to this site, have it counted."""
        played, asked = self.played, self.invited(number)
        self.say(played.signed("GET", f"/v1/blobs/{asked['base']}", more={"Range": "bytes=0-"}))
        step = np.zeros(SIZE, np.float32)
        step[self.number] = 1.0
        data = save_update(Update(step, 1.0, Digest(bytes.fromhex(asked["base"]))))
        digest = digest_of(data).hex()
        self.say(played.signed("GET", f"/v1/uploads/{digest}"))
        half = len(data) // 2
        for start, part in ((0, data[:half]), (half, data[half:])):
            path = f"/v1/uploads/{digest}?offset={start}"
            self.say(played.signed("PATCH", path, part, number))
        body = f'{{"update":"{digest}","size_bytes":{len(data)}}}'.encode()
        self.say(played.signed("POST", f"/v1/rounds/{number}/update", body, number))
        self.say(played.signed("GET", f"/v1/rounds/{number}/receipt"))


@dataclass
class Campaign:
    """The recorded run, and what was seen when it came again."""

    network: Network
    rng: random.Random
    trace: list[Said] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    sent: int = 0
    waits: int = 0

    def run(self, shuffles: int, fresh: int) -> None:
        network = self.network
        network.start_coordinator()
        self.door = Door.of(network)
        self.sites = [Site(at, self.door.join(f"site-{at}"), self.trace) for at in range(SITES)]
        network.kill("coordinator")
        shutil.copytree(network.data, network.folder / "before")
        network.start_coordinator()
        self._record()
        self._again(one for one in self.trace for _ in range(3))
        for _ in range(shuffles):
            self._again(self._shuffled())
        self._audit()
        for number in range(fresh):
            self._set_back()
            self._from_the_start(number)
        self._audit()
        for site in self.sites:
            site.played.line.close()

    def _record(self) -> None:
        for site in self.sites:
            site.begin()
        for number in range(1, ROUNDS + 1):
            for site in self.sites:
                site.train(number)
        self._wait_for_end()
        self.digest, self.facts = self._outcome()
        self._check_sum()
        for site in self.sites:
            site.trace = None

    # ---- again ----------------------------------------------------------------------

    def _shuffled(self) -> list[Said]:
        return self.rng.sample(self.trace, len(self.trace))

    def _send(self, said: Said) -> Told:
        """As it was; who is told to wait waits."""
        while True:
            told = self.sites[said.site].played.line.send(said.request)
            self.sent += 1
            if told.status >= 500 or told.status == 0:
                self.violations.append(f"{told} to {said.request[:200]!r}")
            if told.status != 429:
                return told
            self.waits += 1
            time.sleep(0.2)

    def _again(self, trace: Iterable[Said]) -> None:
        """At the coordinator that has heard it all: nothing happens."""
        for said in trace:
            told = self._send(said)
            if said.is_kept and (told.status, told.body) != (said.told.status, said.told.body):
                self.violations.append(f"{told}, first {said.told}, to {said.request[:200]!r}")
        if self._outcome() != (self.digest, self.facts):
            self.violations.append(f"a replay had an effect: {self._outcome()}")

    def _set_back(self) -> None:
        self.network.kill("coordinator")
        shutil.rmtree(self.network.data)
        shutil.copytree(self.network.folder / "before", self.network.data)
        self.network.start_coordinator()

    def _from_the_start(self, number: int) -> None:
        """In any order, some of it counts; then the sites go on as if nothing had been."""
        for said in self._shuffled():
            self._send(said)
        self._check_once(number)
        for site in self.sites:
            site.begin()
        first = max(1, self.door.look()["rounds"]["done"])
        for round_number in range(first, ROUNDS + 1):
            if self._is_open(round_number):
                for site in self.sites:
                    site.train(round_number)
        self._wait_for_end()
        if self._outcome() != (self.digest, self.facts):
            self.violations.append(
                f"fresh {number}: {self._outcome()}, first {(self.digest, self.facts)}"
            )
        self._check_once(number)
        self._check_sum()

    def _is_open(self, number: int) -> bool:
        """Whether sites are asked for this round's updates, now or in a moment."""
        wait_until(
            lambda: self.door.look()["rounds"]["done"] >= number, _TRAIN_S, f"round {number}"
        )
        view = self.door.look()
        return view["round"] is not None and view["round"]["number"] == number

    # ---- looking --------------------------------------------------------------------

    def _wait_for_end(self) -> None:
        wait_until(lambda: self.door.look()["finished"] is not None, _TRAIN_S, "the end")

    def _outcome(self) -> tuple[str, int]:
        view = self.door.look()
        return view["model"], view["log"]["facts"]

    def _check_once(self, number: int) -> None:
        """No site's update was received or counted twice in a round."""
        for record in self.door.look("/rounds"):
            events = self.door.look(f"/rounds/{record['number']}")["events"]
            received = [one["site"] for one in events if one["fact"] == "UpdateReceived"]
            if len(received) != len(set(received)):
                self.violations.append(f"fresh {number}: received {received}")

    def _check_sum(self) -> None:
        digest = self.door.look()["model"]
        data = (self.network.data / "blobs" / digest[:2] / digest[2:]).read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        counts = struct.unpack(f"<{SITES}f", data[start : start + 4 * SITES])
        if any(abs(one * SITES - ROUNDS) > 0.01 for one in counts):
            self.violations.append(f"the sum says {counts}")

    def _audit(self) -> None:
        try:
            run(["audit", "verify", str(self.network.data)], self.network.folder, 120.0)
        except ProcessesError as error:
            self.violations.append(f"the audit: {error}")


def campaign(shuffles: int, fresh: int, seed: int) -> dict[str, Any]:
    """Run it; what was done and what was found."""
    shape, begun = Shape(SITES, ROUNDS, SIZE, quorum=SITES, duration="600s"), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", shape) as network:
        seen = Campaign(network, random.Random(seed))
        seen.run(shuffles, fresh)
    return {
        "trace": len(seen.trace),
        "shuffles": shuffles,
        "fresh": fresh,
        "seed": seed,
        "sent": seen.sent,
        "waits": seen.waits,
        "facts": seen.facts,
        "seconds": round(time.monotonic() - begun, 1),
        "violations": seen.violations,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shuffles", type=int, default=200)
    parser.add_argument("--fresh", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="as always: one object")
    options = parser.parse_args(arguments)
    told = campaign(options.shuffles, options.fresh, options.seed)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

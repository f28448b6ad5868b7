"""Signed requests with one bit turned, one at a time: each is refused, and nothing happens.

    python -m consortium.testing.tamper               # every bit of every signed field
    python -m consortium.testing.tamper --every 23

Three requests that have effects: a chunk, an update, a report. For each, every bit of its
method, path, query, site, round, nonce, audience, digest, signature and body is turned; it is
signed with other keys; it comes with another's certificate. Then the request itself is sent:
it still counts, since nothing that was refused has used its nonce up. Sent again, it has the
same answer and no second effect; its nonce with something else is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from consortium.core.ids import Digest
from consortium.crypto.recipes import SigningKey
from consortium.model import Update, digest_of, save_update
from consortium.testing.by_hand import Door, Played, Told, spelt
from consortium.testing.processes import Network, Shape
from consortium.wire.messages import Submission
from consortium.wire.signing import RequestLine, sign

SIZE = 100
_AN_ADDRESS = 100  # wrong signatures from one address, before it is told to wait
UNSIGNED = (401, "E0814")
# A turned bit in the first line may make it another route's, or no HTTP at all.
_ELSEWHERE = {UNSIGNED, (400, "E0810"), (404, "E0810"), (405, "E0810"), (422, "E0810")}
_HEADER = {UNSIGNED, (400, "E0810")}


@dataclass(frozen=True, slots=True)
class Request:
    """A signed request in its parts."""

    what: str
    line: RequestLine
    headers: dict[str, str]
    body: bytes

    def spelt(self) -> bytes:
        return spelt(self.line.method, self.line.path, self.headers, self.body)


def turned(data: bytes) -> Iterator[bytes]:
    """`data` with one bit turned, for every bit."""
    for at in range(len(data)):
        for bit in range(8):
            yield data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def tampered(request: Request) -> Iterator[tuple[str, bytes, set[tuple[int, str]]]]:
    """(which field, the request, what may be said) for every bit of every signed field."""
    whole, line = request.spelt(), request.line
    first = f"{line.method} {line.path} HTTP/1.1".encode()
    for name, part in (("method", line.method), ("path", line.path)):
        for other in turned(part.encode()):
            changed = first.replace(part.encode(), other, 1)
            yield name, whole.replace(first, changed, 1), _ELSEWHERE
    for name, value in request.headers.items():
        told = f"{name}: {value}".encode()
        for other in turned(value.encode()):
            yield name, whole.replace(told, f"{name}: ".encode() + other, 1), _HEADER
    for body in turned(request.body):
        yield "body", whole.removesuffix(request.body) + body, {UNSIGNED}


@dataclass
class Campaign:
    """A site that is invited, and another one whose keys are tried."""

    network: Network
    every: int
    violations: list[str] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    _addresses: int = 0
    _moved: Played | None = None

    def run(self) -> None:
        self.network.start_coordinator()
        self.door = Door.of(self.network)
        site, other = (self.door.join(name) for name in ("site-0", "site-1"))
        asked = site.invited()
        step = np.zeros(SIZE, np.float32)
        data = save_update(Update(step, 1.0, Digest(bytes.fromhex(asked["base"]))))
        self.digest = digest_of(data)
        body = Submission(update=self.digest.hex(), size_bytes=len(data))
        chunk = self._request(site, "chunk", "PATCH", f"{self._place}?offset=0", data, 1)
        update = self._request(
            site, "update", "POST", "/v1/rounds/1/update", body.model_dump_json().encode(), 1
        )
        report = self._request(site, "report", "POST", "/v1/report", b'{"report":{"a":1}}', 0)
        for request in (chunk, update, report):
            self._try(site, other, request)
        for one in (site, other, self._moved):
            if one is not None:
                one.line.close()

    @property
    def _place(self) -> str:
        return f"/v1/uploads/{self.digest.hex()}"

    def _request(
        self, site: Played, what: str, method: str, path: str, body: bytes, number: int
    ) -> Request:
        line = site.request_line(method, path, body, number)
        return Request(what, line, sign(line, site.key), body)

    # ---- one request ----------------------------------------------------------------

    def _try(self, site: Played, other: Played, request: Request) -> None:
        before = self._effects(site)
        for at, (name, data, allowed) in enumerate(tampered(request)):
            if at % self.every == 0:
                self._refused(site, f"{request.what}: {name}", data, allowed)
        self._other_keys(site, other, request)
        if self._effects(site) != before:
            self.violations.append(f"{request.what}: a refused request had an effect")
        self._itself(site, request, before)

    def _refused(self, site: Played, what: str, data: bytes, allowed: set[tuple[int, str]]) -> None:
        if sum(self.sent.values()) % _AN_ADDRESS == 0:
            self._addresses += 1
            if self._moved is not None:
                self._moved.line.close()
            self._moved = site.from_address(f"127.4.{self._addresses}.1")
        self.sent[what] += 1
        assert self._moved is not None
        told = self._moved.line.send(data)
        # Without a word: a turned bit has made the rest of the request a second one.
        if told.status and (told.status, told.code) not in allowed:
            self.violations.append(f"{what}: {told} to {data[:300]!r}")

    def _other_keys(self, site: Played, other: Played, request: Request) -> None:
        for name, key in (("another's", other.key), ("a new one", SigningKey.generate())):
            data = replace(request, headers=sign(request.line, key)).spelt()
            self._refused(site, f"{request.what}: key: {name}", data, {UNSIGNED})
        told = other.line.send(request.spelt())
        self._said(f"{request.what}: on another's connection", told, 403, "E0818")
        told = self.door.send(request.spelt(), "127.4.0.1")
        self._said(f"{request.what}: without a certificate", told, 403, "E0818")

    def _itself(self, site: Played, request: Request, before: object) -> None:
        first = site.send(request.spelt())
        self._said(f"{request.what}: itself", first, 200, "")
        after = self._at_rest(site)
        if after == before:
            self.violations.append(f"{request.what}: has no effect")
        again = [site.send(request.spelt()) for _ in range(3)]
        if any((one.status, one.body) != (200, first.body) for one in again):
            self.violations.append(f"{request.what}: {again} to a request that was {first}")
        if request.what != "chunk":  # the bytes that are there are its answer
            self._same_nonce(site, request)
        if self._effects(site) != after:
            self.violations.append(f"{request.what}: a replay had a second effect")

    def _same_nonce(self, site: Played, request: Request) -> None:
        bodies = {"update": Submission(update="00" * 32, size_bytes=1).model_dump_json().encode()}
        body = bodies.get(request.what, b'{"report":{"a":2}}')
        line = replace(request.line, digest=digest_of(body).hex())
        told = site.send(
            replace(request, line=line, headers=sign(line, site.key), body=body).spelt()
        )
        self._said(f"{request.what}: its nonce with another body", told, 409, "E0815")
        path = "/v1/rounds/1/failure"
        note = b'{"failure":"TRAINING"}'
        line = replace(request.line, path=path, digest=digest_of(note).hex(), round=1)
        told = site.send(
            replace(request, line=line, headers=sign(line, site.key), body=note).spelt()
        )
        self._said(f"{request.what}: its nonce at another address", told, 409, "E0815")

    def _said(self, what: str, told: Told, status: int, code: str) -> None:
        self.sent[what] += 1
        if (told.status, told.code) != (status, code):
            self.violations.append(f"{what}: {told}, not {status} {code}")

    def _at_rest(self, site: Played) -> object:
        """The effects, when what follows from them by itself has followed too."""
        while True:
            found = self._effects(site)
            time.sleep(0.3)
            if self._effects(site) == found:
                return found

    def _effects(self, site: Played) -> object:
        """What there is of this site: facts in the log, what it has reported, its upload."""
        view = self.door.look()
        (row,) = (one for one in self.door.look("/sites") if one["name"] == site.name)
        upload = site.call("GET", self._place).json
        return view["log"]["facts"], row["report"], upload


def campaign(every: int = 1) -> dict[str, Any]:
    """Run it; what was done and what was found."""
    shape, begun = Shape(sites=2, rounds=1, size=SIZE, duration="600s"), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", shape) as network:
        seen = Campaign(network, every)
        seen.run()
    return {
        "requests": seen.sent.total(),
        "fields": len(seen.sent),
        "seconds": round(time.monotonic() - begun, 1),
        "violations": seen.violations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="turn each n-th bit")
    parser.add_argument("--json", action="store_true", help="as always: one object")
    options = parser.parse_args()
    told = campaign(options.every)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

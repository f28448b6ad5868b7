"""Peers that begin and do not go on: half bodies, half heads, half handshakes, and drips of a
byte a second, all at once, while honest sites do their rounds.

    python -m consortium.testing.half_open --bodies 500 --headers 200 --silent 5000 --json

One asyncio process plays them all, half of them with a site's certificate. Every connection
must be ended within 30 s of its last word, an honest round must complete meanwhile, strangers
must be answered, and the coordinator must not grow by more than 64 MiB. `--silent` is TCP alone:
such a connection is opened again when it was closed, until everything else is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import ssl
import sys
import tempfile
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2

from consortium.testing.crowd import Crowd, Visitor
from consortium.testing.processes import Network, Shape, wait_until
from consortium.wire.signing import RequestLine, new_nonce, sign

CLOSED_S = 30.0
GROWTH_BYTES = 64 << 20
PROBE_S = 5.0  # for a stranger's question, on a connection of its own
_HOSTILE = "hostile"
_BODY = 4000
_TOGETHER = 32  # that connect at the same moment
# The hostile site is invited, too, and does not answer: a round lasts as long as it may.
_SHAPE = Shape(sites=3, rounds=10_000, size=100_000, pace_s=0.3, quorum=3, duration="5s")
_HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Size:
    """How many of each."""

    bodies: int = 500
    headers: int = 200
    handshakes: int = 100
    silent: int = 0


@dataclass
class Attack:
    """What is sent, and how long each connection was kept."""

    network: Network
    visitor: Visitor
    authority: str
    kept_s: dict[str, list[float]] = field(default_factory=dict)
    left_open: dict[str, int] = field(default_factory=dict)
    probes_s: list[float] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    silent: int = 0
    reopened: int = 0

    def __post_init__(self) -> None:
        self._gate = asyncio.Semaphore(_TOGETHER)
        self._plain = ssl.create_default_context(cadata=self.authority)
        self._known = ssl.create_default_context(cadata=self.authority)
        keys = self.network.folder / "keys"
        self._known.load_cert_chain(keys / f"{_HOSTILE}.pem", keys / f"{_HOSTILE}.key")

    # ---- what is sent ---------------------------------------------------------------

    def enrolment(self) -> bytes:
        """A stranger's head, and the first byte of a body that it announces."""
        return f"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nContent-Length: {_BODY}\r\n\r\n{{".encode()

    def question(self) -> bytes:
        """The same of a site, whose signature holds."""
        told, body = self.visitor.told, bytes(_BODY)
        digest = sha256(body).hexdigest()
        line = RequestLine("POST", "/v1/ask", told.audience, told.site, 0, new_nonce(), digest)
        named = sign(line, self.visitor.key) | {"Host": "x", "Content-Length": str(_BODY)}
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
        return f"POST /v1/ask HTTP/1.1\r\n{head}\r\n".encode() + body[:1]

    def half_head(self) -> bytes:
        return b"GET /health HTTP/1.1\r\nHost: x\r\nX-Lon"

    # ---- one connection -------------------------------------------------------------

    async def hold(self, kind: str, words: bytes, *, is_known: bool, drips: bool) -> None:
        """Say the beginning of something, and wait until the other side has had enough."""
        async with self._gate:
            try:
                line = await self._connect(self._known if is_known else self._plain)
            except (OSError, ssl.SSLError):
                self._note(kind, 0.0)  # made room for others at once
                return
        line[1].write(words)
        await self._until_closed(kind, line, drips=drips)

    async def half_handshake(self, words: bytes) -> None:
        async with self._gate:
            try:
                line = await self._connect(None)
            except OSError:
                self._note("handshake", 0.0)
                return
        line[1].write(words)
        await self._until_closed("handshake", line, drips=False)

    async def _connect(self, context: ssl.SSLContext | None) -> Line:
        name = None if context is None else "localhost"
        return await asyncio.open_connection(
            "127.0.0.1", self.network.port, ssl=context, server_hostname=name
        )

    async def _until_closed(self, kind: str, line: Line, *, drips: bool) -> None:
        begun, (reader, writer) = time.monotonic(), line
        dripping = asyncio.ensure_future(_drip(writer)) if drips else None
        try:
            async with asyncio.timeout(CLOSED_S + 5.0):
                with suppress(OSError, ssl.SSLError):
                    while await reader.read(1 << 16):
                        pass  # a refusal, then the end
            self._note(kind, time.monotonic() - begun)
        except TimeoutError:
            self.left_open[kind] = self.left_open.get(kind, 0) + 1
        finally:
            if dripping is not None:
                dripping.cancel()
            writer.transport.abort()

    def _note(self, kind: str, seconds: float) -> None:
        self.kept_s.setdefault(kind, []).append(seconds)

    # ---- meanwhile ------------------------------------------------------------------

    async def keep_silent(self) -> None:
        """TCP and nothing else, again and again."""
        while not self.is_over.is_set():
            try:
                async with self._gate:
                    reader, writer = await self._connect(None)
            except OSError:
                await asyncio.sleep(1.0)
                continue
            self.silent += 1
            over = asyncio.ensure_future(self.is_over.wait())
            read = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((over, read), return_when=asyncio.FIRST_COMPLETED)
            for task in (over, read):
                task.cancel()
            await asyncio.gather(over, read, return_exceptions=True)
            writer.transport.abort()
            self.silent -= 1
            self.reopened += 1
            await asyncio.sleep(1.0)

    async def probe(self) -> None:
        """A stranger with an honest question, a connection for each."""
        while not self.is_over.is_set():
            begun = time.monotonic()
            try:
                async with asyncio.timeout(PROBE_S * 2):
                    reader, writer = await self._connect(self._plain)
                    writer.write(_HEALTH)
                    is_fine = b" 200 " in await reader.readline()
                    writer.transport.abort()
            except (OSError, ssl.SSLError):  # TimeoutError is one of them
                is_fine = False
            self.probes_s.append(time.monotonic() - begun if is_fine else PROBE_S * 2)
            await asyncio.sleep(0.5)


async def _drip(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):
        while not writer.transport.is_closing():
            await asyncio.sleep(1.0)
            writer.write(b"x")


def _cast(attack: Attack, size: Size) -> list[Awaitable[None]]:
    """Everybody: with a certificate and without, silent and dripping, by turns."""
    cast: list[Awaitable[None]] = []
    for number in range(size.bodies):
        is_known, drips = number % 2 == 0, number % 4 >= 2
        words = attack.question() if is_known else attack.enrolment()
        cast.append(attack.hold("body", words, is_known=is_known, drips=drips))
    for number in range(size.headers):
        is_known, drips = number % 2 == 0, number % 4 >= 2
        words = b"" if number % 8 == 0 else attack.half_head()
        cast.append(attack.hold("header", words, is_known=is_known, drips=drips))
    hello = b"\x16\x03\x01\x02\x00\x01"  # its beginning
    cast += [attack.half_handshake(hello * (number % 2)) for number in range(size.handshakes)]
    return cast


async def _attack(network: Network, size: Size) -> Attack:
    attack = await _join_hostile(network)
    besides = [asyncio.create_task(attack.keep_silent()) for _ in range(size.silent)]
    if besides:
        await asyncio.sleep(3.0)
    besides.append(asyncio.create_task(attack.probe()))
    await asyncio.gather(*_cast(attack, size), asyncio.sleep(CLOSED_S / 3))
    attack.is_over.set()
    await asyncio.gather(*besides)
    return attack


# ---- the coordinator ----------------------------------------------------------------


def _memory_bytes(pid: int) -> int:
    """What it has in memory now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def _watched(pid: int, work: Awaitable[Attack]) -> tuple[Attack, int]:
    """The most memory that it had meanwhile, too."""
    most = 0
    task = asyncio.ensure_future(work)
    while not task.done():
        most = max(most, _memory_bytes(pid))
        await asyncio.wait((task,), timeout=0.2)
    return await task, most


async def _join_hostile(network: Network) -> Attack:
    """A site with a place and a certificate that never does any work."""
    held = json.loads((network.data / "operator.json").read_text())
    context = ssl.create_default_context(cadata=held["authority"])
    bearer = {"Authorization": f"Bearer {held['token']}"}
    async with httpx2.AsyncClient(base_url=held["url"], verify=context, headers=bearer) as operator:
        visitor = await Crowd(network, operator, held["authority"]).invite(_HOSTILE)
    return Attack(network, visitor, held["authority"])


def _completed(network: Network) -> int:
    return sum(one["counted"] == _SHAPE.sites for one in network.rounds())


def campaign(size: Size) -> dict[str, Any]:
    """Run it; what was measured and what was found."""
    _allow_many_files(size.silent + size.bodies + size.headers + size.handshakes + 200)
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", _SHAPE) as network:
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        wait_until(lambda: _completed(network) >= 2, 120.0, "honest rounds")
        before, pid = _completed(network), network.processes["coordinator"].pid
        memory = _memory_bytes(pid)
        attack, most = asyncio.run(_watched(pid, _attack(network, size)))
        rounds = _completed(network) - before
    told = _summary(attack, size, rounds, most - memory)
    told["violations"] = _violations(told)
    return told


def _summary(attack: Attack, size: Size, rounds: int, growth: int) -> dict[str, Any]:
    kinds = {"body": size.bodies, "header": size.headers, "handshake": size.handshakes}
    closed = {kind: len(attack.kept_s.get(kind, ())) for kind in kinds}
    return {
        "opened": kinds,
        "closed": closed,
        "slowest_s": {kind: round(max(kept), 1) for kind, kept in attack.kept_s.items()},
        "silent": size.silent,
        "silent_closed": attack.reopened,
        "honest_rounds": rounds,
        "probes": len(attack.probes_s),
        "slowest_probe_s": round(max(attack.probes_s), 3),
        "growth_mib": round(growth / (1 << 20), 1),
    }


def _violations(told: dict[str, Any]) -> list[str]:
    found = [
        f"{told['opened'][kind] - count} of {told['opened'][kind]} stayed open: {kind}"
        for kind, count in told["closed"].items()
        if count != told["opened"][kind]
    ]
    found += [
        f"the slowest {kind} was closed after {seconds} s"
        for kind, seconds in told["slowest_s"].items()
        if seconds > CLOSED_S
    ]
    if told["honest_rounds"] < 1:
        found.append("no honest round was completed meanwhile")
    if told["slowest_probe_s"] > PROBE_S:
        found.append(f"a stranger waited for {told['slowest_probe_s']} s")
    if told["growth_mib"] > GROWTH_BYTES >> 20:
        found.append(f"the coordinator grew by {told['growth_mib']} MiB")
    return found


def _allow_many_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, count in (("bodies", 500), ("headers", 200), ("handshakes", 100), ("silent", 0)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--json", action="store_true", help="one line")
    options = parser.parse_args()
    size = Size(options.bodies, options.headers, options.handshakes, options.silent)
    told = campaign(size)
    print(json.dumps(told, indent=None if options.json else 2))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

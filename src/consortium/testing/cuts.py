"""Cut the line while sites upload, again and again, and count what had to be sent twice.

    python -m consortium.testing.cuts --cuts 200

Sites speak through a proxy that forwards bytes and tears a connection down after a random
number of them. Every update must arrive, be counted once, and cost at most one chunk more a
cut than without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consortium.testing.processes import Network, Shape, free_port, run, wait_until

SHAPE = Shape(sites=2, rounds=100_000, size=4_000_000, quorum=2, duration="10m")
CHUNK = 1 << 20
_AFTER = (20_000, 3 * CHUNK)  # bytes of a connection before it is cut
# TLS handshakes, headers, signatures, polls: what a connection costs beside its chunks.
_TALK_A_CUT = 64 << 10


@dataclass
class Proxy:
    """Forwards to one port, and cuts. Runs in a thread of its own."""

    target: int
    rng: random.Random
    most_cuts: int
    port: int = field(default_factory=free_port)
    cuts: int = 0
    sent_up: int = 0  # bytes from sites to the coordinator

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def serve() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            ready.set()

        def run() -> None:
            self._loop.create_task(serve())
            self._loop.run_forever()
            self._server.close()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        up = asyncio.ensure_future(self._up(reader, back))
        down = asyncio.ensure_future(_copy(there, writer))
        # At the end of everything we are cancelled: who made us would print that as an error.
        with suppress(asyncio.CancelledError):
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        for task in (up, down):
            task.cancel()
        for end in (writer, back):
            end.transport.abort()
        await asyncio.gather(up, down, return_exceptions=True)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward until the line is cut. Only lines that carry an upload are."""
        left = self.rng.randrange(*_AFTER)
        while data := await reader.read(1 << 16):
            self.sent_up += len(data)
            left -= len(data)
            if left <= 0 and self.cuts < self.most_cuts:
                self.cuts += 1
                return
            writer.write(data)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


def campaign(cuts: int, seed: int) -> dict[str, Any]:
    """Run it; what was done and what was found."""
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", SHAPE) as network:
        proxy = Proxy(network.port, random.Random(seed), cuts)
        proxy.start()
        network.site_port = proxy.port
        network.start_coordinator()
        for name in network.site_names():
            network.join(name)
        wait_until(lambda: proxy.cuts >= cuts, 600.0, f"{cuts} cuts")
        run(["round", "hold"], network.study)
        wait_until(lambda: network.status()["round"] is None, 120.0, "the last round ends")
        rounds = network.rounds()
        proxy.stop()
    received = sum(record["counted"] for record in rounds)
    lost = sum(record["dropped"] + record["rejected"] + record["silent"] for record in rounds)
    again = proxy.sent_up - received * 4 * SHAPE.size
    allowed = proxy.cuts * (CHUNK + _TALK_A_CUT) + received * _TALK_A_CUT
    violations = [] if again <= allowed else [f"{again} bytes were sent again, {allowed} allowed"]
    if lost:
        violations.append(f"{lost} updates were not counted")
    return {
        "cuts": proxy.cuts,
        "seed": seed,
        "updates": received,
        "bytes_up": proxy.sent_up,
        "bytes_of_updates": received * 4 * SHAPE.size,
        "sent_again_a_cut": round(again / max(1, proxy.cuts)),
        "violations": violations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    told = campaign(options.cuts, options.seed)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

"""Many sites at one coordinator: all wait for invitations, a hundred upload at once, and an
operator asks for the status all the while.

    python -m consortium.testing.crowd --sites 300 --uploads 100

One asyncio process plays all sites, each with its own key, certificate and open connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from pydantic import BaseModel

from consortium.core import duties as d
from consortium.crypto.authority import request_certificate
from consortium.crypto.keyfile import write_secret
from consortium.crypto.recipes import SigningKey
from consortium.model import Update, digest_of, save_update
from consortium.testing.processes import Network, Shape
from consortium.wire.invitation import open_invitation
from consortium.wire.messages import (
    CHUNK_BYTES,
    Answer,
    Ask,
    Enrol,
    Enrolled,
    ReceiptReply,
    Submission,
)
from consortium.wire.signing import RequestLine, new_nonce, sign
from consortium.wire.token import read_token

_TOGETHER = 16  # sites that join at the same time


@dataclass
class Visitor:
    """One site, played by hand."""

    name: str
    http: httpx2.AsyncClient
    key: SigningKey
    told: Enrolled

    async def call(
        self, method: str, path: str, body: BaseModel | bytes, round_number: int = 0
    ) -> bytes:
        data = body.model_dump_json().encode() if isinstance(body, BaseModel) else body
        line = RequestLine(
            method=method,
            path=path,
            audience=self.told.audience,
            site=self.told.site,
            round=round_number,
            nonce=new_nonce(),
            digest=digest_of(data).hex(),
        )
        answer = await self.http.request(
            method, path, content=data, headers=sign(line, self.key), timeout=120.0
        )
        if answer.status_code >= 300:
            raise RuntimeError(f"{self.name}: {method} {path}: {answer.text[:300]}")
        return answer.content

    async def wait(self, have: str = "", wait_ms: int = 60_000) -> Answer:
        ask = Ask(seen_size=0, own_size=0, have=have, wait_ms=wait_ms)
        return Answer.model_validate_json(await self.call("POST", "/v1/ask", ask))

    async def train(self, duty: d.Train, size: int) -> ReceiptReply:
        """Fetch the round's model, upload an update of it, and have it counted."""
        await self.call("GET", f"/v1/blobs/{duty.base.hex()}", b"")
        step = np.zeros(size, np.float32)
        step[duty.seat % size] = 1.0
        data = save_update(Update(step, 1.0, duty.base))
        digest = digest_of(data)
        for offset in range(0, len(data), CHUNK_BYTES):
            path = f"/v1/uploads/{digest.hex()}?offset={offset}"
            await self.call("PATCH", path, data[offset : offset + CHUNK_BYTES], duty.round)
        body = Submission(update=digest.hex(), size_bytes=len(data))
        path = f"/v1/rounds/{duty.round}/update"
        return ReceiptReply.model_validate_json(await self.call("POST", path, body, duty.round))


@dataclass
class Crowd:
    """Everybody, and the operator."""

    network: Network
    operator: httpx2.AsyncClient
    authority: str

    async def invite(self, name: str) -> Visitor:
        path = f"/v1/federations/{self.network.shape.name}/invites"
        answer = await self.operator.post(path, json={"name": name})
        token = read_token(answer.json()["token"])
        key = SigningKey.generate()
        body = Enrol(
            federation=token.federation,
            name=name,
            secret=token.secret,
            certificate_request=request_certificate(key).decode(),
        )
        async with httpx2.AsyncClient(base_url=token.url, verify=self._context()) as joining:
            reply = await joining.post("/v1/enrol", content=body.model_dump_json())
        told = Enrolled.model_validate_json(reply.content)
        folder = self.network.folder / "keys"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.pem").write_text(told.certificate)
        write_secret(folder / f"{name}.key", key.pem())
        context = self._context()
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        http = httpx2.AsyncClient(base_url=token.url, verify=context)
        return Visitor(name, http, key, told)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority)
        return context

    async def join(self, count: int) -> list[Visitor]:
        limit = asyncio.Semaphore(_TOGETHER)

        async def one(number: int) -> Visitor:
            async with limit:
                return await self.invite(f"site-{number}")

        return list(await asyncio.gather(*(one(number) for number in range(count))))

    async def watch_status(self, seconds: list[float], is_over: asyncio.Event) -> None:
        path = f"/v1/federations/{self.network.shape.name}"
        while not is_over.is_set():
            begun = time.perf_counter()
            answer = await self.operator.get(path, timeout=60.0)
            answer.raise_for_status()
            seconds.append(time.perf_counter() - begun)
            await asyncio.sleep(0.02)


def _train_duty(visitor: Visitor, answer: Answer) -> d.Train | None:
    if answer.invitation is None:
        return None
    opened = open_invitation(answer.invitation, [bytes.fromhex(visitor.told.log_key)])
    return opened.duty if isinstance(opened.duty, d.Train) else None


async def _play(network: Network) -> dict[str, Any]:
    held = json.loads((network.data / "operator.json").read_text())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=held["authority"])
    headers = {"Authorization": f"Bearer {held['token']}"}
    async with httpx2.AsyncClient(
        base_url=held["url"], verify=context, headers=headers
    ) as operator:
        crowd = Crowd(network, operator, held["authority"])
        return await _round(crowd, await crowd.join(network.shape.sites))


async def _round(crowd: Crowd, visitors: list[Visitor]) -> dict[str, Any]:
    """Everybody waits; the invited upload at once; the others go on waiting."""
    seconds: list[float] = []
    is_over = asyncio.Event()
    watching = asyncio.create_task(crowd.watch_status(seconds, is_over))
    answers = await asyncio.gather(*(visitor.wait() for visitor in visitors))
    duties = [
        (visitor, duty)
        for visitor, answer in zip(visitors, answers, strict=True)
        if (duty := _train_duty(visitor, answer)) is not None
    ]
    waiting = [
        asyncio.create_task(visitor.wait(answer.mark, 20_000))
        for visitor, answer in zip(visitors, answers, strict=True)
        if answer.invitation is None
    ]
    size = crowd.network.shape.size
    begun = time.perf_counter()
    receipts = await asyncio.gather(*(visitor.train(duty, size) for visitor, duty in duties))
    took_s = time.perf_counter() - begun
    await asyncio.gather(*waiting)
    is_over.set()
    await watching
    for visitor in visitors:
        await visitor.http.aclose()
    return {
        "sites": len(visitors),
        "uploads": len(receipts),
        "upload_s": round(took_s, 3),
        "status_requests": len(seconds),
        "status_p50_s": round(statistics.median(seconds), 4),
        "status_p99_s": round(sorted(seconds)[int(0.99 * len(seconds))], 4),
        "status_max_s": round(max(seconds), 4),
    }


def play(network: Network) -> dict[str, Any]:
    """One round at a coordinator that was started, all sites played by this process."""
    return asyncio.run(_play(network))


def campaign(sites: int, uploads: int) -> dict[str, Any]:
    """Run it; what was measured and what was found."""
    shape = Shape(
        sites=sites, rounds=1, size=250_000, quorum=uploads, target=uploads, duration="5m"
    )
    with tempfile.TemporaryDirectory() as scratch, Network(Path(scratch) / "n", shape) as network:
        network.start_coordinator()
        told = play(network)
        rounds = network.rounds()
    told["violations"] = []
    if told["uploads"] < uploads or [one["counted"] for one in rounds] != [uploads]:
        told["violations"].append(f"not {uploads} updates were counted: {rounds}")
    if told["status_p99_s"] >= 2.0:
        told["violations"].append("a status request took too long")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sites", type=int, default=300)
    parser.add_argument("--uploads", type=int, default=100)
    options = parser.parse_args()
    told = campaign(options.sites, options.uploads)
    print(json.dumps(told))
    sys.exit(1 if told["violations"] else 0)


if __name__ == "__main__":
    main()

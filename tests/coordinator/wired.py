"""A coordinator on a real port, and sites that speak to it by hand: byte for byte."""

from __future__ import annotations

import atexit
import base64
import http.client
import json
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from consortium.coordinator.office import Office
from consortium.coordinator.rates import Limit, Limits, Rates
from consortium.coordinator.rows import SiteRow
from consortium.coordinator.serve import Server
from consortium.core.ids import Digest
from consortium.crypto.authority import request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.drive.clock import SystemClock
from consortium.model import Update, save_update
from consortium.testing.processes import PLAN, TASK, run
from consortium.wire.signing import RequestLine, new_nonce, sign
from consortium.wire.token import read_token

SIZE = 300_000  # numbers of the model: 1.2 MB
FEDERATION = "counting"
_NEVER = Limit(burst=1e9, per_s=1e9)
BOUNDLESS = Limits(_NEVER, _NEVER, _NEVER, _NEVER)  # tests make more mistakes than anybody may


@cache
def study(*, is_judged: bool = False) -> Path:
    """The plan file of a locked study for three sites, made once in a test run."""
    folder = Path(tempfile.mkdtemp(prefix="study-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_study(folder / "study", is_judged=is_judged)


def write_study(folder: Path, *, sites: int = 3, is_judged: bool = False, size: int = SIZE) -> Path:
    """A locked study; its plan file."""
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK.format(size=size, pace_s=0))
    plan = PLAN.format(
        rounds=3, quorum=2, selection="fraction = 1.0", wait_for=sites, duration="600s"
    )
    if is_judged:
        plan = plan.replace("enabled = false", "enabled = true")
    (folder / "consortium.toml").write_text(plan)
    (folder / "sample.txt").write_text("0")
    run(["lock", "consortium.toml", "--seed", "1", "--sample", "sample.txt"], folder)
    return folder / "consortium.toml"


@dataclass(frozen=True)
class Answered:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a refusal, which is a problem of RFC 9457 and nothing else."""
        assert self.headers["content-type"] == "application/problem+json", self
        told = self.json
        assert told["status"] == self.status
        assert told["type"] == f"urn:consortium:{told['code']}"
        assert told["title"] and told["detail"]
        return str(told["code"])


@dataclass
class Wired:
    """A coordinator with a port."""

    office: Office
    server: Server
    folder: Path
    operator_token: str = ""
    sites: list[Site] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.server.port

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.office.authority.pem().decode())

    def connect(self, context: ssl.SSLContext | None = None) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=context or self.context(), timeout=30
        )

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> Answered:
        """As anybody, on a connection of its own."""
        connection = self.connect(context)
        try:
            return exchange(connection, method, path, body, headers or {})
        finally:
            connection.close()

    def order(self, method: str, path: str, body: object = None) -> Answered:
        """As the operator."""
        data = None if body is None else json.dumps(body).encode()
        bearer = {"Authorization": f"Bearer {self.operator_token}"}
        return self.request(method, path, data, bearer)

    def enrol(self, name: str) -> Site:
        """Invite and join, over the wire."""
        told = self.order("POST", f"/v1/federations/{FEDERATION}/invites", {"name": name})
        token, key = read_token(told.json["token"]), SigningKey.generate()
        body = {
            "federation": token.federation,
            "name": name,
            "secret": token.secret,
            "certificate_request": request_certificate(key).decode(),
        }
        enrolled = self.request("POST", "/v1/enrol", json.dumps(body).encode())
        assert enrolled.status == 200, enrolled
        file = self.folder / f"{name}.pem"
        file.write_bytes(key.pem().reveal() + enrolled.json["certificate"].encode())
        site = Site(self, name, key, self.office.site(enrolled.json["site"]), file)
        self.sites.append(site)
        return site

    def in_training(self) -> list[Site]:
        """Three sites that are invited to round 1."""
        sites = [self.enrol(f"site-{number}") for number in range(3)]
        until(lambda: sites[2].ask().json["invitation"] is not None)
        return sites

    def close(self) -> None:
        for site in self.sites:
            site.hang_up()


@dataclass
class Site:
    """A site that has joined. Its requests go over one connection that is kept."""

    wired: Wired
    name: str
    key: SigningKey
    row: SiteRow
    file: Path
    connection: http.client.HTTPSConnection | None = None

    def context(self) -> ssl.SSLContext:
        context = self.wired.context()
        context.load_cert_chain(self.file)
        return context

    def line(self, method: str, path: str, body: bytes = b"", round: int = 0) -> RequestLine:
        digest = sha256(body).hexdigest()
        audience = self.wired.office.audience
        return RequestLine(method, path, audience, self.row.id, round, new_nonce(), digest)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] = b"",
        *,
        round: int = 0,
        more: dict[str, str] | None = None,
    ) -> Answered:
        """A signed request."""
        data = body if isinstance(body, bytes) else canonical(body)
        line = self.line(method, path, data, round)
        return self.send(line, data, more or {})

    def send(self, line: RequestLine, body: bytes, more: dict[str, str] | None = None) -> Answered:
        """Exactly this request, signed by this site."""
        if self.connection is None:
            self.connection = self.wired.connect(self.context())
        headers = sign(line, self.key) | (more or {})
        return exchange(self.connection, line.method, line.path, body, headers)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def ask(self, **about: Any) -> Answered:
        return self.call("POST", "/v1/ask", {"seen_size": 0, "own_size": 0} | about)

    def invitation(self) -> dict[str, Any]:
        told = self.ask().json["invitation"]
        assert told is not None
        return dict(json.loads(told["text"]))

    def update(self, round: int = 1) -> bytes:
        """This site's update of the round."""
        invited = self.invitation()
        assert invited["round"] == round
        step = np.random.default_rng(invited["seat"]).random(SIZE, np.float32)
        return save_update(Update(step, 1.0, Digest(bytes.fromhex(invited["base"]))))

    def upload(self, data: bytes, start: int = 0, chunk: int = 1 << 20) -> Answered:
        """All of it, chunk by chunk; the last answer."""
        place = f"/v1/uploads/{sha256(data).hexdigest()}"
        for offset in range(start, len(data), chunk):
            told = self.call("PATCH", f"{place}?offset={offset}", data[offset : offset + chunk])
            assert told.status == 200, told
        return told

    def submit(self, data: bytes, round: int = 1) -> Answered:
        body = {"update": sha256(data).hexdigest(), "size_bytes": len(data)}
        return self.call("POST", f"/v1/rounds/{round}/update", body, round=round)


def exchange(
    connection: http.client.HTTPSConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
) -> Answered:
    connection.request(method, path, body=body or None, headers=headers)
    response = connection.getresponse()
    told = {name.lower(): value for name, value in response.getheaders()}
    return Answered(response.status, told, response.read())


def canonical(body: dict[str, Any]) -> bytes:
    """As pydantic spells it, when the keys are in the order of the schema."""
    return json.dumps(body, separators=(",", ":")).encode()


def flipped(signature: str) -> str:
    raw = bytearray(base64.b64decode(signature))
    raw[5] ^= 1
    return base64.b64encode(raw).decode()


@contextmanager
def wire(folder: Path, *, is_judged: bool = False) -> Iterator[Wired]:
    """A coordinator that runs in this process until the block ends."""
    office = Office(folder / "data", SystemClock(), url="https://127.0.0.1:1")
    office.host(study(is_judged=is_judged))
    troubles: list[Exception] = []
    office.start(troubles.append)
    is_ready = threading.Event()
    server = Server(office, on_ready=lambda _: is_ready.set())
    thread = threading.Thread(target=server.run)
    thread.start()
    assert is_ready.wait(10)
    server._edge.gate.rates = Rates(BOUNDLESS)
    token = office.registry.new_operator("admin", "tests", office.clock.now_ms(), 86_400_000)
    wired = Wired(office, server, folder, token)
    try:
        yield wired
    finally:
        wired.close()
        server.stop()
        thread.join(5)
        is_over = not thread.is_alive()
        office.close()
    assert is_over, "the server did not end"
    assert not troubles


def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    ends = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)

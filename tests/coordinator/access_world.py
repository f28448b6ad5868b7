"""A coordinator with two tenants in this process, and everybody who may or may not ask it.

Requests go to the application itself, with the certificate that their connection would have
shown, so that a thousand of them take seconds. Two federations, `alpha` and `beta`, are in
their first round; what is asked for is always alpha's.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from consortium.coordinator.access import Role, Scope
from consortium.coordinator.app import make_app
from consortium.coordinator.edge import Edge
from consortium.coordinator.matrix import COLUMNS, Person, Reach
from consortium.coordinator.office import Office
from consortium.coordinator.protocol import CERTIFICATE, EXTENSION
from consortium.coordinator.rates import Rates
from consortium.coordinator.rows import SiteRow
from consortium.core.ids import SiteId
from consortium.crypto.authority import request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.crypto.secure_sum.keys import Seeds, make_keys
from consortium.crypto.secure_sum.session import RoundName
from consortium.testing.processes import PLAN, TASK, run
from consortium.wire.messages import Enrol
from consortium.wire.signing import RequestLine, new_nonce, sign
from consortium.wire.token import read_token
from tests.coordinator.wired import BOUNDLESS, canonical, until

ALPHA, BETA = "alpha", "beta"
DAY_MS = 86_400_000


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.at_ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.at_ms


@cache
def studies() -> dict[str, Path]:
    """The plan files of two locked studies of different shapes, made once in a test run."""
    folder = Path(tempfile.mkdtemp(prefix="studies-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found = {}
    for name, size in ((ALPHA, 8), (BETA, 9)):
        place = folder / name
        place.mkdir()
        (place / "task.py").write_text(TASK.format(size=size, pace_s=0))
        plan = PLAN.format(
            rounds=3, quorum=2, selection="fraction = 1.0", wait_for=3, duration="600s"
        )
        (place / "consortium.toml").write_text(plan.replace("counting", name))
        (place / "sample.txt").write_text("0")
        run(["lock", "consortium.toml", "--seed", "1", "--sample", "sample.txt"], place)
        found[name] = place / "consortium.toml"
    return found


@dataclass(frozen=True)
class Told:
    """What came back."""

    status: int
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["code"]) if self.body else ""


@dataclass(frozen=True)
class Member:
    """A site with its key and the certificate (DER) that it shows."""

    row: SiteRow
    key: SigningKey
    certificate: bytes


@dataclass(frozen=True)
class Wanted:
    """A request before somebody makes it."""

    method: str
    path: str
    body: bytes = b""
    round: int = 0


@dataclass
class World:
    """Everything that a test needs of the coordinator and of those who ask it."""

    office: Office
    clock: Clock
    loop: asyncio.AbstractEventLoop
    app: Any
    sites: dict[str, list[Member]] = field(default_factory=dict)
    revoked: Member | None = None
    spare: Member | None = None
    tokens: dict[Person, str] = field(default_factory=dict)
    count: int = 0

    @property
    def edge(self) -> Edge:
        return self.app.state.edge  # type: ignore[no-any-return]  # a bag of the framework's

    def fresh(self, stem: str) -> str:
        """A name that nobody has had."""
        self.count += 1
        return f"{stem}-{self.count}"

    # ---- people ---------------------------------------------------------------------

    def invite(self, federation: str, name: str) -> dict[str, str]:
        """The body with which somebody joins, without the request for a certificate."""
        token = read_token(self.office.invite(federation, name)[0])
        return {"federation": token.federation, "name": name, "secret": token.secret}

    def enrol(self, federation: str, name: str) -> Member:
        key = SigningKey.generate()
        request = request_certificate(key).decode()
        body = self.invite(federation, name) | {"certificate_request": request}
        told = self.office.enrol(Enrol(**body))
        der = ssl.PEM_cert_to_DER_cert(told.certificate)
        return Member(self.office.site(told.site), key, der)

    def people(self) -> None:
        """Everybody of the matrix."""
        for person in (one for column in COLUMNS.values() for one in column):
            if person.role not in (Role.ANYBODY, Role.SITE):
                self.tokens[person] = self.new_token(person)

    def new_token(self, person: Person) -> str:
        place = self.office.federation(BETA if person.reach is Reach.OTHER else ALPHA)
        assert place is not None
        scope = Scope(tenant=place.tenant)
        if person.role in (Role.ADMIN, Role.VIEWER):
            scope = Scope(federations=frozenset({place.id}))
        if person.reach is Reach.ALL:
            scope = Scope()
        label, now_ms = self.fresh(person.role), self.clock.now_ms()
        made_ms = now_ms if person.holds else now_ms - 2 * DAY_MS
        return self.office.registry.new_operator(person.role, label, made_ms, DAY_MS, scope)

    def member(self, person: Person) -> Member:
        if not person.holds:
            assert self.revoked is not None
            return self.revoked
        return self.sites[BETA if person.reach is Reach.OTHER else ALPHA][0]

    # ---- asking ---------------------------------------------------------------------

    def ask(self, person: Person, wanted: Wanted) -> Told:
        """As this person would, with whatever it has to show."""
        if person.role is Role.SITE:
            return self.signed(self.member(person), wanted)
        token = self.tokens.get(person)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.call(wanted, headers)

    def signed(self, site: Member, wanted: Wanted, **line: Any) -> Told:
        """As a site; `line` changes what it signs."""
        made = self.line(site, wanted, **line)
        return self.call(wanted, sign(made, site.key), site.certificate)

    def line(self, site: Member, wanted: Wanted, **line: Any) -> RequestLine:
        values = {
            "method": wanted.method,
            "path": wanted.path,
            "audience": self.office.audience,
            "site": site.row.id,
            "round": wanted.round,
            "nonce": new_nonce(),
            "digest": sha256(wanted.body).hexdigest(),
        }
        return RequestLine(**values | line)

    def order(self, token: str, method: str, path: str, body: object = None) -> Told:
        data = b"" if body is None else json.dumps(body).encode()
        return self.call(Wanted(method, path, data), {"Authorization": f"Bearer {token}"})

    def call(
        self,
        wanted: Wanted,
        headers: dict[str, str],
        certificate: bytes | None = None,
        client: str = "192.0.2.1",
    ) -> Told:
        """One request, as the server would hand it to the application."""
        path, _, query = wanted.path.partition("?")
        head = {"content-length": str(len(wanted.body))} | headers
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": wanted.method,
            "scheme": "https",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in head.items()],
            "client": (client, 50_000),
            "server": ("192.0.2.2", 443),
            "extensions": {EXTENSION: {CERTIFICATE: certificate}},
        }
        return self.loop.run_until_complete(self._call(scope, wanted.body))

    async def _call(self, scope: dict[str, Any], body: bytes) -> Told:
        parts, sent = [body], []

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return Told(sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]))

    # ---- what is asked --------------------------------------------------------------

    def wanted(self, method: str, template: str, person: Person) -> Wanted:
        """A request for a route, such that it would be answered. A route that is not known
        here has no row in the matrix yet: add one, and look at the page."""
        path = template.replace("{name}", ALPHA).replace("{version}", "0")
        made = getattr(self, _SPECIAL.get((method, template), "_plain"))(path, person)
        body, path = made if isinstance(made, tuple) else (made, path)
        data = canonical(body) if isinstance(body, dict) else body
        if "{number}" in path:
            is_view = path.startswith("/v1/federations") and method == "GET"
            number = 1 if is_view else 99
            is_signed = method == "POST" and not path.startswith("/v1/federations")
            return Wanted(method, path.format(number=number), data, number if is_signed else 0)
        assert "{" not in path, f"no request is known for {template}"
        return Wanted(method, path, data)

    def _plain(self, path: str, person: Person) -> bytes:
        assert path.split("{")[0] in _PLAIN, f"no request is known for {path}"
        return b""

    def _enrol(self, path: str, person: Person) -> dict[str, str]:
        request = request_certificate(SigningKey.generate()).decode()
        return self.invite(ALPHA, self.fresh("joiner")) | {"certificate_request": request}

    def _ask(self, path: str, person: Person) -> dict[str, int]:
        return {"seen_size": 0, "own_size": 0}

    def _report(self, path: str, person: Person) -> dict[str, Any]:
        return {"report": {"cases": self.count}}

    def _renew(self, path: str, person: Person) -> dict[str, str]:
        key = self.member(person).key if person.role is Role.SITE else SigningKey.generate()
        return {"certificate_request": request_certificate(key).decode()}

    def _blob(self, path: str, person: Person) -> tuple[bytes, str]:
        layout = self.office.teller_named(ALPHA).desk.study().layout
        return b"", path.replace("{digest}", layout)

    def _upload(self, path: str, person: Person) -> tuple[bytes, str]:
        return b"", path.replace("{digest}", "5" * 64)

    def _chunk(self, path: str, person: Person) -> tuple[bytes, str]:
        return b"some bytes", path.replace("{digest}", "5" * 64) + "?offset=0"

    def _update(self, path: str, person: Person) -> dict[str, Any]:
        return {"update": "5" * 64, "size_bytes": 10}

    def _failure(self, path: str, person: Person) -> dict[str, Any]:
        return {"failure": "POLICY"}

    def _score(self, path: str, person: Person) -> dict[str, Any]:
        return {"model": "5" * 64, "samples": 1, "candidate": [0.5], "base": [1.0]}

    def _keys(self, path: str, person: Person) -> dict[str, Any]:
        key, site, federation = SigningKey.generate(), "5" * 32, "5" * 32
        if person.role is Role.SITE:
            member = self.member(person)
            key, site, federation = member.key, member.row.id, member.row.federation
        name = RoundName(federation, 99)
        advert = make_keys(name, SiteId(site), Seeds.fresh())
        keys = {"mask_key": advert.mask_key.hex(), "seal_key": advert.seal_key.hex()}
        signature = key.sign(advert.to_sign(name)).hex()
        return {**keys, "commitment": advert.commitment.hex(), "signature": signature}

    def _shares(self, path: str, person: Person) -> dict[str, Any]:
        return {"session": "5" * 64, "sealed": ""}

    def _consent(self, path: str, person: Person) -> dict[str, Any]:
        return {"split": "5" * 64, "signature": "6" * 128}

    def _answer(self, path: str, person: Person) -> dict[str, Any]:
        return {"split": "5" * 64, "shares": ""}

    def _register(self, path: str, person: Person) -> dict[str, str]:
        name = self.member(person).row.name if person.role is Role.SITE else "a-0"
        return {"location_id": name, "model_type": "task.py:study"}

    def _invite(self, path: str, person: Person) -> dict[str, str]:
        return {"name": self.fresh("invited")}

    def _revoke(self, path: str, person: Person) -> tuple[bytes, str]:
        """One that is there: who may revoke it finds another one than who did before."""
        registry = self.office.registry
        if self.spare is None or registry.site(self.spare.row.id).is_revoked:
            self.spare = self.enrol(ALPHA, self.fresh("spare"))
        return b"", path.replace("{site}", self.spare.row.name)

    def _listens(self, path: str, person: Person) -> tuple[dict[str, Any], str]:
        _, there = self._revoke(path, person)
        return {"url": None}, there

    def _start(self, path: str, person: Person) -> dict[str, str]:
        return {"federation": ALPHA}

    def _new_token(self, path: str, person: Person) -> dict[str, Any]:
        return {"label": self.fresh("new"), "role": "viewer", "federations": [ALPHA]}

    def _revoke_token(self, path: str, person: Person) -> tuple[bytes, str]:
        label = self.fresh("spare")
        self.office.registry.new_operator("viewer", label, self.clock.now_ms(), DAY_MS)
        return b"", path.replace("{label}", label)


_F = "/v1/federations/{name}"
_SPECIAL = {
    ("POST", "/v1/enrol"): "_enrol",
    ("POST", "/v1/ask"): "_ask",
    ("POST", "/v1/report"): "_report",
    ("POST", "/v1/renew"): "_renew",
    ("GET", "/v1/blobs/{digest}"): "_blob",
    ("HEAD", "/v1/blobs/{digest}"): "_blob",
    ("GET", "/v1/uploads/{digest}"): "_upload",
    ("PATCH", "/v1/uploads/{digest}"): "_chunk",
    ("POST", "/v1/rounds/{number}/update"): "_update",
    ("POST", "/v1/rounds/{number}/failure"): "_failure",
    ("POST", "/v1/rounds/{number}/score"): "_score",
    ("POST", "/v1/rounds/{number}/keys"): "_keys",
    ("POST", "/v1/rounds/{number}/shares"): "_shares",
    ("POST", "/v1/rounds/{number}/consent"): "_consent",
    ("POST", "/v1/rounds/{number}/answer"): "_answer",
    ("POST", "/federated/client/register"): "_register",
    ("POST", f"{_F}/invites"): "_invite",
    ("POST", f"{_F}/sites/{{site}}/revoke"): "_revoke",
    ("POST", f"{_F}/sites/{{site}}/listens"): "_listens",
    ("POST", "/federated/server/start"): "_start",
    ("POST", "/v1/tokens"): "_new_token",
    ("POST", "/v1/tokens/{label}/revoke"): "_revoke_token",
}
_A = f"/v1/federations/{ALPHA}"
_PLAIN = {
    *("/health", "/ready", "/openapi.json", "/v1/authority", "/v1/study", "/v1/leave"),
    *("/v1/rounds/", "/metrics", "/v1/federations", "/v1/tokens", "/federated/server/status"),
    *(_A, f"{_A}/rounds", f"{_A}/rounds/", f"{_A}/models", f"{_A}/models/0", f"{_A}/sites"),
    *(f"{_A}/models/0/file", f"{_A}/models/0/rollback", f"{_A}/hold", f"{_A}/resume"),
    *(f"{_A}/stop", f"{_A}/rounds/open", f"{_A}/budget"),
}


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """A coordinator with both federations in training, until the block ends."""
    clock = Clock()
    office = Office(folder, clock, url="https://127.0.0.1:1")
    loop = asyncio.new_event_loop()
    try:
        for name, plan in studies().items():
            office.host(plan, tenant=f"tenant-{name}")
        troubles: list[Exception] = []
        office.start(troubles.append)
        made = World(office, clock, loop, make_app(office))
        made.edge.gate.rates = Rates(BOUNDLESS)
        for name in studies():
            made.sites[name] = [made.enrol(name, f"{name[0]}-{number}") for number in range(3)]
            until(lambda name=name: office.teller_named(name).status()["round"] is not None)
            until(lambda name=name: office.teller_named(name).status()["round"]["invited"])
        made.revoked = made.enrol(ALPHA, "revoked")
        office.teller_named(ALPHA).revoke("revoked")
        made.people()
        yield made
        made.edge.close()
        assert not troubles, troubles
    finally:
        loop.close()
        office.close()

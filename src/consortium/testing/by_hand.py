"""A coordinator spoken to byte by byte: requests that no client of ours would send.

A request is bytes, and so is what is recorded. Each caller may come from an address of its own
on this machine (127.0.0.0/8), so that what one of them does wrong is not counted for others.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from consortium.crypto.authority import request_certificate
from consortium.crypto.recipes import SigningKey
from consortium.model import digest_of
from consortium.testing.processes import Network
from consortium.wire.messages import CHUNK_BYTES, Answer, Ask, Enrol, Enrolled, Submission
from consortium.wire.signing import RequestLine, new_nonce, sign
from consortium.wire.token import JoinToken, read_token

HERE = "127.0.0.1"
PROBLEM = "application/problem+json"
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """What came back. Status 0: the coordinator hung up without a word."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of a refusal; empty for everything else."""
        is_problem = self.headers.get("content-type") == PROBLEM
        return str(self.json["code"]) if is_problem and self.body else ""

    def __str__(self) -> str:
        return f"{self.status} {self.code} {self.body[:200]!r}"


_SILENCE = Told(0)


@dataclass
class Line:
    """A connection that is kept, and made again when the other side has ended it."""

    port: int
    context: ssl.SSLContext
    source: str = HERE
    _tls: ssl.SSLSocket | None = None

    def send(self, request: bytes) -> Told:
        """Exactly these bytes; what is said to them."""
        was_kept = self._tls is not None
        told = self._exchange(request)
        if told is None and was_kept:  # it ended while nobody looked
            self.close()
            told = self._exchange(request)
        if told is None or told.headers.get("connection") == "close":
            self.close()
        return told or _SILENCE

    def _exchange(self, request: bytes) -> Told | None:
        tls = self._tls = self._tls or self._connect()
        with suppress(OSError):  # it may have been answered before it was sent to its end
            tls.sendall(request)
        method = request.partition(b" ")[0].decode("latin-1")
        response = HTTPResponse(tls, method=method)
        try:
            response.begin()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Told(response.status, headers, response.read())
        except (HTTPException, OSError):
            return None
        finally:
            response.close()

    def _connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection((HERE, self.port), _PATIENCE_S, (self.source, 0))
        try:
            return self.context.wrap_socket(plain, server_hostname=HERE)
        except OSError:
            plain.close()
            raise

    def close(self) -> None:
        if self._tls is not None:
            self._tls.close()
            self._tls = None


def spelt(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request in bytes. Headers that are given come last and may say otherwise."""
    told = {"Host": HERE, "Content-Length": str(len(body))} | dict(headers)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass(frozen=True, slots=True)
class Door:
    """A coordinator, as its operator on this machine sees it."""

    port: int
    authority: str
    operator: str
    folder: Path  # for keys: the ssl module reads them from files
    federation: str = "counting"

    @classmethod
    def of(cls, network: Network) -> Door:
        held = json.loads((network.data / "operator.json").read_text())
        folder = network.folder / "keys"
        folder.mkdir(exist_ok=True)
        return cls(network.port, held["authority"], held["token"], folder, network.shape.name)

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context

    def line(self, source: str = HERE, certificate: Path | None = None) -> Line:
        return Line(self.port, self.context(certificate), source)

    def send(self, request: bytes, source: str = HERE) -> Told:
        """As anybody, on a connection of its own."""
        line = self.line(source)
        try:
            return line.send(request)
        finally:
            line.close()

    def order(self, method: str, path: str, body: object = None, source: str = HERE) -> Told:
        """As the operator."""
        data = b"" if body is None else json.dumps(body).encode()
        bearer = {"Authorization": f"Bearer {self.operator}"}
        return self.send(spelt(method, path, bearer, data), source)

    def look(self, path: str = "") -> Any:
        """A view of the federation."""
        told = self.order("GET", f"/v1/federations/{self.federation}{path}")
        if told.status != 200:
            raise RuntimeError(f"{path}: {told}")
        return told.json

    def invite(self, name: str) -> JoinToken:
        told = self.order("POST", f"/v1/federations/{self.federation}/invites", {"name": name})
        if told.status != 200:
            raise RuntimeError(f"{name} cannot be invited: {told}")
        return read_token(told.json["token"])

    def join(self, name: str, source: str = HERE) -> Played:
        """Invite a site, and be it."""
        key = SigningKey.generate()
        told = self.send(enrolment(self.invite(name), key), source)
        if told.status != 200:
            raise RuntimeError(f"{name} cannot join: {told}")
        found = Enrolled.model_validate_json(told.body)
        file = self.folder / f"{name}.pem"
        file.touch(0o600)
        file.write_bytes(key.pem().reveal() + found.certificate.encode())
        return Played(name, self, key, found, self.line(source, file))


def enrolment(token: JoinToken, key: SigningKey, **changes: str) -> bytes:
    """The request of a site that joins with a token."""
    body = Enrol(
        federation=token.federation,
        name=token.name,
        secret=token.secret,
        certificate_request=request_certificate(key).decode(),
    )
    data = json.dumps(body.model_dump() | changes).encode()
    return spelt("POST", "/v1/enrol", {}, data)


@dataclass
class Played:
    """A site that has joined, played by hand over one kept connection."""

    name: str
    door: Door
    key: SigningKey
    told: Enrolled
    line: Line
    sent: list[bytes] | None = None  # where what it says is recorded

    def request_line(
        self, method: str, path: str, body: bytes = b"", round_number: int = 0
    ) -> RequestLine:
        digest, nonce = digest_of(body).hex(), new_nonce()
        about = self.told.audience, self.told.site, round_number, nonce, digest
        return RequestLine(method, path, *about)

    def signed(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        round_number: int = 0,
        more: Mapping[str, str] | None = None,
    ) -> bytes:
        """A signed request in bytes; `more` headers may say otherwise."""
        line = self.request_line(method, path, body, round_number)
        extra = {name.replace("_", "-"): value for name, value in (more or {}).items()}
        return spelt(method, path, sign(line, self.key) | extra, body)

    def call(
        self,
        method: str,
        path: str,
        body: bytes | BaseModel = b"",
        round_number: int = 0,
        more: Mapping[str, str] | None = None,
    ) -> Told:
        data = body.model_dump_json().encode() if isinstance(body, BaseModel) else body
        return self.send(self.signed(method, path, data, round_number, more))

    def send(self, request: bytes) -> Told:
        if self.sent is not None:
            self.sent.append(request)
        return self.line.send(request)

    def ask(self, have: str = "", wait_ms: int = 0) -> Answer:
        told = self.call(
            "POST", "/v1/ask", Ask(seen_size=0, own_size=0, have=have, wait_ms=wait_ms)
        )
        if told.status != 200:
            raise RuntimeError(f"{self.name}: {told}")
        return Answer.model_validate_json(told.body)

    def invited(self, after: int = 0) -> dict[str, Any]:
        """Wait for the invitation to a round later than `after`; what it says."""
        have = ""
        while True:
            answer = self.ask(have, 0 if not have else 10_000)
            found = answer.invitation and json.loads(answer.invitation.text)
            if found and found["round"] > after:
                return dict(found)
            have = answer.mark

    def upload(self, data: bytes, round_number: int = 0) -> Told:
        """All of it, chunk by chunk; the answer to the last, or the first refusal."""
        place = f"/v1/uploads/{digest_of(data).hex()}"
        for offset in range(0, max(1, len(data)), CHUNK_BYTES):
            chunk = data[offset : offset + CHUNK_BYTES]
            told = self.call("PATCH", f"{place}?offset={offset}", chunk, round_number)
            if told.status != 200:
                break
        return told

    def submit(self, data: bytes, round_number: int) -> Told:
        body = Submission(update=digest_of(data).hex(), size_bytes=len(data))
        return self.call("POST", f"/v1/rounds/{round_number}/update", body, round_number)

    def deliver(self, data: bytes, round_number: int) -> Told:
        """Upload and submit; the last answer, or the first refusal."""
        told = self.upload(data, round_number)
        return self.submit(data, round_number) if told.status == 200 else told

    def from_address(self, source: str) -> Played:
        """The same site, from another address."""
        return replace(self, line=replace(self.line, source=source, _tls=None))

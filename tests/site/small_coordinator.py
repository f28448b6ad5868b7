"""A coordinator of a few routes on a real TLS port, which can be told to misbehave."""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from consortium.crypto.authority import Authority
from consortium.crypto.keyfile import write_secret
from consortium.crypto.recipes import SigningKey
from consortium.errors import ConsortiumError, WrongOffsetError
from consortium.wire.signing import parse

AUDIENCE, SITE = "a" * 32, "5" * 32
Route = Callable[["Heard"], tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class Heard:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: bytes | None  # the client's certificate, DER


@dataclass
class Small:
    """What it has, what it was asked, and how it is to fail."""

    authority: Authority
    url: str = ""
    key: bytes | None = None  # requests must be signed with it
    blobs: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    version: str = "2"
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    cut_down: list[int] = field(default_factory=list)  # close after so many bytes of a download
    cut_up: list[str] = field(default_factory=list)  # "before" or "after" a chunk is taken
    ignores_range: bool = False
    garbles: int = 0  # downloads that have other bytes

    def paths(self, method: str) -> list[str]:
        return [heard.path for heard in self.heard if heard.method == method]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    small: Small

    def _take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        peer = self.connection.getpeercert(True)  # type: ignore[attr-defined]
        heard = Heard(self.command, self.path, dict(self.headers), body, peer)
        self.small.heard.append(heard)
        route = self.small.routes.get((self.command, self.path.partition("?")[0]))
        if route is not None:
            self._json(*route(heard))
        elif self.path == "/v1/authority":
            self._bytes(200, self.small.authority.pem())
        elif self.small.key is not None and not self._is_signed(heard):
            self._json(401, {"code": "E0814", "detail": "not signed"})
        elif match := re.fullmatch("/v1/blobs/([0-9a-f]{64})", self.path):
            self._blob(match[1])
        elif match := re.fullmatch(r"/v1/uploads/([0-9a-f]{64})(\?offset=(\d+))?", self.path):
            self._upload(heard, match[1], match[3])
        else:
            self._json(404, {"code": "E0819", "detail": "no such route"})

    do_GET = do_POST = do_PATCH = _take  # noqa: N815  the names that http.server calls

    def _is_signed(self, heard: Heard) -> bool:
        assert self.small.key is not None
        try:
            signed = parse(heard.method, heard.path, heard.headers)
            signed.verify(self.small.key, AUDIENCE)
        except ConsortiumError:
            return False
        known, (place, _, offset) = (
            {sha256(heard.body).hexdigest()},
            heard.path.partition("?offset="),
        )
        if offset and self.small.version != "1":
            before = self._held(place)[: int(offset)]
            known.add(sha256(before + heard.body).hexdigest())
        return signed.line.digest in known

    def _held(self, path: str) -> bytearray:
        """What is there of the upload at this address."""
        name = path.rpartition("/")[2]
        return self.small.uploads.setdefault(name, bytearray())

    def _blob(self, name: str) -> None:
        data = self.small.blobs[name]
        if self.small.garbles:
            self.small.garbles -= 1
            data = bytes(len(data))
        start = 0
        asked = self.headers.get("Range")
        if asked and self.headers.get("If-Range") == f'"{name}"' and not self.small.ignores_range:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                return self._json(416, {"code": "E0810", "detail": "nothing there"})
        return self._bytes(206 if start else 200, data[start:], self.small.cut_down)

    def _upload(self, heard: Heard, name: str, offset: str | None) -> None:
        held = self._held(name)
        if offset is None:
            return self._json(200, {"offset": len(held), "is_complete": False})
        cut = self.small.cut_up.pop(0) if self.small.cut_up else ""
        if cut == "before":
            return self._hang_up()
        if int(offset) != len(held):
            problem = {"code": "E0816", "detail": "wrong", "details": {"offset": len(held)}}
            return self._json(WrongOffsetError.http_status, problem)
        held += heard.body
        if cut == "after":
            return self._hang_up()
        return self._json(200, {"offset": len(held), "is_complete": False})

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self._bytes(status, json.dumps(value).encode())

    def _bytes(self, status: int, data: bytes, cuts: list[int] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Consortium-Protocol", self.small.version)
        self.end_headers()
        if cuts:
            self.wfile.write(data[: cuts.pop(0)])
            return self._hang_up()
        self.wfile.write(data)
        return None

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    context: ssl.SSLContext
    block_on_close = True
    daemon_threads = True

    def finish_request(self, request: Any, client_address: Any) -> None:
        with suppress(OSError):
            request.settimeout(10)
            with self.context.wrap_socket(request, server_side=True) as secure:
                super().finish_request(secure, client_address)

    def shutdown_request(self, request: Any) -> None:
        request.close()


def server_context(folder: Path, authority: Authority) -> ssl.SSLContext:
    """What a coordinator on this machine shows, under any of its names."""
    names = ["127.0.0.1", "::1", "coordinator.test"]
    identity = authority.issue_server(names, int(time.time() * 1000))
    write_secret(folder / "server.key", identity.key)
    (folder / "server.pem").write_bytes(identity.chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(cadata=authority.pem().decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextmanager
def small_coordinator(folder: Path) -> Iterator[Small]:
    small = Small(Authority.make(int(time.time() * 1000)))
    context = server_context(folder, small.authority)
    handler = type("Handler", (_Handler,), {"small": small})
    server = _Server(("127.0.0.1", 0), handler)
    server.context = context
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    small.url = f"https://127.0.0.1:{server.server_address[1]}"
    try:
        yield small
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def new_key() -> SigningKey:
    return SigningKey.generate()

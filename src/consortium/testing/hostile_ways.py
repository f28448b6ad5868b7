"""Ways to send what no client of ours would: what the table of `hostile_requests` is made of."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from consortium.crypto.recipes import SigningKey
from consortium.model import digest_of
from consortium.testing.by_hand import Door, Played, Told, enrolment, spelt
from consortium.testing.hostile_keys import (
    foreign_certificate,
)
from consortium.wire.signing import sign
from consortium.wire.token import JoinToken


@dataclass(frozen=True, slots=True)
class Scene:
    """An open round, a hostile site that is invited to it, and another site that is too."""

    door: Door
    site: Played
    other: Played
    other_digest: str  # of what the other site has begun to upload
    round: int
    base: str  # of the round's model
    source: str  # the address to come from
    data: Path  # the coordinator's directory: only to let a token grow old

    def name(self) -> str:
        """One that nobody else is called."""
        return "n-" + self.source.replace(".", "-")


Send = Callable[[Scene], Told]


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """One request, and the answer: its status, its code, a text that must be in it."""

    name: str
    send: Send
    status: int
    code: str = ""
    says: str = ""


SENT = digest_of(b"hostile").hex()
UPLOAD = f"/v1/uploads/{SENT}"
ASKING = '"seen_size":0,"own_size":0'


# ---- ways to send -------------------------------------------------------------------


def ask(body: str | bytes, **headers: str) -> Send:
    data = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    return lambda s: s.site.call("POST", "/v1/ask", data, more=headers)


def say(path: str, body: object) -> Send:
    return lambda s: s.site.call("POST", path, json.dumps(body).encode())


def chunk(query: str, body: bytes = b"x", **headers: str) -> Send:
    return lambda s: s.site.call("PATCH", f"{UPLOAD}{query}", body, more=headers)


def get(path: str, **headers: str) -> Send:
    return lambda s: s.site.call("GET", path.replace("BASE", s.base), more=headers)


def as_anybody(method: str, path: str, body: bytes = b"", **headers: str) -> Send:
    """As anybody."""
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda s: s.door.send(spelt(method, path, told, body), s.source)


def raw(request: bytes) -> Send:
    return lambda s: s.door.send(request, s.source)


def order(method: str, path: str, body: object = None) -> Send:
    """As the operator; a path that starts with `F` is about the federation."""

    def send(s: Scene) -> Told:
        is_short = path.startswith("F")
        whole = f"/v1/federations/{s.door.federation}{path[1:]}" if is_short else path
        return s.door.order(method, whole, body, s.source)

    return send


def enrol(**changes: str) -> Send:
    """With a good token, and something else that is wrong."""
    return lambda s: s.door.send(
        enrolment(s.door.invite(s.name()), SigningKey.generate(), **changes), s.source
    )


def enrol_with(request: Callable[[], str]) -> Send:
    return lambda s: enrol(certificate_request=request())(s)


def used_token(s: Scene) -> Told:
    token = s.door.invite(s.name())
    s.door.send(enrolment(token, SigningKey.generate()), s.source)
    return s.door.send(enrolment(token, SigningKey.generate()), s.source)


def replaced_token(s: Scene) -> Told:
    """One that a newer invitation has made void."""
    token = s.door.invite(s.name())
    s.door.invite(s.name())
    return s.door.send(enrolment(token, SigningKey.generate()), s.source)


def old_token(s: Scene) -> Told:
    token = s.door.invite(s.name())
    with sqlite3.connect(s.data / "registry.sqlite", timeout=30) as run:
        run.execute("UPDATE invites SET expires_ms = 1 WHERE name = ?", (token.name,))
    run.close()
    return s.door.send(enrolment(token, SigningKey.generate()), s.source)


def unknown_token(s: Scene) -> Told:
    found = s.door.invite(s.name())
    token = JoinToken(found.url, found.authority, found.federation, found.name, "A" * 27)
    return s.door.send(enrolment(token, SigningKey.generate()), s.source)


def short_chunk(s: Scene) -> Told:
    """Less than was announced, and gone: nothing of it counts."""
    request = s.site.signed("PATCH", f"{UPLOAD}?offset=0", b"x" * 1000)
    tls = s.site.line._connect()
    tls.sendall(request[:-500])
    tls.close()
    return s.site.call("GET", UPLOAD)


def long_chunk(s: Scene) -> Told:
    request = s.site.signed("PATCH", f"{UPLOAD}?offset=0", b"x" * 20, more={"Content-Length": "10"})
    return s.site.send(request)


def chunk_in_pieces(s: Scene) -> Told:
    line = s.site.request_line("PATCH", f"{UPLOAD}?offset=0", b"x")
    headers = sign(line, s.site.key) | {"Transfer-Encoding": "chunked"}
    request = spelt("PATCH", line.path, headers).replace(b"Content-Length: 0\r\n", b"")
    return s.site.send(request + b"1\r\nx\r\n0\r\n\r\n")


def smuggled(s: Scene) -> Told:
    """Two lengths: who believes the other one sees a second request."""
    line = s.site.request_line("PATCH", f"{UPLOAD}?offset=0", b"x")
    headers = sign(line, s.site.key) | {"Transfer-Encoding": "chunked"}
    return s.site.send(spelt("PATCH", line.path, headers, b"0\r\n\r\n"))


def of_another(path: str) -> Send:
    """A file of the other site's."""
    return lambda s: s.site.call("GET", path.replace("DIGEST", s.other_digest))


def submit_anothers(s: Scene) -> Told:
    body = f'{{"update":"{s.other_digest}","size_bytes":1000}}'.encode()
    return s.site.call("POST", f"/v1/rounds/{s.round}/update", body, s.round)


def append_to_anothers(s: Scene) -> Told:
    return s.site.call("PATCH", f"/v1/uploads/{s.other_digest}?offset=1000", b"x")


def submission(path: str, body: str, number: int | None = None) -> Send:
    """`N` is the round."""

    def send(s: Scene) -> Told:
        data = body.replace("SENT", SENT).encode()
        told = s.round if number is None else number
        return s.site.call("POST", path.replace("N", str(s.round)), data, told)

    return send


def no_certificate(s: Scene) -> Told:
    return s.door.send(s.site.signed("GET", "/v1/study"), s.source)


def anothers_certificate(s: Scene) -> Told:
    line = s.other.from_address(s.source).line
    try:
        return line.send(s.site.signed("GET", "/v1/study"))
    finally:
        line.close()


def with_foreign_certificate(s: Scene) -> Told:
    file = foreign_certificate(s.door.folder / f"{s.name()}.pem")
    line = s.door.line(s.source, file)
    try:
        return line.send(s.site.signed("GET", "/v1/study"))
    except OSError:  # TLS has said so, earlier or later
        return Told(0)
    finally:
        line.close()


def header_twice(s: Scene) -> Told:
    request = s.site.signed("GET", "/v1/study")
    return s.site.send(request.replace(b"Host:", b"Consortium-Round: 0\r\nHost:", 1))

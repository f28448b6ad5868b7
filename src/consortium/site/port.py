"""The port of a site that listens: TLS 1.3, for the coordinator alone.

Whoever cannot show the coordinator's own certificate, of the authority that this site joined
with, is refused in the handshake: nothing that a stranger says is read by anything but TLS. A
connection has a few seconds to prove who it is, and few may try at a time: of too many, whoever
has tried for longest makes room, because to refuse the newcomer would let strangers who came
first keep the coordinator out.

    POST /v1/line                   the connection is the site's from now on (`lines.py`)
    POST /federated/client/train    train in a round, and say what came of it (`called.py`)
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

from pydantic import BaseModel

from consortium.crypto.authority import check_caller
from consortium.errors import (
    CertificateError,
    ConsortiumError,
    InternalError,
    TooLargeError,
    UsageError,
    WireError,
)
from consortium.site.home import SiteHome
from consortium.site.lines import Lines
from consortium.wire.messages import MAX_JSON_BYTES, ClientTrain, ClientTrained, read_body

PROVE_S = 10.0  # for a connection to prove who it is, and to say what it wants
MOST_UNPROVEN = 16
_LOOK_S = 0.25
_UPGRADE = "consortium-line/1"
_PROBLEM = "application/problem+json"

Train = Callable[[ClientTrain], ClientTrained]


class Port:
    """Takes calls until it is closed; `train` answers one kind of them."""

    def __init__(self, home: SiteHome, host: str, port: int, lines: Lines, train: Train) -> None:
        self._home, self._lines, self.train = home, lines, train
        self._socket = take_port(host, port)
        self._socket.settimeout(_LOOK_S)
        self.port = int(self._socket.getsockname()[1])
        self._lock = threading.Lock()
        self._unproven: dict[ssl.SSLSocket, float] = {}  # until when
        self._is_closed = False

    def run(self) -> None:
        """Take connections."""
        while not self._is_closed:
            self._end_overdue(time.monotonic())
            try:
                sock, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # no more files, or it is closed
                time.sleep(_LOOK_S)
                continue
            self._greet(sock)

    def close(self) -> None:
        self._is_closed = True
        self._socket.close()
        self._end_overdue(float("inf"))
        self._lines.close()

    def _greet(self, sock: socket.socket) -> None:
        sock.settimeout(PROVE_S)
        try:
            tls = _context(self._home).wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # it is gone already, or our certificate is not there
            sock.close()
            return
        with self._lock:
            if len(self._unproven) >= MOST_UNPROVEN:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
                _hang_up(oldest)
            self._unproven[tls] = time.monotonic() + PROVE_S
        threading.Thread(target=self._take, args=(tls,), name="call", daemon=True).start()

    def _take(self, tls: ssl.SSLSocket) -> None:
        """One connection, from its handshake to its end, or until it is a line."""
        is_line = False
        try:
            tls.do_handshake()
            check_caller(tls.getpeercert(binary_form=True) or b"")
            is_line = _Call(tls, self).is_line
        except (OSError, CertificateError):  # a stranger, or one who hung up
            pass
        finally:
            self.proven(tls)
            if is_line:
                self._lines.give(tls)
            else:
                tls.close()

    def proven(self, tls: ssl.SSLSocket) -> None:
        """This connection has said who it is and what it wants."""
        with self._lock:
            self._unproven.pop(tls, None)

    def _end_overdue(self, now_s: float) -> None:
        with self._lock:
            for tls, ends_s in self._unproven.items():
                if ends_s < now_s:
                    _hang_up(tls)


def _hang_up(tls: ssl.SSLSocket) -> None:
    with suppress(OSError):  # its own thread closes it
        socket.socket.shutdown(tls, socket.SHUT_RDWR)


class _Call(BaseHTTPRequestHandler):
    """One request of the coordinator. It is the only one of its connection."""

    protocol_version = "HTTP/1.1"
    timeout = PROVE_S
    server_version, sys_version = "consortium", ""

    def __init__(self, tls: ssl.SSLSocket, port: Port) -> None:
        self._tls, self._port, self.is_line = tls, port, False
        super().__init__(tls, ("", 0), port)  # type: ignore[arg-type]  # it only keeps it

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()

    def do_POST(self) -> None:
        """All that a site is called for."""
        try:
            body = self._body()
            self._port.proven(self._tls)
            if self.path == "/v1/line":
                self._become_line()
            elif self.path == "/federated/client/train":
                asked = read_body(ClientTrain, body)
                self._say(200, "application/json", self._port.train(asked))
            else:
                self._refuse(404, WireError("a site that listens has no such address"))
        except ConsortiumError as error:
            self._refuse(error.http_status, error)
        except OSError:
            raise
        except Exception as error:  # whatever it is, the caller waits for an answer
            self._refuse(500, InternalError(f"unexpected {type(error).__name__}"))

    def _body(self) -> bytes:
        told = self.headers.get("Content-Length", "")
        if not told.isdecimal() or len(told) > 18:
            raise WireError("the request does not say how long its body is", hint="Content-Length")
        if int(told) > MAX_JSON_BYTES:
            raise TooLargeError(f"a body has at most {MAX_JSON_BYTES} bytes here")
        body = self.rfile.read(int(told))
        if len(body) != int(told):
            raise ConnectionError("it hung up")
        return body

    def _become_line(self) -> None:
        if self.headers.get("Upgrade", "") != _UPGRADE:
            raise WireError(f"a line is an upgrade to {_UPGRADE}")
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", _UPGRADE)
        self.end_headers()
        self.is_line = True

    def _refuse(self, status: int, error: ConsortiumError) -> None:
        told = _Problem(
            type=f"urn:consortium:{error.code}",
            title=type(error).__name__,
            status=status,
            code=error.code,
            detail=error.message,
            hint=error.hint or "",
        )
        self._say(status, _PROBLEM, told)

    def _say(self, status: int, kind: str, message: BaseModel) -> None:
        data = message.model_dump_json().encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, _: str | None = None) -> None:
        """What is not HTTP, or another method, gets a problem as everything else does."""
        self._refuse(code, WireError(message or "this is not a request that is known here"))

    def log_message(self, format: str, *args: object) -> None:
        """The agent tells what happens; nothing is printed here."""


class _Problem(BaseModel):
    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str


def _context(home: SiteHome) -> ssl.SSLContext:
    """Made for each connection: the site's certificate is renewed while the agent runs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cafile=str(home.authority_file))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(home.certificate_file, home.key_file)
    return context


def take_port(host: str, port: int) -> socket.socket:
    """A socket that listens there; refused with words where that cannot be."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            hint="choose another port with --listen, or end what listens there",
        ) from None

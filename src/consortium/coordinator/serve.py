"""Runs a coordinator's HTTPS port: TLS 1.3 with its own authority, one process, one loop.

Ends within two seconds of SIGTERM or SIGINT: sites that wait are answered at once, transfers
get a moment and go on from their offset another time. The server's certificate is made at
each start and again, while it runs, when a third of its time is left.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from urllib.parse import urlsplit

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from consortium.coordinator.app import make_app
from consortium.coordinator.chains import load_chain
from consortium.coordinator.edge import Edge
from consortium.coordinator.lines import Lines
from consortium.coordinator.office import Office
from consortium.coordinator.protocol import SiteProtocol
from consortium.coordinator.tls import Acceptor
from consortium.crypto.authority import needs_renewal
from consortium.errors import ConsortiumError, UsageError

BACKLOG = 1024  # 300 sites may come back at the same moment
# At the end: for peers to see that the connection ends, for transfers, for everything.
_GOODBYE_S, _TRANSFERS_S, _GRACE_S = 0.3, 0.7, 1
_HOUR_S = 3600.0
_FILES = 16_384
_ARENA_MAX = -8  # of mallopt
_HERE = ("localhost", "127.0.0.1", "::1")
_log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """One listening port. `run` returns when it has ended; `stop` ends it from any thread."""

    def __init__(
        self,
        office: Office,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        names: Sequence[str] = (),
        on_ready: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._office, self._on_ready = office, on_ready
        self.identity = Identity(office, names or names_of(host, office.url))
        app = make_app(office)
        self._edge: Edge = app.state.edge
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.is_over = False
        self._hourly: asyncio.Task[None] | None = None
        self._lines = Lines(office, self._edge.threads, self._new_connection)
        super().__init__(
            uvicorn.Config(
                app,
                http=SiteProtocol,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # who asks is not a matter of headers
                server_header=False,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal or `stop` ends it."""
        _allow_many_connections()
        _share_memory()
        try:
            super().run([*(sockets or []), self._socket])
        finally:
            self._socket.close()
            self.is_over = True

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, but for its sockets: TLS is ours (`tls.py`)."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(STARTUP_FAILURE)
        acceptors = [
            Acceptor(sock, self.identity.context, self._new_connection) for sock in sockets or ()
        ]
        self.servers = acceptors  # type: ignore[assignment]  # asyncio's, as far as it is used
        self.started = True
        gc.collect()
        gc.freeze()  # what is there now stays: it need not be looked through again and again
        self._hourly = asyncio.get_running_loop().create_task(self._every_hour())
        self._lines.start()
        _log.info("listening", extra={"port": self.port})
        self._on_ready(self.port)

    def _new_connection(self) -> SiteProtocol:
        return SiteProtocol(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._hourly is not None:
            self._hourly.cancel()
        self._lines.close()
        self._edge.polls.close()
        loop = asyncio.get_running_loop()
        loop.call_later(_GOODBYE_S, partial(self._hang_up, SiteProtocol.end_if_idle))
        loop.call_later(_TRANSFERS_S, partial(self._hang_up, SiteProtocol.end))
        await super().shutdown(sockets)

    def _hang_up(self, end: Callable[[SiteProtocol], None]) -> None:
        """TLS would wait for the goodbye of each peer, and idle peers do not listen."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, SiteProtocol):
                end(connection)

    async def _every_hour(self) -> None:
        while True:
            await asyncio.sleep(_HOUR_S)
            try:
                await self._edge.threads.write(self.keep_house)
            except ConsortiumError as error:
                _log.error("%s", error.message, extra={"code": error.code})

    def keep_house(self) -> None:
        """Renew the server's certificate and the operator's token when it is time, and forget
        old answers."""
        if self.identity.renew_if_due():
            _log.info("the server's certificate was renewed")
        self._office.keep_operator_file()
        count = self._edge.remembered.forget_old()
        if count:
            _log.info("old answers were forgotten", extra={"count": count})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but for its last step: a signal has done its work when the server has
        ended. Raised again, it would kill the process before the office is closed."""
        try:
            earlier = {
                number: signal.signal(number, self.handle_exit)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
        except ValueError:  # not the main thread: somebody else takes care of signals
            earlier = {}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


class Identity:
    """The server's TLS context, with a certificate that can be renewed while it is in use."""

    def __init__(self, office: Office, names: Sequence[str]) -> None:
        self._office, self._names = office, names
        self._chain = b""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.load_verify_locations(cadata=office.authority.pem().decode("ascii"))
        # Joiners and operators have no certificate; one that is shown must be ours.
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.renew()

    def renew(self) -> None:
        """Take a new key and certificate: for connections from now on."""
        made = self._office.authority.issue_server(self._names, self._office.clock.now_ms())
        load_chain(self.context, made.key.reveal() + made.chain, self._office.folder)
        self._chain = made.chain

    def renew_if_due(self) -> bool:
        """Whether a new certificate was taken, because a third of the old one's time is left."""
        is_due = needs_renewal(self._chain, self._office.clock.now_ms())
        if is_due:
            self.renew()
        return is_due


def names_of(host: str, url: str) -> tuple[str, ...]:
    """The names that a server is reached by: its address, its url's, and this machine's."""
    wanted = [urlsplit(url).hostname or "", host, *_HERE]
    return tuple(dict.fromkeys(name.lower() for name in wanted if name and not _is_any(name)))


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _allow_many_connections() -> None:
    """Each connection is a file to the system, which often allows a thousand unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _share_memory() -> None:
    """Let threads share what they have freed (glibc): each would keep a heap of its own, and
    what one freed the others would not get. Asked for before there are threads."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        is_dual = family is socket.AF_INET6 and _is_any(host) and socket.has_dualstack_ipv6()
        return socket.create_server(
            (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual
        )
    except OSError as error:
        raise UsageError(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            hint="choose another port with --listen, or end what listens there",
        ) from None

"""Calls to sites that listen: TLS 1.3 from here, with the coordinator's certificate as a caller.

Who answers must prove that it has the key that is on the roster; names and addresses prove
nothing, and a site's certificate has none. On a call the coordinator says one thing: either
that the line is the site's now (`lines.py`), or a question (`train` of the seed).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from consortium.coordinator.addresses import check_url
from consortium.coordinator.chains import load_chain
from consortium.coordinator.office import Office
from consortium.coordinator.tls import READ_BYTES, Transport
from consortium.crypto.authority import needs_renewal, public_key_of
from consortium.errors import CertificateError, UnreachableError

CONNECT_S, HANDSHAKE_S = 10.0, 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """A site that listens: its id, its federation's id, its name, its key, and where it
    listens."""

    site: str
    federation: str
    name: str
    key: bytes
    url: str


class _Outgoing(Transport):
    """A connection that this side has opened, and knows whose it is: it needs no room among
    those who have not said who they are."""

    def open(self) -> None:
        self._shake()  # which is over: it goes on from there


class Caller:
    """Makes calls. To be used in one event loop."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._buffer = memoryview(bytearray(READ_BYTES))  # the loop's, as in `tls.py`
        self._context: ssl.SSLContext | None = None
        self._chain = b""

    async def call(self, target: Target, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Let a new protocol speak with the site, when it has proven who it is. Raises
        `UnreachableError` when nobody answers, `CertificateError` when it is another."""
        loop = asyncio.get_running_loop()
        context = self._verified()
        sock = await _connected(loop, target.url)
        try:
            tls = context.wrap_socket(sock, do_handshake_on_connect=False)
        except OSError:
            sock.close()
            raise UnreachableError("it hung up") from None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await _shake(loop, tls)
            if public_key_of(tls.getpeercert(binary_form=True) or b"") != target.key:
                raise CertificateError("whoever answers there has another key than this site")
        except (OSError, TimeoutError) as error:
            tls.close()
            raise UnreachableError(f"no handshake: {_what(error)}") from None
        except BaseException:
            tls.close()
            raise
        told = {"peername": tls.getpeername(), "sockname": tls.getsockname()}
        _Outgoing(loop, tls, self._buffer, make_protocol, told).open()

    def _verified(self) -> ssl.SSLContext:
        """With a certificate that holds for a while."""
        now_ms = self._office.clock.now_ms()
        if self._context is None or needs_renewal(self._chain, now_ms):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            # The key is compared with the roster instead: TLS proves that the peer has it.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            made = self._office.authority.issue_caller(now_ms)
            load_chain(context, made.pem().reveal(), self._office.folder)
            self._context, self._chain = context, made.chain
        return self._context


async def _connected(loop: asyncio.AbstractEventLoop, url: str) -> socket.socket:
    """A socket to the first of a host's addresses that answers."""
    host, port = check_url(url)
    failure = "no address"
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:  # socket.gaierror has numbers of its own
        raise UnreachableError(f"{host}: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(sock, address)
            return sock
        except (OSError, TimeoutError) as error:
            sock.close()
            failure = _what(error)
        except BaseException:
            sock.close()
            raise
    raise UnreachableError(failure)


async def _shake(loop: asyncio.AbstractEventLoop, tls: ssl.SSLSocket) -> None:
    """Non-blocking, and here rather than in the transport, which tells nobody how it failed."""
    while True:
        try:
            tls.do_handshake()
            return
        except ssl.SSLWantReadError:
            watch, unwatch = loop.add_reader, loop.remove_reader
        except ssl.SSLWantWriteError:
            watch, unwatch = loop.add_writer, loop.remove_writer
        ready = loop.create_future()
        watch(tls, _set, ready)
        try:
            await ready
        finally:
            with suppress(OSError, ValueError):
                unwatch(tls)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _what(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return f"{error.reason or 'TLS'}".lower().replace("_", " ")
    return os.strerror(error.errno) if error.errno else type(error).__name__

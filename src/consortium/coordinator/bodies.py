"""Reading request bodies, never more than allowed. How long one may take is the protocol's
matter (`protocol.py`): it fails the inflow, and whoever reads is told."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from consortium.coordinator.protocol import EXTENSION, INFLOW, Inflow
from consortium.core.ids import Digest
from consortium.errors import TooLargeError, UnsignedRequestError, WireError


def inflow_of(scope: Scope) -> Inflow:
    """Another server has none: then every piece is a message."""
    found = scope.get("extensions", {}).get(EXTENSION, {}).get(INFLOW)
    return found if isinstance(found, Inflow) else Inflow()


async def take_pieces(request: Request, take: Callable[[bytes], None]) -> None:
    """Give the body to `take` as it comes. Raises what that raises, and `ClientDisconnect`
    when the peer hangs up."""
    inflow = inflow_of(request.scope)
    inflow.take = take
    try:
        while True:
            message = await request.receive()
            if inflow.failure is not None:
                raise inflow.failure
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            if piece := message.get("body", b""):
                take(piece)
            if not message.get("more_body", False):
                return
    finally:
        inflow.take = None


async def until_gone(receive: Receive) -> None:
    """Return when the peer has hung up. What it still sends is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def whole(request: Request, most_bytes: int) -> bytes:
    """A small body."""
    data = bytearray()

    def take(piece: bytes) -> None:
        if len(data) + len(piece) > most_bytes:
            raise TooLargeError(f"a body has at most {most_bytes} bytes here")
        data.extend(piece)

    await take_pieces(request, take)
    return bytes(data)


def check_digest(data: bytes, signed: Digest) -> None:
    """Returns when the body is the one that was signed."""
    if sha256(data).digest() != signed:
        raise UnsignedRequestError("the body is not the one that was signed")


def length_of(request: Request, most_bytes: int) -> int:
    """The length that a request announces; it must, and it must not be too long."""
    told = request.headers.get("content-length", "")
    if not told.isdecimal():
        raise WireError("the request does not say how long its body is", hint="Content-Length")
    if len(told) > 18 or int(told) > most_bytes:
        raise TooLargeError(f"a body has at most {most_bytes} bytes here")
    return int(told)

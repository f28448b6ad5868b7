"""A coordinator as an ASGI application: the routes of docs/spec/wire.md over one office."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consortium import __version__
from consortium.coordinator import (
    routes_open,
    routes_operator,
    routes_secret,
    routes_seed,
    routes_site,
    routes_token,
)
from consortium.coordinator.bodies import inflow_of
from consortium.coordinator.described import describe
from consortium.coordinator.edge import Edge
from consortium.coordinator.gate import OPERATOR, VISIT, guarded, leave
from consortium.coordinator.metrics import Metrics
from consortium.coordinator.office import Office
from consortium.coordinator.problems import add_handlers, route_of, unexpected
from consortium.coordinator.shortcut import shortcut
from consortium.errors import InternalError
from consortium.wire.messages import MAX_CHUNKS_BYTES
from consortium.wire.version import PRESENT, PROTOCOL

# Whatever the environment says. Versions of the framework that have none take no notice.
_NO_TELEMETRY: dict[str, Any] = {
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
}
MODULES = (routes_open, routes_site, routes_secret, routes_operator, routes_token, routes_seed)
_FIRST_REFUSAL = 400
_VERSION = (PROTOCOL.lower().encode(), str(PRESENT).encode())
_log = logging.getLogger(__name__)


def make_app(office: Office) -> FastAPI:
    """The application. Its `state.edge` has what the server needs to end it."""
    edge = Edge(office)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        edge.close()

    app = FastAPI(
        title="consortium",
        version=__version__,
        description="Federated learning: what sites and operators say to a coordinator.",
        openapi_url=None,  # routes_open has it, behind the gate
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        separate_input_output_schemas=False,
        redirect_slashes=False,  # a signature covers one path
        lifespan=lifespan,
        **_NO_TELEMETRY,
    )
    app.state.edge = edge
    for module in MODULES:
        guarded(app, module.routes)
    add_handlers(app)
    app.add_middleware(Outermost, metrics=edge.metrics)
    app.openapi = cache(lambda: describe(app))  # type: ignore[method-assign]
    return app


@dataclass(slots=True)
class _Course:
    """How a request went."""

    started_s: float
    status: int = 0
    received: int = 0
    sent: int = 0


class Outermost:
    """Counts, and lets nothing unexpected out. Plain ASGI, so that bodies stream through."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        course = _Course(time.perf_counter())

        async def counted_receive() -> Message:
            message = await receive()
            course.received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                _check_visit(scope, message)
                course.status = message["status"]
                message["headers"] = [*message.get("headers", []), _VERSION]
                _end_endless_body(scope, message)
            else:
                course.sent += len(message.get("body", b""))
            await send(message)

        try:
            handle = shortcut(scope)
            if handle is None:
                await self._app(scope, counted_receive, counted_send)
            else:
                response = await handle(Request(scope, counted_receive))
                await response(scope, counted_receive, counted_send)
        except ClientDisconnect:
            pass  # nobody is there to be told
        except Exception as error:
            if course.status:  # too late to say it otherwise: the connection breaks off
                raise
            await unexpected(error)(scope, counted_receive, counted_send)
        finally:
            leave(scope)
            self._count(scope, course)

    def _count(self, scope: Scope, course: _Course) -> None:
        route, seconds = route_of(scope), time.perf_counter() - course.started_s
        self._metrics.count(scope["method"], route, course.status, seconds)
        received = course.received + inflow_of(scope).count
        self._metrics.count_bytes(received, course.sent)
        _note_order(scope, route, course.status)
        if _log.isEnabledFor(logging.DEBUG):
            told = {"method": scope["method"], "route": route, "status": course.status}
            _log.debug("answered", extra=told | {"seconds": round(seconds, 6)})


def _note_order(scope: Scope, route: str, status: int) -> None:
    """Whoever has to explain later who held a study, or tried to, finds it in the log."""
    who, method = scope.get(OPERATOR), scope["method"]
    if who is None or method == "GET":
        return
    told = {"method": method, "route": route, "status": status}
    told |= {"operator": who.label, "role": str(who.role)}
    place = scope["path"] if VISIT in scope else route  # else anything may stand there
    _log.info("%s (%s): %s %s %s", who.label, who.role, method, place, status, extra=told)


def _check_visit(scope: Scope, start: Message) -> None:
    """Whatever way a request took, it is answered when it has passed the gate, or refused."""
    if start["status"] < _FIRST_REFUSAL and VISIT not in scope:
        raise InternalError("an answer that no check has passed was held back")


def _end_endless_body(scope: Scope, start: Message) -> None:
    """Hang up after an answer to a request whose body we would not read to its end."""
    for name, value in scope["headers"]:
        is_endless = name == b"transfer-encoding"
        is_long = name == b"content-length" and int(value) > MAX_CHUNKS_BYTES
        if is_endless or is_long:
            start["headers"] = [*start.get("headers", []), (b"connection", b"close")]
            return

"""What every route uses: the office behind it, the threads, the sites that wait.

A route is behind the gate: who asks is known, and may. It parses, calls, and answers; it
decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar, cast

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from consortium.coordinator.access import Action
from consortium.coordinator.auth import Caller
from consortium.coordinator.bodies import check_digest, whole
from consortium.coordinator.gate import Gate, visit_of
from consortium.coordinator.metrics import Metrics
from consortium.coordinator.office import Office
from consortium.coordinator.polls import Polls
from consortium.coordinator.problems import PROBLEM
from consortium.coordinator.remembered import Remembered
from consortium.coordinator.threads import Threads
from consortium.errors import InternalError, WireError
from consortium.wire.messages import MAX_JSON_BYTES, read_body

JSON = "application/json"
_FIRST_REFUSAL = 400

Body = TypeVar("Body", bound=BaseModel)


class Edge:
    """The HTTP half of one coordinator."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.gate = Gate(office)
        self.threads = Threads()
        self.polls = Polls(self.threads)
        self.remembered = Remembered(office.registry, office.clock)
        self.metrics = Metrics(office, self.polls.waiting)

    def admit(self, request: Request, action: Action) -> Caller:
        """The site that signed this request, for what does not come through the gate."""
        return _caller(self.gate.admit(request, action).caller)

    async def signed(self, request: Request, kind: type[Body]) -> tuple[Caller, Body]:
        """The site, and the message that it signed."""
        caller = _caller(visit_of(request).caller)
        data = await whole(request, MAX_JSON_BYTES)
        check_digest(data, caller.body)
        return caller, read_body(kind, data)

    async def answered(self, request: Request, kind: type[Body]) -> tuple[Caller, Body]:
        """The site, and its answer to a round. It must be spelt in the one way that the fact
        can be spelt again in: an auditor makes the signed bytes anew from the log."""
        caller, body = await self.signed(request, kind)
        if sha256(body.model_dump_json().encode()).digest() != caller.body:
            raise WireError(
                "the body is not in its canonical form",
                hint="keys in the order of the schema, no spaces, shortest numbers",
            )
        return caller, body

    async def asking(self, request: Request) -> Caller:
        """The site, whose request has no body."""
        caller = _caller(visit_of(request).caller)
        check_digest(await whole(request, 0), caller.body)
        return caller

    async def once(self, caller: Caller, perform: Callable[[], BaseModel]) -> Response:
        """Perform a request that has effects, unless it is one that we have answered."""
        line = caller.signed.line
        kept = await self.threads.write(lambda: self.remembered.once(line, perform))
        kind = PROBLEM if kept.status >= _FIRST_REFUSAL else JSON
        return Response(kept.body, kept.status, media_type=kind)

    def close(self) -> None:
        self.polls.close()
        self.threads.close()


def edge_of(request: Request) -> Edge:
    """The coordinator that a request came to."""
    return cast(Edge, request.app.state.edge)


def _caller(found: Caller | None) -> Caller:
    if found is None:
        raise InternalError("a route of sites was declared for others")
    return found


def told(message: BaseModel) -> Response:
    """An answer as it travels."""
    return Response(message.model_dump_json(), media_type=JSON)

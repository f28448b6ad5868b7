"""The routes that the first description of the product named, under the same names."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consortium.coordinator.access import Action
from consortium.coordinator.bodies import whole
from consortium.coordinator.described import declared
from consortium.coordinator.edge import edge_of, told
from consortium.coordinator.gate import GuardedRoute, Visit, visit_of
from consortium.coordinator.telling import View
from consortium.plan.values import DEPLOYMENT_KEYS
from consortium.wire.messages import (
    MAX_JSON_BYTES,
    ClientRegister,
    ClientRegistered,
    ServerStart,
    ServerStarted,
    read_body,
)

routes = APIRouter(prefix="/federated", tags=["seed"], route_class=GuardedRoute)


@routes.post("/server/start", **declared(Action.RUN, ServerStart, ServerStarted))
async def start(request: Request) -> Response:
    """Let a federation run, or run again after a hold."""
    edge, visit = edge_of(request), visit_of(request)
    body = read_body(ServerStart, await whole(request, MAX_JSON_BYTES))
    return told(await edge.threads.write(lambda: _started(visit, body)))


@routes.get("/server/status", **declared(Action.LOOK, None, "view"))
async def status(request: Request) -> Response:
    """The status of every federation that the caller may see."""
    edge, visit = edge_of(request), visit_of(request)
    views = await edge.threads.read(lambda: _seen(visit))
    return JSONResponse({"federations": views})


def _seen(visit: Visit) -> list[View]:
    return [one.seen_by(visit.who).status() for one in visit.tellers()]


@routes.post("/client/register", **declared(Action.TAKE_PART, ClientRegister, ClientRegistered))
async def register(request: Request) -> Response:
    """A site says that it is there."""
    edge = edge_of(request)
    caller, body = await edge.signed(request, ClientRegister)
    return await edge.once(caller, lambda: caller.desk.register(caller.site, body))


def _started(visit: Visit, body: ServerStart) -> ServerStarted:
    teller = visit.teller(body.federation)
    teller.resume()
    plan = teller.desk.study_of_plan().plan
    config = plan.model_dump(mode="json", exclude=DEPLOYMENT_KEYS)
    return ServerStarted(status="started", config=config)

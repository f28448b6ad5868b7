"""The routes that the first description of the product named, under the same names."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consortium.coordinator.bodies import whole
from consortium.coordinator.described import ordered, signed
from consortium.coordinator.edge import edge_of, told
from consortium.coordinator.office import Office
from consortium.coordinator.telling import Teller
from consortium.errors import UnknownFederationError
from consortium.plan.values import DEPLOYMENT_KEYS
from consortium.wire.messages import (
    MAX_JSON_BYTES,
    ClientRegister,
    ClientRegistered,
    ServerStart,
    ServerStarted,
    read_body,
)

routes = APIRouter(prefix="/federated", tags=["seed"])


@routes.post("/server/start", **ordered(ServerStart, ServerStarted))
async def start(request: Request) -> Response:
    """Let a federation run, or run again after a hold."""
    edge = edge_of(request)
    await edge.ordering(request)
    body = read_body(ServerStart, await whole(request, MAX_JSON_BYTES))
    return told(await edge.threads.write(lambda: _started(edge.office, body)))


@routes.get("/server/status", **ordered(None, "view"))
async def status(request: Request) -> Response:
    """The status of every federation."""
    edge = edge_of(request)
    await edge.operator(request)
    views = await edge.threads.read(lambda: [one.status() for one in edge.office.tellers()])
    return JSONResponse({"federations": views})


@routes.post("/client/register", **signed(ClientRegister, ClientRegistered))
async def register(request: Request) -> Response:
    """A site says that it is there."""
    edge = edge_of(request)
    caller, body = await edge.signed(request, ClientRegister)
    return await edge.once(caller, lambda: caller.desk.register(caller.site, body))


def _started(office: Office, body: ServerStart) -> ServerStarted:
    teller = _meant(office, body.federation)
    teller.resume()
    plan = teller.desk.study_of_plan().plan
    config = plan.model_dump(mode="json", exclude=DEPLOYMENT_KEYS)
    return ServerStarted(status="started", config=config)


def _meant(office: Office, name: str | None) -> Teller:
    if name is not None:
        return office.teller_named(name)
    tellers = office.tellers()
    if len(tellers) != 1:
        raise UnknownFederationError(
            f"there are {len(tellers)} federations here", hint="name the one that you mean"
        )
    return tellers[0]

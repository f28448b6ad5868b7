"""The routes for anybody: is it there, whose authority is it, and how to join."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consortium.coordinator.access import Action
from consortium.coordinator.bodies import whole
from consortium.coordinator.described import declared
from consortium.coordinator.edge import Edge, edge_of, told
from consortium.coordinator.gate import GuardedRoute, address_of
from consortium.coordinator.office import Office
from consortium.errors import StoreFailedError
from consortium.wire.messages import Enrol, Enrolled, Reply, read_body

routes = APIRouter(tags=["open"], route_class=GuardedRoute)

_MAX_ENROL_BYTES = 16 << 10


class Health(Reply):
    """`status` is ok."""

    status: str


@routes.get("/health", **declared(Action.GREET, None, Health))
async def health() -> Response:
    """The process is there."""
    return told(Health(status="ok"))


@routes.get("/ready", **declared(Action.GREET, None, Health))
async def ready(request: Request) -> Response:
    """The log is open, the disk has room, every federation is folded and somebody works."""
    edge = edge_of(request)
    await edge.threads.read(lambda: _check_readiness(edge.office))
    return told(Health(status="ok"))


def _check_readiness(office: Office) -> None:
    office.uploads.check_room()
    rows = office.registry.federations()
    if {row.id for row in rows} != set(office.desks):
        raise StoreFailedError("a federation is not open yet")
    for desk in office.desks.values():
        if not desk.is_working:
            raise StoreFailedError("nobody does what is owed in a federation")
        for _ in office.directory.log.read(desk.id, max(0, desk.size - 1), desk.size):
            pass  # a disk that fails says so here


@routes.get("/openapi.json", **declared(Action.GREET, None, "view"))
async def openapi(request: Request) -> Response:
    """These routes."""
    return JSONResponse(request.app.openapi())


@routes.get("/v1/authority", **declared(Action.GREET, None, "pem"))
async def authority(request: Request) -> Response:
    """The authority's certificate: compare it with the token before you say anything."""
    office = edge_of(request).office
    return Response(office.authority.pem(), media_type="application/x-pem-file")


@routes.post("/v1/enrol", **declared(Action.JOIN, Enrol, Enrolled))
async def enrol(request: Request) -> Response:
    """A token, and a request for a certificate, for a place in a federation."""
    edge = edge_of(request)
    body = read_body(Enrol, await whole(request, _MAX_ENROL_BYTES))
    address = address_of(request)
    return told(await edge.threads.write(lambda: _enrol(edge, address, body)))


def _enrol(edge: Edge, address: str, body: Enrol) -> Enrolled:
    with edge.gate.rates.guess(address):
        return edge.office.enrol(body)

"""The routes of whoever gives tokens to operators: an admin of the whole coordinator."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consortium.coordinator.access import Action
from consortium.coordinator.bodies import whole
from consortium.coordinator.described import declared
from consortium.coordinator.edge import edge_of, told
from consortium.coordinator.gate import GuardedRoute
from consortium.coordinator.tokens import new_token, tokens
from consortium.wire.messages import MAX_JSON_BYTES, NewToken, TokenMade, read_body

routes = APIRouter(prefix="/v1/tokens", tags=["token"], route_class=GuardedRoute)

LabelPath = Annotated[str, Path(pattern="^[A-Za-z0-9_-]{1,64}$", description="the token's label")]


@routes.get("", **declared(Action.GRANT, None, "views"))
async def listed(request: Request) -> Response:
    """Whose tokens there are, for what, and until when."""
    edge = edge_of(request)
    found = await edge.threads.read(lambda: tokens(edge.office))
    return JSONResponse([one.model_dump() for one in found])


@routes.post("", **declared(Action.GRANT, NewToken, TokenMade))
async def new(request: Request) -> Response:
    """A token, which is told once."""
    edge = edge_of(request)
    body = read_body(NewToken, await whole(request, MAX_JSON_BYTES))
    return told(await edge.threads.write(lambda: new_token(edge.office, body)))


@routes.post("/{label}/revoke", **declared(Action.GRANT, None, "view"))
async def revoke(request: Request, label: LabelPath) -> Response:
    """From now on it is nobody's."""
    edge = edge_of(request)
    await whole(request, MAX_JSON_BYTES)  # says nothing that we need
    await edge.threads.write(lambda: edge.office.registry.revoke_operator(label))
    return JSONResponse({"label": label, "revoked": True})

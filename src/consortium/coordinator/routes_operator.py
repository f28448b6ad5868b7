"""The routes of operators: what is going on, and orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consortium.coordinator.bodies import whole
from consortium.coordinator.described import Invite, Invited, ordered
from consortium.coordinator.edge import edge_of, told
from consortium.coordinator.files import Download, OpenFile, open_file
from consortium.coordinator.metrics import TEXT
from consortium.coordinator.telling import Teller
from consortium.wire.messages import MAX_JSON_BYTES, read_body

routes = APIRouter(tags=["operator"])

_F = "/v1/federations/{name}"
NamePath = Annotated[str, Path(min_length=1, max_length=64, description="the federation's name")]
SiteNamePath = Annotated[str, Path(min_length=1, max_length=129, description="the site's name")]
RoundPath = Annotated[int, Path(ge=0, lt=1 << 62, description="the round's number")]
VersionPath = Annotated[int, Path(ge=0, lt=1 << 62, description="the model's version")]


async def _look(request: Request, name: str, view: Callable[[Teller], Any]) -> Response:
    """What an operator is told."""
    edge = edge_of(request)
    await edge.operator(request)
    return JSONResponse(await edge.threads.read(lambda: view(edge.office.teller_named(name))))


async def _order(request: Request, name: str, give: Callable[[Teller], Any]) -> Response:
    """What an operator orders, and what it is told then."""
    edge = edge_of(request)
    await edge.ordering(request)
    await whole(request, MAX_JSON_BYTES)  # says nothing that we need
    return JSONResponse(await edge.threads.write(lambda: give(edge.office.teller_named(name))))


# ---- views --------------------------------------------------------------------------


@routes.get("/metrics", **ordered(None, "text"))
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    edge = edge_of(request)
    await edge.operator(request)
    return Response(await edge.threads.read(edge.metrics.text), media_type=TEXT)


@routes.get("/v1/federations", **ordered(None, "views"))
async def federations(request: Request) -> Response:
    """Every federation in a line."""
    edge = edge_of(request)
    await edge.operator(request)
    return JSONResponse(await edge.threads.read(lambda: _lines(edge.office.tellers())))


def _lines(tellers: list[Teller]) -> list[dict[str, Any]]:
    shown = ("federation", "id", "standing", "finished", "rounds", "version", "sites")
    return [{key: view[key] for key in shown} for view in (one.status() for one in tellers)]


@routes.get(_F, **ordered(None, "view"))
async def status(request: Request, name: NamePath) -> Response:
    """Plan, task, standing, the open round, sites, versions, who waits for what."""
    return await _look(request, name, Teller.status)


@routes.get(f"{_F}/rounds", **ordered(None, "views"))
async def rounds(request: Request, name: NamePath) -> Response:
    """The history."""
    return await _look(request, name, Teller.rounds)


@routes.get(f"{_F}/rounds/{{number}}", **ordered(None, "view"))
async def one_round(request: Request, name: NamePath, number: RoundPath) -> Response:
    """One round with every site's part."""
    return await _look(request, name, lambda teller: teller.round(number))


@routes.get(f"{_F}/models", **ordered(None, "views"))
async def models(request: Request, name: NamePath) -> Response:
    """Every version that was published."""
    return await _look(request, name, Teller.models)


@routes.get(f"{_F}/models/{{version}}", **ordered(None, "view"))
async def model(request: Request, name: NamePath, version: VersionPath) -> Response:
    """One version, with its tensors."""
    return await _look(request, name, lambda teller: teller.model(version))


@routes.head(f"{_F}/models/{{version}}/file", **ordered(None, "file"))
@routes.get(f"{_F}/models/{{version}}/file", **ordered(None, "file"))
async def model_file(request: Request, name: NamePath, version: VersionPath) -> Response:
    """The model as safetensors."""
    edge = edge_of(request)
    await edge.operator(request)
    teller = edge.office.teller_named(name)
    return Download(await edge.threads.read(lambda: _opened(teller, version)))


def _opened(teller: Teller, version: int) -> OpenFile:
    digest = teller.model_digest(version)
    return open_file(teller.desk.blobs.path(digest), digest)


@routes.get(f"{_F}/sites", **ordered(None, "views"))
async def sites(request: Request, name: NamePath) -> Response:
    """Who is there, and when each was last heard of."""
    return await _look(request, name, Teller.sites)


# ---- orders -------------------------------------------------------------------------


@routes.post(f"{_F}/models/{{version}}/rollback", **ordered(None, "view"))
async def rollback(request: Request, name: NamePath, version: VersionPath) -> Response:
    """The next round starts from this version."""
    return await _order(request, name, lambda teller: teller.rollback(version))


@routes.post(f"{_F}/hold", **ordered(None, "view"))
async def hold(request: Request, name: NamePath) -> Response:
    """No new round until it is resumed."""
    return await _order(request, name, Teller.hold)


@routes.post(f"{_F}/resume", **ordered(None, "view"))
async def resume(request: Request, name: NamePath) -> Response:
    """Go on after a hold."""
    return await _order(request, name, Teller.resume)


@routes.post(f"{_F}/stop", **ordered(None, "view"))
async def stop(request: Request, name: NamePath) -> Response:
    """End the federation."""
    return await _order(request, name, Teller.stop)


@routes.post(f"{_F}/rounds/open", **ordered(None, "view"))
async def open_round(request: Request, name: NamePath) -> Response:
    """Open a round now."""
    return await _order(request, name, Teller.open_round)


@routes.post(f"{_F}/rounds/{{number}}/cancel", **ordered(None, "view"))
async def cancel(request: Request, name: NamePath, number: RoundPath) -> Response:
    """End the open round without a model."""
    return await _order(request, name, lambda teller: teller.cancel(number))


@routes.post(f"{_F}/invites", **ordered(Invite, Invited))
async def invite(request: Request, name: NamePath) -> Response:
    """A line for a site to paste; it works once."""
    edge = edge_of(request)
    await edge.ordering(request)
    body = read_body(Invite, await whole(request, MAX_JSON_BYTES))
    token, expires_ms = await edge.threads.write(lambda: edge.office.invite(name, body.name))
    return told(Invited(token=token, expires_ms=expires_ms))


@routes.post(f"{_F}/sites/{{site}}/revoke", **ordered(None, "view"))
async def revoke(request: Request, name: NamePath, site: SiteNamePath) -> Response:
    """Out, from the next request on."""
    return await _order(request, name, lambda teller: teller.revoke(site))

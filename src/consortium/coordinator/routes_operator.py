"""The routes of operators: what is going on, and orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from consortium.coordinator.access import Action
from consortium.coordinator.bodies import whole
from consortium.coordinator.described import declared
from consortium.coordinator.edge import edge_of, told
from consortium.coordinator.files import Download, OpenFile, open_file
from consortium.coordinator.gate import GuardedRoute, visit_of
from consortium.coordinator.metrics import TEXT
from consortium.coordinator.telling import Teller
from consortium.errors import InternalError
from consortium.wire.messages import MAX_JSON_BYTES, Invite, Invited, Listens, read_body

routes = APIRouter(tags=["operator"], route_class=GuardedRoute)

_F = "/v1/federations/{name}"
NamePath = Annotated[str, Path(min_length=1, max_length=64, description="the federation's name")]
SiteNamePath = Annotated[str, Path(min_length=1, max_length=129, description="the site's name")]
RoundPath = Annotated[int, Path(ge=0, lt=1 << 62, description="the round's number")]
VersionPath = Annotated[int, Path(ge=0, lt=1 << 62, description="the model's version")]


async def _named(request: Request, name: NamePath) -> Teller:
    """The federation of the path: the gate has found it, and that this may be done there. What
    it tells is what the caller may know."""
    visit = visit_of(request)
    if visit.place is None or visit.place.desk.name != name:
        raise InternalError("the gate has let somebody into another federation")
    return visit.place.seen_by(visit.who)


Named = Annotated[Teller, Depends(_named)]


async def _look(request: Request, teller: Teller, view: Callable[[Teller], Any]) -> Response:
    """What an operator is told."""
    edge = edge_of(request)
    return JSONResponse(await edge.threads.read(lambda: view(teller)))


async def _order(request: Request, teller: Teller, give: Callable[[Teller], Any]) -> Response:
    """What an operator orders, and what it is told then."""
    edge = edge_of(request)
    await whole(request, MAX_JSON_BYTES)  # says nothing that we need
    return JSONResponse(await edge.threads.write(lambda: give(teller)))


# ---- views --------------------------------------------------------------------------


@routes.get("/metrics", **declared(Action.MEASURE, None, "text"))
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    edge = edge_of(request)
    return Response(await edge.threads.read(edge.metrics.text), media_type=TEXT)


@routes.get("/v1/federations", **declared(Action.LOOK, None, "views"))
async def federations(request: Request) -> Response:
    """Every federation that the caller may see, in a line."""
    edge, visit = edge_of(request), visit_of(request)
    return JSONResponse(await edge.threads.read(lambda: _lines(visit.tellers())))


def _lines(tellers: list[Teller]) -> list[dict[str, Any]]:
    shown = ("federation", "id", "standing", "finished", "rounds", "version", "sites")
    return [{key: view[key] for key in shown} for view in (one.status() for one in tellers)]


@routes.get(_F, **declared(Action.LOOK, None, "view"))
async def status(request: Request, teller: Named) -> Response:
    """Plan, task, standing, the open round, sites, versions, who waits for what."""
    return await _look(request, teller, Teller.status)


@routes.get(f"{_F}/rounds", **declared(Action.LOOK, None, "views"))
async def rounds(request: Request, teller: Named) -> Response:
    """The history."""
    return await _look(request, teller, Teller.rounds)


@routes.get(f"{_F}/rounds/{{number}}", **declared(Action.LOOK, None, "view"))
async def one_round(request: Request, teller: Named, number: RoundPath) -> Response:
    """One round with every site's part, for whoever may inspect sites; without names and
    single sites' numbers for others."""
    return await _look(request, teller, lambda one: one.round(number))


@routes.get(f"{_F}/models", **declared(Action.LOOK, None, "views"))
async def models(request: Request, teller: Named) -> Response:
    """Every version that was published."""
    return await _look(request, teller, Teller.models)


@routes.get(f"{_F}/models/{{version}}", **declared(Action.LOOK, None, "view"))
async def model(request: Request, teller: Named, version: VersionPath) -> Response:
    """One version, with its tensors."""
    return await _look(request, teller, lambda one: one.model(version))


@routes.head(f"{_F}/models/{{version}}/file", **declared(Action.DOWNLOAD, None, "file"))
@routes.get(f"{_F}/models/{{version}}/file", **declared(Action.DOWNLOAD, None, "file"))
async def model_file(request: Request, teller: Named, version: VersionPath) -> Response:
    """The model as safetensors."""
    edge = edge_of(request)
    return Download(await edge.threads.read(lambda: _opened(teller, version)))


def _opened(teller: Teller, version: int) -> OpenFile:
    digest = teller.model_digest(version)
    return open_file(teller.desk.blobs.path(digest), digest)


@routes.get(f"{_F}/budget", **declared(Action.LOOK, None, "view"))
async def budget(request: Request, teller: Named) -> Response:
    """The privacy budget: limits, what was spent, what another round would cost."""
    return await _look(request, teller, Teller.budget)


@routes.get(f"{_F}/sites", **declared(Action.INSPECT, None, "views"))
async def sites(request: Request, teller: Named) -> Response:
    """Who is there, and when each was last heard of."""
    return await _look(request, teller, Teller.sites)


# ---- orders -------------------------------------------------------------------------


@routes.post(f"{_F}/models/{{version}}/rollback", **declared(Action.RUN, None, "view"))
async def rollback(request: Request, teller: Named, version: VersionPath) -> Response:
    """The next round starts from this version; sites move to it when none follows."""
    return await _order(request, teller, lambda one: one.rollback(version))


@routes.post(f"{_F}/hold", **declared(Action.HOLD, None, "view"))
async def hold(request: Request, teller: Named) -> Response:
    """No new round until it is resumed."""
    return await _order(request, teller, Teller.hold)


@routes.post(f"{_F}/resume", **declared(Action.RUN, None, "view"))
async def resume(request: Request, teller: Named) -> Response:
    """Go on after a hold. Refused when the federation is finished."""
    return await _order(request, teller, Teller.resume)


@routes.post(f"{_F}/stop", **declared(Action.RUN, None, "view"))
async def stop(request: Request, teller: Named) -> Response:
    """End the federation."""
    return await _order(request, teller, Teller.stop)


@routes.post(f"{_F}/rounds/open", **declared(Action.RUN, None, "view"))
async def open_round(request: Request, teller: Named) -> Response:
    """Open a round now."""
    return await _order(request, teller, Teller.open_round)


@routes.post(f"{_F}/rounds/{{number}}/cancel", **declared(Action.RUN, None, "view"))
async def cancel(request: Request, teller: Named, number: RoundPath) -> Response:
    """End the open round without a model."""
    return await _order(request, teller, lambda one: one.cancel(number))


@routes.post(f"{_F}/invites", **declared(Action.INVITE, Invite, Invited))
async def invite(request: Request, teller: Named) -> Response:
    """A line for a site to paste; it works once."""
    edge = edge_of(request)
    body = read_body(Invite, await whole(request, MAX_JSON_BYTES))
    federation = teller.desk.name
    token, expires_ms = await edge.threads.write(
        lambda: edge.office.invite(federation, body.name, body.listens)
    )
    return told(Invited(token=token, expires_ms=expires_ms))


@routes.post(f"{_F}/sites/{{site}}/listens", **declared(Action.INVITE, Listens, "view"))
async def listens(request: Request, teller: Named, site: SiteNamePath) -> Response:
    """Where a site is called from now on."""
    edge = edge_of(request)
    body = read_body(Listens, await whole(request, MAX_JSON_BYTES))
    return JSONResponse(await edge.threads.write(lambda: teller.listens(site, body.url)))


@routes.post(f"{_F}/sites/{{site}}/revoke", **declared(Action.REVOKE, None, "view"))
async def revoke(request: Request, teller: Named, site: SiteNamePath) -> Response:
    """Out, from the next request on; an invitation that nobody has used is void."""
    return await _order(request, teller, lambda one: one.revoke(site))

"""The routes of secret sums: what a site gives, and what it is told of the others."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from consortium.coordinator.access import Action
from consortium.coordinator.described import declared
from consortium.coordinator.edge import edge_of, told
from consortium.coordinator.gate import GuardedRoute
from consortium.coordinator.routes_site import RoundPath
from consortium.wire.messages import Taken
from consortium.wire.secret_sum import (
    AnswerNote,
    ConsentNote,
    ConsentSheet,
    KeysNote,
    SessionSheet,
    SharesNote,
    SharingSheet,
    SplitSheet,
)

routes = APIRouter(prefix="/v1/rounds/{number}", tags=["site"], route_class=GuardedRoute)


@routes.post("/keys", **declared(Action.TAKE_PART, KeysNote, Taken))
async def keys(request: Request, number: RoundPath) -> Response:
    """This site's public keys for a round whose sum is secret."""
    edge = edge_of(request)
    caller, body = await edge.answered(request, KeysNote)
    caller.in_round(number, "keys")
    return await edge.once(caller, lambda: caller.desk.secret.keys(caller.site, number, body))


@routes.get("/session", **declared(Action.TAKE_PART, None, SessionSheet))
async def session(request: Request, number: RoundPath) -> Response:
    """Who masks with each other in this round, and by which keys."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    return told(await edge.threads.read(lambda: caller.desk.secret.session(caller.site, number)))


@routes.post("/shares", **declared(Action.TAKE_PART, SharesNote, Taken))
async def shares(request: Request, number: RoundPath) -> Response:
    """This site's seeds, in shares that are sealed for the others."""
    edge = edge_of(request)
    caller, body = await edge.answered(request, SharesNote)
    caller.in_round(number, "shares")
    envelope = caller.signed.envelope()
    return await edge.once(
        caller, lambda: caller.desk.secret.shares(caller.site, number, body, envelope)
    )


@routes.get("/sharing", **declared(Action.TAKE_PART, None, SharingSheet))
async def sharing(request: Request, number: RoundPath) -> Response:
    """Who has shared, and the shares that this site holds."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    return told(await edge.threads.read(lambda: caller.desk.secret.sharing(caller.site, number)))


@routes.get("/split", **declared(Action.TAKE_PART, None, SplitSheet))
async def split(request: Request, number: RoundPath) -> Response:
    """Who is in the sum."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    return told(await edge.threads.read(lambda: caller.desk.secret.split(caller.site, number)))


@routes.post("/consent", **declared(Action.TAKE_PART, ConsentNote, Taken))
async def consent(request: Request, number: RoundPath) -> Response:
    """This member's signature on who is in the sum."""
    edge = edge_of(request)
    caller, body = await edge.answered(request, ConsentNote)
    caller.in_round(number, "consent")
    return await edge.once(caller, lambda: caller.desk.secret.consent(caller.site, number, body))


@routes.get("/consents", **declared(Action.TAKE_PART, None, ConsentSheet))
async def consents(request: Request, number: RoundPath) -> Response:
    """Which members have signed who is in the sum."""
    edge = edge_of(request)
    caller = await edge.asking(request)
    return told(await edge.threads.read(lambda: caller.desk.secret.consents(caller.site, number)))


@routes.post("/answer", **declared(Action.TAKE_PART, AnswerNote, Taken))
async def answer(request: Request, number: RoundPath) -> Response:
    """This member's shares of the others, so that the masks can be taken off the sum."""
    edge = edge_of(request)
    caller, body = await edge.answered(request, AnswerNote)
    caller.in_round(number, "answer")
    envelope = caller.signed.envelope()
    return await edge.once(
        caller, lambda: caller.desk.secret.answer(caller.site, number, body, envelope)
    )

"""The way in: who asks is found out, and whether it may, before a route begins.

A route is made with its action, or not at all; its function runs when the check has passed.
What a route can reach of the office it gets from the `Visit` that passed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, cast

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from consortium.coordinator.access import RULES, Action, Role, Who, allowed, check, not_here
from consortium.coordinator.auth import Caller, operator_of, site_of, token_of
from consortium.coordinator.described import ACTION
from consortium.coordinator.office import Office
from consortium.coordinator.protocol import EXTENSION, TRUST
from consortium.coordinator.rates import Rates, UnderWay
from consortium.coordinator.telling import Teller
from consortium.coordinator.threads import Threads
from consortium.errors import CertificateError, InternalError, UnsignedRequestError
from consortium.wire.version import PROTOCOL, check_version

VISIT = "consortium.visit"  # in a request's scope, when it has passed
_LEAVE = "consortium.leave"  # what to do when a request of a site is answered
_TOKEN = "consortium.token"  # a hash of an operator's
OPERATOR = "consortium.operator"  # whose token it is, whether it may or not
_FEDERATION = "name"  # what paths call it
_ANYBODY = Who(Role.ANYBODY)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that has passed. A site's has a `caller`; `place` is the federation that the
    path names."""

    office: Office
    who: Who
    action: Action
    caller: Caller | None = None
    place: Teller | None = None

    def teller(self, name: str | None) -> Teller:
        """A federation that is named elsewhere than in the path; None: the only one."""
        if name is None:
            return self.office.only(self.tellers())
        row = self.office.federation(name)
        if row is None:
            raise not_here(name)
        check(self.who, self.action, row)
        return self.office.teller_named(name)

    def tellers(self) -> list[Teller]:
        """All federations that this may be done in."""
        rows = self.office.federations()
        names = [row.name for row in rows if allowed(self.who, self.action, row)]
        return [self.office.teller_named(name) for name in names]


class Gate:
    """Lets requests of one coordinator in. Looks at databases: call it in a thread."""

    def __init__(self, office: Office) -> None:
        self.rates = Rates()
        self.under_way = UnderWay()
        self._office = office

    def admit(self, request: Request, action: Action) -> Visit:
        """Raises unless this request's sender may do this."""
        check_version(request.headers.get(PROTOCOL), "whoever asks")
        visit = self._identified(request, action)
        name = request.path_params.get(_FEDERATION)
        if name is None:
            check(visit.who, action, None)
        else:
            visit = replace(visit, place=visit.teller(name))
        request.scope[VISIT] = visit
        return visit

    def _identified(self, request: Request, action: Action) -> Visit:
        """Who asks, as what this action is for. Whether it may is not yet said."""
        roles = RULES[action].roles
        if Role.ANYBODY in roles:
            self.rates.stranger(address_of(request))
            return Visit(self._office, _ANYBODY, action)
        if Role.SITE in roles:
            caller = self._site(request, action)
            return Visit(self._office, caller.who, action, caller)
        return Visit(self._office, self._operator(request), action)

    def _site(self, request: Request, action: Action) -> Caller:
        try:
            caller = site_of(request, self._office, may_be_out=action is Action.LEAVE)
        except (UnsignedRequestError, CertificateError):
            self.rates.wrong_signature(address_of(request))
            raise
        self.rates.site(caller.site.id, is_chunk=action is Action.UPLOAD)
        if _LEAVE not in request.scope:  # a chunk may come by here twice
            self.under_way.enter(caller.site.id)
            request.scope[_LEAVE] = partial(self.under_way.leave, caller.site.id)
        return caller

    def _operator(self, request: Request) -> Who:
        token = token_of(request)
        key = sha256(token.encode(errors="surrogatepass")).hexdigest()
        with self.rates.guess(address_of(request)):
            who = operator_of(token, self._office)
        self.rates.operator(key)
        request.scope[_TOKEN], request.scope[OPERATOR] = key, who
        return who


def leave(scope: Scope) -> None:
    """A request is answered, or will not be."""
    done = scope.pop(_LEAVE, None)
    if done is not None:
        done()


def _trust(scope: Scope) -> None:
    """Let the connection of an operator keep its place among strangers. Call it in the loop."""
    trust = scope.get("extensions", {}).get(EXTENSION, {}).get(TRUST)
    if trust is not None and _TOKEN in scope:
        trust(scope[_TOKEN])


def address_of(request: Request) -> str:
    """Where a request came from."""
    return request.client.host if request.client else ""


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class GuardedRoute(APIRoute):
    """A route behind the gate. One that does not name its action cannot be made."""

    def get_route_handler(self) -> Handler:
        action = Action((self.openapi_extra or {}).get(ACTION, f"none, at {self.path}"))
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            gate, threads = gate_of(request)
            if Role.ANYBODY in RULES[action].roles:  # nothing to look up
                gate.admit(request, action)
            else:
                await threads.read(lambda: gate.admit(request, action))
                _trust(request.scope)
            return await handle(request)

        return guarded


def guarded(app: FastAPI, routes: APIRouter) -> None:
    """Let the application answer these routes, if every one is behind the gate."""
    for route in routes.routes:
        if not isinstance(route, GuardedRoute):
            raise InternalError(f"the route {getattr(route, 'path', route)} has no guard")
    app.include_router(routes)


def gate_of(request: Request) -> tuple[Gate, Threads]:
    edge = request.app.state.edge
    return cast(Gate, edge.gate), cast(Threads, edge.threads)


def visit_of(request: Request) -> Visit:
    """The visit that a route is in."""
    found = request.scope.get(VISIT)
    if not isinstance(found, Visit):
        raise InternalError("a request has come in that no check has passed")
    return found

"""A short way for chunks: they are most of a round's requests, and the framework's own way to
their route is a good part of what a chunk costs.

Only a request that is well formed goes this way, to the same function as otherwise; whatever
is odd about its address takes the long way, and is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from consortium.coordinator.problems import http_refused, refused
from consortium.coordinator.routes_site import send_chunks
from consortium.errors import ConsortiumError

Handler = Callable[[Request], Awaitable[Response]]

_CHUNK = re.compile(r"/v1/uploads/([0-9a-f]{64})")
_OFFSET = re.compile(rb"offset=(0|[1-9][0-9]{0,17})")
_ROUTE = SimpleNamespace(path="/v1/uploads/{digest}")  # what counters and logs call it


def shortcut(scope: Scope) -> Handler | None:
    """How to answer this request, if it is a chunk's."""
    if scope["method"] != "PATCH":
        return None
    place = _CHUNK.fullmatch(scope["path"])
    offset = _OFFSET.fullmatch(scope["query_string"])
    if place is None or offset is None:
        return None
    digest, start = place[1], int(offset[1])
    scope["route"] = _ROUTE

    async def handle(request: Request) -> Response:
        try:
            return await send_chunks(request, digest, start)
        except ConsortiumError as error:
            return await refused(request, error)
        except HTTPException as error:
            return await http_refused(request, error)

    return handle

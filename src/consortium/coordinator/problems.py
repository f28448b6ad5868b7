"""Errors as RFC 9457 `application/problem+json`: the code says what, the status whose fault.

What goes wrong on our side is told without particulars: they are in the log.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from consortium.errors import (
    ConsortiumError,
    Fault,
    InternalError,
    NotEnrolledError,
    RateLimitError,
    StoreFailedError,
    WireError,
)
from consortium.wire.messages import Reply

PROBLEM = "application/problem+json"
RETRY_AFTER_S = 2
_FIRST_SERVER_STATUS = 500
_log = logging.getLogger(__name__)


class Problem(Reply):
    """Why a request was refused."""

    type: str = Field(pattern=r"^urn:consortium:E0[0-9]{3}$")
    title: str
    status: int
    code: str = Field(pattern=r"^E0[0-9]{3}$")
    detail: str
    hint: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


def status_of(error: ConsortiumError) -> int:
    """The HTTP status of an error. A caller's or a peer's fault is never ours."""
    if error.http_status >= _FIRST_SERVER_STATUS and error.fault is not Fault.OURS:
        return WireError.http_status
    return error.http_status


def problem(error: ConsortiumError, status: int | None = None) -> tuple[int, bytes]:
    """Status and body of an error. The same error gives the same bytes."""
    status = status or status_of(error)
    is_ours = status >= _FIRST_SERVER_STATUS
    title = _title(type(error))
    told = {
        "type": f"urn:consortium:{error.code}",
        "title": title,
        "status": status,
        "code": error.code,
        "detail": title if is_ours else error.message,
        "hint": "" if is_ours else error.hint,
    }
    if error.details and not is_ours:
        told["details"] = error.details
    return status, json.dumps(told, ensure_ascii=False).encode()


def refusal(error: ConsortiumError, status: int | None = None, **headers: str) -> Response:
    """The answer that tells an error."""
    status, body = problem(error, status)
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(error, StoreFailedError):
        told["retry-after"] = str(RETRY_AFTER_S)
    if isinstance(error, RateLimitError):
        told["retry-after"] = str(error.details.get("retry_after_s", RETRY_AFTER_S))
    if isinstance(error, NotEnrolledError):
        told["www-authenticate"] = "Bearer"
    return Response(body, status, told, PROBLEM)


def unexpected(error: Exception) -> Response:
    """Of what should not happen, the log has everything and the answer nothing."""
    _log.error("a request failed", exc_info=error, extra={"code": InternalError.code})
    return refusal(InternalError("unexpected"))


def route_of(scope: Scope) -> str:
    """The template of a request's route: what is in its place is not for logs and counters."""
    return getattr(scope.get("route"), "path", "none")


def add_handlers(app: FastAPI) -> None:
    """Let every error of a route be a problem."""
    app.add_exception_handler(ConsortiumError, refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, http_refused)


async def refused(request: Request, error: Exception) -> Response:
    """What a route raises on purpose."""
    assert isinstance(error, ConsortiumError)
    told = refusal(error)
    is_ours = told.status_code >= _FIRST_SERVER_STATUS
    _log.log(
        logging.ERROR if is_ours else logging.INFO,
        "refused: %s",
        error.message,
        extra={
            "code": error.code,
            "status": told.status_code,
            "method": request.method,
            "route": route_of(request.scope),
        },
    )
    return told


async def _invalid(_: Request, error: Exception) -> Response:
    """A part of the path or the query is not what it must be. Its value is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return refusal(WireError(f"{place}: {first['msg']}"), 422)


async def http_refused(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown routes, wrong methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return refusal(WireError("there is nothing at this address", hint=_SEE), 404)
    if error.status_code == 405:
        told = WireError(f"{request.method} cannot be used here", hint=_SEE)
        return refusal(told, 405, **dict(error.headers or {}))
    return refusal(WireError(str(error.detail)), error.status_code, **dict(error.headers or {}))


_SEE = "GET /openapi.json lists what there is"


def _title(kind: type[ConsortiumError]) -> str:
    """The first sentence of what the error means."""
    text = " ".join((kind.__doc__ or "").split())
    return text.split(". ")[0].split(": ")[0].rstrip(".")

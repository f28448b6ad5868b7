"""The routes as OpenAPI tells them: what each does, who shows what, what goes in and out. Bodies
are read by our own strict reader, so they are declared here and not found out."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from consortium.coordinator.access import RULES, Action, Role
from consortium.coordinator.problems import PROBLEM, Problem
from consortium.wire.messages import (
    Ask,
    ClientRegister,
    Enrol,
    FailureNote,
    Invite,
    Listens,
    NewToken,
    Renew,
    Report,
    ScoreNote,
    ServerStart,
    Submission,
)
from consortium.wire.secret_sum import AnswerNote, ConsentNote, KeysNote, SharesNote
from consortium.wire.signing import AUDIENCE, DIGEST, NONCE, ROUND, SIGNATURE, SITE

Body = type[BaseModel] | Literal["bytes"] | None
Answer = type[BaseModel] | Literal["file", "text", "pem", "view", "views"]

_REF = "#/components/schemas/{model}"
_OCTETS = "application/octet-stream"
ACTION = "x-action"  # which action of `access` a route is


_BODIES: tuple[type[BaseModel], ...] = (
    AnswerNote,
    ConsentNote,
    Ask,
    ClientRegister,
    Enrol,
    FailureNote,
    Invite,
    KeysNote,
    Listens,
    NewToken,
    Problem,
    Renew,
    Report,
    ScoreNote,
    ServerStart,
    SharesNote,
    Submission,
)
_HEADERS = {
    SITE: "the site's id",
    ROUND: "the round that this is about; 0: none",
    NONCE: "128 random bits, the same when the same request is sent again",
    AUDIENCE: "the coordinator's id",
    DIGEST: "SHA-256 of the body, in hexadecimal",
}
_SCHEMES = {
    "site": {
        "type": "apiKey",
        "in": "header",
        "name": SIGNATURE,
        "description": "Ed25519, base64, over the request: docs/spec/wire.md",
    },
    "certificate": {"type": "mutualTLS", "description": "the site's, for the key that signs"},
    "operator": {"type": "http", "scheme": "bearer"},
}


def declared(action: Action, body: Body, answer: Answer) -> dict[str, Any]:
    """What a route is told with: its action first, which says who must show what."""
    roles = RULES[action].roles
    extra: dict[str, Any] = {ACTION: action.value}
    if Role.ANYBODY in roles:
        extra["security"] = []
    elif Role.SITE in roles:
        extra["security"] = [{"site": [], "certificate": []}]
        extra["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in _HEADERS]
    else:
        extra["security"] = [{"operator": []}]
    return _route(body, answer, extra)


def _route(body: Body, answer: Answer, extra: dict[str, Any]) -> dict[str, Any]:
    if body is not None:
        extra["requestBody"] = {"required": True, "content": _content(body)}
    refused = {PROBLEM: {"schema": {"$ref": _REF.format(model=Problem.__name__)}}}
    responses: dict[int | str, dict[str, Any]] = {
        "4XX": {"description": "refused", "content": refused},
        "5XX": {"description": "the coordinator has a trouble of its own", "content": refused},
    }
    model: object = None
    if isinstance(answer, type):
        model = answer
    elif answer == "view":
        model = dict[str, Any]
    elif answer == "views":
        model = list[dict[str, Any]]
    elif answer == "file":
        responses |= {200: _bytes("all bytes"), 206: _bytes("the range that was asked for")}
    else:
        kind = "text/plain" if answer == "text" else "application/x-pem-file"
        text = {"description": "text", "content": {kind: {"schema": {"type": "string"}}}}
        responses[200] = text
    told = {"response_model": model, "responses": responses, "openapi_extra": extra}
    return told if model is not None else told | {"response_class": Response}  # it is not JSON


def _content(body: type[BaseModel] | Literal["bytes"]) -> dict[str, Any]:
    if body == "bytes":
        return {_OCTETS: {"schema": {"type": "string", "format": "binary"}}}
    assert isinstance(body, type)
    return {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}}


def _bytes(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "headers": {"ETag": {"schema": {"type": "string"}, "description": "the digest"}},
        "content": {_OCTETS: {"schema": {"type": "string", "format": "binary"}}},
    }


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole document."""
    told = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = models_json_schema([(kind, "validation") for kind in _BODIES], ref_template=_REF)
    parts = told.setdefault("components", {})
    parts.setdefault("schemas", {}).update(schemas[1]["$defs"])
    parts["securitySchemes"] = _SCHEMES
    parts["parameters"] = {
        name: {
            "name": name,
            "in": "header",
            "required": True,
            "description": meaning,
            "schema": {"type": "string"},
        }
        for name, meaning in _HEADERS.items()
    }
    return told

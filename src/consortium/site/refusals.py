"""What a coordinator refuses, or the network breaks, as the errors that they mean."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx2
from pydantic import Field

from consortium.errors import (
    CertificateError,
    ConsortiumError,
    NotApprovedError,
    PolicyError,
    RestoredBackupError,
    UnreachableError,
    UsageError,
    WireError,
    WitnessError,
    every_error,
)
from consortium.wire.messages import MAX_JSON_BYTES, Message, read_body

_LATER = frozenset({429, 502, 503, 504})  # what may go well the next time
# What a site finds out by itself. A coordinator that says so proves nothing, and must not be
# able to stop an agent with it.
_LOCAL_ONLY = (RestoredBackupError, WitnessError, NotApprovedError, PolicyError)
_MOST_SHOWN = 500  # characters of what a coordinator says of its refusal


class _Problem(Message):
    """RFC 9457, with our code."""

    model_config = Message.model_config | {"extra": "ignore"}
    code: str
    detail: str = ""
    hint: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


def read_all(response: httpx2.Response) -> bytes:
    """The body, which is small."""
    parts, size = [], 0
    for part in response.iter_raw():
        size += len(part)
        if size > MAX_JSON_BYTES:
            raise WireError("the coordinator's answer is too long")
        parts.append(part)
    return b"".join(parts)


@cache
def _kinds() -> dict[str, type[ConsortiumError]]:
    return {kind.code: kind for kind in every_error()}


def refusal(status: int, body: bytes) -> ConsortiumError:
    """What the coordinator says, as the error that it means."""
    try:
        problem = read_body(_Problem, body)
    except WireError:
        problem = _Problem(code="", detail=f"status {status}")
    told = printable(problem.detail)
    if status in _LATER:
        return UnreachableError(f"the coordinator cannot answer now: {told}")
    kind = _kinds().get(problem.code)
    if kind is None or issubclass(kind, _LOCAL_ONLY):
        return WireError(f"the coordinator refuses: {told}", hint=printable(problem.hint))
    error = kind(told, hint=printable(problem.hint))
    error.details = dict(problem.details)
    return error


def printable(text: str) -> str:
    """A text from outside as it may stand in a terminal."""
    return "".join(letter for letter in text if letter.isprintable())[:_MOST_SHOWN]


@contextmanager
def network_errors() -> Iterator[None]:
    """Whatever happens on the way, as one of ours."""
    try:
        yield
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
        raise UsageError("the coordinator's address is not an https address") from None
    except httpx2.HTTPError as error:
        refused = _certificate_refusal(error)
        if refused is not None:
            raise refused from None
        what = str(error) or type(error).__name__
        raise UnreachableError(f"the coordinator does not answer: {what}") from None


def _certificate_refusal(error: BaseException) -> CertificateError | None:
    """Whether one side did not accept the other's certificate: no retry mends that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = f"{cause.verify_message}".lower() or "it does not verify"
            return CertificateError(f"the coordinator's certificate is refused: {why}")
        reason = getattr(cause, "reason", None) if isinstance(cause, ssl.SSLError) else None
        if reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
            return CertificateError("the coordinator refuses this site's certificate")
        cause = cause.__cause__ or cause.__context__
    return None

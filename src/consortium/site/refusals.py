"""What a coordinator refuses, or the network breaks, as the errors that they mean."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.client import (
    BadStatusLine,
    HTTPException,
    IncompleteRead,
    InvalidURL,
    RemoteDisconnected,
    UnknownProtocol,
)
from typing import Any

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
from consortium.wire.messages import Message, read_body

_LATER = frozenset({408, 429, 502, 503, 504})  # what may go well the next time
# What a site finds out by itself. A coordinator that says so proves nothing, and must not be
# able to stop an agent with it.
_LOCAL_ONLY = (RestoredBackupError, WitnessError, NotApprovedError, PolicyError)
_MOST_SHOWN = 500  # characters of what a coordinator says of its refusal
NETWORK_ERRORS = (OSError, HTTPException)  # what http.client raises when the line fails


class _Problem(Message):
    """RFC 9457, with our code."""

    model_config = Message.model_config | {"extra": "ignore"}
    code: str
    detail: str = ""
    hint: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


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
        later = UnreachableError(
            f"the coordinator cannot answer now: {told}",
            hint="it is there, but busy or not ready: try again in a moment",
        )
        later.details = {"status": status}
        return later
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
    """Whatever happens on the way, as one of ours. Only for what is said on the line: whoever
    writes a file inside would be told of a coordinator that does not answer."""
    try:
        yield
    except InvalidURL:
        raise UsageError("the coordinator's address is not an https address") from None
    except NETWORK_ERRORS as error:  # before ValueError: a refused certificate is both
        raise network_error(error) from None
    except ValueError:
        raise UsageError("this request has something in it that HTTP does not allow") from None


def network_error(error: OSError | HTTPException) -> ConsortiumError:
    """What a failure of the line means."""
    if isinstance(error, ssl.SSLError):
        refused = _certificate_refusal(error)
        if refused is not None:
            return refused
    return UnreachableError(f"the coordinator does not answer: {_what(error)}")


def _what(error: OSError | HTTPException) -> str:
    match error:
        case IncompleteRead():
            return "it hung up in the middle of an answer"
        case RemoteDisconnected() | ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return "it hung up"
        case BadStatusLine() | UnknownProtocol():  # their texts are whatever came
            return "what it says is not HTTP"
        case TimeoutError():
            return "timed out"
        case _:
            return printable(str(error)) or type(error).__name__


def _certificate_refusal(error: ssl.SSLError) -> CertificateError | None:
    """Whether one side did not accept the other's certificate: no retry mends that."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"{error.verify_message}".lower() or "it does not verify"
        return CertificateError(f"the coordinator's certificate is refused: {why}")
    if error.reason and ("CERTIFICATE" in error.reason or "UNKNOWN_CA" in error.reason):
        return CertificateError("the coordinator refuses this site's certificate")
    return None

"""A site's duty as signed text: what the coordinator asks, so that it cannot deny it.

The text is JSON with sorted keys; the signature is the log key's over a context string and
the text. A site verifies it before its machine is told anything.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from consortium.core import duties as d
from consortium.core.ids import Digest, Seat
from consortium.crypto.recipes import SIGNATURE_BYTES, SigningKey, verify
from consortium.errors import SignatureError, WireError
from consortium.plan.values import Plan
from consortium.wire.messages import Count, Hex16, Hex32, Message, Signature, read_body

_CONTEXT = b"consortium/invitation/v1\n"


class _Common(Message):
    federation: Hex16
    site: Hex16
    round: Count
    seat: Annotated[int, Field(ge=1, lt=1 << 62)]
    base: Hex32
    deadline_ms: Count


class _Train(_Common):
    """`requirements`, `epochs` and `batch_size` stand in the plan too; a site that finds them
    otherwise there refuses."""

    kind: Literal["train"] = "train"
    server_state: Hex32 | None
    plan: Hex32
    task: Hex32
    is_urgent: bool
    requirements: list[str]
    epochs: Count
    batch_size: Count


class _Evaluate(_Common):
    kind: Literal["evaluate"] = "evaluate"
    model: Hex32
    base_round: Count


class _Kind(Message):
    model_config = Message.model_config | {"extra": "ignore"}
    kind: Literal["train", "evaluate"]


@dataclass(frozen=True, slots=True)
class Invitation:
    """A verified duty, and whom it was for."""

    federation: str
    site: str
    duty: d.SiteDuty
    requirements: tuple[str, ...] = ()
    epochs: int = 0
    batch_size: int = 0


def sign_duty(
    federation: str, site: str, duty: d.SiteDuty, plan: Plan, key: SigningKey
) -> Signature:
    """The duty as the coordinator signs it."""
    whom: dict[str, Any] = {"federation": federation, "site": site}
    whom |= {"round": duty.round, "seat": int(duty.seat)}
    whom |= {"base": duty.base.hex(), "deadline_ms": duty.deadline_ms}
    body: _Train | _Evaluate
    if isinstance(duty, d.Train):
        state = duty.server_state
        body = _Train(
            **whom,
            server_state=None if state is None else state.hex(),
            plan=duty.plan.hex(),
            task=duty.task.hex(),
            is_urgent=duty.is_urgent,
            requirements=list(plan.selection.require),
            epochs=plan.training.epochs,
            batch_size=plan.training.batch_size,
        )
    else:
        body = _Evaluate(**whom, model=duty.model.hex(), base_round=duty.base_round)
    text = json.dumps(body.model_dump(), sort_keys=True, separators=(",", ":"))
    signed = key.sign(_CONTEXT + text.encode())
    return Signature(text=text, signature=base64.b64encode(signed).decode())


def open_invitation(signed: Signature, log_keys: list[bytes]) -> Invitation:
    """The duty in an invitation that one of these keys signed; raises otherwise."""
    try:
        raw = base64.b64decode(signed.signature, validate=True)
    except (binascii.Error, ValueError):
        raise WireError("an invitation's signature is malformed") from None
    if len(raw) != SIGNATURE_BYTES or not _is_signed(signed.text.encode(), raw, log_keys):
        raise SignatureError("the invitation is not signed by the coordinator's key")
    data = signed.text.encode()
    if read_body(_Kind, data).kind == "train":
        return _train(read_body(_Train, data))
    return _evaluate(read_body(_Evaluate, data))


def _is_signed(text: bytes, signature: bytes, log_keys: list[bytes]) -> bool:
    for key in log_keys:
        try:
            verify(key, _CONTEXT + text, signature)
        except SignatureError:
            continue
        return True
    return False


def _train(body: _Train) -> Invitation:
    duty = d.Train(
        body.round,
        Seat(body.seat),
        _digest(body.base),
        None if body.server_state is None else _digest(body.server_state),
        _digest(body.plan),
        _digest(body.task),
        body.deadline_ms,
        body.is_urgent,
    )
    return Invitation(
        body.federation,
        body.site,
        duty,
        tuple(body.requirements),
        body.epochs,
        body.batch_size,
    )


def _evaluate(body: _Evaluate) -> Invitation:
    duty = d.Evaluate(
        body.round,
        Seat(body.seat),
        _digest(body.model),
        _digest(body.base),
        body.base_round,
        body.deadline_ms,
    )
    return Invitation(body.federation, body.site, duty)


def _digest(text: str) -> Digest:
    return Digest(bytes.fromhex(text))

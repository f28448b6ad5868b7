"""A site's duty as signed text: what the coordinator asks, so that it cannot deny it.

The text is JSON with sorted keys; the signature is the log key's over a context string and
the text. A site verifies it before its machine is told anything.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
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
    deadline_ms: Count


class _Ground(_Common):
    """`requirements`, `epochs` and `batch_size` stand in the plan too; a site that finds them
    otherwise there refuses."""

    base: Hex32
    server_state: Hex32 | None
    plan: Hex32
    task: Hex32
    requirements: list[str]
    epochs: Count
    batch_size: Count


class _Train(_Ground):
    kind: Literal["train"] = "train"
    is_urgent: bool


class _Mask(_Ground):
    """To train in a round whose sum is secret, once a site has shared its seeds."""

    kind: Literal["mask"] = "mask"
    is_urgent: bool
    sharing: Hex32


class _Join(_Ground):
    kind: Literal["join"] = "join"


class _Share(_Common):
    kind: Literal["share"] = "share"
    session: Hex32


class _Agree(_Common):
    kind: Literal["agree"] = "agree"
    split: Hex32


class _Unmask(_Common):
    kind: Literal["unmask"] = "unmask"
    split: Hex32


class _Evaluate(_Common):
    kind: Literal["evaluate"] = "evaluate"
    base: Hex32
    model: Hex32
    base_round: Count


class _Kind(Message):
    model_config = Message.model_config | {"extra": "ignore"}
    kind: Literal["train", "mask", "join", "share", "agree", "unmask", "evaluate"]


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
    whom |= {"round": duty.round, "seat": int(duty.seat), "deadline_ms": duty.deadline_ms}
    body = _body(whom, duty, plan)
    text = json.dumps(body.model_dump(), sort_keys=True, separators=(",", ":"))
    signed = key.sign(_CONTEXT + text.encode())
    return Signature(text=text, signature=base64.b64encode(signed).decode())


def _body(whom: dict[str, Any], duty: d.SiteDuty, plan: Plan) -> Message:
    match duty:
        case d.Share():
            return _Share(**whom, session=duty.session.hex())
        case d.Agree():
            return _Agree(**whom, split=duty.split.hex())
        case d.Unmask():
            return _Unmask(**whom, split=duty.split.hex())
        case d.Evaluate():
            base, model = duty.base.hex(), duty.model.hex()
            return _Evaluate(**whom, base=base, model=model, base_round=duty.base_round)
        case d.JoinSum():
            return _Join(**whom, **_ground(duty, plan))
        case d.Train():
            ground = {**_ground(duty, plan), "is_urgent": duty.is_urgent}
            if duty.sharing is None:
                return _Train(**whom, **ground)
            return _Mask(**whom, **ground, sharing=duty.sharing.hex())


def _ground(duty: d.Invitation, plan: Plan) -> dict[str, Any]:
    state = duty.server_state
    return {
        "base": duty.base.hex(),
        "server_state": None if state is None else state.hex(),
        "plan": duty.plan.hex(),
        "task": duty.task.hex(),
        "requirements": list(plan.selection.require),
        "epochs": plan.training.epochs,
        "batch_size": plan.training.batch_size,
    }


def open_invitation(signed: Signature, log_keys: list[bytes]) -> Invitation:
    """The duty in an invitation that one of these keys signed; raises otherwise."""
    try:
        raw = base64.b64decode(signed.signature, validate=True)
    except (binascii.Error, ValueError):
        raise WireError("an invitation's signature is malformed") from None
    if len(raw) != SIGNATURE_BYTES or not _is_signed(signed.text.encode(), raw, log_keys):
        raise SignatureError("the invitation is not signed by the coordinator's key")
    data = signed.text.encode()
    kind = read_body(_Kind, data).kind
    return _READERS[kind](data)


def _is_signed(text: bytes, signature: bytes, log_keys: list[bytes]) -> bool:
    for key in log_keys:
        try:
            verify(key, _CONTEXT + text, signature)
        except SignatureError:
            continue
        return True
    return False


def _train(data: bytes) -> Invitation:
    body = read_body(_Train, data)
    return _to_train(body, d.Train(*_asked(body), body.deadline_ms, body.is_urgent))


def _mask(data: bytes) -> Invitation:
    body = read_body(_Mask, data)
    sharing = _digest(body.sharing)
    duty = d.Train(*_asked(body), body.deadline_ms, body.is_urgent, sharing)
    return _to_train(body, duty)


def _join(data: bytes) -> Invitation:
    body = read_body(_Join, data)
    return _to_train(body, d.JoinSum(*_asked(body), body.deadline_ms))


def _share(data: bytes) -> Invitation:
    body = read_body(_Share, data)
    duty = d.Share(*_place(body), _digest(body.session), body.deadline_ms)
    return Invitation(body.federation, body.site, duty)


def _agree(data: bytes) -> Invitation:
    body = read_body(_Agree, data)
    duty = d.Agree(*_place(body), _digest(body.split), body.deadline_ms)
    return Invitation(body.federation, body.site, duty)


def _unmask(data: bytes) -> Invitation:
    body = read_body(_Unmask, data)
    duty = d.Unmask(*_place(body), _digest(body.split), body.deadline_ms)
    return Invitation(body.federation, body.site, duty)


def _place(body: _Common) -> tuple[int, Seat]:
    return body.round, Seat(body.seat)


def _asked(body: _Ground) -> tuple[int, Seat, Digest, Digest | None, Digest, Digest]:
    state = None if body.server_state is None else _digest(body.server_state)
    models = _digest(body.base), state
    return (*_place(body), *models, _digest(body.plan), _digest(body.task))


def _to_train(body: _Ground, duty: d.Invitation) -> Invitation:
    told = (tuple(body.requirements), body.epochs, body.batch_size)
    return Invitation(body.federation, body.site, duty, *told)


def _evaluate(data: bytes) -> Invitation:
    body = read_body(_Evaluate, data)
    duty = d.Evaluate(
        *_place(body),
        _digest(body.model),
        _digest(body.base),
        body.base_round,
        body.deadline_ms,
    )
    return Invitation(body.federation, body.site, duty)


def _digest(text: str) -> Digest:
    return Digest(bytes.fromhex(text))


_READERS: dict[str, Callable[[bytes], Invitation]] = {
    "train": _train,
    "mask": _mask,
    "join": _join,
    "share": _share,
    "agree": _agree,
    "unmask": _unmask,
    "evaluate": _evaluate,
}
